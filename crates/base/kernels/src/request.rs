//! What a client asks for: a kernel's name and its arguments, as bytes and as types.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::limits::{NAME_BYTES_MAX, REQUEST_BYTES_MAX};

/// A kernel's name and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The kernel.
    pub name: &'a str,
    /// Its arguments: what they mean is the kernel's own.
    pub args: &'a [u8],
}

/// A request cannot be sent, or cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// The name is empty or too long.
    #[error("a kernel's name has 1 to {NAME_BYTES_MAX} bytes, and this one {0}")]
    Name(usize),
    /// Too many bytes.
    #[error("a request has at most {REQUEST_BYTES_MAX} bytes with the name, and this one {0}")]
    TooLong(usize),
    /// The bytes end within the name, or it is no text.
    #[error("the bytes do not begin with a name")]
    NoName,
}

control::debug_says_the_words!(BadRequest);

impl<'a> Request<'a> {
    /// The bytes: the name's length, the name, the arguments.
    pub fn to_bytes(&self) -> Result<Vec<u8>, BadRequest> {
        let name = self.name.as_bytes();
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(BadRequest::Name(name.len()));
        }
        let bytes = 1 + name.len() + self.args.len();
        if bytes > REQUEST_BYTES_MAX {
            return Err(BadRequest::TooLong(bytes));
        }
        let mut out = Vec::with_capacity(bytes);
        out.push(name.len() as u8);
        out.extend_from_slice(name);
        out.extend_from_slice(self.args);
        Ok(out)
    }

    /// Reads a request. Any bytes may come.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadRequest> {
        if bytes.len() > REQUEST_BYTES_MAX {
            return Err(BadRequest::TooLong(bytes.len()));
        }
        let (len, rest) = bytes.split_first().ok_or(BadRequest::NoName)?;
        let len = usize::from(*len);
        if len == 0 || len > NAME_BYTES_MAX {
            return Err(BadRequest::Name(len));
        }
        let (name, args) = rest.split_at_checked(len).ok_or(BadRequest::NoName)?;
        let name = std::str::from_utf8(name).map_err(|_| BadRequest::NoName)?;
        Ok(Self { name, args })
    }
}

/// A call of a built-in kernel with its arguments, and the type of its answer.
pub trait Call: Serialize {
    /// The kernel's name.
    const NAME: &'static str;
    /// What it answers.
    type Answer: DeserializeOwned;

    /// The arguments as they travel.
    fn args(&self) -> Vec<u8> {
        // Structures of numbers and bytes can always be written.
        postcard::to_allocvec(self).unwrap_or_default()
    }

    /// Reads an answer. `None`: the bytes are none, or go on behind it.
    fn answer(bytes: &[u8]) -> Option<Self::Answer> {
        let (answer, rest) = postcard::take_from_bytes(bytes).ok()?;
        rest.is_empty().then_some(answer)
    }
}

/// Reads the arguments of a built-in kernel.
pub(crate) fn read_args<T: DeserializeOwned>(args: &[u8]) -> Result<T, Failure> {
    let (args, rest) = postcard::take_from_bytes(args).map_err(|e| Failure::bad(e.to_string()))?;
    if rest.is_empty() { Ok(args) } else { Err(Failure::bad(format!("{} bytes behind them", rest.len()))) }
}

/// Writes an answer.
pub(crate) fn write_answer<T: Serialize>(answer: &T) -> Vec<u8> {
    // As for arguments.
    postcard::to_allocvec(answer).unwrap_or_default()
}
