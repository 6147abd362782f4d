//! Streams of bulk that get a TCP connection of their own, between two daemons.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{ConnectionRow, PeerMessage, encode, with_length};
use raas::{Flags, Listener, PathKind, Reason, Session, Stream, StreamError};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use sha2::{Digest, Sha256};
use verbs::{Wire, WirePolicy};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

const BYTES: usize = 64 << 20;
/// Fewer than a lane may have in a minute: on a slow machine the bytes take longer than many resets.
const RESETS: u32 = 12;

fn host(tcp_direct: bool) -> Host {
    host_on(WirePolicy::Auto, tcp_direct)
}

fn host_on(wire: WirePolicy, tcp_direct: bool) -> Host {
    let mut host = Host::new();
    (host.config.wire, host.config.tcp_direct) = (wire, tcp_direct);
    host.start();
    host
}

/// Both ends of a stream from `a` to `b`.
fn connected(a: &Host, b: &Host) -> (Stream, Stream) {
    let (client, server) = (a.session(), b.session());
    let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
    let near = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept_timeout(PATIENCE).unwrap();
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (near, far)
}

/// Writes pieces of any length, and says the digest of all.
fn send(stream: &Stream, bytes: usize, seed: u64) -> Vec<u8> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut block = vec![0; 256 << 10];
    rng.fill_bytes(&mut block);
    let (mut sent, mut hash) = (0, Sha256::new());
    while sent < bytes {
        let longest = [100, 5000, 70_000, 200_000][rng.random_range(0..4)];
        let len = rng.random_range(1..=longest).min(bytes - sent);
        let from = rng.random_range(0..=block.len() - len);
        let piece = &block[from..from + len];
        (&*stream).write_all(piece).unwrap_or_else(|e| panic!("after {sent} bytes: {e}"));
        hash.update(piece);
        sent += len;
    }
    hash.finalize().to_vec()
}

/// Reads pieces of any length until the end, and says the digest of all.
fn receive(stream: &Stream, seed: u64) -> (usize, Vec<u8>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut buffer = vec![0; 256 << 10];
    let (mut got, mut hash) = (0, Sha256::new());
    loop {
        let len = rng.random_range(1..=buffer.len());
        let count = match rng.random_range(0..10) {
            0 => {
                let peeked = stream.peek(&mut buffer[..len.min(1000)]).unwrap();
                let seen = buffer[..peeked].to_vec();
                let count = (&*stream).read(&mut buffer[..peeked.max(1)]).unwrap();
                assert_eq!(seen, buffer[..count], "what was peeked at is read");
                count
            }
            1 => match stream.loan().unwrap() {
                Some(mut loan) => {
                    let count = loan.copy_to(0, &mut buffer[..len]);
                    loan.consume(count)
                }
                None => 0,
            },
            _ => (&*stream).read(&mut buffer[..len]).unwrap_or_else(|e| panic!("after {got} bytes: {e}")),
        };
        if count == 0 {
            return (got, hash.finalize().to_vec());
        }
        hash.update(&buffer[..count]);
        got += count;
    }
}

fn row(host: &Host) -> ConnectionRow {
    let rows = host.connections();
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.into_iter().next().unwrap()
}

#[test]
fn every_byte_comes_once_and_in_order_while_lanes_are_reset() {
    bounded(|| {
        for seed in 1..=3 {
            let (a, b) = (host(true), host(true));
            let (near, far) = connected(&a, &b);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..RESETS {
                        std::thread::sleep(Duration::from_millis(30));
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        a.reset_lane(b.address());
                    }
                });
                let ends = [(&near, &far), (&far, &near)];
                let pairs = ends.map(|(from, to)| {
                    let sent = scope.spawn(move || {
                        let digest = send(from, BYTES, seed);
                        from.shutdown(Shutdown::Write).unwrap();
                        digest
                    });
                    (sent, scope.spawn(move || receive(to, seed + 100)))
                });
                for (sent, got) in pairs {
                    let (sent, (count, got)) = (sent.join().unwrap(), got.join().unwrap());
                    assert_eq!(count, BYTES);
                    assert!(sent == got, "other bytes came");
                }
                is_over.store(true, Ordering::Relaxed);
            });
            for (stream, host) in [(&near, &a), (&far, &b)] {
                assert_eq!((stream.path(), stream.reason()), (PathKind::TcpDirect, Reason::BulkStream));
                let row = row(host);
                assert_eq!((row.path, row.reason), (PathKind::TcpDirect, Reason::BulkStream));
                assert_eq!((row.tx_bytes, row.rx_bytes), (BYTES as u64, BYTES as u64), "{row:?}");
                assert!(row.direct_tx_bytes > 0 && row.direct_rx_bytes > 0, "{row:?}");
            }
            drop((near, far));
            eventually("nothing is left", || {
                let open = |host: &Host| host.stat().counters.iter().find(|c| c.0 == "direct_streams").unwrap().1;
                a.connections().is_empty() && b.connections().is_empty() && open(&a) + open(&b) == 0
            });
        }
    });
}

/// Sends in one direction until the stream goes by TCP.
fn until_direct(near: &Stream, far: &Stream) {
    let mut buffer = vec![0; 1 << 20];
    let block = vec![7; 256 << 10];
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut last = 0;
            while last != 9 {
                let count = (&*far).read(&mut buffer).unwrap();
                assert_ne!(count, 0);
                last = buffer[count - 1];
            }
        });
        let begin = std::time::Instant::now();
        while near.path() != PathKind::TcpDirect {
            (&*near).write_all(&block).unwrap();
            assert!(begin.elapsed() < PATIENCE, "it stays on the lane");
        }
        (&*near).write_all(&[9]).unwrap();
        reader.join().unwrap();
    });
}

/// Sends so much in writes of this length, and has it read.
fn send_in(near: &Stream, far: &Stream, bytes: usize, write: usize) {
    let block = vec![7; write];
    std::thread::scope(|scope| {
        scope.spawn(|| std::io::copy(&mut (&*far).take(bytes as u64), &mut std::io::sink()).unwrap());
        for _ in 0..bytes / write {
            (&*near).write_all(&block).unwrap();
        }
    });
}

#[test]
fn short_writes_stay_on_the_lane_and_large_ones_after_them_leave_it() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        eventually("the daemons make a connection", || {
            send_in(&near, &far, 16 << 20, 1024);
            a.stat().counters.iter().any(|c| c.0 == "directs_made" && c.1 > 0)
        });
        send_in(&near, &far, 16 << 20, 1024);
        assert_eq!((near.path(), row(&a).direct_tx_bytes), (PathKind::Lane, 0));
        until_direct(&near, &far);
    });
}

/// One message there and one back.
fn turn(near: &Stream, far: &Stream, n: u32) {
    let (asked, answer) = ([n as u8; 64], [!n as u8; 100]);
    let mut got = [0; 100];
    (&*near).write_all(&asked).unwrap();
    (&*far).read_exact(&mut got[..64]).unwrap();
    assert_eq!(got[..64], asked);
    (&*far).write_all(&answer).unwrap();
    (&*near).read_exact(&mut got).unwrap();
    assert_eq!(got, answer);
}

#[test]
fn a_conversation_leaves_the_lane_where_few_others_are() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        let mut n = 0;
        eventually("both directions leave the lane", || {
            (0..50).for_each(|_| {
                turn(&near, &far, n);
                n += 1;
            });
            [&a, &b].iter().all(|host| row(host).direct_tx_bytes > 0)
        });
        (0..100).for_each(|n| turn(&near, &far, n));
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut [0; 9]).unwrap(), 0);
        drop((near, far));

        let crowd: Vec<_> = (0..9).map(|_| connected(&a, &b)).collect();
        let (near, far) = &crowd[4];
        (0..1000).for_each(|n| turn(near, far, n));
        assert_eq!((near.path(), far.path()), (PathKind::Lane, PathKind::Lane));
    });
}

#[test]
fn a_conversation_whose_readers_never_sleep_hears_of_its_connection() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let [client, server] =
            [&a, &b].map(|host| Session::builder().socket(&host.config.socket).yields(u32::MAX).connect().unwrap());
        let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
        let near = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept_timeout(PATIENCE).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while (&far).read(&mut [0; 64]).unwrap() > 0 {
                    (&far).write_all(&[1]).unwrap()
                }
            });
            eventually("both directions leave the lane", || {
                for _ in 0..200 {
                    (&near).write_all(&[1]).unwrap();
                    (&near).read_exact(&mut [0]).unwrap();
                }
                [&a, &b].iter().all(|host| row(host).direct_tx_bytes > 0)
            });
            near.shutdown(Shutdown::Write).unwrap();
        });
    });
}

#[test]
fn a_direction_for_which_a_verb_is_named_stays_on_the_lane_until_none_is() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        near.set_flags(Flags::SEND).unwrap();
        eventually("the daemons make a connection", || {
            send_in(&near, &far, 16 << 20, 256 << 10);
            a.stat().counters.iter().any(|c| c.0 == "directs_made" && c.1 > 0)
        });
        for flags in [Flags::SEND, Flags::READ] {
            near.set_flags(flags).unwrap();
            send_in(&near, &far, 16 << 20, 256 << 10);
            let row = row(&a);
            assert_eq!((near.path(), row.direct_tx_bytes), (PathKind::Lane, 0), "{row:?}");
            assert_eq!(row.verb_asked, row.verb, "{row:?}");
        }
        near.set_flags(Flags::empty()).unwrap();
        until_direct(&near, &far);
    });
}

#[test]
fn a_lane_that_is_to_be_on_roce_keeps_its_streams() {
    bounded(|| {
        let (a, b) = (host(true), host_on(WirePolicy::Only(Wire::Roce), true));
        let (near, far) = connected(&a, &b);
        send_in(&near, &far, 32 << 20, 256 << 10);
        assert_eq!((near.path(), row(&a).reason), (PathKind::Lane, Reason::OtherHost));
        let counted =
            |host: &Host| host.stat().counters.iter().filter(|c| c.0.starts_with("direct")).map(|c| c.1).sum::<u64>();
        assert_eq!(counted(&a) + counted(&b), 0);
    });
}

#[test]
fn a_stream_on_tcp_behaves_as_one_on_the_lane() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        until_direct(&near, &far);
        // A direction of short writes stays on the ring.
        (&far).write_all(b"answer").unwrap();
        let mut got = [0; 6];
        (&near).read_exact(&mut got).unwrap();
        assert_eq!((&got, far.path(), near.unread_bytes().unwrap()), (b"answer", PathKind::TcpDirect, 0));
        // Lent room, and a read that would wait.
        let mut loan = near.reserve(300).unwrap();
        loan.write_all(b"lxnt").unwrap();
        assert!(loan.patch(1, b"e"));
        assert_eq!(loan.commit(), 4);
        let mut got = [0; 4];
        (&far).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"lent");
        far.set_nonblocking(true).unwrap();
        assert_eq!((&far).read(&mut got).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        far.set_nonblocking(false).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!((&far).read(&mut got).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        // Half of it ends, the other goes on.
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!((&far).read(&mut got).unwrap(), 0);
        (&far).write_all(b"more").unwrap();
        (&near).read_exact(&mut got).unwrap();
        assert_eq!(&got, b"more");
        drop(far);
        assert_eq!((&near).read(&mut got).unwrap(), 0);
    });
}

#[test]
fn what_was_written_before_a_close_is_read_and_a_close_with_unread_bytes_resets() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        until_direct(&near, &far);
        let block = vec![5; 100_000];
        (&near).write_all(&block).unwrap();
        drop(near);
        let mut got = Vec::new();
        (&far).read_to_end(&mut got).unwrap();
        assert_eq!(got, block);
        drop(far);
        let (near, far) = connected(&a, &b);
        until_direct(&near, &far);
        (&near).write_all(b"never read").unwrap();
        let mut buffer = [0; 1];
        far.peek(&mut buffer).unwrap();
        drop(far);
        let error = (&near).read(&mut buffer).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer));
    });
}

#[test]
fn a_daemon_that_stops_ends_the_stream_with_its_reason() {
    bounded(|| {
        let (a, mut b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        until_direct(&near, &far);
        (&near).write_all(b"on its way").unwrap();
        b.stop();
        let mut got = Vec::new();
        let error = (&far).read_to_end(&mut got).unwrap_err();
        assert_eq!(got, b"on its way", "what had come is read before the end is told");
        let reason = StreamError::reason_of(&error).unwrap();
        // The peer hears it too, and may be first to reset the connection.
        let expected = [Reason::ShuttingDown, Reason::DaemonLost, Reason::ResetByPeer];
        assert!(expected.contains(&reason), "{reason:?}");
        // The lane says it, in one of the ways in which it ends with its daemon, and not the TCP connection, which stands.
        let error = (&near).read(&mut [0]).unwrap_err();
        assert_ne!(StreamError::reason_of(&error), Some(Reason::DirectLost), "{error}");
        assert_ne!(error.kind(), std::io::ErrorKind::TimedOut);
    });
}

#[test]
fn a_host_that_makes_none_leaves_the_stream_on_the_lane_with_the_reason() {
    bounded(|| {
        let (a, b) = (host(false), host(true));
        let (near, far) = connected(&a, &b);
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| {
                let digest = send(&near, BYTES / 2, 1);
                near.shutdown(Shutdown::Write).unwrap();
                digest
            });
            let (count, got) = receive(&far, 2);
            assert_eq!((count, got), (BYTES / 2, sent.join().unwrap()));
        });
        assert_eq!((near.path(), far.path()), (PathKind::Lane, PathKind::Lane));
        assert_eq!((row(&a).reason, row(&b).reason), (Reason::OtherHost, Reason::DirectOff));
    });
}

#[test]
fn strangers_at_the_port_get_nothing_and_leave_nothing() {
    bounded(|| {
        let (a, b) = (host(true), host(true));
        let (near, far) = connected(&a, &b);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let Ok(mut stranger) = TcpStream::connect(a.daemon.as_ref().unwrap().peer_address()) else {
                        continue;
                    };
                    number = (number + 1) % 5;
                    let hello = PeerMessage::DirectHello { number, nonce: [1; 32], mac: [2; 32] };
                    let _ = stranger.write_all(&with_length(&encode(&hello).unwrap()));
                    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
                    let mut said = Vec::new();
                    let _ = stranger.read_to_end(&mut said);
                    assert!(said.len() < 200, "a stranger got {} bytes", said.len());
                }
            });
            until_direct(&far, &near);
            is_over.store(true, Ordering::Relaxed);
        });
    });
}
