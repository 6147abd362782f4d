//! An end of a connection under `raas run`: kernel TCP at first, then a stream, and perhaps back
//! (docs/inside/kernel-tcp.md), by the shipped machines.
//!
//! Owns what a library owns that drives them: which bytes it takes from which way, and when it asks. It must never look at
//! a word that a machine should judge.

use control::Reason;
use raas_core::switch::{AtEnd, Outcome, Switch};
use raas_core::way_back::{Begin, Due, Failed, WORD_BYTES, WayBack, Word};
use raas_core::{DirectBroken, DirectSocket, End, Endpoint, Rx, Side as ReadOrWrite, Tx};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::direct::SimSocket;

/// Taken out of TCP at a time.
const PIECE: usize = 16 << 10;

/// Where the next bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Tcp,
    Both,
    Stream,
    /// The stream has ended.
    Tail,
}

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Bytes(usize),
    Nothing,
    /// The other end's bytes are over; `is_tcp`: TCP's own end says so, which a process that dies causes too.
    End {
        is_tcp: bool,
    },
}

/// It cannot go on: for a reason of TCP's, or without any.
#[derive(Debug)]
pub(super) struct Broken(pub(super) Option<Reason>);

impl From<DirectBroken> for Broken {
    fn from(DirectBroken(reason): DirectBroken) -> Self {
        Self(Some(reason))
    }
}

impl From<Failed> for Broken {
    fn from(Failed: Failed) -> Self {
        Self(None)
    }
}

/// The two rings of the stream.
pub(super) struct Stream<'a> {
    pub(super) at: &'a Endpoint,
    pub(super) rx: &'a mut Rx,
    pub(super) tx: &'a mut Tx,
}

impl Stream<'_> {
    fn has_ended(&mut self) -> bool {
        let end = self.at.read_end();
        end == Some(End::Finished) && self.rx.available(self.at) == Ok(0)
    }

    fn take(&mut self, buf: &mut [u8]) -> usize {
        self.rx.take(self.at, buf).unwrap_or(0)
    }

    fn shut(&self) {
        if self.at.mark_shut(ReadOrWrite::Write) == Ok(true) {
            self.at.say_shut(ReadOrWrite::Write);
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Upgraded {
    tcp: SimSocket,
    token: u64,
    /// Came by TCP and was not looked at further, and whether TCP has ended behind it.
    came: Vec<u8>,
    is_over: bool,
    switch: Switch,
    /// Words for the stream that found no room.
    unsaid: Vec<u8>,
    part: Part,
    writes_stream: bool,
    /// The program writes no more.
    has_ended: bool,
    /// TCP's end for the other side was said, or is owed until the connection is back.
    tcp_ended: bool,
    tcp_in: u64,
    tcp_out: u64,
    back: Option<WayBack>,
    /// Of what is due, so much was said.
    said: usize,
    unread: Vec<u8>,
    /// It asks when so many bytes have passed.
    back_at: Option<u64>,
    is_back: bool,
    has_heard_end: bool,
    /// Words that wait for room on TCP.
    owed: Vec<u8>,
}

impl Upgraded {
    pub(super) fn new(tcp: SimSocket, token: u64, bytes: u64, rng: &mut StdRng) -> Self {
        let back_at = rng.random_bool(0.6).then(|| rng.random_range(0..=bytes.max(1)));
        Self {
            tcp,
            token,
            came: Vec::new(),
            is_over: false,
            switch: Switch::new(None),
            unsaid: Vec::new(),
            part: Part::Tcp,
            writes_stream: false,
            has_ended: false,
            tcp_ended: false,
            tcp_in: 0,
            tcp_out: 0,
            back: None,
            said: 0,
            unread: Vec::new(),
            back_at,
            is_back: false,
            has_heard_end: false,
            owed: Vec::new(),
        }
    }

    /// Whether the stream does not count any more: what becomes of it is nothing to the connection.
    pub(super) fn is_off_stream(&self) -> bool {
        self.is_back && self.part == Part::Tcp
    }

    /// Whether nothing is to be said any more.
    pub(super) fn is_at_rest(&self) -> bool {
        self.back.is_none() && self.owed.is_empty() && self.unsaid.is_empty()
    }

    /// Whether it left TCP, and whether it came back.
    pub(super) fn way(&self) -> (bool, bool) {
        (self.switch.outcome() == Outcome::Both, self.is_back)
    }

    // ---- TCP

    fn fill(&mut self) -> Result<(), Broken> {
        while !self.is_over {
            let have = self.came.len();
            self.came.resize(have + PIECE, 0);
            let found = self.tcp.recv(&mut self.came[have..]);
            self.came.truncate(have + found.unwrap_or(None).unwrap_or(0));
            match found? {
                Some(0) => self.is_over = true,
                Some(_) => {}
                None => break,
            }
        }
        Ok(())
    }

    fn take_of_tcp(&mut self, count: usize) -> Vec<u8> {
        self.came.drain(..count.min(self.came.len())).collect()
    }

    fn peeked(&self) -> Option<Word> {
        Word::of(self.token, self.came.first_chunk::<WORD_BYTES>()?)
    }

    /// Says words on TCP that found no room before.
    fn pay(&mut self) -> Result<bool, Broken> {
        while !self.owed.is_empty() && self.tcp.send_word(&self.owed[..WORD_BYTES])? {
            self.owed.drain(..WORD_BYTES);
        }
        Ok(self.owed.is_empty())
    }

    // ---- the program

    pub(super) fn read(&mut self, mut stream: Stream<'_>, buf: &mut [u8]) -> Result<Found, Broken> {
        if self.back.is_some() {
            return Ok(Found::Nothing);
        }
        self.fill()?;
        match self.part {
            Part::Tcp => Ok(self.read_tcp(buf, buf.len(), true)),
            Part::Both => {
                let most = match self.switch.left(self.tcp_in) {
                    Some(left) => usize::try_from(left).unwrap_or(usize::MAX),
                    None => Word::bytes_before(self.token, &self.came),
                };
                let found = self.read_tcp(buf, most, false);
                let is_over = found == Found::Nothing && self.is_over && self.came.is_empty();
                match self.switch.at_end_of_old(false) {
                    _ if !is_over || self.switch.left(self.tcp_in) == Some(0) => Ok(found),
                    AtEnd::End => Ok(Found::End { is_tcp: true }),
                    AtEnd::NotKnown => Ok(Found::Nothing),
                    AtEnd::Lost => Err(Broken(None)),
                }
            }
            Part::Stream => {
                let is_ended = stream.has_ended();
                match stream.take(buf) {
                    0 if is_ended => {
                        self.part = if self.is_back { Part::Tcp } else { Part::Tail };
                        self.read(stream, buf)
                    }
                    0 => Ok(Found::Nothing),
                    count => Ok(Found::Bytes(count)),
                }
            }
            Part::Tail if self.has_heard_end => Ok(Found::End { is_tcp: false }),
            Part::Tail => Ok(Found::Nothing),
        }
    }

    fn read_tcp(&mut self, buf: &mut [u8], most: usize, may_end: bool) -> Found {
        let taken = self.take_of_tcp(buf.len().min(most));
        buf[..taken.len()].copy_from_slice(&taken);
        self.tcp_in += taken.len() as u64;
        match taken.len() {
            0 if may_end && self.is_over && self.came.is_empty() => Found::End { is_tcp: true },
            0 => Found::Nothing,
            count => Found::Bytes(count),
        }
    }

    /// How many bytes were taken.
    pub(super) fn write(&mut self, stream: Stream<'_>, bytes: &[u8]) -> Result<usize, Broken> {
        if self.back.is_some() || !self.pay()? {
            return Ok(0);
        }
        if self.writes_stream {
            if !self.unsaid.is_empty() {
                return Ok(0);
            }
            return match stream.tx.try_write(stream.at, &[std::io::IoSlice::new(bytes)]) {
                Ok(count) => Ok(count.unwrap_or(0)),
                // Nobody reads any more: the other end is gone.
                Err(_) if stream.at.failure().is_none() => Err(Broken(None)),
                // Seen at the next run.
                Err(_) => Ok(0),
            };
        }
        let count = self.tcp.send(&[std::io::IoSlice::new(bytes)])?;
        self.tcp_out += count as u64;
        Ok(count)
    }

    /// The program writes no more. False: not yet, while the ways change.
    pub(super) fn end_writing(&mut self, stream: &Stream<'_>) -> Result<bool, Broken> {
        if self.back.is_some() || !self.unsaid.is_empty() || !self.pay()? {
            return Ok(false);
        }
        self.has_ended = true;
        if self.writes_stream {
            // TCP's own end is owed.
            self.owed.extend(Word::End.bytes(self.token));
            self.pay()?;
        } else {
            self.tcp_ended = true;
            self.tcp.end_sending();
        }
        stream.shut();
        Ok(true)
    }

    // ---- the library

    /// Says and hears what is due.
    pub(super) fn drive(&mut self, mut stream: Stream<'_>, moved: u64) -> Result<(), Broken> {
        self.fill()?;
        self.pay()?;
        if self.back.is_none() && !self.is_back {
            self.talk(&mut stream);
            self.begin(&mut stream, moved)?;
        }
        while let Some(back) = self.back.take() {
            let (back, goes_on) = self.exchange(back, &mut stream)?;
            if back.due() == Due::Nothing {
                self.finish_back();
                break;
            }
            self.back = Some(back);
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    fn talk(&mut self, stream: &mut Stream<'_>) {
        while self.switch.wanted() > 0 {
            let mut said = [0; 16];
            let is_ended = stream.has_ended();
            match stream.take(&mut said[..self.switch.wanted()]) {
                0 if is_ended => self.switch.on_end(),
                0 if stream.at.failure().is_some() => self.switch.on_broken(),
                0 => break,
                count => _ = self.switch.take(&said[..count], u64::MAX),
            }
        }
        if self.part == Part::Tcp && !self.switch.is_given_up() && !self.switch.has_granted() && !self.has_ended {
            self.unsaid.extend(self.switch.grant());
            self.part = Part::Both;
        }
        if self.switch.may_leave() && !self.has_ended {
            self.unsaid.extend(self.switch.leave(self.tcp_out));
            self.writes_stream = true;
        }
        if self.part == Part::Both && self.switch.reads_new(self.tcp_in) {
            self.part = Part::Stream;
        }
        if !self.unsaid.is_empty()
            && let Ok(Some(count)) = stream.tx.try_write(stream.at, &[std::io::IoSlice::new(&self.unsaid)])
        {
            self.unsaid.drain(..count);
        }
    }

    fn begin(&mut self, stream: &mut Stream<'_>, moved: u64) -> Result<(), Broken> {
        let hears = matches!(self.part, Part::Stream | Part::Tail);
        if hears && self.peeked() == Some(Word::End) {
            self.take_of_tcp(WORD_BYTES);
            self.has_heard_end = true;
        }
        let is_asked = hears && self.peeked() == Some(Word::Ask);
        let wants = self.back_at.is_some_and(|at| moved >= at);
        let begin = match (wants, self.switch.outcome()) {
            _ if !self.unsaid.is_empty() || !self.owed.is_empty() => return Ok(()),
            _ if is_asked && (self.writes_stream || self.has_ended) => Begin::Answer,
            // Nobody is there who could answer.
            _ if self.is_over => return Ok(()),
            (true, Outcome::Both) => Begin::Ask,
            (true, Outcome::HereAlone) => Begin::Leave,
            _ => return Ok(()),
        };
        self.back = Some(WayBack::new(begin, self.token, !self.tcp_ended)?);
        self.said = 0;
        stream.shut();
        Ok(())
    }

    /// One step, and whether another one may follow at once.
    fn exchange(&mut self, mut back: WayBack, stream: &mut Stream<'_>) -> Result<(WayBack, bool), Broken> {
        let goes_on = match back.due() {
            Due::Say(bytes) => {
                let rest = &bytes[self.said..];
                // A word goes as a whole.
                let taken = match rest.first_chunk::<WORD_BYTES>().filter(|first| Word::of(self.token, first).is_some())
                {
                    Some(word) => self.tcp.send_word(word).map(|is_said| usize::from(is_said) * WORD_BYTES),
                    None if rest.is_empty() => Ok(0),
                    None => self.tcp.send(&[std::io::IoSlice::new(rest)]),
                };
                let count = *taken.as_ref().unwrap_or(&0);
                self.said += count;
                let is_done = taken.is_err() || self.said == bytes.len();
                if is_done {
                    self.said = 0;
                    back.on_said(taken.is_ok())?;
                }
                // Behind a word there may be more to say.
                is_done || count > 0
            }
            Due::TakeUnread => self.take_unread(&mut back, stream)?,
            Due::Take(count) => {
                let is_there = self.came.len() >= count;
                if is_there || self.is_over {
                    let taken = is_there.then(|| self.take_of_tcp(count));
                    back.on_taken(taken)?;
                    self.has_heard_end |= back.has_heard_end();
                }
                is_there || self.is_over
            }
            Due::LookForEnd => {
                self.fill()?;
                return Err(Broken(None));
            }
            Due::Nothing => false,
        };
        Ok((back, goes_on))
    }

    /// The bytes that the program has not read, up to the stream's end.
    fn take_unread(&mut self, back: &mut WayBack, stream: &mut Stream<'_>) -> Result<bool, Broken> {
        if self.part == Part::Both {
            // Those that the other end wrote to TCP before it switched come first.
            let left = self.switch.left(self.tcp_in).ok_or(Failed)?;
            let taken = self.take_of_tcp(usize::try_from(left).unwrap_or(usize::MAX));
            self.tcp_in += taken.len() as u64;
            self.unread.extend(taken);
            if self.switch.left(self.tcp_in) != Some(0) {
                return if self.is_over { Err(Broken(None)) } else { Ok(false) };
            }
            self.part = Part::Stream;
        }
        let is_ended = stream.has_ended();
        let mut piece = [0; 4096];
        loop {
            match stream.take(&mut piece) {
                0 if is_ended => break,
                0 => return Ok(false),
                count => self.unread.extend_from_slice(&piece[..count]),
            }
        }
        self.part = Part::Tail;
        back.on_unread(std::mem::take(&mut self.unread))?;
        Ok(true)
    }

    fn finish_back(&mut self) {
        let has_read = self.part == Part::Tail || self.switch.outcome() == Outcome::HereAlone;
        (self.is_back, self.writes_stream) = (true, false);
        if has_read {
            self.part = Part::Tcp;
        }
        if self.has_ended && !self.tcp_ended {
            self.tcp_ended = true;
            self.tcp.end_sending();
        }
    }
}
