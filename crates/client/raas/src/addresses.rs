//! The addresses that a name stands for, tried in turn.
//!
//! Owns how the failures of all become one error. It must never try another address when the session itself is lost.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::error::{BindError, ConnectError};

/// An error of one address, or of all that a name stands for.
pub(crate) trait AddressError: Sized {
    /// The name cannot be looked up.
    fn unresolved(error: io::Error) -> Self;
    /// Several addresses failed.
    fn all(failed: Vec<Self>) -> Self;
    /// Whether the session failed, so that no other address can do better.
    fn is_of_session(&self) -> bool;
}

macro_rules! address_error {
    ($($error:ty),*) => { $(
        impl AddressError for $error {
            fn unresolved(error: io::Error) -> Self {
                Self::Resolve(error)
            }

            fn all(failed: Vec<Self>) -> Self {
                Self::All(failed)
            }

            fn is_of_session(&self) -> bool {
                matches!(self, Self::Session(_))
            }
        }
    )* };
}
address_error!(ConnectError, BindError);

/// The failures so far.
pub(crate) struct Failures<E>(Vec<E>);

impl<E: AddressError> Failures<E> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    /// One more address failed. Returned is what ends the search.
    pub(crate) fn add(&mut self, error: E) -> Result<(), E> {
        if error.is_of_session() {
            return Err(error);
        }
        self.0.push(error);
        Ok(())
    }

    /// All failed.
    pub(crate) fn into_error(mut self) -> E {
        match (self.0.pop(), self.0.is_empty()) {
            (None, _) => E::unresolved(io::Error::new(io::ErrorKind::InvalidInput, "it names no host")),
            (Some(only), true) => only,
            (Some(last), false) => {
                self.0.push(last);
                E::all(self.0)
            }
        }
    }
}

/// The first success.
pub(crate) fn first<T, E: AddressError>(
    name: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> Result<T, E>,
) -> Result<T, E> {
    let mut failures = Failures::new();
    for address in name.to_socket_addrs().map_err(E::unresolved)? {
        match attempt(address) {
            Ok(made) => return Ok(made),
            Err(error) => failures.add(error)?,
        }
    }
    Err(failures.into_error())
}
