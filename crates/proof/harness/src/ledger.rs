//! Where the time of a run goes: seconds of builds, of installing, and of processors that had nothing to do; which
//! cases were slowest, and which failed. Owns the sums of this process; the test command prints them at its end.

use std::sync::Mutex;
use std::time::Duration;

/// What time is spent on, beside running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Compiling,
    Installing,
}

/// Cases that are remembered; more than anybody wants to see.
const CASES_MAX: usize = 20_000;

#[derive(Debug, Default)]
struct Sums {
    compiling: Duration,
    installing: Duration,
    cases: Vec<(String, Duration)>,
    failures: Vec<String>,
}

static SUMS: Mutex<Sums> =
    Mutex::new(Sums { compiling: Duration::ZERO, installing: Duration::ZERO, cases: vec![], failures: vec![] });

fn sums() -> std::sync::MutexGuard<'static, Sums> {
    SUMS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// So much was spent.
pub fn spent(kind: Kind, took: Duration) {
    let mut sums = sums();
    match kind {
        Kind::Compiling => sums.compiling += took,
        Kind::Installing => sums.installing += took,
    }
}

/// A case ended.
pub fn case(name: &str, took: Duration) {
    let mut sums = sums();
    if sums.cases.len() < CASES_MAX {
        sums.cases.push((name.to_owned(), took));
    }
}

/// A case failed; what is said of it.
pub fn failure(said: &str) {
    let mut sums = sums();
    if sums.failures.len() < CASES_MAX {
        sums.failures.push(said.to_owned());
    }
}

/// What is said of the cases that failed.
pub fn failures() -> Vec<String> {
    sums().failures.clone()
}

/// The sum since the last call.
pub fn take(kind: Kind) -> Duration {
    let mut sums = sums();
    std::mem::take(match kind {
        Kind::Compiling => &mut sums.compiling,
        Kind::Installing => &mut sums.installing,
    })
}

/// The cases that took longest, the longest first.
pub fn slowest(count: usize) -> Vec<(String, Duration)> {
    let mut cases = sums().cases.clone();
    cases.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    cases.truncate(count);
    cases
}

/// Seconds that this machine's processors had nothing to do since it started, all processors together.
pub fn idle() -> Option<Duration> {
    // The second number is idle time, in seconds.
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_taken_once_and_the_slowest_come_first() {
        spent(Kind::Compiling, Duration::from_secs(3));
        spent(Kind::Compiling, Duration::from_secs(4));
        assert_eq!(take(Kind::Compiling), Duration::from_secs(7));
        assert_eq!(take(Kind::Compiling), Duration::ZERO);
        case("short", Duration::from_secs(1));
        case("long", Duration::from_secs(100_000));
        assert_eq!(slowest(1), [("long".to_owned(), Duration::from_secs(100_000))]);
        assert!(idle().is_some());
        failure("it broke");
        assert!(failures().contains(&"it broke".to_owned()));
    }
}
