//! What is wrong with a configuration.
//!
//! Owns the lines. All problems of a file come at once.

use std::fmt;

/// What is wrong with a configuration: one line for each problem, `FILE:LINE: message`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The lines; at least one.
    pub problems: Vec<String>,
}

impl ConfigError {
    pub(crate) fn one(problem: String) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("\n"))
    }
}

impl std::error::Error for ConfigError {}
