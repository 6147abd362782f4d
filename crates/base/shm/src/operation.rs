//! The records in the rings of an operation queue: submissions of the application, completions of the engine.
//!
//! Owns their bytes (docs/inside/shared-memory.md, "Submission", "Completion"). A record must never be read in place: its taker
//! copies the head once, and uses the copy. What a head says of lengths is checked here against the limits, and by the
//! taker against what the ring holds.

/// Bytes of a submission's head.
pub const SUBMISSION_BYTES: usize = 64;
/// Bytes of a segment behind a submission's head.
pub const SEGMENT_BYTES: usize = 16;
/// Bytes of a completion's head.
pub const COMPLETION_BYTES: usize = 32;
/// Longest READ or WRITE whose bytes travel in the rings.
pub const OPERATION_INLINE_MAX: u32 = 4096;
/// Longest READ or WRITE whose bytes lie in local regions.
pub const OPERATION_BYTES_MAX: u32 = 1 << 30;
/// Most segments of one operation.
pub const SEGMENTS_MAX: u8 = 16;
/// Bytes of a kernel's request at most, with the regions that it names beside its own; and of its answer.
pub const KERNEL_BYTES_MAX: u32 = 896;
/// Regions that a kernel's request names beside its own, at most.
pub const KERNEL_REGIONS_MAX: u64 = 16;
/// Bytes of each: its number, and 4 that are zero.
pub const KERNEL_REGION_BYTES: u32 = 8;
/// Records begin at multiples of this.
const RECORD_ALIGN: u64 = 8;

/// Why bytes are no submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// No operation has this number.
    #[error("operation {0}: 1 to 12 exist")]
    Opcode(u8),
    /// A flag that does not exist.
    #[error("flags {0:#x}: 1 (fence) and 2 (chained) exist")]
    Flags(u8),
    /// No completion class has this number.
    #[error("completion class {0}: 1 to 4 exist")]
    Class(u8),
    /// More segments than are allowed, or segments of an operation that has none.
    #[error("{found} segments, {max} at most")]
    Segments {
        /// How many.
        found: u8,
        /// How many there may be.
        max: u8,
    },
    /// A length that the operation cannot have.
    #[error("{found} bytes, {max} at most")]
    Bytes {
        /// How many.
        found: u32,
        /// How many there may be.
        max: u32,
    },
    /// A kernel's request names more regions than there may be, or than its bytes have.
    #[error("a kernel's request names {found} regions, {max} at most")]
    Regions {
        /// How many.
        found: u64,
        /// How many there may be.
        max: u64,
    },
    /// Reserved bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$variant_doc])* $variant = $code,)* }

        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number in a record.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// What the number in a record stands for.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// What an operation does with a region.
    Opcode {
        /// Copies bytes out of it.
        Read = 1,
        /// Copies bytes into it.
        Write = 2,
        /// Copies bytes into it, and then gives a number to its owner.
        WriteNotify = 3,
        /// Stores `operand` if the 8 bytes are `compare`.
        CompareSwap = 4,
        /// Adds `operand` to the 8 bytes, modulo 2^64.
        FetchAdd = 5,
        /// Stores `operand`.
        Swap = 6,
        /// Keeps the bits that are set in `operand`.
        And = 7,
        /// Sets the bits that are set in `operand`.
        Or = 8,
        /// Inverts the bits that are set in `operand`.
        Xor = 9,
        /// Stores `operand` if it is less, as a number without a sign.
        Min = 10,
        /// Stores `operand` if it is more, as a number without a sign.
        Max = 11,
        /// Runs a kernel at it. `operand` has how many other regions the bytes name before the request.
        Run = 12,
    }
}

impl Opcode {
    /// Whether it is a read-modify-write of 8 bytes, whose completion has what was there before.
    pub const fn is_atomic(self) -> bool {
        self as u8 >= Self::CompareSwap as u8 && self as u8 <= Self::Max as u8
    }
}

codes! {
    /// How far an operation must be when its completion comes.
    Class {
        /// The bytes are taken: the caller's memory is free. What becomes of them is not told.
        Posted = 1,
        /// The owner's device has answered.
        Acked = 2,
        /// Every later access sees it.
        Visible = 3,
        /// It survives loss of power.
        Persistent = 4,
    }
}

codes! {
    /// How an operation ended.
    OperationStatus {
        /// Done.
        Ok = 0,
        /// The program has no open region of this number. Nothing was done.
        NoRegion = 1,
        /// The region does not give this access. Nothing was done.
        Access = 2,
        /// The range does not lie in the region; `detail` has its bytes. Nothing was done.
        OutOfBounds = 3,
        /// The 8 bytes of an atomic do not begin at a multiple of 8. Nothing was done.
        Misaligned = 4,
        /// The region's owner took it back; `detail` has the epoch that the program's grant was of. Nothing was done.
        Revoked = 5,
        /// It may have been done or not; `detail` has the reason (docs/reasons.md).
        OutcomeUnknown = 6,
        /// The link to the owner's host is gone; `detail` has the reason. Nothing was done.
        PeerLost = 7,
        /// No region is on persistent memory. Nothing was done.
        NoPersistence = 8,
        /// An operation before it in its chain failed. Nothing was done.
        ChainBroken = 9,
        /// A segment names local memory that does not exist. Nothing was done.
        NoLocalRegion = 10,
        /// More bytes than `detail`. Nothing was done.
        TooLong = 11,
        /// The bytes are written, but the owner has no room for the notification; `detail` has how many may wait.
        NotificationsFull = 12,
        /// The device or the lane refused it; `detail` has the reason. Nothing was done.
        Failed = 13,
        /// A kernel has no answer; the bytes say why.
        KernelFailed = 14,
    }
}

/// Flags of a submission.
pub mod submission_flag {
    /// It begins when all earlier operations of the queue are done.
    pub const FENCE: u8 = 1;
    /// The next submission belongs to the same chain.
    pub const CHAINED: u8 = 2;
}

/// An operation that an application asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// Comes back in the completion.
    pub tag: u64,
    /// What to do.
    pub opcode: Opcode,
    /// Bits of [`submission_flag`].
    pub flags: u8,
    /// When it is complete.
    pub class: Class,
    /// Segments behind the head; 0: the bytes travel in the rings.
    pub segments: u8,
    /// The open region.
    pub region: u32,
    /// The region's epoch, as the application knows it.
    pub epoch: u64,
    /// Where in the region.
    pub offset: u64,
    /// How many bytes; 8 of an atomic.
    pub bytes: u32,
    /// What the owner gets, of [`Opcode::WriteNotify`].
    pub notify: u32,
    /// Of an atomic; of [`Opcode::WriteNotify`] where the bytes begin of which the owner is told.
    pub operand: u64,
    /// Of [`Opcode::CompareSwap`]; of [`Opcode::WriteNotify`] how many bytes these are, and with 0 they are its own.
    pub compare: u64,
}

impl Submission {
    /// Bytes of the whole record in the transmit ring.
    pub const fn ring_bytes(&self) -> u64 {
        SUBMISSION_BYTES as u64 + self.behind_bytes()
    }

    /// Bytes behind the head, with padding: segments or payload.
    const fn behind_bytes(&self) -> u64 {
        if self.segments > 0 {
            self.segments as u64 * SEGMENT_BYTES as u64
        } else {
            (self.inline_bytes() as u64).next_multiple_of(RECORD_ALIGN)
        }
    }

    /// Bytes of a WRITE behind the head.
    pub const fn inline_bytes(&self) -> u32 {
        match self.opcode {
            Opcode::Write | Opcode::WriteNotify if self.segments == 0 => self.bytes,
            Opcode::Run => self.bytes,
            _ => 0,
        }
    }

    /// Bytes that come in its completion: those of a READ, and at most so many of a kernel's answer.
    pub const fn returned_bytes(&self) -> u32 {
        match self.opcode {
            Opcode::Read if self.segments == 0 => self.bytes,
            Opcode::Run => KERNEL_BYTES_MAX,
            _ => 0,
        }
    }

    /// Bytes of its completion in the receive ring.
    pub const fn completion_ring_bytes(&self) -> u64 {
        completion_ring_bytes(self.returned_bytes())
    }

    /// The head.
    pub fn to_bytes(&self) -> [u8; SUBMISSION_BYTES] {
        let mut out = [0; SUBMISSION_BYTES];
        out[0..8].copy_from_slice(&self.tag.to_le_bytes());
        out[8..12].copy_from_slice(&[self.opcode.code(), self.flags, self.class.code(), self.segments]);
        out[12..16].copy_from_slice(&self.region.to_le_bytes());
        out[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        out[24..32].copy_from_slice(&self.offset.to_le_bytes());
        out[32..36].copy_from_slice(&self.bytes.to_le_bytes());
        out[36..40].copy_from_slice(&self.notify.to_le_bytes());
        out[40..48].copy_from_slice(&self.operand.to_le_bytes());
        out[48..56].copy_from_slice(&self.compare.to_le_bytes());
        out
    }

    /// Where the bytes begin of which [`Opcode::WriteNotify`] tells, and how many they are: of a write in pieces those of
    /// all.
    pub fn told(&self) -> (u64, u32) {
        match u32::try_from(self.compare) {
            Ok(bytes) if bytes > 0 => (self.operand, bytes),
            _ => (self.offset, self.bytes),
        }
    }

    /// Reads a head. What it says of the region is not judged here.
    pub fn parse(head: &[u8; SUBMISSION_BYTES]) -> Result<Self, SubmissionError> {
        let [opcode, flags, class, segments] = field(head, 8);
        let submission = Self {
            tag: u64::from_le_bytes(field(head, 0)),
            opcode: Opcode::from_code(opcode).ok_or(SubmissionError::Opcode(opcode))?,
            flags,
            class: Class::from_code(class).ok_or(SubmissionError::Class(class))?,
            segments,
            region: u32::from_le_bytes(field(head, 12)),
            epoch: u64::from_le_bytes(field(head, 16)),
            offset: u64::from_le_bytes(field(head, 24)),
            bytes: u32::from_le_bytes(field(head, 32)),
            notify: u32::from_le_bytes(field(head, 36)),
            operand: u64::from_le_bytes(field(head, 40)),
            compare: u64::from_le_bytes(field(head, 48)),
        };
        if flags & !(submission_flag::FENCE | submission_flag::CHAINED) != 0 {
            return Err(SubmissionError::Flags(flags));
        }
        if field::<8>(head, 56) != [0; 8] {
            return Err(SubmissionError::Reserved);
        }
        let is_run = submission.opcode == Opcode::Run;
        let segments_max = if submission.opcode.is_atomic() || is_run { 0 } else { SEGMENTS_MAX };
        if segments > segments_max {
            return Err(SubmissionError::Segments { found: segments, max: segments_max });
        }
        let max = match segments {
            _ if submission.opcode.is_atomic() => 8,
            _ if is_run => KERNEL_BYTES_MAX,
            0 => OPERATION_INLINE_MAX,
            _ => OPERATION_BYTES_MAX,
        };
        if submission.bytes > max || (submission.opcode.is_atomic() && submission.bytes != 8) {
            return Err(SubmissionError::Bytes { found: submission.bytes, max });
        }
        let fits = u64::from(submission.bytes / KERNEL_REGION_BYTES).min(KERNEL_REGIONS_MAX);
        if is_run && submission.operand > fits {
            return Err(SubmissionError::Regions { found: submission.operand, max: fits });
        }
        Ok(submission)
    }
}

/// A piece of local memory behind a submission's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalSegment {
    /// The local region's number.
    pub region: u32,
    /// How many bytes.
    pub bytes: u32,
    /// Where in it.
    pub offset: u64,
}

impl LocalSegment {
    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; SEGMENT_BYTES] {
        let mut out = [0; SEGMENT_BYTES];
        out[0..4].copy_from_slice(&self.region.to_le_bytes());
        out[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// Reads one. Any bytes are one; its numbers are not judged here.
    pub fn parse(bytes: &[u8; SEGMENT_BYTES]) -> Self {
        Self {
            region: u32::from_le_bytes(field(bytes, 0)),
            bytes: u32::from_le_bytes(field(bytes, 4)),
            offset: u64::from_le_bytes(field(bytes, 8)),
        }
    }
}

const fn completion_ring_bytes(payload: u32) -> u64 {
    COMPLETION_BYTES as u64 + (payload as u64).next_multiple_of(RECORD_ALIGN)
}

/// The end of an operation, which the engine says to an application in the receive ring of an operation queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionRecord {
    /// Of its submission.
    pub tag: u64,
    /// How it ended.
    pub status: OperationStatus,
    /// Bytes of a READ, or of a kernel's answer, that follow.
    pub bytes: u32,
    /// What an atomic found.
    pub value: u64,
    /// Of the error.
    pub detail: u64,
}

impl CompletionRecord {
    /// Bytes of the whole record in the receive ring.
    pub const fn ring_bytes(&self) -> u64 {
        completion_ring_bytes(self.bytes)
    }

    /// The head.
    pub fn to_bytes(&self) -> [u8; COMPLETION_BYTES] {
        let mut out = [0; COMPLETION_BYTES];
        out[0..8].copy_from_slice(&self.tag.to_le_bytes());
        out[8] = self.status.code();
        out[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.value.to_le_bytes());
        out[24..32].copy_from_slice(&self.detail.to_le_bytes());
        out
    }

    /// Reads a head. `None`: it is none.
    pub fn parse(head: &[u8; COMPLETION_BYTES]) -> Option<Self> {
        let [status, 0, 0, 0] = field(head, 8) else { return None };
        let bytes = u32::from_le_bytes(field(head, 12));
        Some(Self {
            tag: u64::from_le_bytes(field(head, 0)),
            status: OperationStatus::from_code(status)?,
            bytes: if bytes <= OPERATION_INLINE_MAX { bytes } else { return None },
            value: u64::from_le_bytes(field(head, 16)),
            detail: u64::from_le_bytes(field(head, 24)),
        })
    }
}

/// `N` bytes at a place that every caller knows to lie in the record.
fn field<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&record[at..at + N]);
    out
}

#[cfg(test)]
mod tests;
