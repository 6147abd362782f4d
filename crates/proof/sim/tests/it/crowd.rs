//! A thousand hosts in one run, or some hundred without `RAAS_TEST_FULL`.

use sim::{Plan, Trace, run_plan};

#[track_caller]
fn holds(seed: u64, hosts: usize) {
    let outcome = run_plan(Plan::crowd(seed, hosts), None, Trace::silent());
    assert_eq!(outcome.violations, [], "cargo run --release -p sim -- --seed {seed} --hosts {hosts}");
    // Each host connects to two or three others, and is a probe of three.
    assert!(outcome.connections >= 5 * hosts as u64, "{outcome:?}");
    assert!(outcome.bytes_checked > 10_000 * hosts as u64, "{outcome:?}");
}

#[test]
fn a_crowd_keeps_every_promise() {
    holds(1, crate::size(200, 1000));
}

#[test]
fn crowds_of_other_sizes_do_too() {
    for seed in 1..=crate::size(1, 4) {
        holds(seed, 60 + 20 * seed as usize);
    }
}
