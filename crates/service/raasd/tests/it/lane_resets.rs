//! Lanes between two daemons that fail under load: applications see a pause.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use raas::{Session, Stream};
use verbs::Wire;

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually, pattern};

const STREAMS: usize = 4;
const BYTES: usize = 2 << 20;
const RESETS: u8 = 10;

/// Sends a pattern through an echo, writing and reading at the same time; what comes back is what went.
fn pump(session: &Session, to: SocketAddr, seed: u8) {
    let stream = Stream::connect_with(session, to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let (mut reader, mut writer) = stream.split();
    let sent = pattern(BYTES, seed);
    let back = thread::scope(|scope| {
        scope.spawn(|| {
            for piece in sent.chunks(10_000) {
                writer.write_all(piece).unwrap();
            }
            writer.shutdown().unwrap();
        });
        let mut back = Vec::new();
        reader.read_to_end(&mut back).unwrap();
        back
    });
    assert_eq!(back.len(), sent.len());
    assert!(back == sent, "other bytes came back");
}

fn resets(host: &Host) -> u64 {
    host.stat().lanes.iter().map(|l| l.resets).sum()
}

#[test]
fn streams_go_on_over_a_lane_that_fails_again_and_again() {
    streams_go_on(Wire::Roce);
}

#[test]
fn streams_go_on_over_a_lane_on_tcp_that_fails_again_and_again() {
    streams_go_on(Wire::Iwarp);
}

fn streams_go_on(wire: Wire) {
    bounded(move || {
        let (a, b) = (Host::started_on(wire), Host::started_on(wire));
        let (client, server) = (a.session(), b.session());
        let to = (b.address(), b.echo(&server)).into();
        check_echo(Stream::connect_with(&client, to).unwrap(), 1000, 9);
        let before = a.stat().lanes[0].qpn;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for n in 0..STREAMS {
                let (client, is_over) = (&client, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        pump(client, to, n as u8);
                    }
                });
            }
            let mut asked = 0;
            while asked < RESETS {
                thread::sleep(Duration::from_millis(30));
                let (host, peer) = if asked % 2 == 0 { (&a, &b) } else { (&b, &a) };
                // Not while it is being reset.
                if host.reset_lane(peer.address()) {
                    asked += 1;
                }
                // Connects in the middle of it have one answer.
                check_echo(Stream::connect_with(&client, to).unwrap(), 2000, asked);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        // Two that cross are one.
        assert!(resets(&a) > u64::from(RESETS / 2), "{} resets", resets(&a));
        eventually("both ends count the same", || resets(&a) == resets(&b));
        eventually("one queue pair is left", || {
            let stat = a.stat();
            (stat.rc_qps, a.links(), stat.lanes[0].state.as_str()) == (1, 1, "up")
        });
        let stat = a.stat();
        assert_eq!(stat.lanes[0].wire.as_deref(), Some(wire.name()));
        assert_ne!(stat.lanes[0].qpn, before);
        check_echo(Stream::connect_with(&client, to).unwrap(), 50_000, 3);
    });
}

#[test]
fn a_host_without_a_lane_has_none_to_reset() {
    bounded(|| {
        let a = Host::started();
        assert!(!a.reset_lane(Host::new().address()));
    });
}
