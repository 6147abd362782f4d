//! The operation queue of a session to one host, on which all its handles to regions there submit.
//!
//! Owns which completion belongs to which flight, and the flights that wait for room in the ring. Any number of threads
//! and tasks have flights under way. Whoever waits for one takes all completions that are there, and tells the others;
//! while all sleep, the session's news come to the queue's alarm, which does the same. Nobody else asks for the alarm: it
//! would be rung for each completion that a thread is about to see by itself. It must never sleep, or notify anybody,
//! while it holds its lock.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;
use std::time::Duration;

use control::{Reason, RegionRefusal};
use raas_core::{Answer, Failed};
use shm::Submission;

use super::alarm::{Alarm, Armed, Asleep, Attended};
use super::ask::ask;
use super::error::RegionError;
use super::flight::Flight;
use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::error::{SessionError, StreamError};
use crate::park::{Parker, lock};
use crate::patience::{Next, Patience, WaitPolicy};

/// Bytes of each ring of a queue.
const RING_BYTES: u32 = 256 << 10;
/// Flights that wait for room in a queue's ring, at most.
pub(super) const BACKLOG_MAX: usize = 1024;
/// Looks for a flight's end, by a caller that polls, between two looks whether the daemon is still there.
const LOOKS_PER_NEWS: u32 = 256;

#[derive(Debug, Default)]
struct Inner {
    next_tag: u64,
    /// Flights whose records are in the ring or begun, by the first tag.
    under_way: BTreeMap<u64, Arc<Flight>>,
    /// Those that wait for room, in the order in which they came.
    backlog: VecDeque<Arc<Flight>>,
    /// Those that ended, and of which nobody was told yet.
    ended: Vec<Arc<Flight>>,
    /// Flights whose end nobody will look for by themselves.
    watched: u32,
    over: Option<SessionError>,
}

impl Inner {
    /// A flight that is neither under way nor in the backlog any more.
    fn leave(&mut self, flight: &Flight) {
        self.watched -= u32::from(flight.leave());
    }
}

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Queue {
    conn: Arc<Conn>,
    inner: Mutex<Inner>,
    waker: Waker,
    /// Calls of [`Queue::attend`] that came since its loop began.
    calls: AtomicU32,
    /// Threads that sleep, or are about to.
    sleepers: AtomicU32,
    looks: AtomicU32,
    /// Which daemon of the session gave it.
    daemon: u64,
    /// That one has ended, and the session goes on.
    is_parted: AtomicBool,
}

/// Why a flight was not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// [`BACKLOG_MAX`] flights wait, of which this is the first.
    Full(Arc<Flight>),
    Over(SessionError),
}

/// Which lane a handle's operations go by. What waits for one lane is not to stand before what goes by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LaneOf {
    /// All programs'.
    Host,
    /// The handle's own.
    Handle,
    /// That of the program's writers of the host's regions; the engine's where that is this host.
    Writers,
}

/// The session's queue to a host by a lane, opened when it is first asked for.
pub(super) fn queue_of(attachment: &Arc<Attachment>, host: IpAddr, lane: LaneOf) -> Result<Arc<Queue>, RegionError> {
    if lane == LaneOf::Handle {
        return open(attachment);
    }
    let host = (host.to_canonical(), lane == LaneOf::Writers);
    let mut places = lock(&attachment.operations);
    let daemon = daemon_of(attachment);
    let known = |weak: &Weak<dyn Any + Send + Sync>| {
        weak.upgrade()?.downcast::<Queue>().ok().filter(|queue| queue.daemon == daemon)
    };
    // Dropped with the last handle to a region of that host.
    if let Some(queue) = places.get(&host).and_then(known) {
        return Ok(queue);
    }
    places.retain(|_, place| place.strong_count() > 0);
    let queue = match open(attachment) {
        // At the daemon's limit of queues hosts share one.
        Err(RegionError::Refused { why: RegionRefusal::Reason(Reason::LocalLimit), name }) => {
            let shared = places.values().find_map(known);
            shared.ok_or_else(|| RegionError::refused(&name, RegionRefusal::Reason(Reason::LocalLimit)))
        }
        other => other,
    }?;
    let place: Weak<Queue> = Arc::downgrade(&queue);
    places.insert(host, place);
    Ok(queue)
}

fn open(attachment: &Arc<Attachment>) -> Result<Arc<Queue>, RegionError> {
    let (conn, daemon) = open_rings(attachment, RING_BYTES)?;
    Ok(Arc::new_cyclic(|me| Queue {
        conn,
        inner: Mutex::default(),
        waker: Arc::new(Alarm::of(Weak::clone(me) as _)).into(),
        calls: AtomicU32::new(0),
        sleepers: AtomicU32::new(0),
        looks: AtomicU32::new(0),
        daemon,
        is_parted: AtomicBool::new(false),
    }))
}

/// The rings of a queue, and which daemon of the session gave them.
pub(super) fn open_rings(attachment: &Arc<Attachment>, ring_bytes: u32) -> Result<(Arc<Conn>, u64), RegionError> {
    loop {
        let daemon = daemon_of(attachment);
        let conn = match ask(attachment, |session| session.open_operations(ring_bytes))? {
            Answer::Connected(Ok(connection)) => Conn::adopt(attachment, *connection),
            Answer::Connected(Err(Failed::Reason(reason))) => {
                return Err(RegionError::refused("", RegionRefusal::Reason(reason)));
            }
            other => return Err(SessionError::Protocol(format!("the answer to OpenOperations was {other:?}")).into()),
        };
        // If a daemon ended meanwhile, nobody knows whose it is.
        if daemon == daemon_of(attachment) {
            return Ok((conn, daemon));
        }
    }
}

/// Which daemon of the session there is.
fn daemon_of(attachment: &Attachment) -> u64 {
    lock(&attachment.tables).session.daemons_before()
}

impl Attended for Queue {
    fn attend_as_leader(&self) {
        self.attend_as(true);
    }
}

impl Queue {
    /// Most bytes of the records of one flight.
    pub(super) fn ring_bytes(&self) -> usize {
        self.conn.tx_bytes()
    }

    pub(super) fn attachment(&self) -> &Arc<Attachment> {
        &self.conn.attachment
    }

    // ---- the end

    /// The daemon has ended, and the session goes on with another: nothing is put into the ring from here on. What it
    /// said is still taken. [`Queue::follow`] tells those who wait.
    pub(super) fn part(&self) {
        self.is_parted.store(true, Ordering::Release);
        let mut inner = lock(&self.inner);
        if inner.over.is_none() {
            let mut ended = Vec::new();
            // What cannot be said of an operation is said of none behind it.
            let _ = self.take(&mut inner, &mut ended);
            inner.ended.extend(ended);
            inner.over = Some(SessionError::Lost { reason: Reason::DaemonLost });
        }
    }

    /// Whether this daemon of the session gave it.
    pub(super) fn is_of(&self, daemon: u64) -> bool {
        self.daemon == daemon
    }

    /// Whether the session goes on without it.
    pub(super) fn is_parted(&self) -> bool {
        self.is_parted.load(Ordering::Acquire)
    }

    /// Tells those whose operations have ended.
    pub(super) fn follow(&self) {
        self.drive();
    }

    // ---- submitting

    /// Puts a flight into the ring, in one step and with one doorbell, or behind those that wait for room.
    pub(super) fn submit(&self, flight: &Arc<Flight>, payload: &[IoSlice<'_>]) -> Result<(), NotTaken> {
        self.conn.check_fork().map_err(NotTaken::Over)?;
        if flight.is_done() {
            return Ok(());
        }
        let mut inner = lock(&self.inner);
        if let Some(over) = &inner.over {
            return Err(NotTaken::Over(over.clone()));
        }
        if inner.backlog.is_empty() && self.put(&mut inner, flight, payload).map_err(|e| NotTaken::Over(lost(&e)))? {
            return Ok(());
        }
        match inner.backlog.front() {
            Some(front) if inner.backlog.len() >= BACKLOG_MAX => return Err(NotTaken::Full(Arc::clone(front))),
            _ => {}
        }
        flight.keep_payload(payload.iter().flat_map(|slice| slice.iter().copied()).collect());
        inner.backlog.push_back(Arc::clone(flight));
        Ok(())
    }

    /// As [`Queue::submit`], and waits while too many flights wait for room.
    pub(super) fn submit_blocking(&self, flight: &Arc<Flight>, payload: &[IoSlice<'_>]) -> Result<(), SessionError> {
        loop {
            match self.submit(flight, payload) {
                Ok(()) => return Ok(()),
                Err(NotTaken::Over(error)) => return Err(error),
                Err(NotTaken::Full(first)) => drop(self.wait(&first, None)?),
            }
        }
    }

    /// Whether there was room.
    fn put(&self, inner: &mut Inner, flight: &Arc<Flight>, payload: &[IoSlice<'_>]) -> io::Result<bool> {
        let Some(mut room) = self.conn.look_reserve(flight.ring_bytes())? else { return Ok(false) };
        let (first, mut at) = (inner.next_tag, 0);
        for (number, record) in (first..).zip(flight.records()) {
            let submission = Submission { tag: number, ..record.submission };
            let segments: Vec<u8> = record.segments.iter().flat_map(|s| s.to_bytes()).collect();
            let behind = parts(payload, record.payload.clone()).chain(std::iter::once(&segments[..]));
            at = room.write_submission(at, &submission, behind);
        }
        room.commit(self.conn.endpoint(), at);
        inner.next_tag += flight.records().len() as u64;
        inner.under_way.insert(first, Arc::clone(flight));
        Ok(true)
    }

    // ---- completions

    /// Takes all completions that are there, and puts in what waits for room.
    fn drive(&self) {
        if self.drive_as() {
            // The one that leads the session sleeps on its descriptors.
            self.attachment().kick();
        }
    }

    /// Whether a thread was told that may lead the session.
    fn drive_as(&self) -> bool {
        let mut inner = lock(&self.inner);
        let mut ended = std::mem::take(&mut inner.ended);
        if inner.over.is_none()
            && let Err(error) = self.take(&mut inner, &mut ended).and_then(|()| self.send_backlog(&mut inner))
        {
            inner.over = Some(error);
        }
        if let Some(error) = inner.over.clone() {
            for flight in std::mem::take(&mut inner.under_way).into_values() {
                flight.on_lost(&error, true);
                inner.leave(&flight);
                ended.push(flight);
            }
            for flight in std::mem::take(&mut inner.backlog) {
                flight.on_lost(&error, false);
                inner.leave(&flight);
                ended.push(flight);
            }
        }
        drop(inner);
        ended.iter().fold(false, |may_lead, flight| flight.finish() | may_lead)
    }

    fn take(&self, inner: &mut Inner, ended: &mut Vec<Arc<Flight>>) -> Result<(), SessionError> {
        while let Some(mut lent) = self.conn.look_loan().map_err(|e| lost(&e))? {
            let broken = |e: raas_core::NotARecord| SessionError::Protocol(e.to_string());
            let record = lent.rx.completion(lent.bytes).map_err(broken)?;
            let no_such = || SessionError::Protocol(format!("operation {} ended, which was not begun", record.tag));
            let (&first, flight) = inner.under_way.range(..=record.tag).next_back().ok_or_else(no_such)?;
            let number = usize::try_from(record.tag - first).unwrap_or(usize::MAX);
            if number >= flight.records().len() {
                return Err(no_such());
            }
            let is_last = flight.on_ended(number, &record, &lent.rx);
            self.conn.consume(&mut lent.rx, record.ring_bytes());
            if is_last && let Some(flight) = inner.under_way.remove(&first) {
                inner.leave(&flight);
                ended.push(flight);
            }
        }
        Ok(())
    }

    fn send_backlog(&self, inner: &mut Inner) -> Result<(), SessionError> {
        while let Some(flight) = inner.backlog.pop_front() {
            let payload = flight.take_payload();
            if !self.put(inner, &flight, &[IoSlice::new(&payload)]).map_err(|e| lost(&e))? {
                flight.keep_payload(payload);
                inner.backlog.push_front(flight);
                break;
            }
        }
        Ok(())
    }

    /// Drives, and has the alarm rung when there is more, if anybody relies on that.
    fn attend(&self) {
        self.attend_as(false);
    }

    fn attend_as(&self, is_leader: bool) {
        let drive = || {
            if is_leader {
                self.drive_as();
            } else {
                self.drive();
            }
        };
        // News may come out of this very call. One call at a time does it for all.
        if self.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        loop {
            let seen = self.calls.load(Ordering::Acquire);
            drive();
            if self.needs_alarm() {
                self.conn.listen(&self.waker);
                drive();
            }
            if self.calls.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }

    fn needs_alarm(&self) -> bool {
        let inner = lock(&self.inner);
        let sleeps = !inner.under_way.is_empty() && self.sleepers.load(Ordering::Acquire) > 0;
        sleeps || inner.watched > 0 || !inner.backlog.is_empty()
    }

    /// Nobody looks for the end of this flight: the alarm does.
    fn watch(&self, flight: &Flight) {
        let mut inner = lock(&self.inner);
        inner.watched += u32::from(flight.watch());
    }

    // ---- waiting

    /// Waits for the end of a flight, at most for `timeout`. Whether it ended.
    pub(super) fn wait(&self, flight: &Flight, timeout: Option<Duration>) -> Result<bool, SessionError> {
        self.conn.check_fork()?;
        let attachment = self.attachment();
        // The daemon may need this very processor, so that spinning would delay the answer.
        let policy = WaitPolicy { spins: 0, ..attachment.config.policy };
        let mut patience = Patience::new(policy, &attachment.turns, timeout);
        let parker = Arc::new(Parker::default());
        loop {
            self.drive();
            if flight.is_done() {
                return Ok(true);
            }
            match patience.pause() {
                Next::Look(_) => {}
                Next::GiveUp => return Ok(false),
                Next::Block => {
                    let _armed = self.arm(flight, &parker);
                    attachment.block(&parker, patience.deadline(), &mut || flight.is_done())?;
                }
            }
        }
    }

    /// A thread of the session is about to sleep there, and the end of a flight is to wake it, as long as this lives.
    pub(super) fn arm<'q>(&'q self, flight: &'q Flight, parker: &Arc<Parker>) -> Armed<'q> {
        let armed = Armed::begin(flight, parker, Asleep::begin(&self.sleepers));
        self.attend();
        armed
    }

    /// One look for a caller that polls.
    pub(super) fn poll(&self, flight: &Flight) -> bool {
        if self.conn.check_fork().is_err() {
            return false;
        }
        self.drive();
        if !flight.is_done() && self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_PER_NEWS) {
            self.attachment().look();
        }
        flight.is_done()
    }

    /// One look for a task, or for a thread that sleeps in another session: it is woken when there is more to see.
    pub(super) fn poll_later(&self, flight: &Flight, waker: &Waker) -> Result<bool, SessionError> {
        self.conn.check_fork()?;
        self.drive();
        if !flight.is_done() {
            self.attachment().ensure_watched()?;
            flight.set_waker(waker);
            self.watch(flight);
            self.attend();
        }
        Ok(flight.is_done())
    }

    /// Nobody waits for a flight any more: its end is seen by the session's watcher.
    pub(super) fn let_go(&self, flight: &Flight) {
        if self.conn.check_fork().is_ok() && self.attachment().ensure_watched().is_ok() {
            self.watch(flight);
            self.attend();
        }
    }
}

/// The bytes of a payload that lie in `range`, piece by piece.
fn parts<'a>(payload: &'a [IoSlice<'_>], range: Range<usize>) -> impl Iterator<Item = &'a [u8]> {
    let mut before = 0;
    payload.iter().filter_map(move |slice| {
        let (from, to) = (range.start.max(before), range.end.min(before + slice.len()));
        let part = (from < to).then(|| &slice[from - before..to - before]);
        before += slice.len();
        part
    })
}

/// The queue ended: with the session, or because the daemon has no place for it.
fn lost(error: &io::Error) -> SessionError {
    let reason = StreamError::reason_of(error).unwrap_or(Reason::DaemonLost);
    SessionError::Lost { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_a_payload_is_found_in_its_slices() {
        let slices = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defg"), IoSlice::new(b"h")];
        let found = |range| parts(&slices, range).collect::<Vec<_>>().concat();
        assert_eq!(found(0..8), b"abcdefgh");
        assert_eq!(found(2..4), b"cd");
        assert_eq!(found(3..7), b"defg");
        assert_eq!((found(5..5), found(7..9)), (vec![], b"h".to_vec()));
    }
}
