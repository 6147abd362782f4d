//! Many lanes through one bottleneck: all finish, and none starves.

use std::time::Duration;

use sim::incast::{Incast, Shares};
use sim::plan::Switch;

const SEEDS: std::ops::Range<u64> = 1..4;
/// The last may take so many times as long as the first.
const LAST_TO_FIRST_MAX: u32 = 20;

/// 1 Gbit/s, and so many packets at each port.
fn run(seed: u64, senders: usize, packets: u32) -> Shares {
    let switch = Switch::of_rate(1_000_000_000, packets);
    Incast { seed, senders, bytes: 1 << 20, switch, delay: Duration::from_micros(20) }.run()
}

#[test]
fn sixteen_that_send_to_one_all_finish_and_none_starves() {
    for seed in SEEDS {
        let shares = run(seed, 16, 100);
        assert_eq!(shares.violations, [], "seed {seed}");
        let (first, last) = (shares.first(), shares.last());
        let (Some(first), Some(last)) = (first, last) else {
            panic!("seed {seed}: not all finished: {:?}", shares.finished);
        };
        assert!(last <= first * LAST_TO_FIRST_MAX, "seed {seed}: {first:?} to {last:?}: {:?}", shares.finished);
        assert!(shares.dropped > 0, "seed {seed}: the port was never the bottleneck");
    }
}

#[test]
fn one_alone_fills_the_port_and_loses_nothing() {
    let shares = run(1, 1, 1000);
    assert_eq!((shares.violations.len(), shares.dropped, shares.resets), (0, 0, 0));
    assert!(shares.used > 0.8 && shares.used < 1.0, "{shares:?}");
}

#[test]
fn where_nothing_is_dropped_the_port_is_full_and_shared() {
    let shares = run(1, 8, 100_000);
    assert_eq!((shares.violations.len(), shares.dropped, shares.resets), (0, 0, 0));
    assert!(shares.used > 0.8 && shares.fairness() > 0.7, "{shares:?}");
}

#[test]
fn the_same_seed_gives_the_same_shares() {
    let [a, b] = [run(5, 3, 50), run(5, 3, 50)];
    assert_eq!((a.finished, a.packets, a.dropped), (b.finished, b.packets, b.dropped));
}
