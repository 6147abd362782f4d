//! One end of a connection in a simulated application: a script over two rings.
//!
//! It does with slot and rings what the client library does. It must never look at a connection without a reason: it runs
//! when the engine rang, when its own pause is over, or when it is told to come to an end, so a lost doorbell shows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use control::{Connection, Path, Reason};
use rand::RngExt;
use rand::rngs::StdRng;
use shm::{RingMemory, RingReader, RingWriter, Session, SlotWords, app_flag, engine_flag};
use verbs::{Region, Time};

use crate::check::{Checks, RecordId, Side};
use crate::plan::{Ending, Talk};

/// Bytes copied at a time.
pub(crate) const COPY_BYTES: usize = 16 << 10;
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
        }
    }
}

/// What a step of a connection led to.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The slot changed: the engine must be told.
    pub(crate) changed: bool,
    /// It wants to run again at this time, whatever the engine says.
    pub(crate) again: Option<Time>,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Conn {
    record: RecordId,
    side: Side,
    words: SlotWords,
    writer: RingWriter,
    /// Bytes of which the first half lies behind the tail.
    lent: Option<usize>,
    reader: RingReader,
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
}

impl Conn {
    /// Takes a slot into use. `Err`: the daemon named rings that do not exist.
    pub(crate) fn new(
        session: &Session,
        chunks: &BTreeMap<u32, Region>,
        connection: &Connection,
        whose: (RecordId, Side),
        talk: &Talk,
        rng: &mut StdRng,
    ) -> Result<(u32, Self), String> {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes } = connection.path
        else {
            return Err(format!("not a lane: {connection:?}"));
        };
        let words = session.slot(slot);
        let ring = |chunk: u32, offset| {
            let region = chunks.get(&chunk).ok_or(format!("chunk {chunk} was never given to the application"))?.clone();
            Ok::<_, String>(RingMemory { region, offset, bytes: ring_bytes.into() })
        };
        let (rx, tx) = (ring(rx_chunk, rx_offset)?, ring(tx_chunk, tx_offset)?);
        let text = |e: shm::RegionError| e.to_string();
        let reader = RingReader::new(rx, words.rx_tail.clone(), words.rx_head.clone(), 0).map_err(text)?;
        let writer = RingWriter::new(tx, words.tx_tail.clone(), words.tx_head.clone(), 0).map_err(text)?;
        let writer = writer.may_rest(&words).map_err(text)?;
        // Whoever runs looks at all of its connections, so all that happens to one is news.
        shm::arm_slot(&words.app_wait, shm::waiting::ANY);
        words.app_generation.store(generation, Ordering::Release);
        let conn = Self {
            record: whose.0,
            side: whose.1,
            words,
            writer,
            lent: None,
            reader,
            script: Script::draw(talk, rng),
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
        };
        Ok((slot, conn))
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
        // Flags first: what arrived before the end is in the ring when it is looked at after the end was seen.
        let flags = self.words.engine_flags.load(Ordering::Acquire);
        self.read(now, checks, buf, &mut progress);
        fuse.point()?;
        // An end in order that stands beside a reset came before it.
        if flags & engine_flag::FIN != 0 && !self.eof && !self.stop_said && self.unread(now, checks) == 0 {
            self.eof = true;
            checks.on_eof(now, self.record, self.side);
        }
        if flags & engine_flag::RESET != 0 {
            let reason = Reason::from_code(self.words.reason.load(Ordering::Acquire));
            checks.on_reset(now, self.record, self.side, reason);
            self.close(0, checks);
            fuse.point()?;
            progress.changed = true;
            return Ok(progress);
        }
        if flags & engine_flag::STOP != 0 && !self.told_stop {
            self.told_stop = true;
            checks.on_told_stop(now, self.record, self.side);
        }
        self.write(now, checks, buf, &mut progress);
        fuse.point()?;
        self.end(checks, fuse, &mut progress)?;
        if self.closed {
            progress.again = None;
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
        self.reader.available().unwrap_or_else(|fault| {
            checks.fail(now, "order", format!("the engine published an impossible cursor: {fault}"));
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
            let want = (self.script.read_max as usize).min(buf.len());
            let count = match self.reader.read(&mut buf[..want]) {
                Ok(count) => count,
                Err(fault) => {
                    return checks.fail(now, "order", format!("the engine published an impossible cursor: {fault}"));
                }
            };
            if count == 0 {
                return;
            }
            checks.on_read(now, self.record, self.side, &buf[..count]);
            self.received += count as u64;
            self.next_read = now + self.script.read_gap;
            progress.changed = true;
        }
    }

    fn write(&mut self, now: Time, checks: &mut Checks, buf: &mut [u8], progress: &mut Progress) {
        while !self.fin_said && !self.told_stop && self.sent < self.script.to_write {
            if self.next_write > now {
                progress.again = earlier(progress.again, self.next_write);
                return;
            }
            let left = self.script.to_write - self.sent;
            let want = left.min(self.script.write_max.into()).min(buf.len() as u64) as usize;
            let begun = self.lent;
            let want = begun.unwrap_or(want);
            checks.fill(self.record, self.side, self.sent, &mut buf[..want]);
            let written =
                if self.script.lends { self.write_in_place(&buf[..want]) } else { self.writer.write(&buf[..want]) };
            let count = match written {
                Ok(_) if begun.is_none() && self.lent.is_some() => {
                    // The other half comes later, and nobody tells.
                    self.next_write = now + self.script.write_gap.max(LENT);
                    continue;
                }
                Ok(count) => count,
                Err(fault) => {
                    return checks.fail(now, "order", format!("the engine published an impossible cursor: {fault}"));
                }
            };
            if count == 0 {
                return;
            }
            checks.on_written(self.record, self.side, count as u64);
            self.sent += count as u64;
            self.next_write = now + self.script.write_gap;
            progress.changed = true;
        }
    }

    /// Every other call writes the first half of what there is room for and publishes nothing; the next one does the rest.
    fn write_in_place(&mut self, bytes: &[u8]) -> Result<usize, shm::PeerFault> {
        let half = bytes.len() / 2;
        if self.lent.take().is_some() {
            let done = self.writer.write_ahead(half as u64, &bytes[half..]) && self.writer.commit(bytes.len() as u64);
            self.writer.let_go();
            return Ok(if done { bytes.len() } else { 0 });
        }
        let room = usize::try_from(self.writer.free()?).unwrap_or(usize::MAX).min(bytes.len());
        if room > 0 && self.writer.hold() && self.writer.write_ahead(0, &bytes[..room / 2]) {
            self.lent = Some(room);
        }
        Ok(0)
    }

    // ---- ends

    fn end(&mut self, checks: &mut Checks, fuse: &mut Fuse, progress: &mut Progress) -> Result<(), Died> {
        let all_written = self.sent == self.script.to_write || self.told_stop;
        let turned = self.sent.max(self.received) >= self.script.turn;
        match self.script.ending {
            Ending::Abort if turned => {
                checks.on_abort(self.record, self.side);
                self.close(app_flag::ABORT, checks);
                progress.changed = true;
                return fuse.point();
            }
            Ending::StopReading if turned && !self.stop_said && !self.eof => {
                self.stop_said = true;
                checks.on_stop(self.record, self.side);
                self.raise(app_flag::STOP);
                progress.changed = true;
                fuse.point()?;
            }
            Ending::CloseAfterWrite if all_written => {
                self.close(0, checks);
                progress.changed = true;
                return fuse.point();
            }
            Ending::HoldOpen => return Ok(()),
            _ => {}
        }
        if all_written && !self.fin_said {
            self.fin_said = true;
            checks.on_fin(self.record, self.side);
            self.raise(app_flag::FIN);
            progress.changed = true;
            fuse.point()?;
        }
        if self.fin_said && (self.eof || self.stop_said) {
            self.close(0, checks);
            progress.changed = true;
            fuse.point()?;
        }
        Ok(())
    }

    fn raise(&self, flags: u32) {
        self.words.app_flags.fetch_or(flags, Ordering::Release);
    }

    /// Gives the slot back.
    pub(crate) fn close(&mut self, more: u32, checks: &mut Checks) {
        self.closed = true;
        checks.on_closed(self.record, self.side);
        self.raise(app_flag::FIN | app_flag::STOP | app_flag::CLOSED | more);
    }

    /// Gives it back in place of using it, as the library does with a connection that nobody waits for any more.
    pub(crate) fn refuse(&mut self, checks: &mut Checks) {
        checks.on_abort(self.record, self.side);
        self.close(app_flag::ABORT, checks);
    }
}

pub(crate) fn earlier(a: Option<Time>, b: Time) -> Option<Time> {
    Some(a.map_or(b, |a| a.min(b)))
}
