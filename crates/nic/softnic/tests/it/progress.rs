//! Who makes progress: owners that wait on descriptors, passive targets, and the end of a NIC.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{End, PATIENCE, config, pair, pattern, run};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Progress, SoftNicConfig};
use verbs::*;

fn with_thread() -> SoftNicConfig {
    SoftNicConfig { progress: Progress::Helper, ..config("127.0.0.1") }
}

/// Waits as the trait says an owner does: arm, poll once more, sleep on descriptors and deadline, make progress.
fn wait_for_completions(end: &mut End, want: usize) -> Vec<Completion> {
    let begin = Instant::now();
    let mut all = Vec::new();
    while all.len() < want {
        assert!(begin.elapsed() < PATIENCE, "{} of {want} completions", all.len());
        end.nic.req_notify_cq(end.cq, false).unwrap();
        let came = end.poll();
        if came.is_empty() {
            sleep_once(&end.nic, Duration::from_secs(5));
            end.nic.progress();
        }
        all.extend(came);
    }
    all
}

/// Sleeps until a descriptor is readable, the deadline has passed or `most` is over; says whether one is readable.
fn sleep_once(nic: &softnic::SoftNic, most: Duration) -> bool {
    let mut fds = Vec::new();
    nic.wait_fds(&mut fds);
    assert!(!fds.is_empty());
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let most = nic.deadline().map_or(most, |d| d.min(most));
    let timeout = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

/// Runs `a` and `b` in two threads that both sleep while they wait, with messages to and fro.
fn ping_pong_asleep(config: SoftNicConfig) {
    const ROUNDS: u64 = 200;
    let (mut a, mut b) = pair(config.clone(), config);
    for end in [&mut a, &mut b] {
        for i in 0..ROUNDS {
            end.post_recv(i, 1 << 20, 64);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..ROUNDS {
                a.post(i, SendOp::SendImm(i as u32), 0, 64);
                let done = wait_for_completions(&mut a, 2);
                assert!(done.iter().any(|c| c.imm == Some(i as u32)), "{done:?}");
            }
        });
        scope.spawn(|| {
            let mut echoed = 0;
            while echoed < ROUNDS {
                for c in wait_for_completions(&mut b, 1) {
                    assert_eq!(c.status, Status::Success);
                    if let Some(imm) = c.imm {
                        b.post(u64::from(imm), SendOp::SendImm(imm), 0, 64);
                        echoed += 1;
                    }
                }
            }
            // The last echo may have been acknowledged or not; the owner must not go before it left.
            let begin = Instant::now();
            while b.nic.query_qp(b.qpn).unwrap().sq_outstanding > 0 && begin.elapsed() < Duration::from_secs(2) {
                b.poll();
            }
        });
    });
}

#[test]
fn owners_that_sleep_are_woken_inline() {
    ping_pong_asleep(config("127.0.0.1"));
}

#[test]
fn owners_that_sleep_are_woken_by_the_thread() {
    ping_pong_asleep(with_thread());
}

#[test]
fn a_passive_target_is_served_by_the_thread() {
    // The target's owner never calls anything; READs, WRITEs and atomics are executed nevertheless.
    let (mut a, b) = pair(config("127.0.0.1"), with_thread());
    let data = pattern(9, 1 << 20);
    a.fill(0, &data);
    let (to, word) = (b.remote(0), b.remote(2 << 20));
    a.post(1, SendOp::Write(to), 0, 1 << 20);
    a.post(2, SendOp::Read(to), 1 << 20, 1 << 20);
    for i in 0..100 {
        a.post(3 + i, SendOp::FetchAdd { remote: word, add: 1 }, 0, 8);
    }
    let begin = Instant::now();
    let mut done = Vec::new();
    while done.len() < 102 {
        done.extend(a.poll());
        assert!(begin.elapsed() < PATIENCE, "{} completions", done.len());
    }
    assert!(done.iter().all(|c| c.status == Status::Success));
    assert!(b.bytes(0, 1 << 20) == data && a.bytes(1 << 20, 1 << 20) == data);
    assert_eq!(b.bytes(2 << 20, 8), 100_u64.to_ne_bytes());
}

#[test]
fn a_target_that_looks_at_memory_sees_it_change() {
    // As ib_write_lat does: each side polls its CQ for its own WRITE and then spins on memory.
    const ROUNDS: u8 = 100;
    let (mut a, mut b) = pair(with_thread(), with_thread());
    let stop = AtomicBool::new(false);
    let turn = |me: &mut End, to: RemoteAddr, first: bool| {
        for round in 1..=ROUNDS {
            if !first {
                wait_for_byte(me, round, &stop);
            }
            me.fill(0, &[round]);
            me.post(1, SendOp::Write(to), 0, 1);
            let begin = Instant::now();
            while me.poll().is_empty() {
                assert!(begin.elapsed() < PATIENCE, "no completion in round {round}");
                std::thread::yield_now();
            }
            if first {
                wait_for_byte(me, round, &stop);
            }
        }
    };
    let (at_a, at_b) = (a.remote(8), b.remote(8));
    std::thread::scope(|scope| {
        scope.spawn(|| turn(&mut a, at_b, true));
        scope.spawn(|| turn(&mut b, at_a, false));
    });
}

fn wait_for_byte(me: &End, round: u8, stop: &AtomicBool) {
    let begin = Instant::now();
    while me.bytes(8, 1) != [round] {
        if begin.elapsed() > PATIENCE {
            stop.store(true, Ordering::Relaxed);
        }
        assert!(!stop.load(Ordering::Relaxed), "round {round} did not arrive");
        std::thread::yield_now();
    }
}

#[test]
fn the_descriptor_turns_readable_only_for_armed_queues() {
    let (mut a, mut b) = pair(config("127.0.0.1"), with_thread());
    b.post_recv(1, 0, 8);
    b.post_recv(2, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    run(&mut a, &mut b, 1, 1);
    assert!(!sleep_once(&b.nic, Duration::from_millis(20)), "nothing was armed");
    b.nic.req_notify_cq(b.cq, false).unwrap();
    a.post(2, SendOp::Send, 0, 8);
    assert!(sleep_once(&b.nic, PATIENCE), "the wake-up did not come");
    b.nic.progress();
    assert!(!sleep_once(&b.nic, Duration::from_millis(20)), "still readable after progress");
    run(&mut a, &mut b, 1, 1);
}

#[test]
fn an_owner_that_was_woken_sleeps_again_after_one_look() {
    let (mut a, mut b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    b.post_recv(1, 0, 8);
    b.nic.req_notify_cq(b.cq, false).unwrap();
    a.post(1, SendOp::Send, 0, 8);
    let begin = Instant::now();
    while b.counter("served_send") == 0 {
        assert!(begin.elapsed() < PATIENCE);
        sleep_once(&b.nic, Duration::from_millis(10));
        b.nic.progress();
    }
    assert_eq!(b.poll().len(), 1);
    // Its answer leaves.
    assert_eq!(b.poll().len(), 0);
    assert_ne!(b.nic.deadline(), Some(Duration::ZERO), "nothing is left to look at");
    b.nic.req_notify_cq(b.cq, false).unwrap();
    let looks = b.counter("rx_syscalls");
    b.poll();
    assert_eq!(b.counter("rx_syscalls"), looks, "the descriptor tells what came");
    b.poll();
    assert!(b.counter("rx_syscalls") > looks, "an owner that does not sleep looks");
}

#[test]
fn a_wake_up_is_not_lost_between_two_queues() {
    // Polling one CQ takes the packet that completes another, armed one; the owner must not sleep then.
    for config in [config("127.0.0.1"), with_thread()] {
        let (mut a, mut b) = pair(crate::rig::config("127.0.0.1"), config);
        let other = b.nic.create_cq(16).unwrap();
        b.post_recv(1, 0, 8);
        b.nic.req_notify_cq(b.cq, false).unwrap();
        a.post(1, SendOp::Send, 0, 8);
        let mut none = Vec::new();
        let begin = Instant::now();
        while b.counter("served_send") == 0 {
            assert!(begin.elapsed() < PATIENCE);
            b.nic.poll_cq(other, &mut none, 1).unwrap();
        }
        assert!(none.is_empty());
        let begin = Instant::now();
        while b.nic.deadline() != Some(Duration::ZERO) && !sleep_once(&b.nic, Duration::from_millis(10)) {
            assert!(begin.elapsed() < PATIENCE, "neither deadline nor descriptor ended the sleep");
        }
        b.nic.progress();
        run(&mut a, &mut b, 1, 1);
    }
}

#[test]
fn timers_run_while_the_owner_does_something_else() {
    // The target is connected only after the message was lost at it; the sender's owner makes no call meanwhile.
    let (mut a, mut b) = (End::open(with_thread()), End::open(config("127.0.0.1")));
    let (to_a, to_b) = (a.address_vector(), b.address_vector());
    let (x, y) = (Psn::new(1), Psn::new(2));
    // Long enough away that the thread has nothing to do and sleeps.
    std::thread::sleep(Duration::from_millis(20));
    a.connect(b.qpn, to_b, PathMtu::Mtu1024, x, y);
    let to = b.remote(0);
    a.fill(0, b"once more");
    a.nic.req_notify_cq(a.cq, false).unwrap();
    a.post(1, SendOp::Write(to), 0, 9);
    let begin = Instant::now();
    while b.counter("drop_wrong_state") == 0 {
        b.nic.progress();
        assert!(begin.elapsed() < PATIENCE);
    }
    b.connect(a.qpn, to_a, PathMtu::Mtu1024, y, x);
    let begin = Instant::now();
    while b.counter("served_write") == 0 {
        b.nic.progress();
        assert!(begin.elapsed() < PATIENCE, "no retransmission came");
    }
    assert_eq!(b.bytes(0, 9), b"once more");
    assert!(sleep_once(&a.nic, PATIENCE), "the owner was not told of the completion");
    assert_eq!(a.poll()[0].status, Status::Success);
    assert!(a.counter("retransmits") > 0);
}

#[test]
fn posts_between_two_polls_share_sends() {
    let (mut a, mut b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    for i in 0..10 {
        b.post_recv(i, 0, 64);
    }
    let before = a.counter("tx_syscalls");
    for i in 0..10 {
        a.post(i, SendOp::Send, 0, 64);
    }
    assert_eq!((a.counter("tx_packets"), a.counter("tx_syscalls")), (1, before + 1), "only the first leaves at once");
    assert_eq!(a.nic.deadline(), Some(Duration::ZERO), "the owner must not sleep on the others");
    a.poll();
    assert_eq!((a.counter("tx_packets"), a.counter("tx_syscalls")), (10, before + 2));
    run(&mut a, &mut b, 10, 10);
}

#[test]
fn what_is_gathered_is_bounded() {
    let (mut a, b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    let to = b.remote(0);
    for i in 0..4 {
        a.post(i, SendOp::Write(to), 0, 40_000);
    }
    assert!(a.counter("tx_packets") >= 3 * 40_000 / 4096, "large posts wait for no poll");
}

#[test]
fn with_the_thread_every_post_leaves_at_once() {
    let (mut a, b) = pair(with_thread(), config("127.0.0.1"));
    let to = b.remote(0);
    for i in 0..5 {
        a.post(i, SendOp::Write(to), 0, 64);
        assert!(a.counter("tx_packets") > i);
    }
}

#[test]
fn closing_ends_the_thread_and_frees_the_port() {
    let first = End::open(with_thread());
    let local = first.nic.local_address();
    drop(first);
    let again = SoftNicConfig { udp_port: local.port(), ..with_thread() };
    drop(softnic::SoftNic::open(again).unwrap());
}

#[test]
fn the_last_acknowledgement_leaves_with_the_nic() {
    // `b` takes the completion and closes at once; `a` must still learn that its message arrived.
    let (mut a, mut b) = pair(config("127.0.0.1"), config("127.0.0.1"));
    b.post_recv(1, 0, 8);
    a.post(1, SendOp::Send, 0, 8);
    let begin = Instant::now();
    while b.poll().is_empty() {
        assert!(begin.elapsed() < PATIENCE);
    }
    drop(b);
    let begin = Instant::now();
    let mut done = Vec::new();
    while done.is_empty() {
        done = a.poll();
        assert!(begin.elapsed() < PATIENCE);
    }
    assert_eq!(done[0].status, Status::Success);
}
