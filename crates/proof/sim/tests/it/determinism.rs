//! A seed is a run: the same seed does the same, another does something else, and fixed seeds hold every promise.

use std::collections::BTreeSet;

use sim::{Trace, run_seed, trace_seed};

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 17, 1720, 103_379] {
        let (first, second) = (run_seed(seed, None), run_seed(seed, None));
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn a_run_is_not_changed_by_its_trace_file() {
    let folder = std::env::temp_dir().join(format!("sim-trace-{}", std::process::id()));
    let path = folder.join("seed-5.trace");
    let traced = trace_seed(5, None, &path).unwrap();
    let lines = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(traced.trace_hash, run_seed(5, None).trace_hash);
    assert!(lines.lines().any(|l| l.contains("comes in at")), "a trace tells of connections");
    assert!(Trace::path(5).ends_with("sim/seed-5.trace"));
}

#[test]
fn a_limit_of_steps_ends_the_run_without_a_finding() {
    let outcome = run_seed(17, Some(500));
    assert_eq!((outcome.steps, outcome.violations), (500, vec![]));
}

#[test]
fn fixed_seeds_hold_every_promise() {
    let mut hashes = BTreeSet::new();
    let (mut bytes, mut lost, mut failures) = (0, 0, BTreeSet::new());
    // Stage `sim` runs hundreds of them, optimised.
    for seed in 1..=crate::size(10, 30) {
        let outcome = run_seed(seed, None);
        assert_eq!(outcome.violations, [], "cargo run --release -p sim -- --seed {seed}");
        assert!(hashes.insert(outcome.trace_hash), "seed {seed} does what another does");
        bytes += outcome.bytes_checked;
        lost += outcome.packets_lost;
        failures.extend(outcome.failures.into_keys());
    }
    // A swarm that breaks nothing would find nothing.
    assert!(bytes > 500_000 && lost > 50, "{bytes} bytes, {lost} packets lost");
    for reason in ["reset-by-peer", "peer-app-died", "peer-lost", "no-listener", "backlog-full", "peer-limit"] {
        assert!(failures.contains(reason), "no seed led to {reason}: {failures:?}");
    }
}

/// A host that had lost its link said that it used a region no more, and the owner, which stood still, had bytes of it
/// unread.
#[test]
fn the_word_of_a_host_without_a_link_does_not_get_to_the_owner_of_a_region() {
    assert_eq!(run_seed(241, None).violations, [], "cargo run --release -p sim -- --seed 241");
}
