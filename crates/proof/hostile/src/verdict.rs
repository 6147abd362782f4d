//! What a judge prints: one line for each case.
//!
//! Owns the form `ok   NAME (detail)` and `FAIL NAME: findings`, which the test command reads.

use anyhow::Result;

/// Cases so far.
#[derive(Debug, Default)]
pub struct Verdict {
    failed: u32,
}

impl Verdict {
    /// One case; its detail if it held, else what was wrong.
    pub fn case(&mut self, name: &str, found: Result<String>) {
        match found {
            Ok(detail) => println!("ok   {name} ({detail})"),
            Err(error) => {
                self.failed += 1;
                println!("FAIL {name}: {}", format!("{error:#}").replace('\n', "\n     "));
            }
        }
    }

    /// Whether all held.
    pub fn is_clean(&self) -> bool {
        self.failed == 0
    }
}
