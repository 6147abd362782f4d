//! What client and server send to each other before and after a test.

use std::io;

use super::Test;
use super::link::Link;

/// Bytes of a [`Spec`].
const SPEC_BYTES: usize = 17;
/// Longest message.
pub(crate) const SIZE_BYTES_MAX: u32 = 16 << 20;

/// What the server must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) test: Test,
    pub(crate) size_bytes: u32,
    pub(crate) connections: u32,
    /// Of `streams`: how long they run before they are measured.
    pub(crate) warm_up_ms: u32,
    /// Of `streams`: how long they are measured.
    pub(crate) measured_ms: u32,
}

/// All tests, by their number on the wire.
const TESTS: [Test; 7] = [Test::Lat, Test::Bw, Test::Many, Test::Hold, Test::Streams, Test::Flood, Test::Opens];

impl Spec {
    fn encode(self) -> [u8; SPEC_BYTES] {
        let test = TESTS.iter().position(|test| *test == self.test).unwrap_or_default();
        let words = [self.size_bytes, self.connections, self.warm_up_ms, self.measured_ms];
        let mut bytes = [test as u8; SPEC_BYTES];
        for (place, word) in bytes[1..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: [u8; SPEC_BYTES]) -> Option<Self> {
        let [test, ref words @ ..] = bytes;
        let test = *TESTS.get(usize::from(test))?;
        let mut words = words.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)));
        let mut next = || words.next();
        let (size_bytes, connections, warm_up_ms, measured_ms) = (next()?, next()?, next()?, next()?);
        let spec = Self { test, size_bytes, connections, warm_up_ms, measured_ms };
        (1..=SIZE_BYTES_MAX).contains(&size_bytes).then_some(spec)
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
        for test in TESTS {
            let spec = Spec { test, size_bytes: 65_536, connections: 20_000, warm_up_ms: 7, measured_ms: 1 << 20 };
            assert_eq!(Spec::decode(spec.encode()), Some(spec));
        }
        assert_eq!(Spec::decode([9; SPEC_BYTES]), None);
        assert_eq!(Spec::decode([0; SPEC_BYTES]), None);
    }
}
