//! The exchange before the first frame (RFC 5044 section 7.1, RFC 6581 section 5): request, reply, private data.
//!
//! Owns the layout of both, and what of a peer's bytes is refused. Bytes come in any pieces; [`Startup::parse`] says
//! how many are missing.

/// Longest private data that a request or a reply carries.
pub const PRIVATE_DATA_MAX: usize = 512;
/// Bytes of a request or reply before its private data.
pub const STARTUP_BYTES: usize = 20;
/// Bytes of private data that RFC 6581 takes for itself.
pub const ENHANCED_BYTES: usize = 4;
/// Largest number of READs that RFC 6581 can name; as a value it means that the number is not negotiated.
pub const IRD_ORD_MAX: u16 = 0x3fff;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// Upper bits of the IRD word.
const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
/// Upper bits of the ORD word.
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;

/// Which of the two frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// From the end that made the TCP connection.
    Request,
    /// From the other one.
    Reply,
}

impl std::fmt::Display for FrameKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Reply => "reply",
        })
    }
}

impl FrameKind {
    const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => KEY_REQUEST,
            Self::Reply => KEY_REPLY,
        }
    }
}

/// Revision of MPA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581.
    Two,
}

impl Revision {
    const fn number(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// What RFC 6581 adds to the front of the private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enhanced {
    /// READs and atomics that the sender of this executes at a time.
    pub ird: u16,
    /// READs and atomics that it will have outstanding.
    pub ord: u16,
    /// Both ends may send at once: the active end sends a first frame that says "ready to receive" (RTR).
    pub peer_to_peer: bool,
    /// A Send without payload may be that frame.
    pub rtr_send: bool,
    /// A Write without payload may be it.
    pub rtr_write: bool,
    /// A Read Request without bytes may be it.
    pub rtr_read: bool,
}

impl Enhanced {
    fn parse(bytes: [u8; ENHANCED_BYTES]) -> Self {
        let ird = u16::from_be_bytes([bytes[0], bytes[1]]);
        let ord = u16::from_be_bytes([bytes[2], bytes[3]]);
        Self {
            ird: ird & IRD_ORD_MAX,
            ord: ord & IRD_ORD_MAX,
            peer_to_peer: ird & PEER_TO_PEER != 0,
            rtr_send: ird & RTR_SEND != 0,
            rtr_write: ord & RTR_WRITE != 0,
            rtr_read: ord & RTR_READ != 0,
        }
    }

    fn to_bytes(self) -> [u8; ENHANCED_BYTES] {
        let flag = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let ird = self.ird.min(IRD_ORD_MAX) | flag(self.peer_to_peer, PEER_TO_PEER) | flag(self.rtr_send, RTR_SEND);
        let ord = self.ord.min(IRD_ORD_MAX) | flag(self.rtr_write, RTR_WRITE) | flag(self.rtr_read, RTR_READ);
        let (ird, ord) = (ird.to_be_bytes(), ord.to_be_bytes());
        [ird[0], ird[1], ord[0], ord[1]]
    }
}

/// A request or a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Startup {
    /// Which one.
    pub kind: FrameKind,
    /// Revision of MPA.
    pub revision: Revision,
    /// The sender wants markers in what it receives.
    pub wants_markers: bool,
    /// The sender wants CRCs in both directions.
    pub wants_crc: bool,
    /// The connection is refused (replies).
    pub is_rejected: bool,
    /// Of revision 2, if its sender uses it.
    pub enhanced: Option<Enhanced>,
    /// The upper layer's bytes.
    pub private_data: Vec<u8>,
}

/// What bytes of a peer come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parsed {
    /// So many bytes from the start must be there before anything more can be said.
    More(usize),
    /// The whole frame, which takes so many bytes.
    Whole(Startup, usize),
}

/// Why a request or a reply is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartupFault {
    /// The first bytes are no MPA frame of this kind.
    #[error("not an MPA {0} frame: the peer does not speak iWARP, or speaks out of turn")]
    Key(FrameKind),
    /// Another revision than 1 and 2, or a reply of a later one than its request.
    #[error("MPA revision {0} is not spoken: 1 and 2 are")]
    Revision(u8),
    /// The private data is longer than an MPA frame carries.
    #[error("{0} bytes of private data are announced, an MPA frame carries 512 at most")]
    PrivateDataTooLong(u16),
    /// The words of RFC 6581 are announced and missing.
    #[error("private data of {0} bytes lacks the four bytes of RFC 6581 that the frame announces")]
    EnhancedMissing(u16),
    /// The reply does not say what RFC 6581 asks for.
    #[error("the peer answered a request of MPA revision 2 without the words of RFC 6581")]
    NotEnhanced,
    /// The peer wants to have more READs outstanding than this end executes.
    #[error("the peer wants {wanted} READs outstanding, this end executes {allowed} at a time")]
    InsufficientIrd {
        /// What the peer said.
        wanted: u16,
        /// What this end offered.
        allowed: u16,
    },
    /// None of the first messages that were offered was chosen.
    #[error("the peer chose none of the ready-to-receive messages that were offered to it")]
    NoMatchingRtr,
}

impl Startup {
    /// Reads a frame of that kind from the bytes that a connection began with. Fails as soon as the bytes cannot become
    /// one.
    pub fn parse(kind: FrameKind, bytes: &[u8]) -> Result<Parsed, StartupFault> {
        let key = kind.key();
        let known = bytes.len().min(key.len());
        if bytes[..known] != key[..known] {
            return Err(StartupFault::Key(kind));
        }
        let Some(fixed) = bytes.first_chunk::<STARTUP_BYTES>() else { return Ok(Parsed::More(STARTUP_BYTES)) };
        let (flags, revision) = (fixed[16], fixed[17]);
        let length = u16::from_be_bytes([fixed[18], fixed[19]]);
        let revision = match revision {
            1 => Revision::One,
            2 => Revision::Two,
            other => return Err(StartupFault::Revision(other)),
        };
        if usize::from(length) > PRIVATE_DATA_MAX {
            return Err(StartupFault::PrivateDataTooLong(length));
        }
        let end = STARTUP_BYTES + usize::from(length);
        let Some(mut private_data) = bytes.get(STARTUP_BYTES..end) else { return Ok(Parsed::More(end)) };
        let mut enhanced = None;
        if revision == Revision::Two && flags & ENHANCED != 0 {
            let missing = StartupFault::EnhancedMissing(length);
            let (words, rest) = private_data.split_first_chunk().ok_or(missing)?;
            enhanced = Some(Enhanced::parse(*words));
            private_data = rest;
        }
        let frame = Self {
            kind,
            revision,
            wants_markers: flags & MARKERS != 0,
            wants_crc: flags & CRC != 0,
            is_rejected: kind == FrameKind::Reply && flags & REJECT != 0,
            enhanced,
            private_data: private_data.to_vec(),
        };
        Ok(Parsed::Whole(frame, end))
    }

    /// Writes the frame. Private data beyond what fits is a bug of the caller, which checks it; it is cut.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(self.wants_markers, MARKERS)
            | flag(self.wants_crc, CRC)
            | flag(self.is_rejected, REJECT)
            | flag(self.enhanced.is_some(), ENHANCED);
        let own = if self.enhanced.is_some() { ENHANCED_BYTES } else { 0 };
        let data = &self.private_data[..self.private_data.len().min(PRIVATE_DATA_MAX - own)];
        let length = u16::try_from(own + data.len()).unwrap_or(u16::MAX);
        let mut bytes = Vec::with_capacity(STARTUP_BYTES + usize::from(length));
        bytes.extend(self.kind.key());
        bytes.extend([flags, self.revision.number()]);
        bytes.extend(length.to_be_bytes());
        if let Some(enhanced) = self.enhanced {
            bytes.extend(enhanced.to_bytes());
        }
        bytes.extend(data);
        bytes
    }

    /// The reply by which this request is refused, in its revision, with the reason for the peer's upper layer.
    pub fn refusal(&self, private_data: &[u8]) -> Self {
        Self {
            kind: FrameKind::Reply,
            revision: self.revision,
            wants_markers: false,
            wants_crc: self.wants_crc,
            is_rejected: true,
            enhanced: self.enhanced.map(|_| Enhanced {
                ird: 0,
                ord: 0,
                peer_to_peer: false,
                rtr_send: false,
                rtr_write: false,
                rtr_read: false,
            }),
            private_data: private_data.to_vec(),
        }
    }
}

#[cfg(test)]
#[path = "startup/tests.rs"]
mod tests;
