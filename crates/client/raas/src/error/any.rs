//! What all errors of the library become: an [`io::Error`], or one for `main` that prints its words.
//!
//! Owns these conversions, and that `Debug` is words. It must never lose the typed error inside.

use std::io;

use super::{AcceptError, BindError, ConnectError, SessionError, StreamError};
use crate::NotOverTcp;

/// A program whose `main` returns an error prints its `Debug` form: the words, not the fields.
macro_rules! debug_says_the_words {
    ($($error:ty),*) => { $(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )* };
}
pub(crate) use debug_says_the_words;
debug_says_the_words!(SessionError, ConnectError, BindError, AcceptError, StreamError);

macro_rules! into_io {
    ($($error:ty),*) => { $(
        impl From<$error> for io::Error {
            fn from(e: $error) -> Self {
                Self::new(e.kind(), e)
            }
        }
    )* };
}
into_io!(SessionError, ConnectError, BindError, AcceptError);

/// Any error of this library or of `std::io`, for the `main` of a program: a `main` that fails with an [`io::Error`]
/// prints
/// `Custom { kind: .., error: .. }` around the words, one that fails with this prints the words alone.
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
into_any!(SessionError, ConnectError, BindError, AcceptError, NotOverTcp, crate::MessageError, crate::DatagramError);
