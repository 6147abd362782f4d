//! How a case ends, and what it tells where it failed.

use std::fmt;

/// What a case saw instead of what it expected.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<verbs::VerbsError> for Failure {
    fn from(e: verbs::VerbsError) -> Self {
        Self(format!("verbs call refused: {e}"))
    }
}

impl From<verbs::PostError> for Failure {
    fn from(e: verbs::PostError) -> Self {
        Self(format!("post refused: {e}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self(format!("memory: {e}"))
    }
}

/// How a case ended.
pub type Outcome = Result<(), Failure>;
