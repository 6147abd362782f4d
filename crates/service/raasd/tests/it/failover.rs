//! Two daemons with two paths between them, each through a relay that fails in its own way and heals.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use raas::{Session, Stream};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually, pattern};
use crate::middle::connect_from;

/// How a relay fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Nothing passes, nothing is closed, and connections are taken.
    Silent,
    /// Connections end, and new ones are refused by a close.
    Closed,
}

struct Relay {
    fault: Arc<Mutex<Fault>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    /// Connections that were passed on.
    passed: Arc<AtomicU64>,
}

impl Relay {
    /// Passes connections at an address on to a daemon, from the address of the dialer.
    fn new(at: SocketAddr, source: IpAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).unwrap();
        let relay = Self { fault: Arc::new(Mutex::new(Fault::None)), open: Arc::default(), passed: Arc::default() };
        let (fault, open, passed) = (Arc::clone(&relay.fault), Arc::clone(&relay.open), Arc::clone(&relay.passed));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if *fault.lock().unwrap() == Fault::Closed {
                    continue;
                }
                let far = connect_from(source, to);
                passed.fetch_add(1, Ordering::SeqCst);
                let clone = |stream: &TcpStream| stream.try_clone().unwrap();
                open.lock().unwrap().extend([clone(&near), clone(&far)]);
                for (from, into) in [(clone(&near), clone(&far)), (far, near)] {
                    let fault = Arc::clone(&fault);
                    std::thread::spawn(move || pass(from, into, &fault));
                }
            }
        });
        relay
    }

    fn fail(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        if fault == Fault::Closed {
            for stream in self.open.lock().unwrap().drain(..) {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }

    fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream, fault: &Mutex<Fault>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if *fault.lock().unwrap() == Fault::Silent {
            // What came is lost, as in a network that is cut.
            continue;
        }
        if into.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    if *fault.lock().unwrap() != Fault::Silent {
        let _ = into.shutdown(std::net::Shutdown::Both);
    }
}

struct World {
    a: Host,
    b: Host,
    relays: [Relay; 2],
    client: Session,
    _server: Session,
    echo: u16,
}

impl World {
    /// `a` reaches `b` through the relays, and `b` does not reach `a` by itself, so that each link passes one of them.
    fn new() -> Self {
        let (mut a, mut b, spare) = (Host::new(), Host::new(), [Host::new(), Host::new()]);
        let [a_standby, b_standby] = spare.map(|host| host.address());
        let (a_first, b_first) = (a.address(), b.address());
        for host in [&mut a, &mut b] {
            host.config.set_limit("peer_return_ms", 60_000).unwrap();
            host.config.wire = verbs::WirePolicy::Auto;
        }
        (a.config.standby, b.config.standby) = (vec![a_standby], vec![b_standby]);
        let nobody = Some(1);
        b.config.peers.push(raasd::PeerConfig {
            port: nobody,
            standby: vec![a_standby],
            ..raasd::PeerConfig::new(a_first)
        });
        b.start();
        let daemon = b.daemon.as_ref().unwrap().peer_address().port();
        // Any port that is free at both addresses.
        let port = TcpListener::bind((b_first, 0)).unwrap().local_addr().unwrap().port();
        let relay =
            |source, address| Relay::new(SocketAddr::new(address, port), source, SocketAddr::new(address, daemon));
        let relays = [relay(a_first, b_first), relay(a_standby, b_standby)];
        let peer = raasd::PeerConfig::new(b_first);
        a.config.peers.push(raasd::PeerConfig { port: Some(port), standby: vec![b_standby], ..peer });
        a.start();
        let (client, server) = (a.session(), b.session());
        let echo = b.echo(&server);
        Self { a, b, relays, client, _server: server, echo }
    }

    /// The addresses of the lane's two ends, as each daemon says them: its own first.
    fn paths(&self) -> [Option<String>; 2] {
        [&self.a, &self.b].map(|host| host.stat().lanes.first()?.link_path.clone())
    }

    /// Waits until both daemons say that they use that path.
    fn await_path(&self, place: usize) {
        let [a, b] = [&self.a, &self.b].map(|host| [host.address(), host.config.standby[0]][place]);
        let wanted = [format!("{a} to {b}"), format!("{b} to {a}")].map(Some);
        eventually("the path is used", || self.paths() == wanted);
    }

    fn connect(&self) -> Stream {
        Stream::connect_with(&self.client, (self.b.address(), self.echo)).unwrap()
    }
}

/// Bytes go round without an end until it is told, and each is looked at.
fn endless_echo(stream: Stream, stop: Arc<AtomicU64>) -> std::thread::JoinHandle<u64> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    std::thread::spawn(move || {
        let (mut rounds, mut stream) = (0, stream);
        while stop.load(Ordering::SeqCst) == 0 {
            let sent = pattern(30_000, rounds as u8);
            stream.write_all(&sent).unwrap();
            let mut got = vec![0; sent.len()];
            stream.read_exact(&mut got).unwrap();
            assert!(got == sent, "round {rounds}: wrong bytes came back");
            rounds += 1;
        }
        rounds
    })
}

/// The first path fails under streams; they go on over the other one.
fn fails_over(fault: Fault) {
    bounded(move || {
        let world = World::new();
        let stop = Arc::new(AtomicU64::new(0));
        let echoes: Vec<_> = (0..3).map(|_| endless_echo(world.connect(), Arc::clone(&stop))).collect();
        world.await_path(0);
        world.relays[0].fail(fault);
        world.await_path(1);
        eventually("the connections go on", || world.a.counter("connections_returned") >= 3);
        eventually("one link is left", || (world.a.links(), world.b.links()) == (1, 1));
        check_echo(world.connect(), 300_000, 3);
        stop.store(1, Ordering::SeqCst);
        for echo in echoes {
            assert!(echo.join().unwrap() > 0);
        }
        assert_eq!(world.a.counter("connections_given_up"), 0);
    });
}

#[test]
fn streams_go_on_over_the_other_path_when_the_first_says_nothing() {
    fails_over(Fault::Silent);
}

#[test]
fn streams_go_on_over_the_other_path_when_the_first_closes() {
    fails_over(Fault::Closed);
}

#[test]
fn the_first_path_is_taken_again_when_it_heals_and_nothing_is_lost() {
    bounded(|| {
        let world = World::new();
        let stop = Arc::new(AtomicU64::new(0));
        let echoes: Vec<_> = (0..3).map(|_| endless_echo(world.connect(), Arc::clone(&stop))).collect();
        world.await_path(0);
        world.relays[0].fail(Fault::Closed);
        world.await_path(1);
        eventually("the connections go on", || world.a.counter("connections_returned") >= 3);
        world.relays[0].fail(Fault::None);
        world.await_path(0);
        eventually("the connections go on again", || world.a.counter("connections_returned") >= 6);
        assert!(world.a.counter("path_changes") >= 2 && world.b.counter("path_changes") >= 2);
        eventually("one link is left", || (world.a.links(), world.b.links()) == (1, 1));
        check_echo(world.connect(), 300_000, 3);
        stop.store(1, Ordering::SeqCst);
        for echo in echoes {
            assert!(echo.join().unwrap() > 0);
        }
        assert_eq!(world.a.counter("connections_given_up"), 0);
    });
}

#[test]
fn a_daemon_that_stands_still_is_waited_for_although_it_has_another_address() {
    bounded(|| {
        let world = World::new();
        let stop = Arc::new(AtomicU64::new(0));
        let echo = endless_echo(world.connect(), Arc::clone(&stop));
        world.await_path(0);
        // The handshake over the other path is not answered either.
        world.relays.iter().for_each(|relay| relay.fail(Fault::Silent));
        // The second try comes when the first one was given up.
        eventually("the other path was tried twice", || world.relays[1].passed() > 1);
        assert_eq!(world.a.links(), 1, "the link stays");
        // The relays lost no byte of the lane, which does not pass them.
        world.relays[1].fail(Fault::None);
        world.await_path(1);
        eventually("the connection goes on", || world.a.counter("connections_returned") > 0);
        stop.store(1, Ordering::SeqCst);
        assert!(echo.join().unwrap() > 0);
        check_echo(world.connect(), 300_000, 3);
    });
}
