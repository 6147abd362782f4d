//! Any error of the library, for `main`: one that prints its words.
//!
//! Owns these conversions. It must never lose the typed error inside.

use std::io;

use control::{NotAKey, NotAnAccess, debug_says_the_words};

use crate::datagram_error::DatagramError;
use crate::error::{AcceptError, BindError, ConnectError, SessionError};
use crate::fallback::NotOverTcp;
use crate::flags::FlagsError;
use crate::message_error::MessageError;
use crate::naming::LookupError;
use crate::region::{QuorumError, RegionError};

/// Any error of this library or of `std::io`, for the `main` of a program: a `main` that fails with an [`io::Error`]
/// prints `Custom { kind: .., error: .. }` around the text; one that fails with this prints only the text.
///
/// ```no_run
/// fn main() -> Result<(), raas::Error> {
///     let stream = raas::Stream::connect("10.0.0.2:7000")?;
///     stream.shutdown(std::net::Shutdown::Both)?;
///     Ok(())
/// }
/// ```
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] io::Error);

debug_says_the_words!(Error);

impl Error {
    /// Its kind.
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        e.0
    }
}

macro_rules! into_any {
    ($($error:ty),*) => { $(
        impl From<$error> for Error {
            fn from(e: $error) -> Self {
                Self(e.into())
            }
        }
    )* };
}
into_any!(
    SessionError,
    LookupError,
    ConnectError,
    BindError,
    AcceptError,
    NotOverTcp,
    FlagsError,
    MessageError,
    DatagramError,
    RegionError,
    QuorumError,
    NotAKey,
    NotAnAccess
);
