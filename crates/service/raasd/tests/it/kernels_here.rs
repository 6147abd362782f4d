//! User kernels that programs of the region's own host have run: in the daemon, within the bounds of all others.

use std::sync::atomic::{AtomicBool, Ordering};

use control::{KernelEnd, OpenedRegion, Reply, Request};
use raas::kernels::{Chain, Failure};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::control_socket::RawClient;
use crate::hosts::{Host, bounded, eventually};

const KEY: RegionKey = RegionKey::new([7; 16]);
const FULL: u8 = 15;
const BYTES: u64 = 1 << 16;

struct Here {
    host: Host,
    own: Region,
    user: Session,
    /// The other program's handle.
    other: Region,
}

impl Here {
    fn new() -> Self {
        let host = Host::started();
        let (owner, user) = (host.session(), host.session());
        let own = RegionOptions::new().key(KEY).access(FULL.into()).create(&owner, "r", BYTES).unwrap();
        let other = Region::open_for(&user, host.address(), "r", KEY, FULL.into()).unwrap();
        Self { host, own, user, other }
    }

    fn install(&self, name: &str, text: &str) {
        self.own.install_kernel(name, &wat::parse_str(text).unwrap()).unwrap();
    }

    fn open(&self, access: RegionAccess) -> Region {
        Region::open_for(&self.user, self.host.address(), "r", KEY, access).unwrap()
    }
}

/// Adds its argument to the word at 64 of the last region of the run, and answers what was there.
fn adder(region: u32) -> String {
    format!(
        r#"(module
    (import "region" "fetch_add" (func $add (param i32 i64 i64) (result i64)))
    (import "region" "args" (func $args (param i32 i32) (result i32)))
    (import "region" "answer" (func $answer (param i32 i32)))
    (memory (export "memory") 1)
    (func (export "run")
        (drop (call $args (i32.const 0) (i32.const 8)))
        (i64.store (i32.const 8) (call $add (i32.const {region}) (i64.const 64) (i64.load (i32.const 0))))
        (call $answer (i32.const 8) (i32.const 8))))"#
    )
}

const LOOP: &str = r#"(module (memory (export "memory") 1) (func (export "run") (loop $l (br $l))))"#;
const TRAP: &str = r#"(module (memory (export "memory") 1) (func (export "run") unreachable))"#;
const OUTSIDE: &str = r#"(module
    (import "region" "store" (func $store (param i32 i64 i64)))
    (memory (export "memory") 1)
    (func (export "run") (call $store (i32.const 0) (i64.const 65536) (i64.const 1))))"#;
/// Writes 7 to the word at 8.
const WRITER: &str = r#"(module
    (import "region" "store" (func $store (param i32 i64 i64)))
    (memory (export "memory") 1)
    (func (export "run") (call $store (i32.const 0) (i64.const 8) (i64.const 7))))"#;

fn failure<T: std::fmt::Debug>(result: Result<T, RegionError>) -> Failure {
    match result {
        Err(RegionError::Kernel { failure, .. }) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_owner_installed_runs_for_programs_of_its_host() {
    bounded(|| {
        let here = Here::new();
        here.install("add", &adder(0));
        here.install("add to the next", &adder(1));
        here.own.store(64, 40).unwrap();
        for (region, n, before) in [(&here.other, 2u64, 40u64), (&here.own, 3, 42), (&here.other, 1, 45)] {
            assert_eq!(region.run("add", &n.to_ne_bytes()).unwrap(), before.to_ne_bytes());
        }
        // It is one step with the atomics of programs that have the bytes mapped.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2000 {
                    here.own.fetch_add(64, 1).unwrap();
                }
            });
            for _ in 0..50 {
                here.other.run("add", &1u64.to_ne_bytes()).unwrap();
            }
        });
        assert_eq!(here.own.load(64).unwrap(), 46 + 2050);
        // With another region of the host, which brings what its handle allows.
        let owner = here.host.session();
        let second = RegionOptions::new().key(KEY).create(&owner, "s", 4096).unwrap();
        second.store(64, 5).unwrap();
        let next = |access| Region::open_for(&here.user, here.host.address(), "s", KEY, access).unwrap();
        let args = 4u64.to_ne_bytes();
        let run = |access| here.other.run_with("add to the next", &args, &[next(access)]);
        assert_eq!(run(RegionAccess::ALL).unwrap(), 5u64.to_ne_bytes());
        assert!(matches!(failure(run(RegionAccess::READ)), Failure::NoRight { .. }));
        assert_eq!(second.load(64).unwrap(), 9);
        // After a revoke they are still there, at the memory that the region moved to.
        here.own.revoke(None).unwrap();
        assert!(matches!(here.other.run("add", &args), Err(RegionError::Revoked { .. })));
        assert_eq!(here.open(FULL.into()).run("add", &args).unwrap(), 2096u64.to_ne_bytes());
        assert_eq!(here.own.load(64).unwrap(), 2100);
    });
}

#[test]
fn a_wrong_kernel_harms_neither_its_caller_nor_the_daemon() {
    bounded(|| {
        let here = Here::new();
        for (name, text) in [("loop", LOOP), ("trap", TRAP), ("outside", OUTSIDE), ("write", WRITER)] {
            here.install(name, text);
        }
        let outside = Failure::OutOfBounds { offset: BYTES, len: 8, bytes: BYTES };
        for region in [&here.own, &here.other] {
            assert_eq!(failure(region.run("loop", &[])), Failure::OutOfFuel { limit: 10_000_000 });
            assert!(matches!(failure(region.run("trap", &[])), Failure::Trap { .. }));
            assert_eq!(failure(region.run("outside", &[])), outside);
            assert_eq!(failure(region.run("rm", b"-rf")), Failure::Unknown { name: "rm".into() });
        }
        // A handle that may not write has no kernel write for it, and one that may not execute has none run.
        let reads = here.open(RegionAccess::READ | RegionAccess::EXECUTE);
        assert_eq!(failure(reads.run("write", &[])), Failure::NoRight { right: "write".into() });
        assert_eq!(here.own.load(8).unwrap(), 0);
        assert!(matches!(here.open(RegionAccess::ALL).run("write", &[]), Err(RegionError::NoAccess { .. })));
        here.other.run("write", &[]).unwrap();
        assert_eq!(here.own.load(8).unwrap(), 7);
        // All of it was run in the daemon, and it is as well as before.
        let run = here.host.counter("kernels_run");
        assert_eq!(run, 10, "four for each of two handles, and two that wrote or tried to");
        assert_eq!(here.other.call(&Chain::list(0)).unwrap().node, None);
        assert_eq!(here.host.counter("kernels_run"), run, "a built-in kernel runs in the program");
    });
}

#[test]
fn a_program_without_manners_gets_no_kernel_run() {
    bounded(|| {
        let here = Here::new();
        here.install("write", WRITER);
        let open = |client: &mut RawClient, access: RegionAccess| {
            let (host, name, key) = (here.host.address(), "r".to_owned(), KEY);
            let open = Request::RegionOpen { request: 1, host, name, key, access, lease: None, leased_lane: false };
            client.send(&open);
            match client.next() {
                Some(Reply::RegionOpened { result: Ok(OpenedRegion { open, .. }), .. }) => open,
                other => panic!("{other:?}"),
            }
        };
        let ask = |client: &mut RawClient, open: u64, others: Vec<u64>| {
            client.send(&Request::RegionRun { request: 2, open, others, bytes: b"\x05write".to_vec() });
            match client.next() {
                Some(Reply::RegionRan { request: 2, result }) => result,
                other => panic!("{other:?}"),
            }
        };
        let (mut one, mut two) = (RawClient::attached(&here.host), RawClient::attached(&here.host));
        let (theirs, reads) = (open(&mut one, FULL.into()), open(&mut two, RegionAccess::READ));
        let denied = RegionRefusal::NoAccess { asked: RegionAccess::EXECUTE, allowed: RegionAccess::READ };
        assert_eq!(ask(&mut two, reads, vec![]), Err(denied));
        assert_eq!(ask(&mut two, theirs, vec![]), Err(RegionRefusal::Unknown), "a handle of another program");
        assert_eq!(ask(&mut one, theirs, vec![reads]), Err(RegionRefusal::Unknown));
        assert_eq!(here.own.load(8).unwrap(), 0);
        assert_eq!(ask(&mut one, theirs, vec![]), Ok(KernelEnd::Answered(vec![])));
        assert_eq!(here.own.load(8).unwrap(), 7);
        // Arguments that no request has room for end the session, and only that one.
        two.send(&Request::RegionRun { request: 3, open: reads, others: vec![], bytes: vec![1; 897] });
        while let Some(reply) = two.next() {
            assert!(matches!(reply, Reply::Detached { .. }), "{reply:?}");
        }
        assert!(ask(&mut one, theirs, vec![]).is_ok());
    });
}

#[test]
fn runs_end_with_the_region_and_with_the_program() {
    bounded(|| {
        let here = Here::new();
        here.install("loop", LOOP);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looping = scope.spawn(|| {
                loop {
                    match here.other.run("loop", &[]) {
                        Err(RegionError::Kernel { failure: Failure::OutOfFuel { .. }, .. }) => {}
                        other => {
                            is_over.store(true, Ordering::SeqCst);
                            return other;
                        }
                    }
                }
            });
            eventually("a kernel runs", || here.host.counter("kernel_fuel") > 0);
            assert_eq!(here.own.revoke(None).unwrap(), 2);
            let error = looping.join().unwrap().unwrap_err();
            let is_revoked =
                matches!(error, RegionError::Revoked { .. } | RegionError::Kernel { failure: Failure::Revoked, .. });
            assert!(is_revoked, "{error}");
        });
        // A program that leaves while its kernels wait.
        let mut client = RawClient::attached(&here.host);
        let (host, name, key, access) = (here.host.address(), "r".to_owned(), KEY, FULL.into());
        client.send(&Request::RegionOpen { request: 1, host, name, key, access, lease: None, leased_lane: false });
        let Some(Reply::RegionOpened { result: Ok(OpenedRegion { open, .. }), .. }) = client.next() else {
            panic!("no region")
        };
        for request in 2..40 {
            client.send(&Request::RegionRun { request, open, others: vec![], bytes: b"\x04loop".to_vec() });
        }
        eventually("they wait", || here.host.counter("kernels_waiting") > 0);
        drop(client);
        eventually("none is left", || here.host.counter("kernels_waiting") == 0);
    });
}

/// Adds 1 to the word at 64, and goes on until its fuel is used up.
const COUNTER: &str = r#"(module
    (import "region" "fetch_add" (func $add (param i32 i64 i64) (result i64)))
    (memory (export "memory") 1)
    (func (export "run") (drop (call $add (i32.const 0) (i64.const 64) (i64.const 1))) (loop $l (br $l))))"#;

#[test]
fn a_run_that_meets_the_death_of_its_daemon_does_not_say_that_nothing_was_done() {
    bounded(|| {
        let mut host = Host::started_patient();
        let (owner, user) = (host.followed(), host.followed());
        let own = RegionOptions::new().key(KEY).access(FULL.into()).create(&owner, "r", BYTES).unwrap();
        let other = Region::open_for(&user, host.address(), "r", KEY, FULL.into()).unwrap();
        let install = || own.install_kernel("count", &wat::parse_str(COUNTER).unwrap());
        install().unwrap();
        let (mut done, mut unknown) = (0, 0);
        for _ in 0..3 {
            let is_over = AtomicBool::new(false);
            let ends = std::thread::scope(|scope| {
                let run = || {
                    let mut ends = Vec::new();
                    while !is_over.load(Ordering::SeqCst) {
                        ends.push(other.run("count", &[]).unwrap_err());
                    }
                    ends
                };
                let running = [scope.spawn(run), scope.spawn(run)];
                let before = own.load(64).unwrap();
                eventually("runs", || own.load(64).unwrap() > before + 1);
                host.hand_over();
                host.start();
                eventually("the region is there again", || install().is_ok());
                is_over.store(true, Ordering::SeqCst);
                running.map(|thread| thread.join().unwrap()).concat()
            });
            for end in &ends {
                match end {
                    RegionError::Kernel { failure: Failure::OutOfFuel { .. }, .. } => done += 1,
                    RegionError::Kernel { failure: Failure::Unknown { .. }, .. } => {}
                    RegionError::DaemonLost { may_have_landed, .. } => unknown += u64::from(*may_have_landed),
                    other => panic!("{other}"),
                }
            }
        }
        let counted = own.load(64).unwrap();
        assert!((done..=done + unknown).contains(&counted), "{counted}, not {done} and up to {unknown} more");
        assert!(unknown > 0, "no run met a death");
    });
}
