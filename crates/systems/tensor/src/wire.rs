//! Messages between a reader and the owner's program of a pool.
//!
//! Owns their bytes. A number has 8 bytes, little-endian. What comes is checked as if a stranger had sent it.

use raas::{MessageError, RegionError, RegionRefusal};

use crate::books::Wanted;
use crate::error::Error;
use crate::header::Header;
use crate::limits::NAME_BYTES_MAX;

/// The first message of a reader: this byte and the pool's secret.
const HELLO: u8 = 1;
/// A reader asks: this byte, the generation (0: any), the name.
const GET: u8 = 2;

const GRANTED: u8 = 0;
const STALE: u8 = 1;
const FREED: u8 = 2;
const UNKNOWN: u8 = 3;
const BUSY: u8 = 4;
const RENEW: u8 = 5;
const OTHER: u8 = 6;

pub(crate) fn hello(secret: &[u8; 16]) -> Vec<u8> {
    [&[HELLO][..], secret].concat()
}

/// Whether it is a hello with that secret. It takes as long for every wrong one.
pub(crate) fn is_hello(message: &[u8], secret: &[u8; 16]) -> bool {
    let Some((kind, shown)) = message.split_first() else { return false };
    let differs = shown.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
    *kind == HELLO && shown.len() == secret.len() && std::hint::black_box(differs) == 0
}

pub(crate) fn request(wanted: &Wanted) -> Vec<u8> {
    let mut bytes = vec![GET];
    bytes.extend(wanted.generation.unwrap_or(0).to_le_bytes());
    bytes.extend(wanted.name.as_bytes());
    bytes
}

pub(crate) fn read_request(message: &[u8]) -> Option<Wanted> {
    let (kind, rest) = message.split_first()?;
    let (generation, name) = rest.split_first_chunk()?;
    let generation = Some(u64::from_le_bytes(*generation)).filter(|generation| *generation != 0);
    let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX)?;
    (*kind == GET).then(|| Wanted { name: name.to_owned(), generation })
}

/// What the owner's program says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The block that was lent by the message before this has this header.
    Granted(Header),
    /// Another generation has the name.
    Stale { held: u64, current: u64 },
    /// It was freed.
    Freed { generation: u64 },
    /// No such name.
    Unknown,
    /// As many loans are out on this connection as may be: ask on another.
    Busy,
    /// Nothing can be lent on this connection: connect again.
    Renew,
    /// Anything else that the owner could not do.
    Other(String),
}

impl Reply {
    /// For an error of the books.
    pub(crate) fn of_error(error: &Error) -> Self {
        match *error {
            Error::Stale { held, current, .. } => Self::Stale { held, current },
            Error::Freed { generation, .. } => Self::Freed { generation },
            Error::Unknown { .. } => Self::Unknown,
            ref other => Self::Other(other.to_string()),
        }
    }

    /// For a block that could not be lent.
    pub(crate) fn of_failed_loan(error: &std::io::Error) -> Self {
        let inner = error.get_ref();
        if let Some(MessageError::TooManyLent { .. }) = inner.and_then(|inner| inner.downcast_ref()) {
            return Self::Busy;
        }
        match inner.and_then(|inner| inner.downcast_ref()) {
            Some(
                RegionError::Refused { why: RegionRefusal::NoConnection { .. }, .. }
                | RegionError::Revoked { .. }
                | RegionError::DaemonLost { .. },
            ) => Self::Renew,
            _ => Self::Other(error.to_string()),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let of = |kind: u8, numbers: &[u64]| {
            let mut bytes = vec![kind];
            numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            bytes
        };
        match self {
            Self::Granted(header) => [&[GRANTED][..], &header.to_bytes()].concat(),
            Self::Stale { held, current } => of(STALE, &[*held, *current]),
            Self::Freed { generation } => of(FREED, &[*generation]),
            Self::Unknown => of(UNKNOWN, &[]),
            Self::Busy => of(BUSY, &[]),
            Self::Renew => of(RENEW, &[]),
            Self::Other(why) => [&[OTHER][..], why.as_bytes()].concat(),
        }
    }

    pub(crate) fn from_bytes(message: &[u8]) -> Option<Self> {
        let (kind, rest) = message.split_first()?;
        let number = |at: usize| Some(u64::from_le_bytes(rest.get(8 * at..8 * at + 8)?.try_into().ok()?));
        Some(match *kind {
            GRANTED => Self::Granted(Header::from_bytes(rest)?),
            STALE => Self::Stale { held: number(0)?, current: number(1)? },
            FREED => Self::Freed { generation: number(0)? },
            UNKNOWN => Self::Unknown,
            BUSY => Self::Busy,
            RENEW => Self::Renew,
            OTHER => Self::Other(String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Layout};

    #[test]
    fn messages_are_read_as_they_were_sent() {
        for generation in [None, Some(7)] {
            let wanted = Wanted { name: "layer.0".into(), generation };
            assert_eq!(read_request(&request(&wanted)), Some(wanted));
        }
        let layout = Layout::new(DType::I16, &[4]).unwrap();
        for reply in [
            Reply::Granted(Header { generation: 3, pool: 4, layout }),
            Reply::Stale { held: 1, current: 2 },
            Reply::Freed { generation: 9 },
            Reply::Unknown,
            Reply::Busy,
            Reply::Renew,
            Reply::Other("why".into()),
        ] {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        }
    }

    #[test]
    fn what_is_no_message_is_none() {
        for bad in [&[][..], &[GET], &[GET, 1, 2], &[9; 20], &[GET, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF]] {
            assert_eq!(read_request(bad), None);
        }
        for bad in [&[][..], &[STALE, 1], &[GRANTED; 100], &[77]] {
            assert_eq!(Reply::from_bytes(bad), None);
        }
        assert!(is_hello(&hello(&[3; 16]), &[3; 16]));
        assert!(!is_hello(&hello(&[3; 16]), &[4; 16]) && !is_hello(&[HELLO], &[0; 16]) && !is_hello(&[], &[0; 16]));
    }
}
