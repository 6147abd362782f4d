//! What the two libraries say to each other beside the program's bytes: hello, `G` and `W` on a stream before them, and
//! the words on TCP by which a connection goes back there (docs/use/run.md).
//!
//! Owns the formats and the reading of them; no I/O. It must never take a byte that is the program's.

/// The client's first bytes on the stream: this word and the token. A library that says other words than another one
/// has another hello: the two leave the connection on TCP.
const HELLO: [u8; 4] = *b"RRU2";
/// Length of a hello.
pub(crate) const HELLO_BYTES: usize = 12;
/// "I read both TCP and the stream: you may switch."
const MAY_SWITCH: u8 = b'G';
/// "I have switched": followed by how many bytes went over TCP.
const SWITCHED: u8 = b'W';
const SWITCHED_BYTES: usize = 9;

/// The client's first bytes.
pub(crate) fn hello(token: u64) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..4].copy_from_slice(&HELLO);
    bytes[4..].copy_from_slice(&token.to_be_bytes());
    bytes
}

/// The token of a hello, if it is one.
pub(crate) fn token_of(bytes: &[u8; HELLO_BYTES]) -> Option<u64> {
    let token = bytes.strip_prefix(&HELLO)?;
    Some(u64::from_be_bytes(token.try_into().ok()?))
}

/// `G`.
pub(crate) fn may_switch() -> [u8; 1] {
    [MAY_SWITCH]
}

/// `W` after so many bytes over TCP.
pub(crate) fn switched(tcp_bytes: u64) -> [u8; SWITCHED_BYTES] {
    let mut bytes = [SWITCHED; SWITCHED_BYTES];
    bytes[1..].copy_from_slice(&tcp_bytes.to_be_bytes());
    bytes
}

/// So many bytes of a token are no accident.
const SURE_BYTES: usize = 4;

/// Length of a word on TCP.
pub(crate) const WORD_BYTES: usize = 17;

/// What is said on TCP behind the last byte that went there before the switch, when a connection goes back. It begins
/// with the token, which no program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// "My bytes go on here. End your stream too."
    Ask,
    /// "So do mine."
    Answer,
    /// So many bytes follow that were taken from the stream for no program: they are to be sent again, here.
    Returned(u64),
    /// "My program writes no more: where my stream ends, its bytes do." TCP's own end comes later.
    End,
}

impl Word {
    pub(crate) fn bytes(self, token: u64) -> [u8; WORD_BYTES] {
        let (kind, count) = match self {
            Self::Ask => (b'B', 0),
            Self::Answer => (b'A', 0),
            Self::Returned(count) => (b'R', count),
            Self::End => (b'E', 0),
        };
        let mut bytes = [kind; WORD_BYTES];
        bytes[..8].copy_from_slice(&token.to_be_bytes());
        bytes[9..].copy_from_slice(&count.to_be_bytes());
        bytes
    }

    /// None: these bytes are no word of a connection with this token.
    pub(crate) fn of(token: u64, bytes: &[u8; WORD_BYTES]) -> Option<Self> {
        let [kind, count @ ..] = bytes.strip_prefix(&token.to_be_bytes())? else { return None };
        let count = u64::from_be_bytes(count.try_into().ok()?);
        match kind {
            b'B' if count == 0 => Some(Self::Ask),
            b'A' if count == 0 => Some(Self::Answer),
            b'R' => Some(Self::Returned(count)),
            b'E' if count == 0 => Some(Self::End),
            _ => None,
        }
    }

    /// How many of these bytes are before the first word, of which a part may be all that is here.
    pub(crate) fn bytes_before(token: u64, bytes: &[u8]) -> usize {
        let token = token.to_be_bytes();
        if let Some(at) = bytes.windows(token.len()).position(|part| part == token) {
            return at;
        }
        // Fewer are the program's, most likely, which may wait for an edge that nobody tells if it gets less than there is.
        let begun = (SURE_BYTES..token.len()).rev().find(|len| bytes.ends_with(&token[..*len]));
        bytes.len() - begun.unwrap_or(0)
    }
}

/// What the other end has said so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing.
    Nothing,
    /// `G`, and a part of `W`.
    MaySwitch { bytes: [u8; SWITCHED_BYTES], count: usize },
    /// `W`: the stream goes on where so many bytes of TCP end.
    Switched { tcp_bytes: u64 },
}

/// The other end said something else.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotOurs;

impl Heard {
    /// Whether the other end reads both.
    pub(crate) fn may_switch(&self) -> bool {
        *self != Self::Nothing
    }

    /// Whether nothing of `W` was heard.
    pub(crate) fn is_before_switch(&self) -> bool {
        matches!(self, Self::Nothing | Self::MaySwitch { count: 0, .. })
    }

    /// Bytes that may be read from the stream now, before it is the program's. 0: it is.
    pub(crate) fn wanted(&self) -> usize {
        match self {
            Self::Nothing => 1,
            Self::MaySwitch { count, .. } => SWITCHED_BYTES - count,
            Self::Switched { .. } => 0,
        }
    }

    /// Takes bytes, at most as many as were wanted.
    pub(crate) fn take(&mut self, taken: &[u8]) -> Result<(), NotOurs> {
        for &byte in taken {
            *self = match *self {
                Self::Nothing if byte == MAY_SWITCH => Self::MaySwitch { bytes: [0; SWITCHED_BYTES], count: 0 },
                Self::MaySwitch { count: 0, .. } if byte != SWITCHED => return Err(NotOurs),
                Self::MaySwitch { mut bytes, count } => {
                    bytes[count] = byte;
                    if count + 1 < SWITCHED_BYTES {
                        Self::MaySwitch { bytes, count: count + 1 }
                    } else {
                        let [_, number @ ..] = bytes;
                        Self::Switched { tcp_bytes: u64::from_be_bytes(number) }
                    }
                }
                Self::Nothing | Self::Switched { .. } => return Err(NotOurs),
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_byte_by_byte() {
        assert_eq!(token_of(&hello(0x0102_0304_0506_0708)), Some(0x0102_0304_0506_0708));
        assert_eq!(token_of(b"RRUN\0\0\0\0\0\0\0\0"), None);
        let mut heard = Heard::Nothing;
        for byte in [&may_switch()[..], &switched(70_000)].concat() {
            assert!(heard.wanted() > 0);
            heard.take(&[byte]).unwrap();
            assert!(heard.may_switch());
        }
        assert_eq!((heard, heard.wanted()), (Heard::Switched { tcp_bytes: 70_000 }, 0));
        assert_eq!(heard.take(b"x"), Err(NotOurs));
    }

    #[test]
    fn words_on_tcp_are_those_of_one_connection() {
        for word in [Word::Ask, Word::Answer, Word::Returned(70_000), Word::End] {
            let bytes = word.bytes(0x0102_0304_0506_0708);
            assert_eq!(Word::of(0x0102_0304_0506_0708, &bytes), Some(word));
            assert_eq!(Word::of(0x0102_0304_0506_0709, &bytes), None);
            let behind = [b"some bytes", &bytes[..], b"and more"].concat();
            // However much of it has come.
            for len in 10 + SURE_BYTES..=behind.len() {
                assert_eq!(Word::bytes_before(0x0102_0304_0506_0708, &behind[..len]), 10, "{len}");
            }
        }
        assert_eq!(Word::bytes_before(0x0102_0304_0506_0708, b"nothing of it"), 13);
        assert_eq!(Word::bytes_before(0x0102_0304_0506_0708, &[1, 2, 3]), 3, "the program's, most likely");
        assert_eq!(Word::bytes_before(0x0102_0304_0506_0708, &[1, 2, 3, 4]), 0);
        let mut wrong = Word::Ask.bytes(7);
        wrong[WORD_BYTES - 1] = 1;
        assert_eq!(Word::of(7, &wrong), None);
    }

    #[test]
    fn other_words_are_refused() {
        assert_eq!(Heard::Nothing.take(b"W"), Err(NotOurs));
        let mut heard = Heard::Nothing;
        heard.take(b"G").unwrap();
        assert_eq!(heard.take(b"G"), Err(NotOurs));
    }
}
