//! Not waiting: non-blocking calls, readiness, descriptors, connections under way. On both paths.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use raas::elsewhere::Sleeper;
use raas::{AcceptError, ConnectError, ConnectOptions, Listener, Readiness, Reason, Session, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Watchdog;
use crate::fake_daemon::FakeDaemon;
use crate::world::{PATHS, pattern, two};

/// Polls without a limit that a working program reaches; the watchdog ends a hang.
fn wait(fds: &[BorrowedFd<'_>]) {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    poll(&mut polled, None).unwrap();
}

/// Whether the descriptor is readable now.
fn readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

fn would_block<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
}

#[test]
fn calls_that_would_wait_say_so() {
    let _watchdog = Watchdog::start("calls_that_would_wait_say_so");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        t.client.set_nonblocking(true).unwrap();
        assert!(would_block(t.client.read(&mut [0; 10])));
        assert!(would_block(t.client.peek(&mut [0; 10])));
        let mut sent = 0;
        let data = pattern(100_000, 1);
        while let Ok(count) = t.client.write(&data[sent..]) {
            sent += count;
        }
        assert!(would_block(t.client.write(b"more")), "the ring is full");
        let mut got = vec![0; sent];
        t.server.read_exact(&mut got).unwrap();
        assert!(got[..] == data[..sent]);
        t.server.set_nonblocking(true).unwrap();
        // Without a descriptor the program looks again when it likes.
        while would_block(t.client.write(b"again")) {
            // A reader whose ring is larger shows even little room before it waits.
            assert!(would_block((&t.server).read(&mut [0])));
            thread::yield_now();
        }
        t.server.set_nonblocking(false).unwrap();
        t.server.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        while would_block(t.client.read(&mut answer)) {
            thread::yield_now();
        }
        assert_eq!(&answer, b"answer");
        t.client.set_nonblocking(false).unwrap();
        let client = &t.client;
        thread::scope(|s| {
            let reading = s.spawn(move || {
                let mut reader = client;
                reader.read(&mut [0; 10]).unwrap()
            });
            thread::sleep(Duration::from_millis(20));
            t.server.write_all(b"x").unwrap();
            assert_eq!(reading.join().unwrap(), 1, "it blocks again");
        });
    }
}

/// One end of a transfer by polling: sends all of `data`, then ends, and takes what comes.
struct Mover<'a> {
    stream: &'a Stream,
    data: VecDeque<u8>,
    got: Vec<u8>,
    ended: bool,
}

impl Mover<'_> {
    /// Does what can be done now. The step sizes differ so that both full and empty rings come up.
    fn step(&mut self) {
        let now = self.stream.readiness().unwrap();
        let mut stream = self.stream;
        while now.contains(Readiness::WRITE) && !self.data.is_empty() {
            match stream.write(self.data.as_slices().0) {
                Ok(count) => drop(self.data.drain(..count)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
            if self.data.is_empty() {
                self.stream.shutdown(Shutdown::Write).unwrap();
            }
        }
        let mut buffer = [0; 1500];
        while now.contains(Readiness::READ) && !self.ended {
            match stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => self.got.extend_from_slice(&buffer[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.data.is_empty() && self.ended
    }
}

/// Moves the movers of one thread by poll until all are done.
fn run(movers: &mut [Mover<'_>]) {
    while movers.iter().any(|m| !m.is_over()) {
        let fds: Vec<_> = movers.iter().filter(|m| !m.is_over()).map(|m| m.stream.ready_fd().unwrap()).collect();
        wait(&fds);
        movers.iter_mut().for_each(Mover::step);
    }
}

#[test]
fn one_thread_moves_both_ends_by_poll() {
    let _watchdog = Watchdog::start("one_thread_moves_both_ends_by_poll");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let (a, b) = (pattern(700_000, 1), pattern(500_000, 2));
        let mover = |stream, data: &[u8]| Mover { stream, data: data.to_vec().into(), got: vec![], ended: false };
        let mut movers = [mover(&t.client, &a), mover(&t.server, &b)];
        for m in &movers {
            m.stream.set_nonblocking(true).unwrap();
        }
        run(&mut movers);
        assert!(movers[0].got == b && movers[1].got == a);
    }
}

#[test]
fn a_change_makes_the_descriptor_readable_each_time() {
    let _watchdog = Watchdog::start("a_change_makes_the_descriptor_readable_each_time");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let (client, server) = (&t.client, &t.server);
        let echo = |stream: &Stream, rounds: u32, first: bool| {
            stream.set_nonblocking(true).unwrap();
            // Asked for once: what follows rests on the announcements alone.
            let fd = stream.ready_fd().unwrap();
            let mut stream = stream;
            if first {
                stream.write_all(&0u32.to_le_bytes()).unwrap();
            }
            let mut message = [0; 4];
            for round in 0..rounds {
                while would_block(stream.read(&mut message)) {
                    wait(&[fd]);
                    stream.readiness().unwrap();
                }
                let number = u32::from_le_bytes(message);
                assert_eq!(number / 2, round);
                // Sometimes the other side is asleep by then, sometimes not yet.
                if number.is_multiple_of(5) {
                    thread::sleep(Duration::from_micros(200));
                }
                if !(first && round + 1 == rounds) {
                    stream.write_all(&(number + 1).to_le_bytes()).unwrap();
                }
            }
        };
        thread::scope(|s| {
            s.spawn(|| echo(client, 1500, true));
            echo(server, 1500, false);
        });
    }
}

#[test]
fn readiness_names_ends_and_failures() {
    let _watchdog = Watchdog::start("readiness_names_ends_and_failures");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        assert_eq!(t.client.readiness().unwrap(), Readiness::WRITE);
        let fd = t.client.ready_fd().unwrap();
        assert!(readable(fd), "at first");
        assert_eq!(t.client.readiness().unwrap(), Readiness::WRITE);
        assert!(!readable(fd), "nothing has changed");
        t.server.write_all(b"bytes").unwrap();
        wait(&[fd]);
        while t.client.readiness().unwrap() != Readiness::READ | Readiness::WRITE {
            wait(&[fd]);
        }
        t.server.shutdown(Shutdown::Write).unwrap();
        let ended = Readiness::READ | Readiness::WRITE | Readiness::HUP;
        (&t.client).read_exact(&mut [0; 5]).unwrap();
        while t.client.readiness().unwrap() != ended {
            wait(&[fd]);
        }
        (&t.client).write_all(b"unread").unwrap();
        // Its bytes are there before the server goes, so that it goes with bytes unread.
        while !t.server.readiness().unwrap().contains(Readiness::READ) {
            thread::yield_now();
        }
        drop(t.server);
        while t.client.readiness().unwrap() != ended | Readiness::ERR {
            wait(&[fd]);
        }
        assert_eq!(t.client.failure(), Some(Reason::ResetByPeer));
    }
}

#[test]
fn a_dead_daemon_and_an_own_shutdown_are_told() {
    let _watchdog = Watchdog::start("a_dead_daemon_and_an_own_shutdown_are_told");
    let mut t = two(crate::fake_daemon::THERE, 4096);
    t.client.readiness().unwrap();
    let fd = t.client.ready_fd().unwrap();
    while readable(fd) {
        t.client.readiness().unwrap();
    }
    t.server.shutdown(Shutdown::Read).unwrap();
    assert!(t.server.readiness().unwrap().contains(Readiness::READ | Readiness::HUP));
    t.daemon.die();
    while !t.client.readiness().unwrap().contains(Readiness::ERR) {
        wait(&[fd]);
    }
    assert_eq!(t.client.failure(), Some(Reason::DaemonLost));
}

#[test]
fn connections_are_made_and_accepted_by_poll() {
    let _watchdog = Watchdog::start("connections_are_made_and_accepted_by_poll");
    for (host, path) in PATHS {
        let daemon = FakeDaemon::start();
        let sessions = [daemon.session(), daemon.session()];
        let listener = Listener::bind_with(&sessions[1], "0.0.0.0:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(matches!(listener.accept(), Err(AcceptError::WouldBlock)));
        assert!(listener.readiness().unwrap().is_empty());
        let to = SocketAddr::new(host.parse().unwrap(), listener.local_addr().unwrap().port());
        let mut connecting = ConnectOptions::new().start(&sessions[0], to).unwrap();
        let (mut client, mut server) = (None, None);
        while client.is_none() || server.is_none() {
            let mut fds = vec![];
            if server.is_none() {
                fds.push(listener.ready_fd().unwrap());
            }
            if client.is_none() {
                fds.push(connecting.ready_fd().unwrap());
            }
            wait(&fds);
            if client.is_none() {
                client = connecting.try_finish().unwrap();
            }
            if listener.readiness().unwrap().contains(Readiness::READ) {
                server = Some(listener.accept().unwrap().0);
            }
        }
        let (mut client, mut server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.path(), path);
        assert!(connecting.try_finish().is_err(), "it was taken");
        client.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello");
    }
}

#[test]
fn refused_and_dropped_connects_leave_nothing() {
    let _watchdog = Watchdog::start("refused_and_dropped_connects_leave_nothing");
    let daemon = FakeDaemon::start();
    let session = daemon.session();
    let to: SocketAddr = "127.0.0.2:9".parse().unwrap();
    let mut connecting = ConnectOptions::new().start(&session, to).unwrap();
    let refused = loop {
        match connecting.try_finish() {
            Ok(None) => wait(&[connecting.ready_fd().unwrap()]),
            Ok(Some(stream)) => panic!("connected to nobody: {stream:?}"),
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, ConnectError::Refused { reason: Reason::NoListener, .. }), "{refused}");
    let mute = FakeDaemon::start_with(crate::fake_daemon::Options { mute: true, ..Default::default() });
    let session = mute.session();
    let mut connecting = ConnectOptions::new().start(&session, to).unwrap();
    assert!(connecting.try_finish().unwrap().is_none());
    drop(connecting);
    while mute.facts().cancelled == 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_watched_session_answers_by_itself() {
    let _watchdog = Watchdog::start("a_watched_session_answers_by_itself");
    let daemon = FakeDaemon::start();
    let server = Session::builder().socket(daemon.path()).background(true).connect().unwrap();
    let listener = Listener::bind_with(&server, "0.0.0.0:0").unwrap();
    let client = daemon.session();
    let to = SocketAddr::new(crate::fake_daemon::HERE.parse().unwrap(), listener.local_addr().unwrap().port());
    // Nobody is in a call of the listening session.
    let mut stream = Stream::connect_with(&client, to).unwrap();
    stream.write_all(b"early").unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let mut got = [0; 5];
    accepted.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"early");
    let facts = daemon.facts();
    assert_eq!(facts.sessions, 2);
    drop((stream, accepted, listener, server, client));
    // The watcher drops a session that has no other user.
    while daemon.facts().sessions > 0 {
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_thread_that_sleeps_elsewhere_follows_the_session_itself() {
    let _watchdog = Watchdog::start("a_thread_that_sleeps_elsewhere_follows_the_session_itself");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        t.client.set_nonblocking(true).unwrap();
        let told = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = std::sync::Arc::clone(&told);
        let tell = move || {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        };
        assert!(t.client.on_change(tell).unwrap());
        assert!(!t.client.on_change(|| ()).unwrap(), "it has one");
        assert!(!t.client.glance().unwrap().contains(Readiness::READ));
        let session = t.client.session().unwrap();
        for round in 0..100u8 {
            let mut sleeper = Sleeper::new(&session);
            sleeper.announce();
            assert!(!t.client.readiness().unwrap().contains(Readiness::READ));
            let before = told.load(std::sync::atomic::Ordering::SeqCst);
            let server = &mut t.server;
            thread::scope(|scope| {
                scope.spawn(move || server.write_all(&[round]).unwrap());
                wait(&[sleeper.fd().expect("nobody else follows the session")]);
                sleeper.hear(true);
            });
            assert!(told.load(std::sync::atomic::Ordering::SeqCst) > before, "the stream was told of");
            while !t.client.glance().unwrap().contains(Readiness::READ) {
                thread::yield_now();
            }
            let mut byte = [0];
            assert_eq!(t.client.read(&mut byte).unwrap(), 1);
            assert_eq!(byte, [round]);
            // A call that finds nothing does not announce it: the writer makes no system call for the next byte.
            assert!(would_block(t.client.read(&mut byte)));
        }
    }
}

#[test]
fn a_thread_that_looks_is_no_news_for_another() {
    let _watchdog = Watchdog::start("a_thread_that_looks_is_no_news_for_another");
    const LOOKS: u32 = 50_000;
    for (host, _) in PATHS {
        let t = two(host, 4096);
        t.client.set_nonblocking(true).unwrap();
        assert!(t.client.on_change(|| ()).unwrap());
        let has_looked = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !has_looked.load(Ordering::Relaxed) {
                    assert_eq!(t.client.unread_bytes().unwrap(), 0);
                }
            });
            let early = (0..LOOKS).filter(|_| t.client.glance().unwrap().contains(Readiness::READ)).count();
            has_looked.store(true, Ordering::Relaxed);
            assert_eq!(early, 0, "nothing came");
        });
    }
}
