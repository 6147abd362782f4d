//! The control link between two daemons when the network is not kind: cut, frozen, lanes that are reset.

use std::io::{Read, Write};
use std::time::Duration;

use control::PeerMessage;
use raas::{Listener, Reason, Session, Stream, StreamError};

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};
use crate::middle::Middle;

struct World {
    a: Host,
    b: Host,
    middle: Middle,
    client: Session,
    _server: Session,
    listener: Listener,
    echo: u16,
}

impl World {
    /// `a` reaches `b` through the middle, and `b` does not reach `a` itself: each link passes the middle.
    fn new() -> Self {
        Self::waiting(0)
    }

    /// Connections wait so many milliseconds for a link that was lost.
    fn waiting(peer_return_ms: u64) -> Self {
        Self::with(peer_return_ms, 1000)
    }

    /// A silent peer is given up after so many heartbeats, ten a second.
    fn with(peer_return_ms: u64, misses: u32) -> Self {
        let (mut a, mut b) = (Host::new(), Host::new());
        for host in [&mut a, &mut b] {
            host.config.set_limit("peer_return_ms", peer_return_ms).unwrap();
            host.config.heartbeat = raasd::Heartbeat { interval: Duration::from_millis(100), misses };
        }
        let nobody = Some(1);
        let a_unreached = raasd::PeerConfig { port: nobody, ..raasd::PeerConfig::new(a.address()) };
        b.config.peers.push(a_unreached);
        b.start();
        let middle = Middle::between(&mut a, &b);
        a.start();
        let (client, server) = (a.session(), b.session());
        let listener = Listener::bind_with(&server, (b.address(), 0)).unwrap();
        let echo = b.echo(&server);
        Self { a, b, middle, client, _server: server, listener, echo }
    }

    fn connect(&self) -> (Stream, Stream) {
        let stream = Stream::connect_with(&self.client, self.listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = self.listener.accept_timeout(PATIENCE).unwrap();
        // Before the daemon has heard of the accept a connection in the backlog is nobody's.
        eventually("both ends are established", || {
            let established =
                |h: &Host| h.connections().iter().all(|r| r.state == control::ConnectionState::Established);
            established(&self.a) && established(&self.b)
        });
        (stream, accepted)
    }

    fn check_service(&self) {
        check_echo(Stream::connect_with(&self.client, (self.b.address(), self.echo)).unwrap(), 50_000, 5);
    }
}

fn reset_reason(mut stream: Stream) -> Reason {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let error = stream.read(&mut [0]).unwrap_err();
    StreamError::reason_of(&error).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn a_cut_link_ends_connections_and_is_made_again() {
    bounded(|| {
        let world = World::new();
        let (stream, accepted) = world.connect();
        world.middle.cut();
        assert_eq!((reset_reason(stream), reset_reason(accepted)), (Reason::PeerLost, Reason::PeerLost));
        world.check_service();
        assert_eq!(world.middle.links(), 2);
    });
}

#[test]
fn a_cut_link_is_made_again_under_its_connections() {
    bounded(|| {
        let world = World::waiting(60_000);
        let (stream, accepted) = world.connect();
        for round in 0..5_u8 {
            (&stream).write_all(&[round; 9]).unwrap();
            let before = (world.middle.links(), world.a.counter("connections_returned"));
            world.middle.cut();
            (&stream).write_all(&[round; 1000]).unwrap();
            let mut got = [0; 1009];
            accepted.set_read_timeout(Some(PATIENCE)).unwrap();
            (&accepted).read_exact(&mut got).unwrap();
            assert_eq!(got, [round; 1009]);
            // Bytes may still come over the lane, which does not pass the middle.
            eventually("the link is made again", || world.middle.links() > before.0);
            eventually("the connection goes on", || world.a.counter("connections_returned") > before.1);
        }
        assert!(world.a.counter("connections_parted") >= 5);
    });
}

#[test]
fn a_silent_peer_is_given_up_after_its_heartbeats() {
    bounded(|| {
        const MISSES: usize = 50;
        let world = World::with(0, MISSES as u32);
        let (stream, accepted) = world.connect();
        // Heartbeats alone keep an idle link.
        let before = world.middle.heartbeats();
        eventually("more heartbeats than may be missed", || world.middle.heartbeats() > before + 2 * MISSES);
        assert_eq!((world.middle.links(), world.a.links(), world.b.links()), (1, 1, 1));
        world.middle.freeze();
        assert_eq!((reset_reason(stream), reset_reason(accepted)), (Reason::PeerLost, Reason::PeerLost));
        eventually("both daemons closed the link", || world.a.links() + world.b.links() == 0);
    });
}

#[test]
fn a_reset_lane_is_made_anew_on_the_same_link() {
    bounded(|| {
        let world = World::new();
        let (stream, accepted) = world.connect();
        let before = world.a.stat().lanes[0].qpn;
        let reset = PeerMessage::LaneReset {
            lane: 0,
            incarnation: 1,
            reason: Reason::LaneFailed,
            resumes: false,
            rests: false,
        };
        world.middle.say_to_both(&reset);
        assert_eq!((reset_reason(stream), reset_reason(accepted)), (Reason::LaneFailed, Reason::LaneFailed));
        world.check_service();
        let stat = world.a.stat();
        assert_eq!((stat.rc_qps, world.middle.links()), (1, 1), "{stat:?}");
        assert_ne!(stat.lanes[0].qpn, before);
    });
}
