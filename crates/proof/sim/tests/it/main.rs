//! Scenarios of simulated hosts, and that the simulator finds what it is for.

mod control_plane;
mod crowd;
mod determinism;
mod directs;
mod engines;
mod incast;
mod keys;
mod loans;
mod messages;
mod paths;
mod restarts;
mod scale;
mod traps;
mod wires;

/// One of two sizes: the second when the test command was called with `--full`.
fn size<T>(default: T, full: T) -> T {
    if std::env::var_os("RAAS_TEST_FULL").is_some() { full } else { default }
}
