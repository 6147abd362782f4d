//! Strangers on the control link's port: nothing they say gets in, and nothing they do keeps others out.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use control::{FRAME_BYTES_MAX, PeerMessage, Reason, WIRE_VERSION, decode, encode, frame_length, with_length};
use raas::Stream;

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually};

/// A stranger's connection.
struct Stranger(TcpStream);

impl Stranger {
    fn connect(host: &Host) -> Self {
        let stream = TcpStream::connect(host.daemon.as_ref().unwrap().peer_address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, message: &PeerMessage) {
        self.0.write_all(&with_length(&encode(message).unwrap())).unwrap();
    }

    /// The next message; none at the end of the connection.
    fn next(&mut self) -> Option<PeerMessage> {
        let mut prefix = [0; 4];
        match self.0.read_exact(&mut prefix) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                panic!("the daemon says nothing")
            }
            Err(_) => return None,
        }
        let mut frame = vec![0; frame_length(prefix).unwrap()];
        self.0.read_exact(&mut frame).unwrap();
        Some(decode(&frame).unwrap())
    }

    fn last_reason(mut self) -> Option<(Reason, String)> {
        let mut last = None;
        while let Some(message) = self.next() {
            last = Some(message);
        }
        match last {
            Some(PeerMessage::Bye { reason, detail }) => Some((reason, detail)),
            _ => None,
        }
    }

    fn address(&self) -> IpAddr {
        self.0.local_addr().unwrap().ip()
    }
}

fn hello(version: u32, address: IpAddr) -> PeerMessage {
    PeerMessage::Hello { version, release: "9.9.9".into(), instance: 1, address, challenge: [3; 32] }
}

/// A real peer still gets in.
fn check_service(host: &Host) {
    let (peer, server) = (Host::started(), host.session());
    let port = host.echo(&server);
    check_echo(Stream::connect_with(&peer.session(), (host.address(), port)).unwrap(), 1000, 1);
}

#[test]
fn garbage_is_closed() {
    bounded(|| {
        let host = Host::started();
        let long = u32::try_from(FRAME_BYTES_MAX).unwrap().to_be_bytes();
        let frames: [&[u8]; 5] = [b"GET / HTTP/1.0\r\n\r\n", &[0xff; 64], &long, &[0, 0, 0, 0], &[0, 0, 0, 2, 5, 5]];
        for bytes in frames {
            let mut stranger = Stranger::connect(&host);
            stranger.0.write_all(bytes).unwrap();
            let (reason, _) = stranger.last_reason().unwrap();
            assert_eq!(reason, Reason::Unspecified, "{bytes:?}");
        }
        check_service(&host);
    });
}

#[test]
fn another_version_is_refused_and_both_are_named() {
    bounded(|| {
        let host = Host::started();
        let mut stranger = Stranger::connect(&host);
        let address = stranger.address();
        stranger.send(&hello(42, address));
        assert!(matches!(stranger.next(), Some(PeerMessage::Hello { version: WIRE_VERSION, .. })));
        let (reason, detail) = stranger.last_reason().unwrap();
        assert_eq!(reason, Reason::PeerVersion);
        assert!(
            detail.contains(&format!("version {} ", control::WIRE_VERSION))
                && detail.contains("speaks 42 (release 9.9.9)"),
            "{detail}"
        );
    });
}

#[test]
fn an_address_of_another_and_a_wrong_proof_are_refused() {
    bounded(|| {
        let host = Host::started();
        let mut liar = Stranger::connect(&host);
        liar.send(&hello(WIRE_VERSION, "192.0.2.1".parse().unwrap()));
        assert_eq!(liar.last_reason().unwrap().0, Reason::BadAddress);

        let mut guesser = Stranger::connect(&host);
        let address = guesser.address();
        guesser.send(&hello(WIRE_VERSION, address));
        assert!(matches!(guesser.next(), Some(PeerMessage::Hello { .. })));
        guesser.send(&PeerMessage::Noise { message: vec![1; 49] });
        let answer = guesser.next();
        assert!(
            matches!(answer, Some(PeerMessage::Bye { reason: Reason::PeerAuth, .. })),
            "nothing under the key for a stranger: {answer:?}"
        );
        check_service(&host);
    });
}

/// Everything that a real daemon said in one handshake, said again in another.
#[test]
fn a_replayed_handshake_is_refused() {
    bounded(|| {
        let (victim, honest) = (Host::started(), Host::new());
        // The honest daemon is made to dial the listener of an eavesdropper who passes everything on.
        let listener = std::net::TcpListener::bind((victim.address(), 0)).unwrap();
        let middle = listener.local_addr().unwrap();
        let mut honest = honest;
        let port = Some(middle.port());
        honest.config.peers.push(raasd::PeerConfig { port, ..raasd::PeerConfig::new(victim.address()) });
        honest.start();
        let port = victim.echo(&victim.session());
        let (honest_address, to) = (honest.address(), (victim.address(), port));
        let session = honest.session();
        let connecting = std::thread::spawn(move || {
            let _ = Stream::connect_with(&session, to);
        });
        let (from_honest, _) = listener.accept().unwrap();
        from_honest.set_read_timeout(Some(PATIENCE)).unwrap();
        let dial = || {
            let to = victim.daemon.as_ref().unwrap().peer_address();
            let stream = crate::middle::connect_from(honest_address, to);
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Stranger(stream)
        };
        let mut through = dial();
        let mut honest_side = Stranger(from_honest.try_clone().unwrap());
        let mut said = Vec::new();
        for _ in 0..2 {
            let message = honest_side.next().unwrap();
            through.send(&message);
            said.push(message);
            let answer = through.next().unwrap();
            honest_side.send(&answer);
        }
        assert!(matches!(said[1], PeerMessage::Noise { .. }));
        // That one was real: cut it, and say the same again.
        drop((through, honest_side));
        from_honest.shutdown(std::net::Shutdown::Both).unwrap();
        eventually("the real link is gone", || victim.links() == 0);
        let mut replay = dial();
        replay.send(&said[0]);
        assert!(matches!(replay.next(), Some(PeerMessage::Hello { .. })));
        replay.send(&said[1]);
        assert_eq!(replay.last_reason().unwrap().0, Reason::PeerAuth);
        drop(honest);
        connecting.join().unwrap();
    });
}

#[test]
fn the_slow_are_closed_in_time_and_the_oldest_of_many_at_once() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.handshake_ms = 3000;
        host.config.limits.handshakes_max = 6;
        host.start();
        // One byte of a promised frame, then nothing.
        let mut slow: Vec<_> = (0..3).map(|_| Stranger::connect(&host)).collect();
        for stranger in &mut slow {
            stranger.0.write_all(&[0]).unwrap();
        }
        slow.push(Stranger::connect(&host));
        let oldest = slow.remove(0);
        assert_eq!(oldest.last_reason().unwrap().0, Reason::PeerBusy);
        // Another source is not held up by them.
        check_service(&host);
        for stranger in slow {
            assert_eq!(stranger.last_reason().unwrap().0, Reason::TimedOut);
        }
        check_service(&host);
    });
}

/// Idle links from the daemon's own address, from its network, and from more addresses than there are places.
#[test]
fn strangers_do_not_lock_a_daemon_out() {
    bounded(|| {
        let (mut host, mut peer) = (Host::new(), Host::new());
        host.config.limits.handshakes_max = 8;
        host.config.limits.handshake_ms = 3_600_000;
        host.start();
        let to = host.daemon.as_ref().unwrap().peer_address();
        let port = host.echo(&host.session());
        let idle = |from: IpAddr| crate::middle::connect_from(from, to);
        let own: Vec<_> = (0..3).map(|_| idle(peer.address())).collect();
        let others: Vec<_> = (0..24).map(|n| idle(IpAddr::from([127, 99, 7, 1 + n % 4]))).collect();
        let many: Vec<_> = (0..24).map(|n| idle(IpAddr::from([127, 99, 8, 1 + n]))).collect();
        peer.config.limits.dial_attempts_max = 1;
        peer.start();
        check_echo(Stream::connect_with(&peer.session(), (host.address(), port)).unwrap(), 1000, 1);
        drop((own, others, many));
    });
}

#[test]
fn a_trickle_does_not_extend_the_time() {
    bounded(|| {
        let mut host = Host::new();
        host.config.limits.handshake_ms = 300;
        host.start();
        let mut slow = Stranger::connect(&host);
        let frame = with_length(&encode(&hello(WIRE_VERSION, slow.address())).unwrap());
        let mut written = 0;
        for byte in frame.iter().cycle().take(600) {
            std::thread::sleep(Duration::from_millis(20));
            if slow.0.write_all(&[*byte]).is_err() {
                break;
            }
            written += 1;
        }
        assert!(written < 600, "12 s of trickle were let pass");
    });
}
