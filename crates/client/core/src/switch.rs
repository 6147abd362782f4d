//! The change of a direction's bytes from one way to another, at an offset, between kernel TCP and a stream
//! (docs/inside/kernel-tcp.md): what the two ends say on the new way before its bytes.
//!
//! Owns the order of the words, and what follows from it: who may leave the old way, and where its reader goes on. No
//! I/O: its user moves the words, and closes the old way to the program's threads before [`Switch::grant`] and
//! [`Switch::leave`]. It must never take a byte of the program's for a word.
//!
//! Each end says `G`: "I read both ways". One that has said it, and heard the other's, may say `W` and how many bytes
//! it wrote the old way. So an end that has not said `G` knows that the other one has not switched.

/// First bytes of the client's stream under `raas run`, before the token. A library that says other words than another
/// one has another hello: the two leave the connection on TCP.
const HELLO: [u8; 4] = *b"RRU2";
/// Length of a hello.
pub const HELLO_BYTES: usize = 12;
/// "You may switch."
const GRANT: u8 = b'G';
/// "I have switched": the offset follows.
const SWITCHED: u8 = b'W';
/// Bytes of `W`.
pub const SWITCH_BYTES: usize = 9;

/// The client's first bytes.
pub fn hello(token: u64) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(&HELLO);
    bytes[4..].copy_from_slice(&token.to_be_bytes());
    bytes
}

/// The token of a hello, if it is one.
pub fn token_of(bytes: &[u8; HELLO_BYTES]) -> Option<u64> {
    let token = bytes.strip_prefix(&HELLO)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

/// What the other end has said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// Not the word that comes first on this way.
    NoHello(u8),
    Nothing,
    /// `G`, and a part of `W`.
    Grant {
        bytes: [u8; SWITCH_BYTES],
        count: usize,
    },
    /// The new way goes on where so many bytes of the old one end.
    Switched {
        at: u64,
    },
}

impl Heard {
    /// With one byte more.
    fn then(self, byte: u8, old_max: u64) -> Option<Self> {
        match self {
            Self::NoHello(hello) if byte == hello => Some(Self::Nothing),
            Self::Nothing if byte == GRANT => Some(Self::Grant { bytes: [0; SWITCH_BYTES], count: 0 }),
            Self::Grant { mut bytes, count } if count > 0 || byte == SWITCHED => {
                bytes[count] = byte;
                if count + 1 < SWITCH_BYTES {
                    return Some(Self::Grant { bytes, count: count + 1 });
                }
                let [_, at @ ..] = bytes;
                let at = u64::from_be_bytes(at);
                (at <= old_max).then_some(Self::Switched { at })
            }
            _ => None,
        }
    }
}

/// The other end said something else, or a switch that cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct NotOurs;

/// What the end of the old way means for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// The end of the bytes.
    End,
    /// Bytes are lost.
    Lost,
    /// The next word tells.
    NotKnown,
}

/// What became of the switch of both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Both have switched.
    Both,
    /// This end has. The other one stays where it was, and has ended its writing.
    HereAlone,
    /// None has, and none will.
    Never,
    /// The new way is over, and nobody knows how far it came.
    Lost,
    /// It is under way.
    Open,
}

/// One end. See the head of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    heard: Heard,
    has_granted: bool,
    has_left: bool,
    /// The other end has ended the new way before it switched.
    is_ended: bool,
    is_broken: bool,
}

impl Switch {
    /// Nothing was said. `hello`: a byte that the other end says first.
    pub fn new(hello: Option<u8>) -> Self {
        let heard = hello.map_or(Heard::Nothing, Heard::NoHello);
        Self { heard, has_granted: false, has_left: false, is_ended: false, is_broken: false }
    }

    /// Bytes that may be read from the new way now, before it is the program's. 0: no more words come.
    #[inline]
    pub fn wanted(&self) -> usize {
        match self.heard {
            _ if self.is_ended || self.is_broken => 0,
            Heard::NoHello(_) | Heard::Nothing => 1,
            Heard::Grant { count, .. } => SWITCH_BYTES - count,
            Heard::Switched { .. } => 0,
        }
    }

    /// Takes bytes, at most as many as were wanted. `old_max`: so many can have gone the old way.
    pub fn take(&mut self, taken: &[u8], old_max: u64) -> Result<(), NotOurs> {
        let heard = taken.iter().try_fold(self.heard, |heard, &byte| heard.then(byte, old_max));
        self.is_broken |= heard.is_none();
        self.heard = heard.unwrap_or(self.heard);
        heard.map(|_| ()).ok_or(NotOurs)
    }

    /// The new way ended where words were wanted.
    pub fn on_end(&mut self) {
        self.is_ended = true;
    }

    /// The new way broke where words were wanted.
    pub fn on_broken(&mut self) {
        self.is_broken = true;
    }

    /// Whether the other end broke it.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Whether the other end reads both ways.
    pub fn is_granted(&self) -> bool {
        matches!(self.heard, Heard::Grant { .. } | Heard::Switched { .. })
    }

    /// Whether this end has said `G`.
    pub fn has_granted(&self) -> bool {
        self.has_granted
    }

    /// Whether nobody will switch: this end has not said `G`, and the other one says nothing any more.
    pub fn is_given_up(&self) -> bool {
        !self.has_granted && (self.is_ended || self.is_broken)
    }

    /// The word by which the other end may switch: from now on this one reads both ways.
    pub fn grant(&mut self) -> [u8; 1] {
        self.has_granted = true;
        [GRANT]
    }

    /// Whether this end may switch, and has not.
    pub fn may_leave(&self) -> bool {
        self.has_granted && self.is_granted() && !self.is_broken && !self.has_left
    }

    /// The words of a switch after so many bytes by the old way.
    pub fn leave(&mut self, at: u64) -> [u8; SWITCH_BYTES] {
        self.has_left = true;
        switched(at)
    }

    /// Where the other end left the old way, if it did.
    pub fn at(&self) -> Option<u64> {
        if let Heard::Switched { at } = self.heard { Some(at) } else { None }
    }

    /// Bytes of the old way that come before the new one's, for a reader that has taken so many. None: it is not known.
    #[inline]
    pub fn left(&self, taken: u64) -> Option<u64> {
        Some(self.at()?.saturating_sub(taken))
    }

    /// Whether a reader that has taken so many bytes of the old way goes on with the new one.
    pub fn reads_new(&self, taken: u64) -> bool {
        self.has_granted && self.left(taken) == Some(0)
    }

    /// The old way has ended for its reader, before the new way's bytes. `is_closed`: whoever broke the new way is the
    /// other end's program, by closing.
    pub fn at_end_of_old(&self, is_closed: bool) -> AtEnd {
        match () {
            () if self.is_ended || self.is_broken && is_closed => AtEnd::End,
            () if self.is_broken || self.at().is_some() => AtEnd::Lost,
            () => AtEnd::NotKnown,
        }
    }

    /// How far both ends are.
    pub fn outcome(&self) -> Outcome {
        let is_before = matches!(self.heard, Heard::NoHello(_) | Heard::Nothing | Heard::Grant { count: 0, .. });
        match (self.at(), self.has_left) {
            (Some(_), true) => Outcome::Both,
            (None, true) if self.is_ended && is_before => Outcome::HereAlone,
            (None, false) if self.is_ended && is_before => Outcome::Never,
            _ if self.is_ended || self.is_broken => Outcome::Lost,
            _ => Outcome::Open,
        }
    }
}

/// The words of a switch after so many bytes by the old way.
pub(crate) fn switched(at: u64) -> [u8; SWITCH_BYTES] {
    let mut bytes = [SWITCHED; SWITCH_BYTES];
    bytes[1..].copy_from_slice(&at.to_be_bytes());
    bytes
}
