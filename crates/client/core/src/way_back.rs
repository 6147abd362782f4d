//! The way back of a connection under `raas run` from its stream to kernel TCP (docs/inside/kernel-tcp.md): what the two
//! libraries say there beside the program's bytes, and in which order.
//!
//! An end that wants to go back *asks*: it ends its stream and says so on TCP. The other end *answers*: it ends its own
//! stream and says so. The one that asked takes the bytes that no program has read out of its ring and returns them;
//! they are sent again on TCP. Both may ask at once. The two ends of the streams say where TCP's bytes go on, so none is
//! lost, doubled or overtaken. No I/O: its user does what is due, and lets nobody read or write meanwhile. It must never
//! be over before the other end's words are read, nor take a byte that is the program's for one.

/// So many bytes of a token are no accident.
const SURE_BYTES: usize = 4;

/// Length of a word on TCP.
pub const WORD_BYTES: usize = 17;

/// What is said on TCP behind the last byte that went there before the switch, when a connection goes back. It begins
/// with the token, which no program knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
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
    /// On the wire.
    pub fn bytes(self, token: u64) -> [u8; WORD_BYTES] {
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
    pub fn of(token: u64, bytes: &[u8; WORD_BYTES]) -> Option<Self> {
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
    pub fn bytes_before(token: u64, bytes: &[u8]) -> usize {
        let token = token.to_be_bytes();
        if let Some(at) = bytes.windows(token.len()).position(|part| part == token) {
            return at;
        }
        // Fewer are the program's, most likely, which may wait for an edge that nobody tells if it gets less than there is.
        let begun = (SURE_BYTES..token.len()).rev().find(|len| bytes.ends_with(&token[..*len]));
        bytes.len() - begun.unwrap_or(0)
    }
}

/// More than this is returned by nobody who keeps to the rings' sizes.
pub const RETURNED_MAX: u64 = 1 << 28;

/// The other end did not keep to the words, has ended, or did not come in time.
#[derive(Debug, PartialEq, Eq)]
pub struct Failed;

/// What begins the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// This end wants to go back.
    Ask,
    /// The other end never switched, and has ended its writing: it has nothing to send again.
    Leave,
    /// The other end's word is next on TCP.
    Answer,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub enum Due<'a> {
    /// These bytes go to TCP: [`WayBack::on_said`].
    Say(&'a [u8]),
    /// The bytes that no program has read, up to the stream's end: [`WayBack::on_unread`].
    TakeUnread,
    /// So many bytes of TCP: [`WayBack::on_taken`].
    Take(usize),
    /// TCP is the program's if it is over in both directions; else the way back has failed.
    LookForEnd,
    /// TCP is the program's.
    Nothing,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Ask,
    TakeUnread {
        is_said: bool,
    },
    /// The other end asks too, or answers.
    AwaitAnswer,
    /// What is not read goes back. `heard`: the other end's word; none: TCP has ended.
    Return {
        heard: Option<Word>,
    },
    Leave,
    AwaitAsk,
    Answer,
    AwaitReturned,
    /// So many bytes that this end wrote to the stream.
    TakeReturned(usize),
    SendAgain,
    LookForEnd,
    Over,
}

/// One end. See the head of this file. Its stream was ended for writing.
#[derive(Debug)]
pub struct WayBack {
    token: u64,
    /// This end can still write on TCP.
    can_say: bool,
    step: Step,
    /// To be said, or not read by the program.
    bytes: Vec<u8>,
    has_heard_end: bool,
}

impl WayBack {
    /// An end that cannot write on TCP can do no more than answer.
    pub fn new(begin: Begin, token: u64, can_say: bool) -> Result<Self, Failed> {
        let (step, words) = match begin {
            Begin::Ask => (Step::Ask, &[Word::Ask][..]),
            Begin::Leave => (Step::Leave, &[Word::Ask, Word::Returned(0)][..]),
            Begin::Answer => (Step::AwaitAsk, &[][..]),
        };
        if !can_say && begin != Begin::Answer {
            return Err(Failed);
        }
        let bytes = words.iter().flat_map(|word| word.bytes(token)).collect();
        Ok(Self { token, can_say, step, bytes, has_heard_end: false })
    }

    /// What is due.
    pub fn due(&self) -> Due<'_> {
        match self.step {
            Step::Ask | Step::Return { .. } | Step::Leave | Step::Answer | Step::SendAgain => Due::Say(&self.bytes),
            Step::TakeUnread { .. } => Due::TakeUnread,
            Step::AwaitAnswer | Step::AwaitAsk | Step::AwaitReturned => Due::Take(WORD_BYTES),
            Step::TakeReturned(count) => Due::Take(count),
            Step::LookForEnd => Due::LookForEnd,
            Step::Over => Due::Nothing,
        }
    }

    /// Whether the other end said that its program writes no more. It did so before the way back began.
    pub fn has_heard_end(&self) -> bool {
        self.has_heard_end
    }

    /// What was due was said, or could not be.
    pub fn on_said(&mut self, is_said: bool) -> Result<(), Failed> {
        self.step = match self.step {
            Step::Ask => Step::TakeUnread { is_said },
            Step::Return { heard: None } => Step::Over,
            _ if !is_said => return Err(Failed),
            Step::Return { heard: Some(Word::Ask) } | Step::Answer => Step::AwaitReturned,
            Step::Return { .. } | Step::Leave | Step::SendAgain => Step::Over,
            other => other,
        };
        Ok(())
    }

    /// The bytes that the program has not read.
    pub fn on_unread(&mut self, unread: Vec<u8>) -> Result<(), Failed> {
        self.step = match self.step {
            Step::TakeUnread { is_said: true } => Step::AwaitAnswer,
            // Nobody is there any more, perhaps.
            Step::TakeUnread { is_said: false } if unread.is_empty() => Step::LookForEnd,
            _ => return Err(Failed),
        };
        self.bytes = unread;
        Ok(())
    }

    /// The bytes of TCP that were due. None: it has ended before them.
    pub fn on_taken(&mut self, taken: Option<Vec<u8>>) -> Result<(), Failed> {
        if let Step::TakeReturned(_) = self.step {
            (self.step, self.bytes) = (Step::SendAgain, taken.ok_or(Failed)?);
            return Ok(());
        }
        let word = match taken {
            Some(taken) => {
                let bytes = taken.as_slice().try_into().map_err(|_| Failed)?;
                Some(Word::of(self.token, bytes).ok_or(Failed)?)
            }
            None => None,
        };
        if word == Some(Word::End) {
            self.has_heard_end = true;
            return Ok(());
        }
        self.step = match (self.step, word) {
            (Step::AwaitAsk, Some(Word::Ask)) if self.can_say => {
                self.bytes = Word::Answer.bytes(self.token).to_vec();
                Step::Answer
            }
            (Step::AwaitAsk, Some(Word::Ask)) => Step::AwaitReturned,
            // Who writes no more on TCP cannot send bytes again.
            (Step::AwaitAnswer, None) if !self.bytes.is_empty() => return Err(Failed),
            (Step::AwaitAnswer, heard @ (None | Some(Word::Ask | Word::Answer))) => {
                let word = Word::Returned(self.bytes.len() as u64).bytes(self.token);
                self.bytes.splice(0..0, word);
                Step::Return { heard }
            }
            // It has ended: what it has not read is nobody's.
            (Step::AwaitReturned, None | Some(Word::Returned(0))) => Step::Over,
            (Step::AwaitReturned, Some(Word::Returned(count))) if count <= RETURNED_MAX && self.can_say => {
                Step::TakeReturned(usize::try_from(count).map_err(|_| Failed)?)
            }
            _ => return Err(Failed),
        };
        Ok(())
    }
}
