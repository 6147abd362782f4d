//! One end of a connection in a simulated application: a script over two rings.
//!
//! Slot and rings are those of the client core. It must never look at a connection without a reason: it runs
//! when the engine rang, when its own pause is over, or when it is told to come to an end, so a lost doorbell shows.

mod conversation;
mod under_run;
mod upgraded;

use std::io::IoSlice;
use std::time::Duration;

use control::Reason;
use raas_core::{Connection, Direct, End, Endpoint, Key, MESSAGE_HEADER_BYTES, Reserved, Rx, Side as ReadOrWrite, Tx};
use rand::RngExt;
use rand::rngs::StdRng;
use verbs::Time;

use crate::check::{Carries, Checks, RecordId, Side};
use crate::content::mix;
use crate::direct::SimSocket;
use crate::plan::{Ending, Talk};
use conversation::Conversation;
use upgraded::Upgraded;

/// How long what is written in place stays unfinished at least.
const LENT: Duration = Duration::from_micros(30);
/// How long a reader stalls.
const STALL: Duration = Duration::from_millis(800);

/// The process died in the middle of a step.
#[derive(Debug)]
pub(crate) struct Died;

/// Burns down by one at each point where a process may die.
#[derive(Debug)]
pub(crate) struct Fuse(pub(crate) Option<u32>);

impl Fuse {
    /// A point where the process may die.
    pub(crate) fn point(&mut self) -> Result<(), Died> {
        match &mut self.0 {
            Some(0) => Err(Died),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// What an end is going to do.
#[derive(Debug)]
struct Script {
    to_write: u64,
    write_max: u32,
    read_max: u32,
    write_gap: Duration,
    read_gap: Duration,
    ending: Ending,
    /// After so many bytes, written or read, comes what happens in the middle.
    turn: u64,
    stalls_until: Option<Time>,
    /// It writes in place, in two steps.
    lends: bool,
    /// The verbs that it asks for, in turn, if it does.
    verbs: Option<u64>,
}

impl Script {
    fn draw(talk: &Talk, rng: &mut StdRng) -> Self {
        let to_write = rng.random_range(talk.bytes.0..=talk.bytes.1);
        let gap = |max: Duration, rng: &mut StdRng| {
            if max.is_zero() || rng.random_bool(0.5) {
                Duration::ZERO
            } else {
                Duration::from_nanos(rng.random_range(0..=max.as_nanos() as u64))
            }
        };
        let ending = talk.endings[rng.random_range(0..talk.endings.len())];
        Self {
            to_write: if ending == Ending::ListenOnly { 0 } else { to_write },
            write_max: rng.random_range(1..=talk.write_max),
            read_max: rng.random_range(1..=talk.read_max),
            write_gap: gap(talk.write_gap_max, rng),
            read_gap: gap(talk.read_gap_max, rng),
            ending,
            turn: rng.random_range(0..=to_write.max(1)),
            stalls_until: None,
            lends: rng.random_bool(0.25),
            verbs: talk.asks_verbs.then(|| rng.random()),
        }
    }
}

impl Script {
    /// Of messages that may be lost nothing is told but their numbers and the end.
    fn of(mut self, what: Carries) -> Self {
        let fits = match what {
            Carries::Stream | Carries::Conversation => true,
            Carries::Unreliable => matches!(self.ending, Ending::Abort | Ending::CloseAfterWrite),
            // What a program closes without reading resets TCP, and takes bytes of its own with it.
            Carries::Upgraded { .. } => {
                !matches!(self.ending, Ending::Abort | Ending::CloseAfterWrite | Ending::StopReading)
            }
        };
        if !fits {
            self.ending = Ending::ReadToEnd;
        }
        self
    }
}

/// What a step of a connection led to.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// It wants to run again at this time, whatever the engine says.
    pub(crate) again: Option<Time>,
}

/// The transmit ring: free, or with room in which the first half of some bytes lies behind the tail.
#[derive(Debug)]
enum Writing {
    Free(Box<Tx>),
    Lent {
        room: Reserved<Box<Tx>>,
        bytes: usize,
    },
    /// While it passes from one to the other, and after the end.
    Gone,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Conn {
    record: RecordId,
    side: Side,
    endpoint: Endpoint,
    rx: Rx,
    writing: Writing,
    script: Script,
    /// Taken out of the backlog, or made by a connect.
    pub(crate) accepted: bool,
    sent: u64,
    received: u64,
    next_read: Time,
    next_write: Time,
    fin_said: bool,
    stop_said: bool,
    eof: bool,
    told_stop: bool,
    pub(crate) closed: bool,
    /// Its messages may be lost.
    is_unreliable: bool,
    /// What is said by it are messages, by turns.
    conversation: Option<Conversation>,
    /// Its program is under `raas run`.
    upgraded: Option<Box<Upgraded>>,
}

impl Conn {
    /// Plays a script over a connection that the client core took into use; says its slot too.
    pub(crate) fn new(
        connection: Connection,
        (whose, what): ((RecordId, Side), Carries),
        tcp: Option<SimSocket>,
        talk: &Talk,
        rng: &mut StdRng,
    ) -> (u32, Self) {
        let Connection { endpoint, rx, tx } = connection;
        let slot = arm(&endpoint);
        let is_unreliable = what == Carries::Unreliable;
        let mut script = Script::draw(talk, rng).of(what);
        let conversation = endpoint.direct_place().filter(|_| what == Carries::Conversation).map(|place| {
            place.carry_messages();
            // Room that was lent keeps a direction on its ring.
            script.lends = false;
            Conversation::new(whose.1, script.to_write, rng)
        });
        let upgraded = match (what, tcp) {
            (Carries::Upgraded { token }, Some(tcp)) => {
                script.lends = false;
                Some(Box::new(Upgraded::new(tcp, token, script.to_write, rng)))
            }
            _ => None,
        };
        let conn = Self {
            record: whose.0,
            side: whose.1,
            endpoint,
            rx,
            writing: Writing::Free(Box::new(tx)),
            script,
            accepted: whose.1 == Side::Connector,
            sent: 0,
            received: 0,
            next_read: Time::ZERO,
            next_write: Time::ZERO,
            fin_said: false,
            stop_said: false,
            eof: false,
            told_stop: false,
            closed: false,
            is_unreliable,
            conversation,
            upgraded,
        };
        (slot, conn)
    }

    /// The daemon has made a TCP connection for it. False: it was for another one.
    pub(crate) fn take_direct(&mut self, connection: u64, socket: SimSocket, checks: &mut Checks) -> bool {
        let place = self.endpoint.direct_place().filter(|place| place.connection() == connection);
        let Some(place) = place.filter(|_| !self.closed) else { return false };
        checks.on_direct(self.record);
        place.put(Direct::new(Box::new(socket), place.carries_messages()))
    }

    /// Something happened on it.
    pub(crate) fn on_direct_event(&self) {
        if let Some(direct) = self.endpoint.direct_place().and_then(|place| place.get()) {
            direct.handle_event();
        }
    }

    /// Bytes written and read so far.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.sent, self.received)
    }

    /// Writes so many bytes more than the script said; false if it may not write any more.
    pub(crate) fn write_more(&mut self, bytes: u64) -> bool {
        self.script.to_write += bytes;
        !self.fin_said && !self.closed && !self.told_stop
    }

    // ---- a step

    /// Does what can be done now.
    pub(crate) fn run(
        &mut self,
        now: Time,
        is_ending: bool,
        checks: &mut Checks,
        fuse: &mut Fuse,
        buf: &mut [u8],
    ) -> Result<Progress, Died> {
        let mut progress = Progress::default();
        if self.closed || !self.accepted {
            return Ok(progress);
        }
        if is_ending {
            self.hurry(now);
        }
        if let Some(upgraded) = self.upgraded.take() {
            return self.run_upgraded(upgraded, now, (checks, fuse), buf);
        }
        // Ends first: what arrived before the end is in the ring when it is looked at after the end was seen.
        let (read_end, write_end) = (self.endpoint.read_end(), self.endpoint.write_end());
        self.read(now, checks, buf, &mut progress);
        fuse.point()?;
        // The end of a stream's own TCP connection is found by reading, and nobody tells of it again.
        let read_end = read_end.or_else(|| self.endpoint.read_end());
        // An end in order that stands beside a reset came before it.
        if read_end == Some(End::Finished) && !self.eof && !self.stop_said && self.unread(now, checks) == 0 {
            self.eof = true;
            checks.on_eof(now, self.record, self.side);
            // At its next look the library reports to the engine that the end was read.
            let _end = self.rx.look(&self.endpoint, &mut |_| Ok(0));
        }
        if let Some(reason) = [read_end, write_end].into_iter().flatten().find_map(End::failure) {
            checks.on_reset(now, self.record, self.side, reason);
            self.close(checks);
            fuse.point()?;
            return Ok(progress);
        }
        if write_end == Some(End::Finished) && !self.fin_said && !self.told_stop {
            self.told_stop = true;
            checks.on_told_stop(now, self.record, self.side);
        }
        self.write(now, checks, buf, &mut progress);
        fuse.point()?;
        self.end(checks, fuse)?;
        if self.closed {
            progress.again = None;
        } else {
            // As a thread that is going to wait.
            self.rx.tell_room(&self.endpoint);
        }
        Ok(progress)
    }

    /// The world comes to rest: no pauses any more.
    fn hurry(&mut self, now: Time) {
        let s = &mut self.script;
        (s.read_gap, s.write_gap) = (Duration::ZERO, Duration::ZERO);
        (self.next_read, self.next_write) = (now, now);
        s.read_max = s.read_max.max(4096);
        s.write_max = s.write_max.max(4096);
        if matches!(s.ending, Ending::HoldOpen | Ending::Stall) {
            s.ending = Ending::ReadToEnd;
        }
    }

    fn unread(&mut self, now: Time, checks: &mut Checks) -> u64 {
        self.rx.available(&self.endpoint).unwrap_or_else(|_| {
            checks.fail(now, "order", "the engine published an impossible cursor".into());
            0
        })
    }

    fn may_read(&mut self, now: Time) -> bool {
        if self.stop_said || self.eof {
            return false;
        }
        if self.script.ending != Ending::Stall || self.received < self.script.turn {
            return true;
        }
        let until = *self.script.stalls_until.get_or_insert(now + STALL);
        self.next_read = self.next_read.max(until);
        true
    }

    fn read(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8], progress: &mut Progress) {
        while self.may_read(now) {
            if self.next_read > now {
                // Nothing rings for what lies there already.
                if self.next_read < Time(u64::MAX) && self.unread(now, checks) > 0 {
                    progress.again = earlier(progress.again, self.next_read);
                }
                return;
            }
            if self.is_unreliable {
                if !self.read_message(now, checks, buf) {
                    return;
                }
                continue;
            }
            if self.conversation.is_some() {
                if !self.hear(now, checks, buf) {
                    return;
                }
                continue;
            }
            let want = (self.script.read_max as usize).min(buf.len());
            let Ok(count) = self.rx.take(&self.endpoint, &mut buf[..want]) else {
                return checks.fail(now, "order", "the engine published an impossible cursor".into());
            };
            if count == 0 {
                return;
            }
            checks.on_read(now, self.record, self.side, &buf[..count]);
            self.received += count as u64;
            self.next_read = now + self.script.read_gap;
        }
    }

    fn write(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8], progress: &mut Progress) {
        while !self.fin_said && !self.told_stop && self.sent < self.script.to_write {
            if self.next_write > now {
                progress.again = earlier(progress.again, self.next_write);
                return;
            }
            if self.is_unreliable {
                if !self.write_message(now, checks, buf) {
                    // Who waits for room for a whole message looks again.
                    progress.again = earlier(progress.again, now + LENT);
                    return;
                }
                continue;
            }
            if self.conversation.is_some() {
                if !self.speak(now, checks, buf) {
                    return;
                }
                continue;
            }
            let left = self.script.to_write - self.sent;
            let want = left.min(self.script.write_max.into()).min(buf.len() as u64) as usize;
            let begun = if let Writing::Lent { bytes, .. } = &self.writing { Some(*bytes) } else { None };
            let want = begun.unwrap_or(want);
            checks.fill(self.record, self.side, self.sent, &mut buf[..want]);
            self.ask_for_a_verb();
            let written = self.put(&buf[..want]);
            let count = match written {
                Ok(_) if begun.is_none() && matches!(self.writing, Writing::Lent { .. }) => {
                    // The other half comes later, and nobody tells.
                    self.next_write = now + self.script.write_gap.max(LENT);
                    continue;
                }
                Ok(count) => count,
                // What ended meanwhile is seen at the next run; a fault is the engine's.
                Err(End::Reset(Reason::AppFault)) => {
                    return checks.fail(now, "order", "the engine published an impossible cursor".into());
                }
                Err(_) => return,
            };
            if count == 0 {
                return;
            }
            checks.on_written(self.record, self.side, count as u64);
            self.sent += count as u64;
            self.next_write = now + self.script.write_gap;
        }
    }

    /// Reads a whole message. False: there is none.
    fn read_message(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8]) -> bool {
        let there = self.unread(now, checks);
        let mut header = [0; MESSAGE_HEADER_BYTES];
        if there < header.len() as u64 || self.rx.peek_ahead(0, &mut header) < header.len() {
            return false;
        }
        let bytes = header.len() + u32::from_le_bytes(header) as usize;
        if there < bytes as u64 || bytes > buf.len() {
            checks.fail(now, "messages", format!("{there} bytes of a message of {bytes} lie in a ring"));
            return false;
        }
        if self.rx.take(&self.endpoint, &mut buf[..bytes]) != Ok(bytes) {
            checks.fail(now, "order", "the engine published an impossible cursor".into());
            return false;
        }
        checks.on_message(now, self.record, self.side, &buf[header.len()..bytes]);
        self.received += bytes as u64;
        self.next_read = now + self.script.read_gap;
        true
    }

    /// Writes a whole message. False: there is no room, or the connection has ended.
    fn write_message(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8]) -> bool {
        self.ask_for_a_verb();
        let Writing::Free(tx) = &mut self.writing else { return false };
        let Ok(room) = tx.room(&self.endpoint) else { return false };
        let for_bytes = room.saturating_sub(MESSAGE_HEADER_BYTES as u64);
        let count = checks.fill_message(self.record, self.side, for_bytes, buf);
        let header = (count as u32).to_le_bytes();
        let bytes = header.len() + count;
        if count == 0 || room < bytes as u64 {
            return false;
        }
        match tx.try_write(&self.endpoint, &[IoSlice::new(&header), IoSlice::new(&buf[..count])]) {
            Ok(Some(written)) if written == bytes => {}
            Ok(written) => {
                checks.fail(now, "messages", format!("{written:?} bytes of {bytes} found the room that there was"));
                return false;
            }
            Err(_) => return false,
        }
        checks.on_message_sent(self.record, self.side);
        self.sent = (self.sent + bytes as u64).min(self.script.to_write);
        self.next_write = now + self.script.write_gap;
        true
    }

    /// Names another verb now and then.
    fn ask_for_a_verb(&mut self) {
        let Some(verbs) = &mut self.script.verbs else { return };
        // Two bits for the verb, two for how long it holds: each word the engine's, also those that mean nothing.
        if *verbs & 0xc == 0 {
            let _ = self.endpoint.set_verb((*verbs & 3) as u32);
        }
        *verbs = mix(*verbs);
    }

    /// Writes what there is room for. In place every other call writes the first half of that and publishes nothing;
    /// the next one does the rest.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let (writing, count) = match std::mem::replace(&mut self.writing, Writing::Gone) {
            Writing::Lent { mut room, .. } => {
                let half = bytes.len() / 2;
                let is_done =
                    room.write_ahead(half as u64, &bytes[half..]) && room.commit(&self.endpoint, bytes.len() as u64);
                (Writing::Free(room.into_inner()), Ok(if is_done { bytes.len() } else { 0 }))
            }
            Writing::Free(mut tx) if !self.script.lends => {
                let count = tx.try_write(&self.endpoint, &[IoSlice::new(bytes)]);
                (Writing::Free(tx), count.map(Option::unwrap_or_default))
            }
            Writing::Free(mut tx) => {
                let wanted = bytes.len().min(usize::try_from(tx.room(&self.endpoint)?).unwrap_or(usize::MAX));
                match Reserved::try_new(tx, &self.endpoint, wanted)? {
                    Ok(mut room) => {
                        let is_lent = wanted > 0 && room.write_ahead(0, &bytes[..wanted / 2]);
                        let lent = |room| Writing::Lent { room, bytes: wanted };
                        (if is_lent { lent(room) } else { Writing::Free(room.into_inner()) }, Ok(0))
                    }
                    Err(tx) => (Writing::Free(tx), Ok(0)),
                }
            }
            Writing::Gone => (Writing::Gone, Ok(0)),
        };
        self.writing = writing;
        count
    }

    // ---- ends

    fn end(&mut self, checks: &mut Checks, fuse: &mut Fuse) -> Result<(), Died> {
        let all_written = self.sent == self.script.to_write || self.told_stop;
        let turned = self.sent.max(self.received) >= self.script.turn;
        match self.script.ending {
            Ending::Abort if turned => {
                self.abort(checks);
                return fuse.point();
            }
            Ending::StopReading if turned && !self.stop_said && !self.eof => {
                self.stop_said = true;
                checks.on_stop(self.record, self.side);
                self.shut(ReadOrWrite::Read);
                fuse.point()?;
            }
            Ending::CloseAfterWrite if all_written => {
                self.close(checks);
                return fuse.point();
            }
            Ending::HoldOpen => return Ok(()),
            _ => {}
        }
        if all_written && !self.fin_said {
            self.fin_said = true;
            checks.on_fin(self.record, self.side);
            self.shut(ReadOrWrite::Write);
            fuse.point()?;
        }
        if self.fin_said && (self.eof || self.stop_said) {
            self.close(checks);
            fuse.point()?;
        }
        Ok(())
    }

    fn shut(&self, side: ReadOrWrite) {
        if self.endpoint.mark_shut(side) == Ok(true) {
            self.endpoint.say_shut(side);
        }
    }

    /// Gives the slot back, as the library does: bytes that arrived and were not read make it a reset.
    fn close(&mut self, checks: &mut Checks) {
        let is_broken = self.endpoint.failure().is_some();
        if !is_broken && !self.stop_said && self.rx.has_news(&self.endpoint) {
            checks.on_abort(self.record, self.side);
        }
        self.closed = true;
        self.writing = Writing::Gone;
        checks.on_closed(self.record, self.side);
        self.rx.close(&self.endpoint, true);
    }

    /// Gives it back by a reset.
    fn abort(&mut self, checks: &mut Checks) {
        checks.on_abort(self.record, self.side);
        self.closed = true;
        self.writing = Writing::Gone;
        checks.on_closed(self.record, self.side);
        self.rx.close(&self.endpoint, false);
    }
}

/// Everything that happens to a connection is news: a process that runs looks at all of its connections. Returns its
/// slot.
pub(crate) fn arm(endpoint: &Endpoint) -> u32 {
    endpoint.arm(ReadOrWrite::Read);
    endpoint.arm(ReadOrWrite::Write);
    match endpoint.key() {
        Key::Slot(slot) => slot,
        Key::PairSlot { .. } => unreachable!("there are no pairs of processes here"),
    }
}

pub(crate) fn earlier(a: Option<Time>, b: Time) -> Option<Time> {
    Some(a.map_or(b, |a| a.min(b)))
}
