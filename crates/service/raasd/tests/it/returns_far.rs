//! Connections between hosts go on over the death of either daemon, or of both (docs/operate/restart.md).

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use control::{APP_VERSION, ChannelError, Reply, Request};
use raas::{Listener, MessageListener, MessageStream, PathKind, Session, Stream};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use shm::{EnginePage, Segment, Sharing, WakeSocket};
use verbs::WirePolicy;

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

struct Far {
    hosts: [Host; 2],
    /// Kept: their ends would be the connections'.
    sessions: [Session; 2],
    client: Stream,
    server: Stream,
}

fn far() -> Far {
    far_of([Host::started_patient(), Host::started_patient()])
}

fn far_of(hosts: [Host; 2]) -> Far {
    let sessions = [hosts[0].followed(), hosts[1].followed()];
    let listener = Listener::bind_with(&sessions[1], (hosts[1].address(), 0)).unwrap();
    let client = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    Far { hosts, sessions, client, server }
}

impl Far {
    fn exchange(&mut self, seed: u8) {
        let sent = pattern(20_000, seed);
        self.client.write_all(&sent).unwrap();
        let mut got = vec![0; sent.len()];
        self.server.read_exact(&mut got).unwrap();
        assert!(got == sent, "bytes of round {seed}");
        self.server.write_all(&sent[..500]).unwrap();
        self.client.read_exact(&mut got[..500]).unwrap();
        assert!(got[..500] == sent[..500]);
    }

    fn restart(&mut self, which: &[usize]) {
        which.iter().for_each(|&i| self.hosts[i].hand_over());
        which.iter().for_each(|&i| self.hosts[i].start());
    }
}

#[test]
fn a_connection_goes_on_whichever_daemon_dies() {
    bounded(|| {
        let mut far = far();
        far.exchange(0);
        let turns: [&[usize]; 6] = [&[0], &[1], &[0, 1], &[1, 0], &[0], &[0, 1]];
        for (turn, which) in (1..).zip(turns) {
            far.restart(which);
            far.exchange(turn);
        }
        assert!(far.hosts[0].counter("connections_adopted") > 0);
        assert!(far.hosts[1].counter("connections_returned") > 0);
        assert_eq!(far.hosts[0].connections().len(), 1);
        let Far { hosts, client, mut server, .. } = far;
        drop(client);
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
        drop(server);
        eventually("both ends are over", || hosts.iter().all(|host| host.connections().is_empty()));
    });
}

#[test]
fn a_stream_that_flows_loses_and_doubles_nothing() {
    bounded(|| {
        let Far { mut hosts, sessions, mut client, mut server } = far();
        let len = 64 << 20;
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || {
                for piece in 0..len / 65_536 {
                    client.write_all(&pattern(65_536, piece as u8)).unwrap();
                }
                client.shutdown(std::net::Shutdown::Write).unwrap();
                client
            });
            let reading = scope.spawn(move || {
                let mut got = vec![0; 65_536];
                for piece in 0..len / 65_536 {
                    server.read_exact(&mut got).unwrap();
                    assert!(got == pattern(65_536, piece as u8), "piece {piece}");
                }
                assert_eq!(server.read(&mut got).unwrap(), 0);
                server
            });
            for turn in 0..8 {
                std::thread::sleep(Duration::from_millis(30));
                let which = turn % 3;
                for (i, host) in hosts.iter_mut().enumerate() {
                    if which == 2 || which == i {
                        host.hand_over();
                        host.start();
                    }
                }
            }
            drop((writing.join().unwrap(), reading.join().unwrap()));
        });
        drop(sessions);
    });
}

#[test]
fn messages_and_what_was_closed_before_go_on() {
    bounded(|| {
        let mut hosts = [Host::started_patient(), Host::started_patient()];
        let sessions = [hosts[0].followed(), hosts[1].followed()];
        let listener =
            MessageListener::bind_with(&sessions[1], (hosts[1].address(), 0), raas::ListenOptions::new()).unwrap();
        let to = listener.local_addr().unwrap();
        let sender = MessageStream::connect_with(&sessions[0], to, raas::ConnectOptions::new()).unwrap();
        let receiver = listener.accept_timeout(PATIENCE).unwrap().0;
        sender.send(b"before").unwrap();
        hosts[1].hand_over();
        for n in 0..20_u32 {
            sender.send(&n.to_be_bytes()).unwrap();
        }
        // Closed while its peer's daemon is away: what was sent is still delivered.
        drop(sender);
        hosts[0].hand_over();
        hosts.iter_mut().for_each(Host::start);
        assert_eq!(receiver.receive_vec().unwrap().unwrap(), b"before");
        for n in 0..20_u32 {
            assert_eq!(receiver.receive_vec().unwrap().unwrap(), n.to_be_bytes());
        }
        assert_eq!(receiver.receive_vec().unwrap(), None);
        drop(receiver);
        eventually("both ends are over", || hosts.iter().all(|host| host.connections().is_empty()));
    });
}

#[test]
fn many_connections_go_on_together() {
    bounded(|| {
        let mut hosts = [Host::started_patient(), Host::started_patient()];
        let sessions = [hosts[0].followed(), hosts[1].followed()];
        let listener = Listener::bind_with(&sessions[1], (hosts[1].address(), 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let pairs: Vec<_> = (0..300)
            .map(|_| {
                let client = Stream::connect_with(&sessions[0], to).unwrap();
                (client, listener.accept_timeout(PATIENCE).unwrap().0)
            })
            .collect();
        for turn in 0..3_u8 {
            for (n, (client, _)) in pairs.iter().enumerate() {
                (&*client).write_all(&[turn, n as u8]).unwrap();
            }
            let host = &mut hosts[usize::from(turn % 2)];
            host.hand_over();
            host.start();
            for (n, (_, server)) in pairs.iter().enumerate() {
                let mut got = [0; 2];
                server.set_read_timeout(Some(PATIENCE)).unwrap();
                if let Err(error) = (&*server).read_exact(&mut got) {
                    let count = |name: &String| hosts.each_ref().map(|host| host.counter(name));
                    let names = ["adopted", "parted", "returned", "given_up"].map(|name| format!("connections_{name}"));
                    let counts = names.each_ref().map(count);
                    let own = (&pairs[n].0).write(&[0]).map_err(|e| e.to_string());
                    panic!("connection {n} in turn {turn}: {error}; {counts:?} of {names:?}; its other end: {own:?}");
                }
                assert_eq!(got, [turn, n as u8]);
            }
        }
    });
}

#[test]
fn without_its_program_or_daemon_a_connection_ends_in_time() {
    bounded(|| {
        let mut hosts = [Host::new(), Host::new()];
        for host in &mut hosts {
            host.config.set_limit("peer_return_ms", 400).unwrap();
            host.start();
        }
        let sessions = [hosts[0].followed(), hosts[1].followed()];
        let listener = Listener::bind_with(&sessions[1], (hosts[1].address(), 0)).unwrap();
        let client = Stream::connect_with(&sessions[0], listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
        hosts[0].hand_over();
        // Its program is gone with it, and nobody comes back.
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        let error = (&server).read(&mut [0; 1]).unwrap_err();
        assert_eq!(raas::StreamError::reason_of(&error), Some(raas::Reason::PeerLost), "{error}");
        hosts[0].start();
        // The other end is gone by now.
        let error = (&client).read(&mut [0; 1]).unwrap_err();
        assert_eq!(raas::StreamError::reason_of(&error), Some(raas::Reason::PeerLost), "{error}");
    });
}

#[test]
fn a_stream_that_has_a_tcp_connection_of_its_own_keeps_it_and_is_shown_with_it() {
    bounded(|| {
        let own_tcp = || {
            let mut host = Host::patient();
            (host.config.wire, host.config.tcp_direct) = (WirePolicy::Auto, true);
            host.start();
            host
        };
        let Far { mut hosts, sessions, mut client, mut server } = far_of([own_tcp(), own_tcp()]);
        let piece_bytes = 128 << 10;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut pieces = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    client.write_all(&pattern(piece_bytes, pieces as u8)).unwrap();
                    pieces += 1;
                }
                client.shutdown(std::net::Shutdown::Write).unwrap();
                pieces
            });
            let reading = scope.spawn(|| {
                let (mut got, mut pieces) = (vec![0; piece_bytes], 0_u64);
                loop {
                    // The first byte apart: the end comes in its place.
                    if server.read(&mut got[..1]).unwrap() == 0 {
                        return pieces;
                    }
                    server.read_exact(&mut got[1..]).unwrap();
                    assert!(got == pattern(piece_bytes, pieces as u8), "piece {pieces}");
                    pieces += 1;
                }
            });
            let is_shown = |hosts: &[Host; 2]| {
                let has = |host: &Host| host.connections().iter().any(|row| row.path == PathKind::TcpDirect);
                hosts.iter().all(has)
            };
            eventually("the stream has its own", || is_shown(&hosts));
            for turn in 0..6 {
                for (i, host) in hosts.iter_mut().enumerate() {
                    if turn % 3 == 2 || turn % 3 == i {
                        host.hand_over();
                        host.start();
                    }
                }
                eventually("it is shown again", || is_shown(&hosts));
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(writing.join().unwrap(), reading.join().unwrap());
        });
        drop(sessions);
    });
}

/// A process that listens where a daemon was.
struct Slow(OwnedFd);

impl Slow {
    fn listen(path: &Path) -> Self {
        let _ = std::fs::remove_file(path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&socket, 9).unwrap();
        Self(socket)
    }

    fn accept(&self) -> Option<OwnedFd> {
        rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()
    }
}

/// What a program says; none if nothing is there.
fn heard(program: &OwnedFd) -> Option<Request> {
    match control::recv_message(program.as_fd(), &mut Vec::new()) {
        Ok((request, _)) => Some(request),
        Err(ChannelError::WouldBlock) => None,
        Err(error) => panic!("the program went away: {error}"),
    }
}

#[test]
fn a_daemon_that_answers_late_is_told_once_and_its_answer_is_taken() {
    bounded(|| {
        let mut far = far();
        far.exchange(0);
        let (host, session) = (&mut far.hosts[0], &far.sessions[0]);
        host.hand_over();
        let slow = Slow::listen(&host.config.socket);
        let mut program = None;
        eventually("the program comes", || {
            program = slow.accept();
            program.is_some()
        });
        let (program, mut shape) = (program.unwrap(), None);
        eventually("it says all", || match heard(&program) {
            Some(Request::Return { slots, engines, session_bytes, .. }) => {
                shape = Some((slots, engines, session_bytes));
                false
            }
            said => said == Some(Request::ReturnEnd),
        });
        // For longer than any call waits for an answer. A daemon would have taken the session over meanwhile, and would
        // end its connections if the program went.
        std::thread::sleep(Duration::from_secs(3));
        assert!(slow.accept().is_none(), "the program came twice");
        assert_eq!((heard(&program), session.is_usable()), (None, false));
        let (slots, engines, session_bytes) = shape.unwrap();
        let page = Segment::create("page", EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
        EnginePage::format(page.region().clone(), 1).unwrap();
        let wakes: Vec<_> = (0..engines).map(|_| WakeSocket::pair().unwrap()).collect();
        let welcome = Reply::Welcome {
            version: APP_VERSION,
            release: String::new(),
            session: 1,
            slots,
            engines,
            session_bytes,
            engine_page_bytes: EnginePage::BYTES,
            addresses: Vec::new(),
            requires_encryption: false,
        };
        let fds: Vec<_> = std::iter::once(page.fd()).chain(wakes.iter().map(|(_, theirs)| theirs.fd())).collect();
        control::send_message(program.as_fd(), &welcome, &fds).unwrap();
        eventually("the program has the answer", || session.is_usable());
        drop((slow, program));
        host.start();
        far.exchange(1);
    });
}
