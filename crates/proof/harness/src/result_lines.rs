//! Reading what judges print: `PASS name`, `FAIL name: reason` and `SKIP name: reason`, and the closing lines of Rust's
//! own test runner.

use crate::ledger;
use crate::tally::{Tally, skip_line};

/// Result lines of a suite, its own or those of Rust test binaries.
pub fn counted<'l>(lines: impl Iterator<Item = &'l str>) -> Tally {
    let mut tally = Tally::default();
    for line in lines {
        if line.starts_with("PASS ") {
            tally.passed += 1;
        } else if let Some(said) = line.strip_prefix("FAIL ") {
            ledger::failure(said);
            tally.failed += 1;
        } else if skip_line(line).is_some() {
            tally.skipped += 1;
        } else if let Some(counts) = libtest_result(line) {
            tally.add(counts);
        }
    }
    tally
}

/// Reads `test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s`.
pub fn libtest_result(line: &str) -> Option<Tally> {
    let counts = line.trim_start().strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut tally = Tally::default();
    for part in counts.split(';') {
        match part.trim().split_once(' ') {
            Some((count, "passed")) => tally.passed = count.parse().ok()?,
            Some((count, "failed")) => tally.failed = count.parse().ok()?,
            Some((count, "ignored")) => tally.skipped = count.parse().ok()?,
            _ => {}
        }
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let lines =
            ["noise", "PASS a", "FAIL b: why", "SKIP c: why", "PASSED d", "test result: ok. 2 passed; 0 failed;"];
        assert_eq!(counted(lines.into_iter()), Tally { passed: 3, failed: 1, skipped: 1 });
    }

    #[test]
    fn libtest_results_are_read() {
        let line = "test result: FAILED. 2 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(libtest_result(line), Some(Tally { passed: 2, failed: 1, skipped: 3 }));
        assert_eq!(libtest_result("test foo ... ok"), None);
    }
}
