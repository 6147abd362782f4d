//! How a daemon is held to what it needs: the settings, and what came of them.
//!
//! Owns the words. What they do is `confinement`.

use std::sync::Arc;

use receivers::Spawner;

/// Whether the kernel holds the daemon to what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// As far as the kernel has it; what it has not is told.
    Auto,
    /// All of it, or no start.
    Required,
    /// Not at all.
    Off,
}

impl std::str::FromStr for Sandbox {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "required" => Ok(Self::Required),
            "off" => Ok(Self::Off),
            _ => Err(format!("\"{text}\" is not allowed; use \"auto\", \"required\" or \"off\"")),
        }
    }
}

/// What becomes of a daemon that tries a system call which it must not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnViolation {
    /// The call fails.
    Refuse,
    /// The process is killed with SIGSYS.
    Kill,
}

impl std::str::FromStr for OnViolation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "kill" => Ok(Self::Kill),
            _ => Err(format!("\"{text}\" is not allowed; use \"refuse\" or \"kill\"")),
        }
    }
}

/// What holds this process.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Confinement {
    /// Whether system calls are filtered.
    pub calls_filtered: bool,
    /// The version of Landlock by which files are restricted; 0 is not at all.
    pub landlock_abi: u32,
    /// What was done, a line for each part.
    pub words: Vec<String>,
    /// What was not done, why, and what to do.
    pub warnings: Vec<String>,
    /// Makes processes for a daemon that may make none.
    pub(crate) spawner: Option<Arc<Spawner>>,
}
