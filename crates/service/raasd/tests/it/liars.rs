//! Many programs that say whatever comes to their mind, in valid messages, and leave when they like. The same seeds say
//! the same; a failing one is named.

use std::net::SocketAddr;
use std::time::Duration;

use control::{ChannelError, Cursor, InspectQuery, Reply, Request, send_message};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use shm::{Pair, Segment, Sharing};

use crate::control_socket::{RawClient, check_service};
use crate::hosts::{Host, bounded, eventually};

/// A request out of a small world, so that numbers meet.
fn request(rng: &mut StdRng, hosts: &[SocketAddr]) -> Request {
    let port = rng.random_range(1..6);
    let small = rng.random_range(0..8);
    let ring_bytes = *[0, 1, 4096, 65_536, u32::MAX].get(rng.random_range(0..5)).unwrap();
    let connection = rng.random_range(0..40) + if rng.random() { 1 << 40 } else { 0 };
    let mut to = hosts[rng.random_range(0..hosts.len())];
    to.set_port(port);
    match rng.random_range(0..100) {
        0..15 => Request::Listen {
            request: small,
            port,
            backlog: rng.random_range(0..3),
            ring_bytes,
            kind: control::Kind::Stream,
        },
        15..20 => Request::Unlisten { port },
        20..40 => Request::Accepted { port, connection },
        40..80 => Request::Connect { request: small, to, ring_bytes, kind: control::Kind::Stream },
        80..85 => Request::CancelConnect { request: small },
        85..95 => Request::PairClosed { connection },
        95..99 => Request::Inspect { request: small, query: InspectQuery::Connections, from: Cursor::default() },
        _ => Request::PairSegment { pair: small, index: 0, slots: 64, ring_bytes: 4096 },
    }
}

/// A segment as it was asked for, mostly.
fn segment(rng: &mut StdRng, slots: u32, ring_bytes: u32) -> Segment {
    let sharing = if rng.random_range(0..20) == 0 { Sharing::ReadWrite } else { Sharing::PeerReadOnly };
    let segment = Segment::create("liar", Pair::bytes(slots, ring_bytes), sharing).unwrap();
    if rng.random_range(0..20) > 0 {
        Pair::format(segment.region().clone(), slots, ring_bytes).unwrap();
    }
    segment
}

/// Says things until it is thrown out, or has had enough.
fn lie(host: &Host, seed: u64, others: &[SocketAddr]) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut client = RawClient::attached(host);
    for _ in 0..rng.random_range(1..200) {
        let mut wanted = Vec::new();
        if rng.random_range(0..3) > 0 {
            client.take_what_is_there(|reply| {
                if let Reply::PairSegmentWanted { pair, index, slots, ring_bytes } = reply {
                    wanted.push((pair, index, slots, ring_bytes));
                }
            });
        }
        let mut said = vec![(request(&mut rng, others), None)];
        for (pair, index, slots, ring_bytes) in wanted {
            let segment = segment(&mut rng, slots, ring_bytes);
            said.push((Request::PairSegment { pair, index, slots, ring_bytes }, Some(segment)));
        }
        for (request, segment) in said {
            let fds: Vec<_> = segment.iter().map(Segment::fd).collect();
            match send_message(client.as_fd(), &request, &fds) {
                Ok(()) | Err(ChannelError::WouldBlock) => {}
                Err(ChannelError::Closed) => return,
                Err(e) => panic!("{e}"),
            }
        }
        if rng.random_range(0..8) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn programs_that_say_anything_harm_only_themselves() {
    bounded(|| {
        let mut a = Host::new();
        // Two hosts, and one that is not there.
        a.config.set_limit("connect_timeout_ms", 4000).unwrap();
        a.config.limits.pair_answer_ms = 3000;
        a.start();
        let b = Host::started();
        let nobody = Host::new();
        let places = [a.address(), a.address(), b.address(), nobody.address()].map(|ip| SocketAddr::new(ip, 0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (a, b) = (&a, &b);
                scope.spawn(move || {
                    for round in 0..25 {
                        lie(if thread == 0 { b } else { a }, thread * 1000 + round, &places);
                    }
                });
            }
        });
        for host in [&a, &b] {
            check_service(host);
            eventually("all of the liars is released", || {
                let stat = host.stat();
                stat.apps.iter().all(|app| app.name != "raw") && host.connections().is_empty()
            });
        }
        assert_eq!(a.stat().counters.iter().find(|c| c.0 == "rnr_naks").map(|c| c.1), Some(0));
    });
}
