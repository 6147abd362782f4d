//! Kernels at regions, by whole daemons: one trip, typed failures, and nobody else suffers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use control::{OpenedRegion, RegionSpec, Reply, Request};
use raas::kernels::{Chain, Consistent, Distinct, Failure, Found, Order, Shuffle, Target};
use raas::{Batch, Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually};

const KEY: RegionKey = RegionKey::new([7; 16]);
const FULL: u8 = 15;

struct Far {
    a: Host,
    b: Host,
    own: Region,
    user: Session,
    other: Region,
}

impl Far {
    fn new() -> Self {
        let (a, b) = (Host::started(), Host::started());
        let (owner, user) = (a.session(), b.session());
        let own = RegionOptions::new().key(KEY).access(FULL.into()).create(&owner, "r", 1 << 20).unwrap();
        let other = Region::open_for(&user, a.address(), "r", KEY, FULL.into()).unwrap();
        Self { a, b, own, user, other }
    }

    /// READs, WRITEs, atomics and kernels that the user's application began.
    fn verbs(&self) -> (u64, u64, u64, u64) {
        self.b
            .stat()
            .apps
            .iter()
            .fold((0, 0, 0, 0), |(r, w, a, k), app| (r + app.reads, w + app.writes, a + app.atomics, k + app.kernels))
    }
}

/// A list of so many nodes [next, key, value], its head at 8.
fn list(region: &Region, nodes: u64) {
    let at = |i: u64| 4096 + i * 4096 % (1 << 19);
    region.store(8, at(0)).unwrap();
    for i in 0..nodes {
        region.store(at(i), if i + 1 < nodes { at(i + 1) } else { 0 }).unwrap();
        region.store(at(i) + 8, i + 1).unwrap();
        region.store(at(i) + 16, (i + 1) * 11).unwrap();
    }
}

fn looping(region: &Region) -> Chain {
    region.store(2048, 2056).unwrap();
    region.store(2056, 2056).unwrap();
    Chain { order: Order::Nth(u64::MAX), ..Chain::list(2048) }
}

fn failure<T: std::fmt::Debug>(result: Result<T, RegionError>) -> Failure {
    match result {
        Err(RegionError::Kernel { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lookup_is_one_trip_whatever_the_length_of_the_chain() {
    bounded(|| {
        let far = Far::new();
        for nodes in [1u64, 4, 16, 64] {
            list(&far.own, nodes);
            let call = Chain::list(8).equal(8, &nodes.to_ne_bytes()).value(16, 8);
            let (r, w, a, k) = far.verbs();
            for region in [&far.other, &far.own] {
                let Found { steps, value, .. } = region.call(&call).unwrap();
                assert_eq!((steps, value), (nodes, (nodes * 11).to_ne_bytes().to_vec()));
            }
            assert_eq!(far.verbs(), (r, w, a, k + 1), "one operation, and none for the owner's");
        }
    });
}

#[test]
fn the_other_built_in_kernels_do_the_same_here_and_there() {
    bounded(|| {
        let far = Far::new();
        let bytes: Vec<u8> = (0..100).collect();
        far.own.write(64, &bytes).unwrap();
        far.own.store(0, Consistent::checksum(&bytes)).unwrap();
        let consistent = Consistent { offset: 64, bytes: 100, checksum_at: 0, tries_max: 9 };
        for i in 0..1000u64 {
            far.own.store(8192 + 8 * i, i % 500).unwrap();
        }
        let distinct = Distinct { offset: 8192, items: 1000, stride: 8, item_bytes: 8, precision: 12, sketch_at: None };
        let targets = (0..4).map(|p| Target { region: p as u32 % 2, offset: (1 << 19) + p * 8192, capacity: 999 });
        let shuffle = Shuffle {
            offset: 8192,
            items: 1000,
            item_bytes: 8,
            key_at: 0,
            shift: 0,
            bits: 2,
            targets: targets.collect(),
        };
        let owner = far.a.session();
        let second = RegionOptions::new().key(KEY).access(FULL.into()).create(&owner, "s", 1 << 20).unwrap();
        let second_far = Region::open_for(&far.user, far.a.address(), "s", KEY, FULL.into()).unwrap();
        let mut found = Vec::new();
        for (region, other) in [(&far.own, &second), (&far.other, &second_far)] {
            second.write(0, &vec![0; 1 << 20]).unwrap();
            assert_eq!(region.call(&consistent).unwrap(), bytes);
            found.push(region.call(&distinct).unwrap());
            assert_eq!(region.call_with(&shuffle, std::slice::from_ref(other)).unwrap(), [250; 4]);
            assert_eq!(second.load((1 << 19) + 8192 + 8 * 249).unwrap() % 4, 1, "partition 1 is in the other region");
        }
        assert_eq!(found[0], found[1]);
        assert!((450..550).contains(&found[0]), "{found:?}");
        let mixed = far.other.call_with(&shuffle, &[second]);
        assert!(matches!(mixed, Err(RegionError::OtherHost { .. })), "{mixed:?}");
    });
}

#[test]
fn each_failure_has_its_values_here_and_there() {
    bounded(|| {
        let far = Far::new();
        let ring = looping(&far.own);
        for region in [&far.own, &far.other] {
            assert_eq!(failure(region.run("rm", b"-rf")), Failure::Unknown { name: "rm".into() });
            let outside = Failure::OutOfBounds { offset: 1 << 40, len: 8, bytes: 1 << 20 };
            assert_eq!(failure(region.call(&Chain::list(1 << 40))), outside);
            assert!(matches!(failure(region.run("chain", b"?")), Failure::BadArguments { .. }));
            assert_eq!(failure(region.call(&ring)), Failure::OutOfFuel { limit: 10_000_000 });
            assert!(matches!(region.run("chain", &[0; 900]), Err(RegionError::Request { .. })));
        }
        let reads = RegionAccess::READ | RegionAccess::EXECUTE;
        let reader = Region::open_for(&far.user, far.a.address(), "r", KEY, reads).unwrap();
        let sketch = Distinct { offset: 0, items: 1, stride: 8, item_bytes: 8, precision: 4, sketch_at: Some(0) };
        assert_eq!(failure(reader.call(&sketch)), Failure::NoRight { right: "write".into() });
        let blind = Region::open(&far.user, far.a.address(), "r", KEY).unwrap();
        assert!(matches!(blind.call(&ring), Err(RegionError::NoAccess { .. })));
        // In a batch it is an operation as others are.
        let mut batch = Batch::new();
        let run = batch.run_kernel(&far.other, "rm", b"").unwrap();
        let after = batch.read(&far.other, 0, 8);
        batch.fence();
        let ended = batch.run().unwrap();
        assert!(matches!(ended.error(run), Some(RegionError::Kernel { .. })));
        assert!(matches!(ended.error(after), None | Some(RegionError::NotDone { .. })));
    });
}

#[test]
fn a_revoke_does_not_wait_for_a_kernel_that_loops() {
    bounded(|| {
        let far = Far::new();
        let ring = looping(&far.own);
        std::thread::scope(|scope| {
            let looping = || loop {
                match far.other.call(&ring) {
                    Err(RegionError::Kernel { failure: Failure::OutOfFuel { .. }, .. }) => {}
                    Err(error) => return error,
                    Ok(found) => panic!("{found:?}"),
                }
            };
            let loops = [scope.spawn(looping), scope.spawn(looping)];
            eventually("a kernel runs", || far.a.counter("kernel_fuel") > 0);
            assert_eq!(far.own.revoke(None).unwrap(), 2);
            for looping in loops {
                let error = looping.join().unwrap();
                let is_revoked = matches!(
                    error,
                    RegionError::Revoked { .. } | RegionError::Kernel { failure: Failure::Revoked, .. }
                );
                assert!(is_revoked, "{error}");
            }
        });
        far.own.store(0, 1).unwrap();
    });
}

/// Another tenant's operations, counted for a while, with and without a program that asks for endless kernels.
#[test]
fn a_kernel_that_loops_leaves_others_their_throughput() {
    bounded(|| {
        let far = Far::new();
        let ring = looping(&far.own);
        let other_user = far.b.session();
        let victim = Region::open_for(&other_user, far.a.address(), "r", KEY, FULL.into()).unwrap();
        list(&far.own, 4);
        let call = Chain::list(8).equal(8, &4u64.to_ne_bytes());
        let count = || {
            let (begin, mut done) = (Instant::now(), 0u64);
            while begin.elapsed() < Duration::from_millis(400) {
                victim.load(8).unwrap();
                victim.call(&call).unwrap();
                done += 1;
            }
            done
        };
        let (is_over, looped) = (AtomicBool::new(false), AtomicU64::new(0));
        let alone = count();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    assert!(matches!(failure(far.other.call(&ring)), Failure::OutOfFuel { .. }));
                    looped.fetch_add(1, Ordering::SeqCst);
                }
            });
            // The demand is half. The machine may be busy with something else for a while, so the margin is wide, and
            // one turn of several is enough; who is left nothing has none.
            eventually("others have their part", || {
                let beside = count();
                println!("{beside} beside a kernel that loops, {alone} alone: {:.2}", beside as f64 / alone as f64);
                beside * 10 > alone && looped.load(Ordering::SeqCst) > 0
            });
            is_over.store(true, Ordering::SeqCst);
        });
    });
}

/// Adds its argument to the word at 64 once, and answers what was there.
const ADDER: &str = r#"(module
    (import "region" "fetch_add" (func $add (param i32 i64 i64) (result i64)))
    (import "region" "args" (func $args (param i32 i32) (result i32)))
    (import "region" "answer" (func $answer (param i32 i32)))
    (memory (export "memory") 1)
    (func (export "run")
        (drop (call $args (i32.const 0) (i32.const 8)))
        (i64.store (i32.const 8) (call $add (i32.const 0) (i64.const 64) (i64.load (i32.const 0))))
        (call $answer (i32.const 8) (i32.const 8))))"#;

#[test]
fn an_owner_installs_kernels_that_others_run() {
    bounded(|| {
        let far = Far::new();
        let adder = wat::parse_str(ADDER).unwrap();
        assert_eq!(failure(far.other.run("add", &[])), Failure::Unknown { name: "add".into() });
        far.own.install_kernel("add", &adder).unwrap();
        far.own.store(64, 40).unwrap();
        for (n, before) in [(2u64, 40u64), (3, 42)] {
            assert_eq!(far.other.run("add", &n.to_ne_bytes()).unwrap(), before.to_ne_bytes());
        }
        assert_eq!(far.own.load(64).unwrap(), 45);
        // One of the same name is replaced; what does not end, ends with its fuel.
        let looping = r#"(module (memory (export "memory") 1) (func (export "run") (loop $l (br $l))))"#;
        far.own.install_kernel("add", &wat::parse_str(looping).unwrap()).unwrap();
        assert_eq!(failure(far.other.run("add", &[])), Failure::OutOfFuel { limit: 10_000_000 });
        // Who may not, and what cannot be.
        assert!(matches!(far.other.install_kernel("mine", &adder), Err(RegionError::NotOwner { .. })));
        let refused = |name: &str, module: &[u8]| {
            let error = far.own.install_kernel(name, module).unwrap_err();
            error.refusal().unwrap_or_else(|| panic!("{error}")).clone()
        };
        assert!(matches!(refused("bad", b"\0asm"), RegionRefusal::BadKernel { .. }));
        assert!(matches!(refused("long", &[0; 50_000]), RegionRefusal::BadKernel { .. }));
        assert!(matches!(refused("chain", &adder), RegionRefusal::TooMany { .. }));
        assert!(matches!(far.own.install_kernel("", &adder), Err(RegionError::Request { .. })));
        // A revoke leaves them at the region.
        far.own.revoke(None).unwrap();
        let again = Region::open_for(&far.user, far.a.address(), "r", KEY, FULL.into()).unwrap();
        assert_eq!(failure(again.run("add", &[])), Failure::OutOfFuel { limit: 10_000_000 });
    });
}

/// A module that takes its time to read: as long as may be, and all of it code.
fn long_module() -> Vec<u8> {
    let steps = "(i64.store (i32.const 0) (i64.const 1))".repeat(5_000);
    let text = format!(r#"(module (memory (export "memory") 1) (func (export "run") {steps}))"#);
    wat::parse_str(text).unwrap()
}

#[test]
fn a_kernel_is_not_kept_for_a_region_that_ended_while_it_was_read() {
    bounded(|| {
        let host = Host::started();
        let mut owner = RawClient::attached(&host);
        let module = long_module();
        // Now and then the module is read before the daemon comes to the next message. A daemon that keeps it goes on until
        // the watchdog ends it.
        let was_refused = (1_u64..).any(|n| {
            let (access, name) = (FULL.into(), format!("r{n}"));
            let (key, huge_pages, outlives, other_users, single_writer) = (KEY, false, false, false, false);
            let spec = RegionSpec { name, bytes: 8, access, key, huge_pages, outlives, other_users, single_writer };
            owner.send(&Request::RegionCreate { request: 2 * n, spec });
            let Some(Reply::RegionOpened { result: Ok(OpenedRegion { open, .. }), .. }) = owner.next() else {
                panic!("no region")
            };
            let (kernel, module) = ("long".into(), module.clone());
            owner.send(&Request::RegionInstall { request: 2 * n + 1, open, kernel, module });
            owner.send(&Request::RegionClose { open, delete: true });
            let Some(Reply::RegionInstalled { result, .. }) = owner.next() else { panic!("no answer") };
            result == Err(RegionRefusal::Unknown)
        });
        assert!(was_refused);
    });
}
