//! A connection under `raas run` that leaves kernel TCP and goes back, both ends by the shipped machines, in random
//! orders: what one program writes the other reads, once and in order, wherever the ways change. Faults planted in the
//! ends that drive the machines are found.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // tests may use everything

use std::collections::VecDeque;

use raas_core::switch::{AtEnd, HELLO_BYTES, NotOurs, Outcome, SWITCH_BYTES, Switch, hello, token_of};
use raas_core::way_back::{Begin, Due, Failed, WORD_BYTES, WayBack, Word};

const TOKEN: u64 = 0x0102_0304_0506_0708;
const STEPS_MAX: u32 = 100_000;

#[derive(Debug)]
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// What an end that drives the machines may do wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It switches before the other end reads both ways.
    LeavesEarly,
    /// It goes on with the stream before TCP's part is read.
    SkipsOld,
    /// It says `W` with the number that it had when it said `G`.
    CountsEarly,
    /// It does not return what its program has not read.
    KeepsUnread,
    /// Its program writes to TCP before the way back is over.
    OpensEarly,
    /// It reads TCP on, although the other end may have switched.
    TakesWords,
}

/// One direction of a way.
#[derive(Debug, Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    /// The first of them have arrived.
    arrived: usize,
    is_ended: bool,
}

impl Pipe {
    fn put(&mut self, bytes: &[u8]) {
        assert!(!self.is_ended, "written behind its end");
        self.bytes.extend(bytes);
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        let count = most.min(self.arrived);
        self.arrived -= count;
        self.bytes.drain(..count).collect()
    }

    fn has_end(&self) -> bool {
        self.is_ended && self.bytes.is_empty()
    }
}

/// Where the next bytes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Tcp,
    Both,
    Stream,
    /// The stream has ended.
    Tail,
}

#[derive(Debug)]
struct End {
    switch: Switch,
    unsaid: Vec<u8>,
    part: Part,
    writes_stream: bool,
    tcp_in: u64,
    tcp_out: u64,
    out_at_grant: u64,
    /// It goes back, or does so later.
    back: Option<WayBack>,
    wants_back: bool,
    /// TCP goes on where the stream that is read ends.
    is_back: bool,
    has_heard_end: bool,
    /// The program's.
    wrote: u64,
    total: u64,
    read: u64,
    has_ended: bool,
    sees_end: bool,
}

/// The byte of a direction at an offset.
fn byte(from: usize, at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (from as u8 * 85)
}

struct World {
    rng: Rng,
    fault: Fault,
    ends: [End; 2],
    /// By who writes.
    tcp: [Pipe; 2],
    stream: [Pipe; 2],
    turns: u32,
}

type Wrong = String;

impl World {
    fn new(seed: u64, fault: Fault) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
        for _ in 0..8 {
            rng.below(2);
        }
        let goes_back = rng.below(4);
        let ends = [0, 1].map(|end| End {
            switch: Switch::new(None),
            unsaid: Vec::new(),
            part: Part::Tcp,
            writes_stream: false,
            tcp_in: 0,
            tcp_out: 0,
            out_at_grant: 0,
            back: None,
            wants_back: goes_back & (1 << end) != 0,
            is_back: false,
            has_heard_end: false,
            wrote: 0,
            total: [0, 40, 400, 3000][rng.below(4)],
            read: 0,
            has_ended: false,
            sees_end: false,
        });
        Self { rng, fault, ends, tcp: Default::default(), stream: Default::default(), turns: 0 }
    }

    /// Runs to the end of both programs.
    fn run(&mut self) -> Result<(), Wrong> {
        for _ in 0..STEPS_MAX {
            if self.ends.iter().all(|end| end.sees_end && end.back.is_none()) {
                return Ok(());
            }
            let end = self.rng.below(2);
            match self.rng.below(6) {
                0 | 1 => self.arrive(),
                2 => self.write(end)?,
                3 => self.read(end)?,
                4 => self.talk(end),
                _ => self.go(end)?,
            }
        }
        Err(format!("both wait: {:?}", self.ends))
    }

    fn arrive(&mut self) {
        let from = self.rng.below(2);
        let pipe = if self.rng.below(2) == 0 { &mut self.tcp[from] } else { &mut self.stream[from] };
        let left = pipe.bytes.len() - pipe.arrived;
        pipe.arrived += if left > 0 { 1 + self.rng.below(left) } else { 0 };
        // A word of which fewer than four bytes are here is taken for the program's: see `Word::bytes_before`.
        let begins = |pipe: &Pipe, len: usize| {
            let from = pipe.arrived.checked_sub(len);
            from.is_some_and(|from| pipe.bytes.iter().skip(from).take(8).eq(TOKEN.to_be_bytes().iter()))
        };
        while (1..4).any(|len| begins(pipe, len)) {
            pipe.arrived += 1;
        }
    }

    // ---- the programs

    fn is_blocked(&self, end: usize) -> bool {
        self.ends[end].back.is_some() && self.fault != Fault::OpensEarly
    }

    fn write(&mut self, at: usize) -> Result<(), Wrong> {
        if self.is_blocked(at) || self.ends[at].has_ended {
            return Ok(());
        }
        let count = self.rng.below(64) as u64;
        let end = &mut self.ends[at];
        let count = count.min(end.total - end.wrote);
        let bytes: Vec<u8> = (end.wrote..end.wrote + count).map(|offset| byte(at, offset)).collect();
        let on_stream = end.writes_stream && end.back.is_none();
        let way = if on_stream { &mut self.stream[at] } else { &mut self.tcp[at] };
        if on_stream && !end.unsaid.is_empty() {
            return Ok(());
        }
        if count > 0 {
            way.put(&bytes);
            end.wrote += count;
            end.tcp_out += if on_stream { 0 } else { count };
            return Ok(());
        }
        if end.wrote == end.total {
            end.has_ended = true;
            way.is_ended = true;
            if on_stream {
                // TCP's own end is owed.
                self.tcp[at].put(&Word::End.bytes(TOKEN));
            } else if !self.stream[at].is_ended {
                // TCP's end is the end of the bytes.
                self.stream[at].is_ended = true;
            }
        }
        Ok(())
    }

    fn give(&mut self, at: usize, bytes: &[u8]) -> Result<(), Wrong> {
        for byte_read in bytes {
            let end = &mut self.ends[at];
            if *byte_read != byte(1 - at, end.read) {
                return Err(format!("end {at} reads another byte at {}", end.read));
            }
            end.read += 1;
        }
        Ok(())
    }

    /// The program reads the end of the other's bytes.
    fn end(&mut self, at: usize) -> Result<(), Wrong> {
        self.ends[at].sees_end = true;
        let [read, total] = [self.ends[at].read, self.ends[1 - at].total];
        if read == total { Ok(()) } else { Err(format!("end {at} reads the end at {read} of {total}")) }
    }

    fn read(&mut self, at: usize) -> Result<(), Wrong> {
        if self.ends[at].back.is_some() || self.ends[at].sees_end {
            return Ok(());
        }
        let most = 1 + self.rng.below(64);
        let (end, other) = (&mut self.ends[at], 1 - at);
        let tcp = &mut self.tcp[other];
        match end.part {
            Part::Tcp => {
                let taken = tcp.take(most);
                end.tcp_in += taken.len() as u64;
                self.give(at, &taken)?;
                if taken.is_empty() && self.tcp[other].has_end() {
                    self.end(at)?;
                }
            }
            Part::Both => {
                let most = match end.switch.left(end.tcp_in) {
                    Some(left) => most.min(left as usize),
                    None if self.fault == Fault::TakesWords => most,
                    None => {
                        let next: Vec<u8> =
                            tcp.bytes.iter().copied().take(tcp.arrived.min(most + WORD_BYTES)).collect();
                        most.min(Word::bytes_before(TOKEN, &next))
                    }
                };
                let taken = tcp.take(most);
                end.tcp_in += taken.len() as u64;
                let is_over = taken.is_empty() && tcp.has_end();
                let at_end = end.switch.at_end_of_old(false);
                self.give(at, &taken)?;
                match at_end {
                    _ if !is_over || self.ends[at].switch.left(self.ends[at].tcp_in) == Some(0) => {}
                    AtEnd::End => self.end(at)?,
                    AtEnd::Lost => return Err(format!("end {at} lost bytes")),
                    AtEnd::NotKnown => {}
                }
            }
            Part::Stream => {
                let taken = self.stream[other].take(most);
                self.give(at, &taken)?;
                if taken.is_empty() && self.stream[other].has_end() {
                    self.ends[at].part = if self.ends[at].is_back { Part::Tcp } else { Part::Tail };
                }
            }
            Part::Tail if end.has_heard_end => self.end(at)?,
            Part::Tail => {}
        }
        Ok(())
    }

    // ---- the libraries

    /// Says and hears what is due on the stream.
    fn talk(&mut self, at: usize) {
        let blocked = [(); 2].map(|()| self.rng.below(3) == 0);
        let (end, other) = (&mut self.ends[at], 1 - at);
        if end.back.is_some() || end.is_back {
            return;
        }
        while end.switch.wanted() > 0 {
            let taken = self.stream[other].take(end.switch.wanted());
            if taken.is_empty() {
                if self.stream[other].has_end() {
                    end.switch.on_end();
                }
                break;
            }
            end.switch.take(&taken, u64::MAX).unwrap();
        }
        if end.part == Part::Tcp && !end.switch.is_given_up() && !end.switch.has_granted() && !blocked[0] {
            end.unsaid.extend(end.switch.grant());
            (end.part, end.out_at_grant) = (Part::Both, end.tcp_out);
        }
        let may_leave = end.switch.may_leave() || self.fault == Fault::LeavesEarly && !end.writes_stream;
        if may_leave && !blocked[1] && !end.has_ended {
            let count = if self.fault == Fault::CountsEarly { end.out_at_grant } else { end.tcp_out };
            end.unsaid.extend(end.switch.leave(count));
            end.writes_stream = true;
        }
        let reads_new = end.switch.reads_new(end.tcp_in) || self.fault == Fault::SkipsOld && end.switch.at().is_some();
        if end.part == Part::Both && reads_new {
            end.part = Part::Stream;
        }
        let say = end.unsaid.len().min(1 + self.rng.below(SWITCH_BYTES));
        if say > 0 && !self.stream[at].is_ended {
            self.stream[at].put(&end.unsaid[..say]);
            end.unsaid.drain(..say);
        }
    }

    /// The word that is next on TCP.
    fn peeked(&self, at: usize) -> Option<Word> {
        let pipe = &self.tcp[1 - at];
        let bytes: Vec<u8> = pipe.bytes.iter().copied().take(WORD_BYTES.min(pipe.arrived)).collect();
        Word::of(TOKEN, bytes.as_slice().try_into().ok()?)
    }

    /// Begins the way back, or goes on with it.
    fn go(&mut self, at: usize) -> Result<(), Wrong> {
        if self.ends[at].back.is_some() {
            return self.exchange(at).map_err(|Failed| format!("end {at} fails: {:?}", self.ends[at]));
        }
        let hears = matches!(self.ends[at].part, Part::Stream | Part::Tail) && !self.ends[at].is_back;
        if hears && self.peeked(at) == Some(Word::End) {
            self.tcp[1 - at].take(WORD_BYTES);
            self.ends[at].has_heard_end = true;
        }
        let asked = hears && self.peeked(at) == Some(Word::Ask);
        let end = &mut self.ends[at];
        let can_answer = end.writes_stream || end.has_ended;
        let begin = match (end.wants_back && !end.is_back && self.rng.below(40) == 0, end.switch.outcome()) {
            _ if asked && can_answer => Begin::Answer,
            (true, Outcome::Both) => Begin::Ask,
            (true, Outcome::HereAlone) => Begin::Leave,
            _ => return Ok(()),
        };
        // Its own end is owed, or was not said.
        let can_say = !self.tcp[at].is_ended;
        let back = WayBack::new(begin, TOKEN, can_say).map_err(|Failed| format!("end {at} cannot begin"))?;
        let unsaid = std::mem::take(&mut end.unsaid);
        if !self.stream[at].is_ended {
            self.stream[at].put(&unsaid);
            self.stream[at].is_ended = true;
        }
        end.back = Some(back);
        self.turns += 1;
        Ok(())
    }

    fn exchange(&mut self, at: usize) -> Result<(), Failed> {
        let (end, other) = (&mut self.ends[at], 1 - at);
        let Some(back) = &mut end.back else { return Ok(()) };
        match back.due() {
            Due::Say(bytes) => {
                self.tcp[at].put(bytes);
                back.on_said(true)
            }
            Due::TakeUnread => {
                // Those that the other end wrote to TCP before it switched come first.
                let left = end.switch.left(end.tcp_in).ok_or(Failed)? as usize;
                if end.part == Part::Both && self.tcp[other].arrived < left || !self.stream[other].is_ended {
                    return Ok(());
                }
                let mut unread = Vec::new();
                if end.part == Part::Both {
                    unread = self.tcp[other].take(left);
                    end.tcp_in += left as u64;
                }
                unread.extend(self.stream[other].bytes.drain(..));
                self.stream[other].arrived = 0;
                end.part = Part::Tail;
                let is_kept = self.fault == Fault::KeepsUnread;
                back.on_unread(if is_kept { Vec::new() } else { unread })
            }
            Due::Take(count) => {
                let pipe = &mut self.tcp[other];
                if pipe.arrived < count && !pipe.has_end() {
                    return Ok(());
                }
                let taken = (pipe.arrived >= count).then(|| pipe.take(count));
                back.on_taken(taken)?;
                end.has_heard_end |= back.has_heard_end();
                Ok(())
            }
            Due::LookForEnd => Err(Failed),
            Due::Nothing => {
                end.back = None;
                let has_read = end.part == Part::Tail || end.switch.outcome() == Outcome::HereAlone;
                (end.is_back, end.writes_stream) = (true, false);
                if has_read {
                    end.part = Part::Tcp;
                }
                if end.has_ended {
                    self.tcp[at].is_ended = true;
                }
                Ok(())
            }
        }
    }
}

/// Seeds in which something went wrong, and ways back that began in the others.
fn wrong(seeds: u64, fault: Fault) -> (Vec<String>, u32) {
    let (mut wrongs, mut turns) = (Vec::new(), 0);
    for seed in 1..=seeds {
        let mut world = World::new(seed, fault);
        match world.run() {
            Ok(()) => turns += world.turns,
            Err(wrong) => wrongs.push(format!("seed {seed}: {wrong}")),
        }
    }
    (wrongs, turns)
}

fn seeds() -> u64 {
    if std::env::var_os("RAAS_TEST_FULL").is_some() { 100_000 } else { 4000 }
}

#[test]
fn every_byte_comes_once_and_in_order_wherever_the_ways_change() {
    let (wrongs, turns) = wrong(seeds(), Fault::None);
    assert!(wrongs.is_empty(), "{} of {}, such as {}", wrongs.len(), seeds(), wrongs[0]);
    assert!(u64::from(turns) > seeds() / 4, "{turns} ways back");
}

#[test]
fn faults_of_an_end_are_found() {
    use Fault::*;
    for fault in [LeavesEarly, SkipsOld, CountsEarly, KeepsUnread, OpensEarly, TakesWords] {
        let wrongs = std::panic::catch_unwind(|| wrong(400, fault).0.len());
        assert!(!matches!(wrongs, Ok(0)), "{fault:?} is found by no seed");
    }
}

#[test]
fn what_is_said_is_heard_byte_by_byte() {
    assert_eq!(token_of(&hello(TOKEN)), Some(TOKEN));
    assert_eq!(token_of(&[b'R'; HELLO_BYTES]), None);
    let (mut one, mut other) = (Switch::new(None), Switch::new(Some(b'Q')));
    let words = [&b"Q"[..], &one.grant(), &one.leave(70_000)].concat();
    for byte in words {
        assert!(other.wanted() > 0);
        other.take(&[byte], 70_000).unwrap();
    }
    assert_eq!((other.at(), other.wanted(), other.left(69_990)), (Some(70_000), 0, Some(10)));
    assert_eq!(other.take(b"x", 70_000), Err(NotOurs));
    for (words, max) in [(&b"W"[..], 9), (b"GG", 9), (b"GW\0\0\0\0\0\0\0\x0a", 9)] {
        let mut heard = Switch::new(None);
        assert_eq!(heard.take(words, max), Err(NotOurs));
        assert!(heard.is_broken() && heard.wanted() == 0 && heard.at().is_none());
    }
}

#[test]
fn words_on_tcp_are_those_of_one_connection() {
    for word in [Word::Ask, Word::Answer, Word::Returned(70_000), Word::End] {
        let bytes = word.bytes(TOKEN);
        assert_eq!(Word::of(TOKEN, &bytes), Some(word));
        assert_eq!(Word::of(TOKEN + 1, &bytes), None);
        let behind = [b"some bytes", &bytes[..], b"and more"].concat();
        // However much of it has come, from four bytes of the token on.
        for len in 14..=behind.len() {
            assert_eq!(Word::bytes_before(TOKEN, &behind[..len]), 10, "{len}");
        }
    }
    assert_eq!(Word::bytes_before(TOKEN, b"nothing of it"), 13);
    assert_eq!(Word::bytes_before(TOKEN, &[1, 2, 3]), 3, "the program's, most likely");
    assert_eq!(Word::bytes_before(TOKEN, &[1, 2, 3, 4]), 0);
    let mut wrong = Word::Ask.bytes(7);
    wrong[WORD_BYTES - 1] = 1;
    assert_eq!(Word::of(7, &wrong), None);
}

#[test]
fn who_does_not_keep_to_the_order_is_refused() {
    let asked = || {
        let mut back = WayBack::new(Begin::Ask, TOKEN, true).unwrap();
        back.on_said(true).and_then(|()| back.on_unread(b"left".to_vec())).unwrap();
        back
    };
    for word in [Word::Returned(0), Word::Returned(9)] {
        assert_eq!(asked().on_taken(Some(word.bytes(TOKEN).to_vec())), Err(Failed));
    }
    assert_eq!(asked().on_taken(Some(Word::Answer.bytes(TOKEN + 1).to_vec())), Err(Failed), "of another connection");
    assert_eq!(asked().on_taken(None), Err(Failed), "who has ended cannot send bytes again");
    let answer = |can_say| {
        let mut back = WayBack::new(Begin::Answer, TOKEN, can_say).unwrap();
        back.on_taken(Some(Word::Ask.bytes(TOKEN).to_vec())).unwrap();
        back.on_said(true).unwrap();
        back
    };
    let returned = |count: u64| Some(Word::Returned(count).bytes(TOKEN).to_vec());
    assert_eq!(answer(true).on_taken(returned(u64::MAX)), Err(Failed), "more than any ring has");
    assert_eq!(answer(true).on_taken(returned(3)), Ok(()));
    assert!(WayBack::new(Begin::Ask, TOKEN, false).is_err(), "it cannot say a word");
}

#[test]
fn an_end_that_reaches_nobody_is_back_only_where_tcp_is_over() {
    let mut back = WayBack::new(Begin::Ask, TOKEN, true).unwrap();
    back.on_said(false).and_then(|()| back.on_unread(Vec::new())).unwrap();
    assert_eq!(back.due(), Due::LookForEnd);
    let mut back = WayBack::new(Begin::Ask, TOKEN, true).unwrap();
    assert_eq!(back.on_said(false).and_then(|()| back.on_unread(vec![1])), Err(Failed));
}
