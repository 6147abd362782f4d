//! What an idle lane costs a daemon, in bytes: its part of the heap, counted, and its registered memory.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use raas::{Listener, Session, Stream};

use crate::HEAP;
use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// Lanes that are counted.
const LANES: usize = 12;
/// Messages each way, of a quarter of a ring each: so many that grants grow, and that each brings frames.
const MESSAGES: usize = 300;
const RING_BYTES: u32 = 4096;
/// All that an idle lane may cost.
const IDLE_BYTES_MAX: usize = 64 << 10;
/// The receives that it always has; the memory of its control frames is given back when nothing of them is on its way.
const FEWEST_RECEIVES: u64 = 8;
const RECEIVES_BYTES: usize = 32 << 10;

struct Far {
    host: Host,
    session: Session,
}

impl Far {
    fn new() -> Self {
        let host = started();
        let session = host.session();
        Self { host, session }
    }

    /// Messages over a connection that is closed again; the lane stays.
    fn carry(&self, near: &Session) {
        let listener = Listener::bind_with(&self.session, (self.host.address(), 0)).unwrap();
        let mut stream = Stream::connect_with(near, listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept_timeout(PATIENCE).unwrap();
        let mut message = [7; RING_BYTES as usize / 4];
        for end in [&stream, &far] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
            end.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        for _ in 0..MESSAGES {
            stream.write_all(&message).unwrap();
            far.read_exact(&mut message).unwrap();
            far.write_all(&message).unwrap();
            stream.read_exact(&mut message).unwrap();
        }
    }
}

fn started() -> Host {
    let mut host = Host::new();
    host.config.ring_bytes = Some(RING_BYTES);
    host.start();
    host
}

/// Waits until nothing of the connections is left and no lane of these hosts has more than the fewest credits.
fn until_idle<'a>(hosts: impl Iterator<Item = &'a Host> + Clone) {
    eventually("connections are gone and grants are small", || {
        let is_idle = |host: &Host| {
            let stat = host.stat();
            host.connections().is_empty() && stat.lanes.iter().all(|lane| lane.granted <= FEWEST_RECEIVES)
        };
        hosts.clone().all(is_idle)
    });
}

/// The least that is allocated within a while: what is under way passes.
fn allocated() -> usize {
    let begin = Instant::now();
    let mut least = usize::MAX;
    while begin.elapsed() < Duration::from_secs(1) {
        least = least.min(HEAP.allocated());
        std::thread::sleep(Duration::from_millis(5));
    }
    least
}

#[test]
fn an_idle_lane_costs_at_most_64_kib() {
    let _alone = crate::alone();
    bounded(|| {
        // What the first lane, and the first connection, of a host makes is not of a lane.
        let (center, other) = (started(), started());
        let (near, near_other) = (center.session(), other.session());
        let fars: Vec<Far> = std::iter::repeat_with(Far::new).take(1 + LANES).collect();
        let (first, others) = fars.split_first().unwrap();
        let hosts = || [&center, &other].into_iter().chain(fars.iter().map(|far| &far.host));
        fars.iter().for_each(|far| far.carry(&near_other));
        first.carry(&near);
        until_idle(hosts());
        let before = allocated();
        others.iter().for_each(|far| far.carry(&near));
        until_idle(hosts());
        assert_eq!(center.stat().lanes.len(), 1 + LANES);
        // Both ends of each lane are here.
        let heap = allocated().saturating_sub(before) / (2 * LANES);
        println!("{heap} bytes of heap for a lane");
        assert!(heap > 0, "nothing was counted");
        assert!(heap + RECEIVES_BYTES <= IDLE_BYTES_MAX, "{heap} bytes of heap for a lane");
    });
}
