//! How a command ends: the exit codes that scripts rely on, and the one error type of the command line.
//!
//! Every other module returns [`Failure`]; nothing but `main` turns it into a process exit.

use std::io::Write;
use std::process::ExitCode;

/// The exit code of a command line or configuration that cannot be used.
pub const USAGE: u8 = 2;

/// Why a command did not succeed; the variant decides the exit code, the text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something went wrong while the command ran (exit code 1).
    #[error("{0}")]
    Failed(String),
    /// The command line or something that it names cannot be used (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// The configuration file is wrong (exit code 2); each line is `FILE:LINE: message` and stands as it is.
    #[error("{0}")]
    Configuration(String),
    /// This host's daemon cannot be reached (exit code 3).
    #[error("{0}")]
    NoDaemon(String),
    /// The peer or a policy said no (exit code 4).
    #[error("{0}")]
    Refused(String),
    /// Bytes arrived that are not the bytes that were sent (exit code 5).
    #[error("{0}")]
    Unverified(String),
    /// The process ends with this code, and why was said elsewhere: in the daemon's log, by the demo's parent process.
    #[error("exit code {0}")]
    Logged(u8),
    /// The reader of stdout left before it had all of a stream (exit code 1). It knows, so there is no message.
    #[error("the reader of stdout left")]
    ReaderLeft,
}

impl Failure {
    /// The exit code of the process, 1 to 5.
    pub fn code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::ReaderLeft => 1,
            Self::Usage(_) | Self::Configuration(_) => USAGE,
            Self::NoDaemon(_) => 3,
            Self::Refused(_) => 4,
            Self::Unverified(_) => 5,
            Self::Logged(code) => *code,
        }
    }

    /// [`Self::code`] for the system.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    /// The message for a person.
    pub fn words(&self) -> String {
        match self {
            Self::Configuration(lines) => lines.clone(),
            other => format!("raas: {other}"),
        }
    }

    /// Tells a person on stderr.
    pub fn tell(&self) {
        match self {
            Self::Logged(_) | Self::ReaderLeft => {}
            other => {
                // Nobody is left to be told that stderr is gone.
                let _ = writeln!(std::io::stderr(), "{}", other.words());
            }
        }
    }

    /// A failure of this command with `what` in front of the system's or library's own words.
    pub fn failed(what: impl std::fmt::Display, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("{what}: {why}"))
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::Failed(e.to_string())
    }
}
