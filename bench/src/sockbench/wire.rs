//! What client and server send to each other before and after a test.

use std::io;

use crate::Test;
use crate::link::Link;

/// Bytes of a [`Spec`].
const SPEC_BYTES: usize = 9;
/// Longest message.
pub(crate) const SIZE_BYTES_MAX: u32 = 16 << 20;

/// What the server must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) test: Test,
    pub(crate) size_bytes: u32,
    pub(crate) connections: u32,
}

impl Spec {
    fn encode(self) -> [u8; SPEC_BYTES] {
        let mut bytes = [0; SPEC_BYTES];
        bytes[0] = match self.test {
            Test::Lat => 0,
            Test::Bw => 1,
            Test::Many => 2,
            Test::Hold => 3,
        };
        bytes[1..5].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[5..].copy_from_slice(&self.connections.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; SPEC_BYTES]) -> Option<Self> {
        let [test, a, b, c, d, e, f, g, h] = bytes;
        let test = [Test::Lat, Test::Bw, Test::Many, Test::Hold].into_iter().nth(test.into())?;
        let size_bytes = u32::from_le_bytes([a, b, c, d]);
        let connections = u32::from_le_bytes([e, f, g, h]);
        (1..=SIZE_BYTES_MAX).contains(&size_bytes).then_some(Self { test, size_bytes, connections })
    }

    /// Tells the server; its answer is its process.
    pub(crate) fn agree(self, link: &Link) -> io::Result<u32> {
        link.write_all(&self.encode())?;
        Ok(u32::try_from(read_u64(link)?).unwrap_or(0))
    }

    /// Hears the client and answers.
    pub(crate) fn hear(link: &Link) -> io::Result<Self> {
        let mut bytes = [0; SPEC_BYTES];
        link.read_exact(&mut bytes)?;
        let spec = Self::decode(bytes).ok_or_else(|| io::Error::other("no test of this release"))?;
        write_u64(link, std::process::id().into())?;
        Ok(spec)
    }
}

pub(crate) fn write_u64(link: &Link, value: u64) -> io::Result<()> {
    link.write_all(&value.to_le_bytes())
}

pub(crate) fn read_u64(link: &Link) -> io::Result<u64> {
    let mut bytes = [0; 8];
    link.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        for test in [Test::Lat, Test::Bw, Test::Many, Test::Hold] {
            let spec = Spec { test, size_bytes: 65_536, connections: 20_000 };
            assert_eq!(Spec::decode(spec.encode()), Some(spec));
        }
        assert_eq!(Spec::decode([9; SPEC_BYTES]), None);
        assert_eq!(Spec::decode([0; SPEC_BYTES]), None);
    }
}
