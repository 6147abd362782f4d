//! Messages through real daemons: boundaries on both paths, and kinds that must agree.

use std::time::Duration;

use raas::{
    ConnectError, ConnectOptions, ListenOptions, Listener, MessageListener, MessageStream, PathKind, Reason, Stream,
};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

#[test]
fn messages_keep_their_boundaries_and_kinds_must_agree() {
    bounded(|| {
        let (here, there) = (Host::started(), Host::started());
        for (client, path) in [(&here, PathKind::Lane), (&there, PathKind::Shm)] {
            let (near, far) = (client.session(), there.session());
            let listener = MessageListener::bind_with(&far, (there.address(), 0), ListenOptions::new()).unwrap();
            let streams = Listener::bind_with(&far, (there.address(), 0)).unwrap();
            let (to, other) = (listener.local_addr().unwrap(), streams.local_addr().unwrap());
            let refused = Stream::connect_with(&near, to).unwrap_err();
            assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
            let refused = MessageStream::connect_with(&near, other, ConnectOptions::new()).unwrap_err();
            assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
            std::thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
                    server.set_read_timeout(Some(PATIENCE)).unwrap();
                    while let Some(message) = server.receive_vec().unwrap() {
                        server.send(&message).unwrap();
                    }
                });
                let client = MessageStream::connect_with(&near, to, ConnectOptions::new()).unwrap();
                assert_eq!(client.path(), path);
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                for round in 0..200u8 {
                    let message = pattern(usize::from(round) * 97, round);
                    client.send(&message).unwrap();
                    assert!(client.receive_vec().unwrap().unwrap() == message, "message {round}");
                }
                client.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(client.receive_vec().unwrap(), None);
                server.join().unwrap();
            });
        }
    });
}

/// Each end sends a message and receives it at the other, in turns.
fn turns(near: &MessageStream, far: &MessageStream, count: u8) {
    for n in 0..count {
        for (from, to) in [(near, far), (far, near)] {
            let message = pattern(usize::from(n) * 7, n);
            from.send(&message).unwrap();
            assert!(to.receive_vec().unwrap().unwrap() == message, "message {n}");
        }
    }
}

/// Two hosts, and both ends of a conversation of messages that has left the lane.
fn conversation() -> ([Host; 2], MessageStream, MessageStream) {
    let hosts = [0, 1].map(|_| {
        let mut host = Host::new();
        host.config.tcp_direct = true;
        host.start();
        host
    });
    let [a, b] = &hosts;
    let (client, server) = (a.session(), b.session());
    let listener = MessageListener::bind_with(&server, (b.address(), 0), ListenOptions::new()).unwrap();
    let to = listener.local_addr().unwrap();
    let near = MessageStream::connect_with(&client, to, ConnectOptions::new()).unwrap();
    let (far, _) = listener.accept_timeout(PATIENCE).unwrap();
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    eventually("both directions leave the lane", || {
        turns(&near, &far, 50);
        by_tcp(&hosts).iter().all(|bytes| *bytes > 0)
    });
    assert_eq!((near.path(), far.path()), (PathKind::TcpDirect, PathKind::TcpDirect));
    (hosts, near, far)
}

/// Bytes of either end that went by TCP.
fn by_tcp(hosts: &[Host; 2]) -> [u64; 2] {
    hosts.each_ref().map(|host| host.connections()[0].direct_tx_bytes)
}

#[test]
fn messages_of_a_conversation_leave_the_lane_and_bursts_long_ones_and_slices_do_not() {
    bounded(|| {
        let (hosts, near, far) = conversation();
        let by_tcp = || by_tcp(&hosts);
        let all: Vec<_> = (0..500_u32).map(|n| pattern((n as usize * 613) % 5000, n as u8)).collect();
        for round in 0..3 {
            let before = by_tcp();
            std::thread::scope(|scope| {
                for [from, to] in [[&near, &far], [&far, &near]] {
                    scope.spawn(|| all.iter().for_each(|message| from.send(message).unwrap()));
                    scope.spawn(|| {
                        for (n, message) in all.iter().enumerate() {
                            assert!(to.receive_vec().unwrap().unwrap() == *message, "message {n} of round {round}");
                        }
                    });
                }
            });
            // An answer may be among the first, and who goes says so.
            let total: usize = all.iter().map(Vec::len).sum();
            (0..2).for_each(|end| assert!(by_tcp()[end] < before[end] + total as u64 / 2));
            let longest = pattern(near.len_max(), round);
            std::thread::scope(|scope| {
                // It waits until all of the ring is free, which a reader tells when it waits.
                scope.spawn(|| near.send(&longest).unwrap());
                assert!(far.receive_vec().unwrap().unwrap() == longest);
            });
            eventually("both directions go back", || {
                let before = by_tcp();
                turns(&near, &far, 20);
                by_tcp()[0] > before[0] && by_tcp()[1] > before[1]
            });
        }
        let region = raas::RegionOptions::new().create(&hosts[0].session(), "slices", 8192).unwrap();
        region.write(0, &pattern(8192, 1)).unwrap();
        for n in 0..5 {
            let lent = near.lend(&region, 100 * n, 1000).unwrap();
            assert!(far.receive_vec().unwrap().unwrap() == pattern(8192, 1)[100 * n as usize..][..1000]);
            lent.wait().unwrap();
            turns(&near, &far, 20);
        }
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(far.receive_vec().unwrap(), None);
    });
}

#[test]
fn a_sender_that_waits_for_its_ring_sleeps_though_tcp_has_room() {
    bounded(|| {
        let (_hosts, near, far) = conversation();
        let message = pattern(1000, 1);
        near.set_nonblocking(true).unwrap();
        let mut sent = 1;
        while near.send(&message).is_ok() {
            sent += 1;
        }
        near.set_nonblocking(false).unwrap();
        let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let spent = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let before = now();
                near.send(&message).unwrap();
                let after = now();
                Duration::from_secs(after.tv_sec.abs_diff(before.tv_sec)).as_nanos() as i64 + after.tv_nsec
                    - before.tv_nsec
            });
            std::thread::sleep(Duration::from_secs(1));
            (0..sent).for_each(|_| assert!(far.receive_vec().unwrap().unwrap() == message));
            sender.join().unwrap()
        });
        assert!(spent < 300_000_000, "{spent} ns of processor time in a wait of a second");
    });
}
