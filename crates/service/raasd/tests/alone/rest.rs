//! Two daemons whose connections rest: the pages of their rings go, and every byte that is carried later is right.

use std::fs::read_to_string;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas::{Listener, Session, Stream};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// Names of ring chunks in /proc/self/smaps.
const CHUNKS: [&str; 2] = ["/memfd:raas-tx", "/memfd:raas-rx"];
const STREAMS: u64 = 12;
/// Of one host, while they are in use.
const RESTS: u64 = 2 * STREAMS;

/// Bytes of ring chunks that are mapped and there.
fn ring_bytes() -> u64 {
    let mut in_chunk = false;
    let mut kibibytes = 0;
    for line in read_to_string("/proc/self/smaps").unwrap().lines() {
        if let Some(rss) = line.strip_prefix("Rss:") {
            let rss: u64 = rss.trim().trim_end_matches(" kB").parse().unwrap();
            kibibytes += if in_chunk { rss } else { 0 };
        } else if line.split_whitespace().next().is_some_and(|word| word.contains('-')) {
            in_chunk = CHUNKS.iter().any(|name| line.contains(name));
        }
    }
    kibibytes * 1024
}

fn rests(host: &Host) -> u64 {
    host.stat().counters.iter().find(|c| c.0 == "rests").unwrap().1
}

/// Never zero, so that a byte that was given back shows.
fn byte(seed: u64, at: u64) -> u8 {
    let x = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 32) as u8 | 1
}

fn draw(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

fn connected(session: &Session, server: &Session, to: &Host) -> (Stream, Stream) {
    let listener = Listener::bind_with(server, (to.address(), 0)).unwrap();
    let stream = Stream::connect_with(session, (to.address(), listener.local_addr().unwrap().port())).unwrap();
    let (peer, _) = listener.accept().unwrap();
    for end in [&stream, &peer] {
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (stream, peer)
}

/// One direction of a stream that is used now and then.
struct Flow {
    seed: u64,
    at: u64,
}

impl Flow {
    fn next(&mut self, len: usize) -> Vec<u8> {
        let bytes = (0..len as u64).map(|i| byte(self.seed, self.at + i)).collect();
        self.at += len as u64;
        bytes
    }

    /// Carries bytes in one write, as a loan, or with a part that waits for its reader over `pause`.
    fn carry(&mut self, from: &mut Stream, to: &mut Stream, (len, way): (usize, u64), pause: Duration) {
        let bytes = self.next(len);
        let mut got = vec![0; len];
        match way {
            0 => {
                let mut loan = from.reserve(len).unwrap();
                loan.write_all(&bytes[..len / 2]).unwrap();
                std::thread::sleep(pause);
                loan.write_all(&bytes[len / 2..]).unwrap();
                assert_eq!(loan.commit(), len);
                to.read_exact(&mut got).unwrap();
            }
            1 => {
                from.write_all(&bytes).unwrap();
                to.read_exact(&mut got[..len / 3]).unwrap();
                std::thread::sleep(pause);
                to.read_exact(&mut got[len / 3..]).unwrap();
            }
            _ => {
                from.write_all(&bytes).unwrap();
                to.read_exact(&mut got).unwrap();
                std::thread::sleep(pause);
            }
        }
        let wrong = got.iter().zip(&bytes).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "of {len} bytes, {way}, stream {}, from offset {}", self.seed, self.at - len as u64);
    }
}

/// Pauses around the time after which a connection rests, so that rests and writes meet.
fn talk(mut a: Stream, mut b: Stream, seed: u64, is_over: &AtomicBool) {
    let mut state = seed;
    let (mut there, mut back) = (Flow { seed, at: 0 }, Flow { seed: seed + 1000, at: 0 });
    while !is_over.load(Ordering::Relaxed) {
        let pause = Duration::from_millis([0, 990, 1000 + draw(&mut state, 300)][draw(&mut state, 3) as usize]);
        let pause = pause + Duration::from_micros(draw(&mut state, 20_000));
        let size = |state: &mut u64| 1 + draw(state, 60_000) as usize;
        there.carry(&mut a, &mut b, (size(&mut state), draw(&mut state, 3)), pause);
        back.carry(&mut b, &mut a, (size(&mut state), draw(&mut state, 3)), Duration::ZERO);
    }
}

#[test]
fn resting_connections_give_their_pages_back_and_lose_nothing() {
    let _alone = crate::alone();
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (a.session(), b.session());
        let mut pairs: Vec<_> = (0..STREAMS).map(|_| connected(&client, &server, &b)).collect();
        for (seed, (from, to)) in (0..).zip(&mut pairs) {
            Flow { seed, at: 0 }.carry(from, to, (60_000, 2), Duration::ZERO);
            Flow { seed, at: 7 }.carry(to, from, (60_000, 2), Duration::ZERO);
        }
        let full = ring_bytes();
        assert!(full > 4 * STREAMS * 50_000, "both ends have both rings mapped: {full}");
        eventually("no page of a ring is left", || ring_bytes() == 0);
        let first = rests(&a);
        assert!(first >= STREAMS && rests(&b) >= STREAMS);

        let is_over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            for (seed, (from, to)) in (1..).zip(pairs.drain(..)) {
                scope.spawn(move || talk(from, to, seed, is_over));
            }
            eventually("they rest meanwhile", || rests(&a) >= first + RESTS);
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

/// The application lives on, its connections do not.
#[test]
fn rings_of_closed_connections_give_their_pages_back() {
    let _alone = crate::alone();
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (a.session(), b.session());
        let mut pairs: Vec<_> = (0..40).map(|_| connected(&client, &server, &b)).collect();
        for (seed, (from, to)) in (0..).zip(&mut pairs) {
            Flow { seed, at: 0 }.carry(from, to, (60_000, 2), Duration::ZERO);
        }
        drop(pairs);
        eventually("all are over", || a.connections().len() + b.connections().len() == 0);
        eventually("no page of a free ring is left", || ring_bytes() == 0);
        assert!(a.stat().pinned_bytes > 0, "the rings themselves stay");
        let (mut from, mut to) = connected(&client, &server, &b);
        Flow { seed: 5, at: 0 }.carry(&mut from, &mut to, (60_000, 2), Duration::ZERO);
    });
}

/// What is in the rings while they rest: nothing read yet at one end, a loan at the other.
#[test]
fn what_is_needed_stays_while_the_rest_goes() {
    let _alone = crate::alone();
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (a.session(), b.session());
        let (mut from, mut to) = connected(&client, &server, &b);
        let mut flow = Flow { seed: 77, at: 0 };
        flow.carry(&mut from, &mut to, (60_000, 2), Duration::ZERO);
        let unread = flow.next(5_000);
        from.write_all(&unread).unwrap();
        let later = flow.next(3_000);
        let mut loan = from.reserve(3_000).unwrap();
        loan.write_all(&later[..2_000]).unwrap();
        eventually("the reader's end rests", || rests(&b) >= 1);
        loan.write_all(&later[2_000..]).unwrap();
        loan.commit();
        let mut got = vec![0; 8_000];
        to.read_exact(&mut got).unwrap();
        assert!(got[..5_000] == unread && got[5_000..] == later);
    });
}
