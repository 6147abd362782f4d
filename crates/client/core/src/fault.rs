//! Why a session cannot be made, or cannot go on.
//!
//! Owns the texts of what the daemon did wrong. It must never blame the daemon for a limit of this process.

use control::{APP_VERSION, ChannelError, Reason};
use shm::LAYOUT_VERSION;

use crate::Forked;

/// Why a session cannot be made, or cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionFault {
    /// Library and daemon are of different releases.
    #[error("{}", other_release(*version, *layout, release))]
    Version {
        /// Control protocol of the daemon.
        version: u32,
        /// Memory layout of the daemon.
        layout: u32,
        /// Release of the daemon.
        release: String,
    },
    /// The daemon does not accept this application.
    #[error("the daemon refused this application: {reason} ({detail})")]
    Refused {
        /// Why.
        reason: Reason,
        /// The daemon's words.
        detail: String,
    },
    /// The daemon died, stopped, or put this application out.
    #[error("the session with the daemon is over: {0}")]
    Lost(Reason),
    /// This process may open no more descriptors, so it could not get those of the session.
    #[error("{}", at_descriptor_limit(*limit))]
    Descriptors {
        /// Descriptors that it may have open.
        limit: u64,
    },
    /// The daemon said something that its protocol does not allow.
    #[error("the daemon broke the control protocol: {0}")]
    Protocol(String),
    /// This process is a fork of the one that made the session.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// A system call failed.
    #[error("{call}: {cause}")]
    Os {
        /// Which.
        call: &'static str,
        /// Its kind.
        kind: std::io::ErrorKind,
        /// What the system said.
        cause: String,
    },
}

/// Words for a daemon of another release than this library.
pub fn other_release(version: u32, layout: u32, release: &str) -> String {
    format!(
        "version mismatch: this library speaks control protocol {APP_VERSION} and memory layout {LAYOUT_VERSION}, the \
         daemon (release {release}) speaks {version} and {layout}: install the same release of both"
    )
}

/// Words for a process that may open no more descriptors.
pub fn at_descriptor_limit(limit: u64) -> String {
    format!(
        "this process is at its limit of {limit} open descriptors (RLIMIT_NOFILE): close some, or raise the limit \
         (`ulimit -n`)"
    )
}

/// Whether the system has no descriptor to give: this process's limit, or the machine's.
pub(crate) fn is_want_of_descriptors(error: &std::io::Error) -> bool {
    /// `EMFILE` and `ENFILE` of Linux.
    const WANT: [i32; 2] = [24, 23];
    error.raw_os_error().is_some_and(|errno| WANT.contains(&errno))
}

impl SessionFault {
    /// A system call failed.
    pub fn os(call: &'static str, error: &std::io::Error) -> Self {
        Self::Os { call, kind: error.kind(), cause: error.to_string() }
    }
}

/// What a failure of the control socket means. [`ChannelError::WouldBlock`] is no failure: callers check for it before.
impl From<ChannelError> for SessionFault {
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Closed => Self::Lost(Reason::DaemonLost),
            ChannelError::Io(e) => Self::os("control socket", &e),
            ChannelError::DescriptorLimit { limit } => Self::Descriptors { limit },
            other => Self::Protocol(other.to_string()),
        }
    }
}
