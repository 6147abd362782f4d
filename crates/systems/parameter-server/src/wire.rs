//! Bytes of requests and replies. All numbers are little-endian.
//!
//! ```text
//! request   op u8, 3 bytes of zero, count u32, then count keys u64; a push has count values f32 behind them
//!   1 hello  count 0          2 reset  count 0          3 push          4 pull
//! reply     op u8, 3 bytes of zero, count u32, then
//!   1 done   count 0          2 values: count f32       3 refused: count bytes of text
//!   4 welcome: count 0, keys u64, then nothing, or the region's key of 16 bytes and the text of its name
//! ```
//!
//! A reader checks lengths once, and keys are checked by who holds them.

/// Most pairs of a request.
pub const PAIRS_MAX: usize = 1 << 15;
/// Longest message: a push of as many pairs.
pub const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PAIRS_MAX * (KEY_BYTES + VALUE_BYTES);
/// Bytes of a key.
pub const KEY_BYTES: usize = 8;
/// Bytes of a value.
pub const VALUE_BYTES: usize = 4;
const HEADER_BYTES: usize = 8;
const REGION_KEY_BYTES: usize = 16;
/// Longest text of a refusal, and name of a region.
const TEXT_BYTES_MAX: usize = 1024;

const HELLO: u8 = 1;
const RESET: u8 = 2;
const PUSH: u8 = 3;
const PULL: u8 = 4;
const DONE: u8 = 1;
const VALUES: u8 = 2;
const REFUSED: u8 = 3;
const WELCOME: u8 = 4;

/// Bytes that are no message of this protocol.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than a header.
    #[error("{len} bytes are no message: a header has {HEADER_BYTES}")]
    Short {
        /// What there is.
        len: usize,
    },
    /// No such kind.
    #[error("kind {op} is not known")]
    Op {
        /// The first byte.
        op: u8,
    },
    /// More pairs than a message may have.
    #[error("{count} pairs: at most {PAIRS_MAX}")]
    Count {
        /// What the header says.
        count: usize,
    },
    /// Count and length do not fit together.
    #[error("{len} bytes behind the header, and kind {op} with count {count} has others")]
    Length {
        /// The first byte.
        op: u8,
        /// What the header says.
        count: usize,
        /// What there is.
        len: usize,
    },
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
}

raas::debug_says_the_words!(WireError);

/// What a worker asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Request<'m> {
    /// How many keys the server holds, and where it publishes.
    Hello,
    /// All values become 0.
    Reset,
    /// Adds values.
    Push(Keys<'m>, Floats<'m>),
    /// Asks for values.
    Pull(Keys<'m>),
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply<'m> {
    /// Pushed, or reset.
    Done,
    /// Pulled.
    Values(Floats<'m>),
    /// Refused; nothing was changed.
    Refused(&'m str),
    /// What the server holds, and its region: key and name.
    Welcome {
        /// Keys from 0 on.
        keys: u64,
        /// Key and name of the region.
        region: Option<([u8; REGION_KEY_BYTES], &'m str)>,
    },
}

/// Keys as they lie in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys<'m>(&'m [u8]);

impl Keys<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / KEY_BYTES
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Values as they lie in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floats<'m>(&'m [u8]);

impl<'m> Floats<'m> {
    /// Values of these bytes; what is left of them at the end is none.
    pub fn new(bytes: &'m [u8]) -> Self {
        Self(bytes)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len() / VALUE_BYTES
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = f32> {
        self.0.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
    }
}

fn header(message: &[u8]) -> Result<(u8, usize, &[u8]), WireError> {
    let Some((&[op, _, _, _, a, b, c, d], rest)) = message.split_first_chunk::<HEADER_BYTES>() else {
        return Err(WireError::Short { len: message.len() });
    };
    let count = u32::from_le_bytes([a, b, c, d]) as usize;
    if count > PAIRS_MAX {
        return Err(WireError::Count { count });
    }
    Ok((op, count, rest))
}

/// Reads a request.
pub fn request(message: &[u8]) -> Result<Request<'_>, WireError> {
    let (op, count, rest) = header(message)?;
    let (keys, values) = match op {
        HELLO | RESET => (0, 0),
        PUSH => (count * KEY_BYTES, count * VALUE_BYTES),
        PULL => (count * KEY_BYTES, 0),
        op => return Err(WireError::Op { op }),
    };
    if rest.len() != keys + values || (keys == 0) != (count == 0) {
        return Err(WireError::Length { op, count, len: rest.len() });
    }
    let (keys, values) = rest.split_at(keys);
    Ok(match op {
        HELLO => Request::Hello,
        RESET => Request::Reset,
        PUSH => Request::Push(Keys(keys), Floats(values)),
        _ => Request::Pull(Keys(keys)),
    })
}

/// Reads a reply.
pub fn reply(message: &[u8]) -> Result<Reply<'_>, WireError> {
    let (op, count, rest) = header(message)?;
    let wrong = || WireError::Length { op, count, len: rest.len() };
    let text = |bytes| std::str::from_utf8(bytes).map_err(|_| WireError::Text);
    match op {
        DONE if count == 0 && rest.is_empty() => Ok(Reply::Done),
        VALUES if rest.len() == count * VALUE_BYTES => Ok(Reply::Values(Floats(rest))),
        REFUSED if rest.len() == count => Ok(Reply::Refused(text(rest)?)),
        WELCOME if count == 0 => {
            let (keys, rest) = rest.split_first_chunk().ok_or_else(wrong)?;
            let region = match rest.split_first_chunk() {
                Some((key, name)) => Some((*key, text(name)?)),
                None if rest.is_empty() => None,
                None => return Err(wrong()),
            };
            Ok(Reply::Welcome { keys: u64::from_le_bytes(*keys), region })
        }
        DONE | VALUES | REFUSED | WELCOME => Err(wrong()),
        op => Err(WireError::Op { op }),
    }
}

fn begin(out: &mut Vec<u8>, op: u8, count: usize) {
    out.clear();
    out.extend([op, 0, 0, 0]);
    // At most PAIRS_MAX: callers check.
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// Writes a hello.
pub fn put_hello(out: &mut Vec<u8>) {
    begin(out, HELLO, 0);
}

/// Writes a reset.
pub fn put_reset(out: &mut Vec<u8>) {
    begin(out, RESET, 0);
}

/// Writes a push: each key less `base`, and as many values.
pub fn put_push(out: &mut Vec<u8>, keys: &[u64], base: u64, values: &[f32]) {
    begin(out, PUSH, keys.len());
    keys.iter().for_each(|key| out.extend((key - base).to_le_bytes()));
    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
}

/// Writes a pull: each key less `base`.
pub fn put_pull(out: &mut Vec<u8>, keys: &[u64], base: u64) {
    begin(out, PULL, keys.len());
    keys.iter().for_each(|key| out.extend((key - base).to_le_bytes()));
}

/// Writes that it is done.
pub fn put_done(out: &mut Vec<u8>) {
    begin(out, DONE, 0);
}

/// Writes values: so many.
pub fn put_values(out: &mut Vec<u8>, count: usize, values: impl Iterator<Item = f32>) {
    begin(out, VALUES, count);
    values.take(count).for_each(|value| out.extend(value.to_le_bytes()));
}

/// Writes a refusal.
pub fn put_refused(out: &mut Vec<u8>, why: &str) {
    let end = (0..=why.len().min(TEXT_BYTES_MAX)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
    begin(out, REFUSED, end);
    out.extend(&why.as_bytes()[..end]);
}

/// Writes a welcome.
pub fn put_welcome(out: &mut Vec<u8>, keys: u64, region: Option<([u8; REGION_KEY_BYTES], &str)>) {
    begin(out, WELCOME, 0);
    out.extend(keys.to_le_bytes());
    if let Some((key, name)) = region {
        out.extend(key);
        out.extend(name.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut out = vec![];
        put_push(&mut out, &[105, 107], 100, &[0.5, -2.0]);
        let Ok(Request::Push(keys, values)) = request(&out) else { panic!("no push: {out:?}") };
        assert_eq!(keys.iter().collect::<Vec<_>>(), [5, 7]);
        assert_eq!(values.iter().collect::<Vec<_>>(), [0.5, -2.0]);
        put_pull(&mut out, &[3], 0);
        assert!(matches!(request(&out), Ok(Request::Pull(keys)) if keys.iter().eq([3])));
        put_values(&mut out, 2, [1.0, 2.0, 3.0].into_iter());
        assert!(matches!(reply(&out), Ok(Reply::Values(values)) if values.iter().eq([1.0, 2.0])));
        put_welcome(&mut out, 9, Some(([7; 16], "name")));
        assert_eq!(reply(&out), Ok(Reply::Welcome { keys: 9, region: Some(([7; 16], "name")) }));
        put_welcome(&mut out, 9, None);
        assert_eq!(reply(&out), Ok(Reply::Welcome { keys: 9, region: None }));
        put_refused(&mut out, &"ö".repeat(TEXT_BYTES_MAX));
        assert!(matches!(reply(&out), Ok(Reply::Refused(why)) if why.len() == TEXT_BYTES_MAX));
        for (put, wanted) in [(put_hello as fn(&mut Vec<u8>), Request::Hello), (put_reset, Request::Reset)] {
            put(&mut out);
            assert_eq!(request(&out), Ok(wanted));
        }
        put_done(&mut out);
        assert_eq!(reply(&out), Ok(Reply::Done));
    }

    #[test]
    fn each_prefix_and_each_other_count_is_refused() {
        let mut push = vec![];
        put_push(&mut push, &[1, 2, 3], 0, &[1.0, 2.0, 3.0]);
        for len in 0..push.len() {
            assert!(request(&push[..len]).is_err(), "{len} bytes");
        }
        for count in [0, 2, 4, u32::MAX] {
            push[4..8].copy_from_slice(&count.to_le_bytes());
            assert!(request(&push).is_err(), "count {count}");
        }
        assert_eq!(request(&[9, 0, 0, 0, 0, 0, 0, 0]), Err(WireError::Op { op: 9 }));
        assert!(matches!(reply(&[3, 0, 0, 0, 1, 0, 0, 0, 0xff]), Err(WireError::Text)));
        assert!(reply(&[4, 0, 0, 0, 0, 0, 0, 0, 1]).is_err());
    }
}
