//! What can go wrong with clients, servers and calls.
//!
//! Owns the words. It must never say that nothing happened when something may have.

use std::io;
use std::time::Duration;

use raas::{BindError, ConnectError, RegionError, SessionError};

use crate::hello::Refusal;

/// A client could not be connected.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The server could not be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The session was lost, and there is no daemon to make another with.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The server took the connection and not the client.
    #[error("the server refused the client: {0}")]
    Refused(#[from] Refusal),
    /// The connection ended, or was silent, before the server answered.
    #[error("the server did not answer the first message: {0}; is the port that of an RPC server?")]
    Silent(#[source] io::Error),
    /// The server's answer is not of this protocol.
    #[error("the answer to the first message is not of this protocol: is the port that of an RPC server?")]
    NotWelcome,
    /// The server's memory for requests could not be opened.
    #[error("the server's memory for requests could not be opened: {0}")]
    Region(#[from] RegionError),
    /// No socket for datagrams could be bound.
    #[error("no socket for the datagrams of responses: {0}")]
    Datagrams(#[source] io::Error),
    /// The system gave no random bits for the client's name.
    #[error("the system gave no random bits for the client's name: {0}")]
    Random(#[from] getrandom::Error),
    /// The server's name has no address.
    #[error("the server's address could not be found: {0}")]
    Resolve(#[source] io::Error),
    /// A setting that cannot be.
    #[error("{name} is {value}, and must be {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
}

/// A call did not end with a response of the service.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The service returned this error.
    #[error("the service failed: {}", shown(.0))]
    Failed(String),
    /// The service panicked. What it had done by then stays.
    #[error("the service panicked while it executed the call; the server's log says where")]
    Panicked,
    /// The request is longer than the server takes; nothing was sent.
    #[error("a request of {len} bytes is longer than the {max} that the server takes: send less, or raise its limit")]
    RequestTooLong {
        /// Bytes of the request.
        len: usize,
        /// Bytes that it takes.
        max: usize,
    },
    /// The service executed the call, and its response is longer than the server sends.
    #[error("the call was executed, but its response is longer than the {max} bytes that the server sends")]
    ResponseTooLong {
        /// Bytes that it sends.
        max: usize,
    },
    /// The deadline passed. `was_sent`: the call may have been executed, and may still be.
    #[error(
        "the call did not end within {after:?}; {}",
        if *was_sent { "it may have been executed" } else { "it was not sent" }
    )]
    DeadlineExceeded {
        /// Time that it was given.
        after: Duration,
        /// Whether a request left.
        was_sent: bool,
    },
    /// The server lost its memory of this client (it was started anew, or the client was away for too long) while the
    /// call was under way: it may have been executed or not, and is not executed any more.
    #[error("the server lost its memory of this client while the call was under way: it may have been executed or not")]
    OutcomeUnknown,
    /// The server could not be reached for as long as the client tries. `was_sent`: the call may have been executed.
    #[error(
        "the server cannot be reached: {why}; {}",
        if *was_sent { "the call may have been executed" } else { "the call was not sent" }
    )]
    Unreachable {
        /// What the last attempt said.
        why: String,
        /// Whether a request left.
        was_sent: bool,
    },
    /// The server says that this client does not follow the protocol.
    #[error("the server did not take the request: client and server do not understand each other")]
    BadRequest,
}

/// Words of another host as a person can read them: they write nothing to a terminal, and end no line.
fn shown(words: &str) -> String {
    let of_char = |c| if matches!(c, '"' | '\'' | '\\') { String::from(c) } else { c.escape_debug().to_string() };
    words.chars().map(of_char).collect()
}

/// A server could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The port, or one for datagrams, could not be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The memory for requests could not be made.
    #[error("the memory for requests could not be made: {0}")]
    Region(#[from] RegionError),
    /// The system gave no random bits.
    #[error("the system gave no random bits for the names of the server's memory: {0}")]
    Random(#[from] getrandom::Error),
    /// Something of the system.
    #[error("the server could not be started: {0}")]
    Io(#[from] io::Error),
    /// A setting that cannot be.
    #[error("{name} is {value}, and must be {range}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
}

raas::debug_says_the_words!(OpenError, CallError, ServeError);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_service_cannot_write_to_a_terminal() {
        let told = CallError::Failed("\u{1b}]0;owned\u{7}\n\u{202e} größe \"a\" 名前".into()).to_string();
        let wanted = "the service failed: \\u{1b}]0;owned\\u{7}\\n\\u{202e} größe \"a\" 名前";
        assert_eq!(told, wanted);
    }
}
