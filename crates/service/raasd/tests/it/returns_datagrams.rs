//! Datagram sockets go on with the daemon that comes after one that ended without a word: datagrams may be lost, and
//! none comes torn or twice (docs/operate/restart.md).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{DatagramRow, Path, Reason, Reply, Request, Role};
use raas::{DatagramOptions, DatagramSocket, Readiness, Session, StreamError};
use shm::{Segment, SessionShape, Sharing, SlotWords};

use crate::control_socket::RawClient;
use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};
use crate::returns_liars::{Kept, hello};

fn bind(session: &Session) -> DatagramSocket {
    let socket = DatagramSocket::bind_with(session, ("0.0.0.0", 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn rows(host: &Host) -> Vec<DatagramRow> {
    raas::inspect::datagrams(Some(&host.config.socket)).unwrap()
}

/// A datagram that says its number in every byte.
fn numbered(number: u32) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(40 + number as usize % 3000, number as u8));
    bytes
}

/// Takes datagrams until one has this number or a later one. Each must be whole, and new.
fn receive_until(socket: &DatagramSocket, number: u32, seen: &mut BTreeSet<u32>) {
    let mut buffer = [0; 4096];
    loop {
        let (len, _) = socket.recv_from(&mut buffer).unwrap();
        let got = u32::from_le_bytes(buffer[..4].try_into().unwrap());
        assert!(buffer[..len] == numbered(got)[..], "datagram {got} of {len} bytes");
        assert!(seen.insert(got), "datagram {got} came twice");
        if got >= number {
            return;
        }
    }
}

#[test]
fn sockets_of_two_hosts_go_on_whichever_daemon_dies() {
    bounded(|| {
        let mut hosts = [Host::started(), Host::started()];
        let sessions = [hosts[0].followed(), hosts[1].followed()];
        let sockets = [bind(&sessions[0]), bind(&sessions[1])];
        let at: Vec<SocketAddr> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let ids = [sockets[0].id(), sockets[1].id()];
        let is_over = AtomicBool::new(false);
        let sent_until = std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // A host that has no daemon for a moment cannot be reached, and that is all.
                    let _unreachable = sockets[0].send_to(&numbered(number), at[1]);
                    number += 1;
                    std::thread::sleep(Duration::from_micros(200));
                }
                number
            });
            let mut seen = BTreeSet::new();
            receive_until(&sockets[1], 0, &mut seen);
            for turn in 0..6 {
                for (i, host) in hosts.iter_mut().enumerate() {
                    if turn % 3 == 2 || turn % 3 == i {
                        host.hand_over();
                        host.start();
                    }
                }
                // What is sent from here on comes, sooner or later.
                let last = *seen.last().unwrap();
                eventually("both are back", || hosts.iter().all(|host| rows(host).len() == 1));
                let more = last + 50;
                receive_until(&sockets[1], more, &mut seen);
            }
            is_over.store(true, Ordering::Relaxed);
            sending.join().unwrap()
        });
        assert!(sent_until > 0);
        for (i, host) in hosts.iter().enumerate() {
            let [row] = &rows(host)[..] else { panic!("{:?}", rows(host)) };
            assert_eq!((row.local, row.id), (at[i], ids[i]));
        }
        drop(sockets);
        eventually("the ports are free", || hosts.iter().all(|host| rows(host).is_empty()));
        hosts.iter().for_each(|host| assert_eq!(host.counter("app_faults"), 0));
    });
}

#[test]
fn what_arrived_is_kept_and_what_is_sent_meanwhile_leaves_once() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.followed();
        let (one, two) = (bind(&session), bind(&session));
        let to = two.local_addr().unwrap();
        let mut seen = BTreeSet::new();
        one.send_to(&numbered(0), to).unwrap();
        one.send_to(&numbered(1), to).unwrap();
        eventually("they arrived", || rows(&host).iter().any(|row| row.rx_datagrams == 2));
        receive_until(&two, 0, &mut seen);
        host.hand_over();
        // There is no daemon.
        receive_until(&two, 1, &mut seen);
        for number in 2..6 {
            one.send_to(&numbered(number), to).unwrap();
        }
        host.start();
        receive_until(&two, 5, &mut seen);
        assert_eq!(seen, (0..6).collect());
        // In the other direction too, and nothing came again.
        two.send_to(b"back", one.local_addr().unwrap()).unwrap();
        assert_eq!(one.recv_from(&mut [0; 4096]).unwrap(), (4, to));
        two.set_nonblocking(true).unwrap();
        assert_eq!(two.recv_from(&mut [0; 4096]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert!(two.readiness().unwrap().contains(Readiness::WRITE));
    });
}

#[test]
fn threads_that_wait_in_a_socket_are_woken_by_the_next_daemon() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.unfollowed();
        let waiting = bind(&session);
        let to = waiting.local_addr().unwrap();
        let other = host.followed();
        let full = DatagramOptions::new().ring_bytes(16 << 10).bind(&other, ("0.0.0.0", 0)).unwrap();
        full.set_write_timeout(Some(PATIENCE)).unwrap();
        full.send_to(b"the path is known", to).unwrap();
        waiting.recv_from(&mut [0; 4096]).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| waiting.recv_from(&mut [0; 4096]).unwrap());
            host.hand_over();
            // More than its ring holds: the thread waits for room until a daemon takes what is there.
            let sending = scope.spawn(|| (0..40).for_each(|_| assert_eq!(full.send_to(&[7; 2000], to).unwrap(), 2000)));
            std::thread::sleep(Duration::from_millis(50));
            host.start();
            sending.join().unwrap();
            // Some may have left before the receiver's session was back.
            let again = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    full.send_to(&[7; 2000], to).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            assert_eq!(receiving.join().unwrap(), (2000, full.local_addr().unwrap()));
            is_over.store(true, Ordering::Relaxed);
            again.join().unwrap();
        });
    });
}

#[test]
fn a_port_that_another_took_meanwhile_ends_that_socket_alone() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.unfollowed();
        let (lost, kept) = (bind(&session), bind(&session));
        let port = lost.local_addr().unwrap().port();
        host.hand_over();
        host.start();
        let thief = DatagramSocket::bind_with(&host.session(), ("0.0.0.0", port)).unwrap();
        let error = lost.recv_from(&mut [0; 4096]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::PortInUse), "{error}");
        thief.send_to(b"hello", kept.local_addr().unwrap()).unwrap();
        assert_eq!(kept.recv_from(&mut [0; 4096]).unwrap().0, 5);
        drop(lost);
        eventually("two are left", || rows(&host).len() == 2);
    });
}

/// A datagram socket of a raw program.
fn bound(host: &Host) -> (RawClient, Kept) {
    let mut client = RawClient::connected(host);
    client.send(&hello(Role::Application));
    let Some(Reply::Welcome { slots, engines, session_bytes, .. }) = client.next() else { panic!("no Welcome") };
    let mut fds = client.take_fds().into_iter();
    let segment = fds.next().unwrap();
    // The wake sockets stay open, as those of a program.
    std::mem::forget(fds.collect::<Vec<_>>());
    client.send(&Request::BindDatagram { request: 1, port: 0, ring_bytes: 0 });
    let mut chunks = Vec::new();
    let socket = loop {
        match client.next().unwrap() {
            Reply::Chunk { chunk, kind, bytes } => chunks.push((chunk, kind, bytes, client.take_fds().pop().unwrap())),
            Reply::Connected { result, .. } => break result.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let Path::Lane { slot, generation, .. } = socket.path else { panic!("{socket:?}") };
    let shape = SessionShape { slots, engines };
    let region =
        Segment::accept(segment.try_clone().unwrap(), session_bytes, Sharing::ReadWrite).unwrap().into_region();
    let words = shm::Session::open(region, shape).unwrap().slot(slot);
    words.app_generation.store(generation, Ordering::Release);
    (client, Kept { segment, shape, chunks, ticket: socket.ticket, slot, words })
}

/// What a program stores in its session while there is no daemon.
type Lie = (&'static str, fn(&SlotWords));

const LIES: &[Lie] = &[
    ("more was sent than a ring holds", |w| w.tx_tail.store(1 << 40, Ordering::Relaxed)),
    ("more was taken than sent", |w| w.tx_head.store(8, Ordering::Relaxed)),
    ("more arrived than a ring holds", |w| w.rx_tail.store(1 << 40, Ordering::Relaxed)),
    ("more was read than arrived", |w| w.rx_head.store(8, Ordering::Relaxed)),
    ("both, around the end of the numbers", |w| {
        w.tx_head.store(u64::MAX - 7, Ordering::Relaxed);
        w.tx_tail.store(1 << 30, Ordering::Relaxed);
    }),
];

#[test]
fn who_lies_about_a_socket_loses_it_and_nobody_else_loses_anything() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.followed();
        let polite = (bind(&session), bind(&session));
        let check_polite = |host: &Host| {
            eventually("the polite ones are back", || rows(host).iter().filter(|row| row.app_pid != 0).count() >= 2);
            polite.0.send_to(b"polite", polite.1.local_addr().unwrap()).unwrap();
            assert_eq!(polite.1.recv_from(&mut [0; 4096]).unwrap().0, 6);
        };
        for (what, lie) in LIES {
            let (_old, kept) = bound(&host);
            host.hand_over();
            lie(&kept.words);
            host.start();
            let (_client, answer) = kept.come_back(&host, vec![kept.ticket.clone()]);
            assert!(matches!(answer, Some(Reply::Welcome { .. })), "{what}: {answer:?}");
            eventually(what, || kept.reset_reason() == Some(Reason::AppFault));
            check_polite(&host);
            assert_eq!(rows(&host).len(), 2, "{what}");
        }
        // Cursors that can be, and between them what is no record: the whole program, as at any time.
        let (_old, kept) = bound(&host);
        host.hand_over();
        kept.words.tx_tail.store(8, Ordering::Release);
        host.start();
        let (mut liar, _) = kept.come_back(&host, vec![kept.ticket.clone()]);
        eventually("the liar is put out", || host.counter("app_faults") == 1);
        while liar.next().is_some() {}
        check_polite(&host);
        // Another's seal, another's socket, and the same twice.
        let ((_one, first), (_two, second)) = (bound(&host), bound(&host));
        host.hand_over();
        host.start();
        let mut forged = first.ticket.clone();
        forged[5] ^= 1;
        let (liar, _) = second.come_back(&host, vec![forged]);
        assert_eq!(second.reset_reason(), Some(Reason::DaemonLost));
        drop(liar);
        let (mut honest, answer) = first.come_back(&host, vec![first.ticket.clone(), first.ticket.clone()]);
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        assert_eq!(first.reset_reason(), None);
        eventually("it and the polite ones are back", || rows(&host).len() == 3);
        // The first one's ticket in the session of the second: its port is taken, whatever else is true.
        let (_liar, answer) = second.come_back(&host, vec![first.ticket.clone()]);
        assert!(matches!(answer, Some(Reply::Welcome { .. })), "{answer:?}");
        assert_eq!(rows(&host).len(), 3);
        honest.send(&Request::DatagramPath { request: 2, to: host.address() });
        assert!(matches!(honest.next(), Some(Reply::DatagramPath { result: Ok(_), .. })));
        check_polite(&host);
    });
}
