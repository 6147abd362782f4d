//! What goes to and comes from the socket in one system call: lists of places, so that the kernel copies straight out
//! of and into registered memory.

use std::ops::Range;

use rnic::MemoryRange;

/// A piece of what is to be written.
#[derive(Debug, Clone)]
pub enum GatherPiece {
    /// Bytes of the list's own buffer: [`Gather::own_bytes`].
    Own(Range<usize>),
    /// Registered memory.
    Memory(MemoryRange),
}

impl GatherPiece {
    /// Bytes of the piece.
    pub fn len(&self) -> u64 {
        match self {
            Self::Own(range) => range.len() as u64,
            Self::Memory(range) => range.len,
        }
    }

    /// Whether it has none; such pieces are not made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is to be written now, in order. It is filled from the first byte that was not reported as sent.
#[derive(Debug)]
pub struct Gather {
    own: Vec<u8>,
    pieces: Vec<GatherPiece>,
    bytes: u64,
    pieces_max: usize,
    bytes_max: u64,
}

impl Gather {
    /// An empty list that takes about so many pieces (the system call takes 1,024) and bytes; both are kept to the end
    /// of a frame, so that they are exceeded by one frame at most.
    pub const fn new(pieces_max: usize, bytes_max: u64) -> Self {
        Self { own: Vec::new(), pieces: Vec::new(), bytes: 0, pieces_max, bytes_max }
    }

    /// The pieces, in the order of the stream.
    pub fn pieces(&self) -> &[GatherPiece] {
        &self.pieces
    }

    /// The bytes of a piece that is not registered memory.
    pub fn own_bytes(&self, range: &Range<usize>) -> &[u8] {
        self.own.get(range.clone()).unwrap_or(&[])
    }

    /// All bytes of all pieces.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there is nothing to write.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Forgets the pieces, whose memory stays mapped as long as they are listed.
    pub fn clear(&mut self) {
        self.own.clear();
        self.pieces.clear();
        self.bytes = 0;
    }

    /// Whether another frame may be added.
    pub(crate) const fn has_room(&self) -> bool {
        self.pieces.len() < self.pieces_max && self.bytes < self.bytes_max
    }

    pub(crate) fn push_own(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let start = self.own.len();
        self.own.extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        // The end of a frame and the head of the next are one piece.
        match self.pieces.last_mut() {
            Some(GatherPiece::Own(last)) if last.end == start => last.end = self.own.len(),
            _ => self.pieces.push(GatherPiece::Own(start..self.own.len())),
        }
    }

    pub(crate) fn push_memory(&mut self, range: MemoryRange) {
        if range.len > 0 {
            self.bytes += range.len;
            self.pieces.push(GatherPiece::Memory(range));
        }
    }
}

/// Where the next bytes of the stream go.
#[derive(Debug, Default)]
pub struct Scatter {
    /// The rest of a payload whose place is known: to be filled first, in order.
    pub pieces: Vec<MemoryRange>,
    /// Bytes to be read behind it into a buffer of the caller, who hands them in. 0 together with no pieces: nothing is
    /// read now.
    pub buffer_bytes: usize,
}

impl Scatter {
    /// An empty list.
    pub const fn new() -> Self {
        Self { pieces: Vec::new(), buffer_bytes: 0 }
    }

    /// Bytes of the pieces.
    pub fn memory_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    /// Whether nothing is to be read now.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.buffer_bytes == 0
    }

    /// Forgets the pieces, whose memory stays mapped as long as they are listed.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.buffer_bytes = 0;
    }
}
