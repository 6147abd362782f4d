//! The bytes of one direction of a demo connection: a header, then for each file its number and size, its bytes and
//! the SHA-256 that the sender computed from the file. All integers are little-endian.
//!
//! ```text
//! stream header  24 bytes: "RDMO", connection u32, files u32, 0 u32, stream_bytes u64 (all of it, header too)
//! file header    16 bytes: "FILE", file u32, file_bytes u64
//! file bytes     file_bytes
//! trailer        32 bytes: SHA-256
//! ```
//!
//! The receiver trusts none of it: what it computed goes to the parent process beside what the sender computed.

use sha2::{Digest, Sha256};

/// Bytes of a stream header.
pub(crate) const STREAM_HEADER_BYTES: usize = 24;
/// Bytes of a file header.
pub(crate) const FILE_HEADER_BYTES: usize = 16;
/// Bytes of a trailer.
pub(crate) const TRAILER_BYTES: usize = 32;
/// Longest stream.
pub(crate) const STREAM_BYTES_MAX: u64 = 1 << 46;

const MAGIC: &[u8; 4] = b"RDMO";
const MAGIC_FILE: &[u8; 4] = b"FILE";

/// SHA-256 of a file.
pub(crate) type FileDigest = [u8; 32];

/// Bytes of a stream with files of these sizes.
pub(crate) fn stream_bytes(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.map(|s| s + (FILE_HEADER_BYTES + TRAILER_BYTES) as u64).sum::<u64>() + STREAM_HEADER_BYTES as u64
}

/// The first bytes of a stream.
pub(crate) fn stream_header(connection: u32, files: u32, stream_bytes: u64) -> [u8; STREAM_HEADER_BYTES] {
    let mut out = [0; STREAM_HEADER_BYTES];
    out[..4].copy_from_slice(MAGIC);
    out[4..8].copy_from_slice(&connection.to_le_bytes());
    out[8..12].copy_from_slice(&files.to_le_bytes());
    out[16..].copy_from_slice(&stream_bytes.to_le_bytes());
    out
}

/// The bytes before a file.
pub(crate) fn file_header(file: u32, file_bytes: u64) -> [u8; FILE_HEADER_BYTES] {
    let mut out = [0; FILE_HEADER_BYTES];
    out[..4].copy_from_slice(MAGIC_FILE);
    out[4..8].copy_from_slice(&file.to_le_bytes());
    out[8..].copy_from_slice(&file_bytes.to_le_bytes());
    out
}

/// The bytes break the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream breaks the demo's format: {0}")]
pub(crate) struct FormatError(&'static str);

/// What arrived of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Its number.
    pub(crate) file: u32,
    /// Bytes that arrived.
    pub(crate) bytes: u64,
    /// SHA-256 of the bytes that arrived.
    pub(crate) computed: FileDigest,
    /// SHA-256 that the sender announced.
    pub(crate) announced: FileDigest,
}

#[derive(Debug)]
enum Step {
    StreamHeader,
    FileHeader,
    Data { file: u32, bytes: u64, left: u64, hasher: Box<Sha256> },
    Trailer { file: u32, bytes: u64, computed: FileDigest },
    End,
}

/// Takes a stream apart as its bytes come in, in pieces of any size.
#[derive(Debug)]
pub(crate) struct StreamParser {
    connection: u32,
    step: Step,
    /// Bytes of a header or trailer that came so far.
    partial: Vec<u8>,
    files_left: u32,
    /// Bytes of the stream not seen yet; known after the stream header.
    stream_left: Option<u64>,
}

impl StreamParser {
    /// For the stream of this connection.
    pub(crate) fn new(connection: u32) -> Self {
        Self { connection, step: Step::StreamHeader, partial: Vec::new(), files_left: 0, stream_left: None }
    }

    /// How many bytes are still to come; before the stream header, how many are certainly to come.
    pub(crate) fn bytes_left(&self) -> u64 {
        self.stream_left.unwrap_or((STREAM_HEADER_BYTES - self.partial.len()) as u64)
    }

    /// Whether everything came.
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.step, Step::End)
    }

    /// Takes the next bytes; files that are complete go to `arrived`.
    pub(crate) fn push(&mut self, mut input: &[u8], arrived: &mut Vec<Arrived>) -> Result<(), FormatError> {
        while !input.is_empty() {
            let consumed = self.take_from(input)?;
            if let Some(left) = &mut self.stream_left {
                *left = left.checked_sub(consumed as u64).ok_or(FormatError("longer than its header said"))?;
            }
            input = input.get(consumed..).unwrap_or_default();
            self.on_header_complete(arrived)?;
        }
        Ok(())
    }

    /// Consumes at least one byte of `input`; says how many.
    fn take_from(&mut self, input: &[u8]) -> Result<usize, FormatError> {
        let wanted = match &mut self.step {
            Step::StreamHeader => STREAM_HEADER_BYTES,
            Step::FileHeader => FILE_HEADER_BYTES,
            Step::Trailer { .. } => TRAILER_BYTES,
            Step::End => return Err(FormatError("bytes after its end")),
            Step::Data { left, hasher, .. } => {
                let n = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                hasher.update(input.get(..n).unwrap_or_default());
                *left -= n as u64;
                return Ok(n);
            }
        };
        let n = (wanted - self.partial.len()).min(input.len());
        self.partial.extend_from_slice(input.get(..n).unwrap_or_default());
        Ok(n)
    }

    /// Moves on when the current part is complete.
    fn on_header_complete(&mut self, arrived: &mut Vec<Arrived>) -> Result<(), FormatError> {
        match &mut self.step {
            Step::StreamHeader if self.partial.len() == STREAM_HEADER_BYTES => self.on_stream_header()?,
            Step::FileHeader if self.partial.len() == FILE_HEADER_BYTES => self.on_file_header()?,
            Step::Trailer { file, bytes, computed } if self.partial.len() == TRAILER_BYTES => {
                let mut announced = [0; TRAILER_BYTES];
                announced.copy_from_slice(&self.partial);
                arrived.push(Arrived { file: *file, bytes: *bytes, computed: *computed, announced });
                self.partial.clear();
                self.files_left -= 1;
                self.step = if self.files_left == 0 { Step::End } else { Step::FileHeader };
            }
            _ => {}
        }
        if let Step::Data { file, bytes, left: 0, hasher } = &mut self.step {
            let computed = std::mem::take(hasher.as_mut()).finalize().into();
            self.step = Step::Trailer { file: *file, bytes: *bytes, computed };
        }
        if self.is_complete() && self.stream_left != Some(0) {
            return Err(FormatError("shorter than its header said"));
        }
        Ok(())
    }

    fn on_stream_header(&mut self) -> Result<(), FormatError> {
        let (magic, connection, rest) = (le_u32(&self.partial, 0), le_u32(&self.partial, 4), le_u32(&self.partial, 12));
        let total = le_u64(&self.partial, 16);
        if magic != u32::from_le_bytes(*MAGIC) || rest != 0 {
            return Err(FormatError("no stream header"));
        }
        if connection != self.connection {
            return Err(FormatError("header of another connection"));
        }
        self.files_left = le_u32(&self.partial, 8);
        if !(STREAM_HEADER_BYTES as u64..=STREAM_BYTES_MAX).contains(&total) {
            return Err(FormatError("impossible length"));
        }
        self.stream_left = Some(total - STREAM_HEADER_BYTES as u64);
        self.partial.clear();
        self.step = if self.files_left == 0 { Step::End } else { Step::FileHeader };
        Ok(())
    }

    fn on_file_header(&mut self) -> Result<(), FormatError> {
        if le_u32(&self.partial, 0) != u32::from_le_bytes(*MAGIC_FILE) {
            return Err(FormatError("no file header"));
        }
        let (file, bytes) = (le_u32(&self.partial, 4), le_u64(&self.partial, 8));
        self.partial.clear();
        self.step = Step::Data { file, bytes, left: bytes, hasher: Box::default() };
        Ok(())
    }
}

/// The integer at `at`, 0 beyond the end: only called on complete headers.
fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn le_u64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(connection: u32, files: &[(u32, &[u8])]) -> Vec<u8> {
        let total = stream_bytes(files.iter().map(|f| f.1.len() as u64));
        let mut out = stream_header(connection, files.len() as u32, total).to_vec();
        for (file, data) in files {
            out.extend(file_header(*file, data.len() as u64));
            out.extend(*data);
            out.extend(Sha256::digest(data));
        }
        assert_eq!(out.len() as u64, total);
        out
    }

    #[test]
    fn pieces_of_any_size_give_the_same_files() {
        let bytes = stream(7, &[(3, b"hello world"), (4, b""), (9, &[0x55; 1000])]);
        for piece in [1, 2, 7, 24, 100, bytes.len()] {
            let mut parser = StreamParser::new(7);
            let mut arrived = Vec::new();
            for part in bytes.chunks(piece) {
                parser.push(part, &mut arrived).unwrap();
            }
            assert!(parser.is_complete() && parser.bytes_left() == 0);
            assert_eq!(arrived.iter().map(|a| (a.file, a.bytes)).collect::<Vec<_>>(), [(3, 11), (4, 0), (9, 1000)]);
            assert!(arrived.iter().all(|a| a.computed == a.announced));
        }
    }

    #[test]
    fn a_changed_byte_shows_in_the_digest() {
        let mut bytes = stream(0, &[(1, b"some bytes")]);
        bytes[STREAM_HEADER_BYTES + FILE_HEADER_BYTES] ^= 1;
        let mut arrived = Vec::new();
        StreamParser::new(0).push(&bytes, &mut arrived).unwrap();
        assert_ne!(arrived[0].computed, arrived[0].announced);
    }

    #[test]
    fn broken_streams_are_refused() {
        let good = stream(1, &[(1, b"abc")]);
        let refused = |bytes: &[u8]| StreamParser::new(1).push(bytes, &mut Vec::new()).is_err();
        assert!(!refused(&good));
        for (at, value) in [(0, 0), (4, 2), (8, 2), (12, 1), (16, 200), (22, 0xff), (24, 0), (32, 200)] {
            let mut bad = good.clone();
            bad[at] = value;
            bad.extend([0; 300]);
            assert!(refused(&bad), "byte {at} = {value}");
        }
        let mut longer = good;
        longer.push(0);
        assert!(refused(&longer));
        assert!(!refused(&stream(1, &[])));
    }

    #[test]
    fn the_header_says_how_much_is_to_come() {
        let bytes = stream(2, &[(1, &[1; 500])]);
        let mut parser = StreamParser::new(2);
        assert_eq!(parser.bytes_left(), STREAM_HEADER_BYTES as u64);
        parser.push(&bytes[..10], &mut Vec::new()).unwrap();
        assert_eq!(parser.bytes_left(), 14);
        parser.push(&bytes[10..24], &mut Vec::new()).unwrap();
        assert_eq!(parser.bytes_left(), (bytes.len() - 24) as u64);
    }
}
