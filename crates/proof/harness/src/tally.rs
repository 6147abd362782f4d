//! Counts of what passed, failed and was skipped, and how each is said. A skip is always loud, and under `CI=true` it
//! is a failure: nothing may turn green by not running.

use crate::ledger;
use std::time::{Duration, Instant};

/// Cases counted by one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Under CI a skipped case is a failed one.
    pub fn strict(self, ci: bool) -> Tally {
        if ci { Tally { passed: self.passed, failed: self.failed + self.skipped, skipped: 0 } } else { self }
    }

    pub fn case(&mut self, name: &str, took: Duration, findings: &[String]) {
        ledger::case(name, took);
        if findings.is_empty() {
            self.passed += 1;
            println!("ok   {name} ({:.1} s)", took.as_secs_f64());
            return;
        }
        self.failed += 1;
        println!("FAIL {name} ({:.1} s)", took.as_secs_f64());
        ledger::failure(&format!("{name}: {}", findings.join("; ")));
        for finding in findings {
            println!("     {finding}");
        }
    }

    /// Runs `check` as one case; each line it returns is a finding, an error is one finding.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<Vec<String>>) {
        let start = Instant::now();
        let findings = check().unwrap_or_else(|error| vec![format!("{error:#}")]);
        self.case(name, start.elapsed(), &findings);
    }

    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        println!("SKIP {name}: {reason}");
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Says that something failed that is no case with findings.
pub fn fail(said: &str) {
    println!("FAIL {said}");
    ledger::failure(said);
}

/// Counts a line that another process printed for a case: `ok   name (1.2 s)`, `FAIL name ...`, `SKIP name: reason`.
pub fn count_line(line: &str, tally: &mut Tally) {
    tally.passed += u64::from(line.starts_with("ok   "));
    tally.failed += u64::from(line.starts_with("FAIL "));
    tally.skipped += u64::from(skip_line(line).is_some());
    if let Some(said) = line.strip_prefix("FAIL ") {
        ledger::failure(said);
    }
    if let Some((name, took)) = timed(line) {
        ledger::case(name, took);
    }
}

/// Reads `ok   name (1.2 s)`.
fn timed(line: &str) -> Option<(&str, Duration)> {
    let (name, seconds) = line.strip_prefix("ok   ")?.strip_suffix(" s)")?.rsplit_once(" (")?;
    Some((name, Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?))
}

/// The name in a `SKIP name: reason` line that a test printed, if it is one.
pub fn skip_line(line: &str) -> Option<(&str, &str)> {
    line.trim().strip_prefix("SKIP ")?.split_once(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_exact() {
        let tally = Tally { passed: 12, failed: 0, skipped: 3 };
        assert_eq!(tally.to_string(), "12 passed, 0 failed, 3 skipped");
        assert_eq!(tally.strict(true).to_string(), "12 passed, 3 failed, 0 skipped");
        assert_eq!(tally.strict(false), tally);
    }

    #[test]
    fn lines_of_other_processes_are_counted() {
        let mut tally = Tally::default();
        for line in ["ok   a (b) (1.5 s)", "FAIL c (0.1 s)", "     said", "SKIP d: no root"] {
            count_line(line, &mut tally);
        }
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 1 });
        assert_eq!(timed("ok   a (b) (1.5 s)"), Some(("a (b)", Duration::from_millis(1500))));
        assert_eq!(timed("ok   a"), None);
    }

    #[test]
    fn skip_lines_are_recognised_only_in_their_form() {
        assert_eq!(skip_line("  SKIP vm: no qemu"), Some(("vm", "no qemu")));
        assert_eq!(skip_line("SKIP vm"), None);
        assert_eq!(skip_line("SKIPPED vm: x"), None);
    }
}
