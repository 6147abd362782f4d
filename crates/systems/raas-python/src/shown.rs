//! What objects say of themselves, for `repr`: what they are, their ends, and how they are.
//!
//! Owns the form, which is that of Python's own sockets. It must never raise, or show a region's key.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;

use raas::Reason;

/// The words so far.
pub(crate) struct Shown(String);

impl Shown {
    /// An object of this class, by the name that Python has for it.
    pub(crate) fn of(class: &str) -> Self {
        Self(format!("<{class}"))
    }

    /// One that was closed.
    pub(crate) fn closed(class: &str) -> String {
        Self::of(class).word("closed").end()
    }

    /// How it is.
    #[must_use]
    pub(crate) fn word(mut self, word: &str) -> Self {
        self.0.push(' ');
        self.0.push_str(word);
        self
    }

    /// Something of it.
    #[must_use]
    pub(crate) fn fact(self, name: &str, value: impl Display) -> Self {
        self.word(&format!("{name}={value}"))
    }

    /// An end of it, as Python writes addresses; left out where it is not known.
    #[must_use]
    pub(crate) fn address(self, name: &str, at: io::Result<SocketAddr>) -> Self {
        match at {
            Ok(at) => self.fact(name, format_args!("('{}', {})", at.ip(), at.port())),
            Err(_) => self,
        }
    }

    /// Why it is broken, if it is.
    #[must_use]
    pub(crate) fn failure(self, why: Option<Reason>) -> Self {
        match why {
            Some(why) => self.fact("failure", why.key()),
            None => self,
        }
    }

    /// All of it.
    pub(crate) fn end(mut self) -> String {
        self.0.push('>');
        self.0
    }
}
