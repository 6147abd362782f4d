//! What stands before a tensor's bytes, and at the begin of a pool.
//!
//! Owns both formats, in little-endian byte order. What is read is checked as if a stranger had written it.

use crate::dtype::DType;
use crate::layout::Layout;
use crate::limits::{DIMS_MAX, HEADER_BYTES};

/// Of [`Head`].
const MAGIC: [u8; 8] = *b"raastns1";

/// Which tensor it is, and how its elements lie. In memory: the generation (8 bytes), bytes of the payload (8), number of
/// the pool (8), readers (8), type (2), dimensions (2), 28 bytes of zero; then 12 numbers of 8 bytes for the shape, and 12
/// for the strides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Never given twice in a pool; 0: no tensor.
    pub generation: u64,
    /// Number of the pool.
    pub pool: u64,
    /// Type, shape, strides.
    pub layout: Layout,
}

/// Where in a header the count of readers is.
pub(crate) const READERS_AT: u64 = 24;

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Header {
    /// As it stands in memory, with nobody reading.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES as usize] {
        let mut bytes = [0; HEADER_BYTES as usize];
        let layout = &self.layout;
        let dims = layout.shape().len();
        for (at, value) in [(0, self.generation), (8, layout.bytes()), (16, self.pool)] {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes[32..34].copy_from_slice(&layout.dtype().code().to_le_bytes());
        bytes[34..36].copy_from_slice(&(dims as u16).to_le_bytes());
        for (number, value) in layout.shape().iter().enumerate() {
            bytes[64 + 8 * number..][..8].copy_from_slice(&value.to_le_bytes());
        }
        for (number, value) in layout.strides().iter().enumerate() {
            bytes[64 + 8 * (DIMS_MAX + number)..][..8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// None if it is no header, or says more than it may.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let dtype = DType::of_code(u16::from_le_bytes(bytes.get(32..34)?.try_into().ok()?))?;
        let dims = usize::from(u16::from_le_bytes(bytes.get(34..36)?.try_into().ok()?));
        if dims > DIMS_MAX || bytes.len() < HEADER_BYTES as usize {
            return None;
        }
        let words = |from: usize| (0..dims).map(|n| word(bytes, 64 + 8 * (from + n))).collect::<Option<Vec<_>>>();
        let layout = Layout::strided(dtype, &words(0)?, &words(DIMS_MAX)?).ok()?;
        let (generation, pool) = (word(bytes, 0)?, word(bytes, 16)?);
        (generation != 0 && layout.bytes() == word(bytes, 8)?).then_some(Self { generation, pool, layout })
    }
}

/// What stands at the begin of a pool: magic (8 bytes), number (8), port of its owner's program (8), the secret that
/// readers show (16).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) pool: u64,
    pub(crate) port: u16,
    pub(crate) secret: [u8; 16],
}

pub(crate) const HEAD_BYTES: usize = 40;

impl Head {
    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.pool.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.port.to_le_bytes());
        bytes[24..].copy_from_slice(&self.secret);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let port = u16::from_le_bytes(bytes[16..18].try_into().ok()?);
        let secret = bytes[24..].try_into().ok()?;
        (bytes[..8] == MAGIC && port != 0).then_some(Self { pool: word(bytes, 8)?, port, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { generation: 7, pool: 9, layout: Layout::strided(DType::Bf16, &[2, 3, 4], &[12, 4, 1]).unwrap() }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::from_bytes(&header().to_bytes()), Some(header()));
        let head = Head { pool: 3, port: 7000, secret: [5; 16] };
        assert_eq!(Head::from_bytes(&head.to_bytes()), Some(head));
        assert_eq!(Head::from_bytes(&[0; HEAD_BYTES]), None);
    }

    #[test]
    fn what_a_stranger_wrote_is_checked() {
        for (at, value) in [(0, 0), (8, 3), (32, 99), (34, 13), (34, 200), (64, 255)] {
            let mut bytes = header().to_bytes();
            bytes[at] = value;
            assert_eq!(Header::from_bytes(&bytes), None, "byte {at} = {value}");
        }
        assert_eq!(Header::from_bytes(&header().to_bytes()[..255]), None);
    }
}
