//! Kernels at regions of another host: what they answer, whose turn it is, and what becomes of them when something
//! breaks.

use control::RegionAccess;
use kernels::{Call, Chain, Failure, Order, Request, UserKernel};
use shm::{Class, Opcode, OperationStatus, Submission};

use super::fixture::{BYTES, EPOCH, Ended, NUMBER, Use};
use crate::world::{World, addr};

fn using(seed: u64) -> Use {
    Use::of(World::new(2, seed), RegionAccess::ALL | RegionAccess::EXECUTE)
}

fn request(call: &Chain) -> Vec<u8> {
    Request { name: Chain::NAME, args: &call.args() }.to_bytes().unwrap()
}

/// A list of so many nodes [next, key], its head at 0.
fn list(u: &Use, nodes: u64) {
    let at = |i: u64| 4096 + i * 64;
    u.region.write(0, &at(0).to_ne_bytes()).unwrap();
    for i in 0..nodes {
        let next = if i + 1 < nodes { at(i + 1) } else { 0 };
        u.region.write(at(i), &next.to_ne_bytes()).unwrap();
        u.region.write(at(i) + 8, &(i + 1).to_ne_bytes()).unwrap();
    }
}

/// A list that is a ring begins at 2048.
fn ring(u: &Use) -> Chain {
    u.region.write(2048, &2056u64.to_ne_bytes()).unwrap();
    u.region.write(2056, &2056u64.to_ne_bytes()).unwrap();
    Chain { order: Order::Nth(u64::MAX), ..Chain::list(2048) }
}

fn submit(u: &mut Use, bytes: &[u8]) -> u64 {
    let s = u.submission(Opcode::Run, 0, bytes.len() as u32);
    let padded = [bytes, &[0; 8][..bytes.len().wrapping_neg() % 8]].concat();
    u.submit(&s, &padded)
}

fn run(u: &mut Use, bytes: &[u8]) -> Ended {
    let tag = submit(u, bytes);
    u.w.hosts[0].engine.end_sleep();
    u.w.wake();
    u.wait(tag)
}

fn failure(ended: &Ended) -> Failure {
    assert_eq!(ended.status, OperationStatus::KernelFailed, "{ended:?}");
    Failure::parse(&ended.bytes).expect("a failure")
}

#[test]
fn a_chain_of_any_length_is_one_operation() {
    let mut u = using(900);
    for nodes in [1, 4, 16, 64] {
        list(&u, nodes);
        let call = Chain::list(0).at_least(8, nodes).value(8, 8);
        let before = u.w.counter(1, "kernels_run");
        let ended = run(&mut u, &request(&call));
        assert_eq!(ended.status, OperationStatus::Ok);
        let found = Chain::answer(&ended.bytes).unwrap();
        assert_eq!((found.steps, found.value), (nodes, nodes.to_ne_bytes().to_vec()));
        assert_eq!(u.w.counter(1, "kernels_run") - before, 1);
    }
    assert_eq!(u.verbs(), (0, 0, 0), "no verb of another kind");
    let apps = u.w.hosts[0].engine.apps();
    assert_eq!(apps.iter().map(|app| app.kernels).sum::<u64>(), 4);
    assert_eq!(u.posted(), 0);
}

#[test]
fn kernels_are_run_exactly_once_across_resets() {
    const COUNT: u64 = 300;
    for seed in 910..914 {
        let mut u = using(seed);
        u.w.conditions.loss = if seed % 2 == 0 { 30 } else { 0 };
        list(&u, 8);
        let bytes = request(&Chain::list(0).at_least(8, 5).value(8, 8));
        u.w.wake();
        let (mut submitted, mut broken, mut steps) = (0, 0, 0);
        while (u.ended.len() as u64) < COUNT {
            while submitted < COUNT && submitted < u.ended.len() as u64 + 30 {
                submit(&mut u, &bytes);
                submitted += 1;
            }
            u.w.wake();
            u.collect();
            steps += 1;
            assert!(steps < 3_000_000, "{} of {COUNT}: {:?}", u.ended.len(), u.w.hosts[0].engine.totals());
            if broken < 8 && u.ended.len() as u64 > broken * 30 + seed % 7 && steps % 3 == 0 {
                u.break_lane((broken + seed) as usize % 2);
                broken += 1;
            }
            u.w.step();
        }
        assert!(u.w.counter(0, "lane_resets") > 2, "{broken} breaks");
        assert!(u.ended.iter().all(|e| e.status == OperationStatus::Ok && Chain::answer(&e.bytes).is_some()));
        assert_eq!(u.w.counter(1, "kernels_run"), COUNT, "each once");
        assert_eq!((u.w.hosts[0].lane_failures.len(), u.w.counter(0, "violations")), (0, 0));
    }
}

#[test]
fn each_bad_request_has_its_own_failure_and_harms_nobody() {
    let mut u = using(920);
    list(&u, 3);
    let unknown = Request { name: "rm", args: b"-rf" }.to_bytes().unwrap();
    assert_eq!(failure(&run(&mut u, &unknown)), Failure::Unknown { name: "rm".into() });
    assert!(matches!(failure(&run(&mut u, &[])), Failure::BadArguments { .. }));
    assert!(matches!(failure(&run(&mut u, &[0xff; 896])), Failure::BadArguments { .. }));
    let outside = request(&Chain::list(BYTES as u64));
    let bytes = BYTES as u64;
    assert_eq!(failure(&run(&mut u, &outside)), Failure::OutOfBounds { offset: bytes, len: 8, bytes });
    let looping = request(&ring(&u));
    assert!(matches!(failure(&run(&mut u, &looping)), Failure::OutOfFuel { .. }));
    // A region that the program has not open, beside the one that it has.
    let named = [u64::from(u.handle + 1).to_le_bytes().as_slice(), &outside].concat();
    let s = Submission { operand: 1, ..u.submission(Opcode::Run, 0, named.len() as u32) };
    let padded = [named.as_slice(), &[0; 8][..named.len().wrapping_neg() % 8]].concat();
    assert_eq!(u.run(&s, &padded).status, OperationStatus::NoRegion);
    assert_eq!(run(&mut u, &request(&Chain::list(0))).status, OperationStatus::Ok);
    assert_eq!((u.w.hosts[1].lane_failures.len(), u.w.counter(1, "violations")), (0, 0));
    assert_eq!(u.w.counter(1, "kernels_failed"), 5);
    // Without the right nothing is sent.
    let mut u = Use::new(921);
    list(&u, 3);
    assert_eq!(run(&mut u, &request(&Chain::list(0))).status, OperationStatus::Access);
    assert_eq!(u.w.counter(1, "kernels_run"), 0);
}

#[test]
fn other_operations_go_on_beside_a_kernel_that_loops() {
    let mut u = using(930);
    let looping = request(&ring(&u));
    u.read(0, 8);
    let tag = submit(&mut u, &looping);
    u.w.wake();
    let mut reads = 0;
    while u.w.counter(1, "kernels_run") == 0 {
        assert_eq!(u.read(0, 8).status, OperationStatus::Ok);
        reads += 1;
    }
    assert!(matches!(failure(&u.wait(tag)), Failure::OutOfFuel { .. }));
    assert!(reads > 10, "{reads} while the kernel looped");
    assert!(u.w.counter(1, "kernel_fuel") >= 10_000_000);
}

#[test]
fn a_revoke_ends_a_kernel_that_loops() {
    let mut u = using(940);
    let looping = request(&ring(&u));
    u.read(0, 8);
    let (first, second) = (submit(&mut u, &looping), submit(&mut u, &looping));
    u.w.wake();
    while u.w.counter(1, "kernel_fuel") == 0 {
        assert!(u.w.step());
    }
    let spent = u.w.counter(1, "kernel_fuel");
    u.w.hosts[1].engine.halt_region(NUMBER, addr(0));
    u.w.hosts[0].engine.stop_region(addr(1), NUMBER, EPOCH);
    u.w.wake();
    for tag in [first, second] {
        assert_eq!(failure(&u.wait(tag)), Failure::Revoked);
    }
    assert!(u.w.counter(1, "kernel_fuel") - spent < 1_000_000, "they ended long before their fuel");
    assert!(u.is_stopped());
    // A request that was on its way.
    assert_eq!(run(&mut u, &looping).status, OperationStatus::Revoked);
}

#[test]
fn a_run_at_a_region_that_ended_is_told_so_and_not_that_there_is_no_such_kernel() {
    let mut u = using(905);
    let wasm = wat::parse_str(r#"(module (memory (export "memory") 1) (func (export "run")))"#).unwrap();
    assert!(u.w.hosts[1].engine.install_kernel(NUMBER, "own", UserKernel::new(&wasm).unwrap()));
    let request = Request { name: "own", args: &[] }.to_bytes().unwrap();
    assert_eq!(run(&mut u, &request).status, OperationStatus::Ok);
    // The peer has not heard of it yet, and still has the region open.
    u.w.hosts[1].engine.forget_region(NUMBER);
    assert_eq!(failure(&run(&mut u, &request)), Failure::Revoked);
}

#[test]
fn a_program_that_closes_its_queue_leaves_nothing() {
    let mut u = using(950);
    let looping = request(&ring(&u));
    u.read(0, 8);
    let s = Submission { class: Class::Posted, ..u.submission(Opcode::Run, 0, looping.len() as u32) };
    let padded = [looping.as_slice(), &[0; 8][..looping.len().wrapping_neg() % 8]].concat();
    u.submit(&s, &padded);
    u.w.wake();
    while u.w.counter(1, "kernel_fuel") == 0 {
        assert!(u.w.step());
    }
    let app = u.app;
    u.w.kill(0, app);
    u.w.until("the kernel is over", |w| w.counter(1, "kernels_waiting") == 0);
    u.w.settle();
    assert_eq!((u.w.counter(1, "kernels_waiting"), u.w.counter(0, "operations_in_flight")), (0, 0));
    assert_eq!((u.w.hosts[0].lane_failures.len(), u.w.hosts[1].lane_failures.len()), (0, 0));
}
