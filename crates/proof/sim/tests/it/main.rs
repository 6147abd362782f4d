//! Scenarios of simulated hosts, and that the simulator finds what it is for.

mod control_plane;
mod crowd;
mod determinism;
mod directs;
mod engines;
mod incast;
mod keys;
mod paths;
mod restarts;
mod scale;
mod traps;
mod wires;

/// Whether the test command was called with `--full`.
fn is_full() -> bool {
    std::env::var_os("RAAS_TEST_FULL").is_some()
}
