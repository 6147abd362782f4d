//! What an encrypted connection has between the machine of its queue pair and its socket: records of both directions.
//!
//! Owns bytes that were sealed and not sent, and bytes that came and were not handed on. It must never seal a byte twice,
//! nor hand one on that is not the peer's.

use iwarp::{Gather, GatherPiece, Qp, Scatter};
use records::{Keys, Opener, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RECORD_TAIL_BYTES, RecordError, SealError, Sealer};
use rnic::Device;

/// Bytes that are sealed at a time: what a send buffer takes mostly. With a quarter of that throughput was a fifth lower.
const SEALED_BYTES_MAX: usize = 256 * 1024;

/// What became of a look at what had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The machine got bytes.
    HandedOn,
    /// There is no whole record.
    WantsMore,
}

/// Why nothing more is sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SealFault {
    /// What is to be sent lies in memory that is gone.
    #[error("the memory of what is to be sent is gone")]
    Memory,
    /// The record cannot be made.
    #[error(transparent)]
    Record(#[from] SealError),
}

/// See the module.
#[derive(Debug)]
pub struct Sealed {
    keys: Keys,
    /// What is sent is sealed. The first frame of the end that connects is not.
    is_sealing: bool,
    /// It is as long as it ever had to be, so that nothing is made zero before it is written.
    out: Vec<u8>,
    /// So many bytes of `out` are gone.
    sent: usize,
    /// End of what is to be sent.
    end: usize,
}

impl Sealed {
    /// Of a connection with these keys.
    pub fn new(keys: Keys, is_sealing: bool) -> Self {
        Self { keys, is_sealing, out: Vec::new(), sent: 0, end: 0 }
    }

    /// The first frame is over.
    pub fn begin_sealing(&mut self) {
        self.is_sealing = true;
    }

    /// The direction that comes, to be filled from the socket.
    pub fn opener(&mut self) -> &mut Opener {
        &mut self.keys.opener
    }

    /// How many records were sealed here, and how many opened.
    pub fn records(&self) -> [u64; 2] {
        [self.keys.sealer.sealed(), self.keys.opener.opened()]
    }

    /// The direction that leaves, if nothing of it waits here.
    pub fn idle_sealer(&mut self) -> Option<&mut Sealer> {
        self.unsent().is_empty().then_some(&mut self.keys.sealer)
    }

    /// Hands bytes to the machine that says by `want` where they go.
    pub fn hand_on(&mut self, qp: &mut Qp, dev: &mut Device, want: &Scatter) -> Result<Opened, RecordError> {
        let opener = &mut self.keys.opener;
        if !opener.open()? {
            return Ok(Opened::WantsMore);
        }
        let (mut bytes, mut placed) = (opener.bytes(), 0);
        for piece in &want.pieces {
            let (here, rest) = bytes.split_at(bytes.len().min(usize::try_from(piece.len).unwrap_or(usize::MAX)));
            // The machine looked the place up just now; memory that is gone nevertheless takes nothing.
            let _ = piece.region.write(piece.offset, here);
            placed += here.len();
            bytes = rest;
        }
        let behind = bytes.get(..bytes.len().min(want.buffer_bytes)).unwrap_or(&[]);
        qp.received(dev, placed as u64, behind);
        let taken = placed + behind.len();
        opener.consume(taken);
        Ok(Opened::HandedOn)
    }

    /// What is sealed and has not left.
    pub fn unsent(&self) -> &[u8] {
        self.out.get(self.sent..self.end).unwrap_or(&[])
    }

    /// So many bytes of [`Self::unsent`] left.
    pub fn on_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= self.end {
            (self.sent, self.end) = (0, 0);
        }
    }

    /// Takes what the machine wants to send, up to a bound, and says how much.
    pub fn seal(&mut self, gather: &Gather) -> Result<u64, SealFault> {
        let is_sealing = self.is_sealing;
        let mut copier = Copier { out: &mut self.out, end: &mut self.end, record: None, taken: 0, is_sealing };
        for piece in gather.pieces() {
            let mut done = 0;
            while done < piece.len() && copier.taken < SEALED_BYTES_MAX as u64 {
                done += copier.copy(&mut self.keys.sealer, gather, piece, done)?;
            }
        }
        copier.finish(&mut self.keys.sealer)
    }
}

/// Copies pieces into records.
struct Copier<'a> {
    out: &'a mut Vec<u8>,
    end: &'a mut usize,
    /// Where the record begins that is being filled, and how many bytes of the stream it has.
    record: Option<(usize, usize)>,
    taken: u64,
    is_sealing: bool,
}

impl Copier<'_> {
    /// The next so many bytes of `out`.
    fn room(&mut self, bytes: usize) -> Result<&mut [u8], SealFault> {
        let start = *self.end;
        *self.end += bytes;
        if self.out.len() < *self.end {
            self.out.resize(*self.end, 0);
        }
        self.out.get_mut(start..*self.end).ok_or(SealFault::Memory)
    }

    /// Copies of a piece from `done` on what its record still takes; how much.
    fn copy(&mut self, sealer: &mut Sealer, gather: &Gather, piece: &GatherPiece, done: u64) -> Result<u64, SealFault> {
        if self.record.is_some_and(|(_, bytes)| bytes == RECORD_BYTES_MAX) {
            self.end_record(sealer)?;
        }
        let (start, filled) = match self.record {
            Some(record) => record,
            None => {
                let start = *self.end;
                self.room(if self.is_sealing { RECORD_HEAD_BYTES } else { 0 })?;
                (start, 0)
            }
        };
        let bytes = (piece.len() - done).min((RECORD_BYTES_MAX - filled) as u64);
        let is_gone = SealFault::Memory;
        let (from, count) = usize::try_from(done).ok().zip(usize::try_from(bytes).ok()).ok_or(is_gone)?;
        let room = self.room(count)?;
        match piece {
            GatherPiece::Own(range) => {
                room.copy_from_slice(gather.own_bytes(range).get(from..from + count).ok_or(is_gone)?);
            }
            GatherPiece::Memory(range) => range.region.read(range.offset + done, room).map_err(|_| is_gone)?,
        }
        self.record = Some((start, filled + count));
        self.taken += bytes;
        Ok(bytes)
    }

    fn end_record(&mut self, sealer: &mut Sealer) -> Result<(), SealFault> {
        let Some((start, _)) = self.record.take() else { return Ok(()) };
        if !self.is_sealing {
            return Ok(());
        }
        self.room(RECORD_TAIL_BYTES)?;
        Ok(sealer.seal(self.out.get_mut(start..*self.end).ok_or(SealFault::Memory)?)?)
    }

    fn finish(mut self, sealer: &mut Sealer) -> Result<u64, SealFault> {
        self.end_record(sealer)?;
        Ok(self.taken)
    }
}
