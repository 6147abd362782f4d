//! Promises about the bytes of a connection: in order, each once, none of another connection; an end of the stream only
//! where the writer ended it, a reset only for a reason.

use std::collections::VecDeque;

use control::{Kind, Reason};
use raas_core::MESSAGE_HEADER_BYTES;
use verbs::Time;

use super::{AppUid, Checks, Ports, RecordId, Side};
use crate::content;
use crate::plan::kind_of;

/// What goes by a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    Stream,
    /// Messages by turns, each of which comes.
    Conversation,
    /// Messages that may be lost.
    Unreliable,
    /// The bytes of programs under `raas run`, which have the two ends of a kernel TCP connection.
    Upgraded {
        token: u64,
    },
}

/// A message begins with its number, and has up to so many bytes more.
const MESSAGE_BYTES_MIN: usize = 8;
const MESSAGE_BYTES_MORE: u64 = 3000;
/// The same of one message in four, which leaves in several pieces.
const LONG_MESSAGE_BYTES_MORE: u64 = 60_000;
const MESSAGES_PER_LONG: u64 = 4;

/// Bytes of the message of a key, of which there are at most `max`.
fn message_bytes(key: u64, max: usize) -> usize {
    let is_long = (key >> 32).is_multiple_of(MESSAGES_PER_LONG);
    let more = key % if is_long { LONG_MESSAGE_BYTES_MORE } else { MESSAGE_BYTES_MORE };
    (MESSAGE_BYTES_MIN + more as usize).min(max)
}

/// One end.
#[derive(Debug, Default)]
struct End {
    app: Option<AppUid>,
    written: u64,
    read: u64,
    /// It said that it writes no more, after this many bytes.
    fin_at: Option<u64>,
    /// It reads no more, by its own will.
    stopped: bool,
    aborted: bool,
    closed: bool,
    dead: bool,
    eof: bool,
    reset: Option<Reason>,
    /// Messages that may be lost: how many it sent, and the number of the last one that it received.
    messages_sent: u64,
    message_received: u64,
    /// Bytes of the longest message that it may send.
    message_bytes_max: usize,
    /// Bytes of messages of a conversation that the other end has not received.
    said: VecDeque<usize>,
}

/// A connection with both ends.
#[derive(Debug)]
pub(crate) struct Record {
    id: RecordId,
    key: u64,
    pub(crate) ports: Ports,
    opened_at: Time,
    joined: bool,
    /// A TCP connection of its own was made for it.
    has_direct: bool,
    ends: [End; 2],
}

impl Record {
    pub(crate) fn new(seed: u64, id: RecordId, ports: Ports, opened_at: Time, acceptor: AppUid) -> Self {
        let key = content::mix(seed ^ content::mix(u64::from(id.0) << 1));
        let acceptor = End { app: Some(acceptor), ..End::default() };
        Self { id, key, ports, opened_at, joined: false, has_direct: false, ends: [End::default(), acceptor] }
    }

    pub(crate) fn id(&self) -> RecordId {
        self.id
    }

    /// It carries messages that may be lost.
    fn is_unreliable(&self) -> bool {
        kind_of(self.ports.3) == Kind::Unreliable
    }

    pub(crate) fn is_joined(&self) -> bool {
        self.joined
    }

    pub(crate) fn join(&mut self, app: AppUid) {
        self.joined = true;
        self.ends[0].app = Some(app);
    }

    pub(crate) fn on_app_dead(&mut self, app: AppUid) {
        self.ends.iter_mut().filter(|e| e.app == Some(app)).for_each(|e| e.dead = true);
    }

    /// The key of what `side` writes.
    fn key_of(&self, side: Side) -> u64 {
        self.key.wrapping_add(side as u64)
    }

    fn name(&self, side: Side) -> String {
        let (from, port, to, listening) = self.ports;
        let end = if side == Side::Connector { "connecting" } else { "listening" };
        format!("connection {} ({from}:{port} to {to}:{listening}), {end} end", self.id.0)
    }

    /// What of the connection did not come to its end although nothing stood in the way.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        [Side::Connector, Side::Acceptor]
            .into_iter()
            .filter_map(|side| {
                let (reader, writer) = (&self.ends[side as usize], &self.ends[side.other() as usize]);
                if side == Side::Connector && !self.joined {
                    return None;
                }
                let excused = reader.dead || reader.stopped || reader.aborted || reader.reset.is_some();
                if excused {
                    return None;
                }
                if !reader.eof {
                    return Some(format!("{} never saw the end, after {} bytes", self.name(side), reader.read));
                }
                // What was on its way when the writer ended may be lost.
                if self.is_unreliable() {
                    return None;
                }
                (Some(reader.read) != writer.fin_at)
                    .then(|| format!("{} read {} of {:?} bytes", self.name(side), reader.read, writer.fin_at))
            })
            .collect()
    }
}

impl Checks {
    fn ends(&mut self, id: RecordId, side: Side) -> (&mut End, &mut End) {
        let record = self.records.get_mut(id.0 as usize).expect("records are never removed, ids come from them");
        let [connector, acceptor] = &mut record.ends;
        match side {
            Side::Connector => (connector, acceptor),
            Side::Acceptor => (acceptor, connector),
        }
    }

    fn record(&self, id: RecordId) -> &Record {
        &self.records[id.0 as usize]
    }

    /// What `side` writes at `offset`, into `out`.
    pub(crate) fn fill(&self, id: RecordId, side: Side, offset: u64, out: &mut [u8]) {
        content::fill(self.record(id).key_of(side), offset, out);
    }

    /// What goes by a connection, as both ends know.
    pub(crate) fn carries(&self, id: RecordId) -> Carries {
        let record = self.record(id);
        match () {
            () if record.is_unreliable() => Carries::Unreliable,
            () if self.has_upgrades && content::mix(record.key).is_multiple_of(3) => {
                Carries::Upgraded { token: content::mix(record.key ^ 1) }
            }
            () if self.has_conversations && content::mix(record.key).is_multiple_of(2) => Carries::Conversation,
            () => Carries::Stream,
        }
    }

    // ---- programs under `raas run`

    /// The hosts of the connecting end and of the listening one.
    pub(crate) fn hosts_of(&self, id: RecordId) -> [usize; 2] {
        let (from, _, to, _) = self.record(id).ports;
        [from, to]
    }

    /// Whether the process at the other end of `side` is gone.
    pub(crate) fn is_other_dead(&mut self, id: RecordId, side: Side) -> bool {
        self.ends(id, side).1.dead
    }

    /// `side` cannot go on, and neither its stream nor TCP say why (`None`) unless the other end is gone.
    pub(crate) fn on_tcp_broken(&mut self, now: Time, (id, side): (RecordId, Side), reason: Option<Reason>) {
        if let Some(reason) = reason {
            return self.on_reset(now, id, side, reason);
        }
        let (end, other) = self.ends(id, side);
        end.reset = Some(Reason::ResetByPeer);
        if !(other.dead || other.closed) {
            let name = self.record(id).name(side);
            self.fail(now, "way back", format!("{name}: it failed, and nothing was broken"));
        }
    }

    /// An end is over: whether both directions had left kernel TCP, and whether it was back there.
    pub(crate) fn on_upgraded(&mut self, (has_left, is_back): (bool, bool)) {
        self.left_tcp += u64::from(has_left);
        self.ways_back += u64::from(is_back);
    }

    // ---- conversations

    /// `side` sent a message, the next bytes of what it writes.
    pub(crate) fn on_say(&mut self, id: RecordId, side: Side, bytes: usize) {
        self.on_written(id, side, bytes as u64);
        self.ends(id, side).0.said.push_back(bytes);
    }

    /// `side` received a message: the next one, whole.
    pub(crate) fn on_said(&mut self, now: Time, (id, side): (RecordId, Side), bytes: &[u8], is_by_tcp: bool) {
        self.on_read(now, id, side, bytes);
        let said = self.ends(id, side).1.said.pop_front();
        if said != Some(bytes.len()) {
            let name = self.record(id).name(side);
            self.fail(now, "messages", format!("{name}: a message of {} bytes, and {said:?} were sent", bytes.len()));
        }
        *if is_by_tcp { &mut self.said_by_tcp } else { &mut self.said_by_ring } += 1;
    }

    // ---- messages that may be lost

    /// The next message of `side`: its number, and bytes that follow from it. How long it is.
    pub(crate) fn fill_message(&mut self, id: RecordId, side: Side, room: u64, out: &mut [u8]) -> usize {
        let end = self.ends(id, side).0;
        // Its ring is empty before the first one. The other end's memory for a message is as long, and holds the header too.
        if end.messages_sent == 0 {
            end.message_bytes_max = out.len().saturating_sub(MESSAGE_HEADER_BYTES).min(room as usize);
        }
        let (number, max) = (end.messages_sent + 1, end.message_bytes_max);
        let key = content::mix(self.record(id).key_of(side) ^ number);
        let count = message_bytes(key, max);
        if count < MESSAGE_BYTES_MIN {
            return 0;
        }
        out[..MESSAGE_BYTES_MIN].copy_from_slice(&number.to_le_bytes());
        content::fill(key, 0, &mut out[MESSAGE_BYTES_MIN..count]);
        count
    }

    /// It is in the ring.
    pub(crate) fn on_message_sent(&mut self, id: RecordId, side: Side) {
        let end = self.ends(id, side).0;
        end.messages_sent += 1;
        end.written += 1;
        self.messages_sent += 1;
    }

    /// `side` received a message: one that the other end sent, whole, behind all that came before.
    pub(crate) fn on_message(&mut self, now: Time, id: RecordId, side: Side, bytes: &[u8]) {
        self.bytes_checked += bytes.len() as u64;
        let (reader, writer) = self.ends(id, side);
        let number = bytes.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        let (last, sent, max) = (reader.message_received, writer.messages_sent, writer.message_bytes_max);
        reader.message_received = number;
        let key = content::mix(self.record(id).key_of(side.other()) ^ number);
        let is_whole = bytes.len() == message_bytes(key, max)
            && content::first_difference(key, 0, &bytes[MESSAGE_BYTES_MIN..]).is_none();
        if number <= last || number > sent || !is_whole {
            let name = self.record(id).name(side);
            let detail = format!("{name}: message {number} of {sent} behind {last}, whole: {is_whole}");
            self.fail(now, "messages", detail);
        }
        self.messages_received += 1;
    }

    pub(crate) fn on_written(&mut self, id: RecordId, side: Side, bytes: u64) {
        self.ends(id, side).0.written += bytes;
    }

    /// `side` read `bytes`, the next of its stream.
    pub(crate) fn on_read(&mut self, now: Time, id: RecordId, side: Side, bytes: &[u8]) {
        let (reader, writer) = self.ends(id, side);
        let (offset, written) = (reader.read, writer.written);
        reader.read += bytes.len() as u64;
        let end = reader.read;
        self.bytes_checked += bytes.len() as u64;
        let record = self.record(id);
        if let Some(at) = content::first_difference(record.key_of(side.other()), offset, bytes) {
            let from = self.origin_of(&bytes[at..]);
            let detail = format!("{}: byte {} is wrong{from}", self.record(id).name(side), offset + at as u64);
            self.fail(now, "order", detail);
        } else if end > written {
            let detail = format!("{}: read {end} bytes, the other end wrote {written}", record.name(side));
            self.fail(now, "exactly-once", detail);
        }
    }

    /// Where bytes that are in the wrong place come from, if that can be found out.
    fn origin_of(&self, bytes: &[u8]) -> String {
        let Some(probe) = bytes.get(..8) else { return String::new() };
        for record in &self.records {
            for side in [Side::Connector, Side::Acceptor] {
                let written = record.ends[side as usize].written;
                // Only whole words are looked for, at places that rings begin and end at.
                let found = (0..written.min(1 << 22))
                    .find(|at| content::first_difference(record.key_of(side), *at, probe).is_none());
                if let Some(at) = found {
                    return format!(": it is byte {at} that was written by {}", record.name(side));
                }
            }
        }
        if probe.iter().all(|b| *b == 0) { ": it is zero".into() } else { String::new() }
    }

    /// `side` says that it writes no more.
    pub(crate) fn on_fin(&mut self, id: RecordId, side: Side) {
        let end = self.ends(id, side).0;
        end.fin_at.get_or_insert(end.written);
    }

    /// A TCP connection was made for it.
    pub(crate) fn on_direct(&mut self, id: RecordId) {
        if let Some(record) = self.records.get_mut(id.0 as usize) {
            record.has_direct = true;
        }
    }

    pub(crate) fn on_stop(&mut self, id: RecordId, side: Side) {
        self.ends(id, side).0.stopped = true;
    }

    pub(crate) fn on_abort(&mut self, id: RecordId, side: Side) {
        self.ends(id, side).0.aborted = true;
    }

    /// `side` gives its slot back. What it did not read it does not want.
    pub(crate) fn on_closed(&mut self, id: RecordId, side: Side) {
        self.on_fin(id, side);
        let end = self.ends(id, side).0;
        end.closed = true;
        end.stopped |= !end.eof;
    }

    /// `side` learned that the other end will send no more, and has read everything.
    pub(crate) fn on_eof(&mut self, now: Time, id: RecordId, side: Side) {
        let (reader, writer) = self.ends(id, side);
        reader.eof = true;
        let (read, fin_at, written) = (reader.read, writer.fin_at, writer.written);
        let is_right = if self.record(id).is_unreliable() { fin_at.is_some() } else { fin_at == Some(read) };
        if !is_right {
            let said = fin_at.map_or("did not end it".to_owned(), |at| format!("ended it at {at}"));
            let name = self.record(id).name(side);
            self.fail(now, "exactly-once", format!("{name}: end of stream at {read}, the writer {said} ({written})"));
        }
    }

    /// `side` learned that the writer's peer reads no more.
    pub(crate) fn on_told_stop(&mut self, now: Time, id: RecordId, side: Side) {
        let (_, other) = self.ends(id, side);
        if !(other.stopped || other.aborted || other.dead) {
            let name = self.record(id).name(side);
            self.fail(now, "unexplained", format!("{name}: told to stop writing, but the other end still reads"));
        }
    }

    /// `side` learned that the connection was reset.
    pub(crate) fn on_reset(&mut self, now: Time, id: RecordId, side: Side, reason: Reason) {
        *self.explained.entry(reason.key()).or_default() += 1;
        let (end, other) = self.ends(id, side);
        end.reset = Some(reason);
        let (aborted, dead) = (other.aborted, other.dead);
        // Who gave it back in order, as one that accepted it, has said how it ends.
        let left_in_order = other.closed && !aborted;
        let reads_no_more = other.closed || other.stopped;
        let record = self.record(id);
        let (from, _, to, port) = record.ports;
        let (host, peer) = if side == Side::Connector { (from, to) } else { (to, from) };
        let (joined, since, has_direct) = (record.joined, record.opened_at, record.has_direct);
        let was_killed = [host, peer].iter().any(|host| self.causes.was_daemon_killed(*host, since));
        let is_explained = match reason {
            // A daemon with few lanes may give one up that a process on its way back would have used.
            Reason::ResetByPeer if was_killed && self.causes.has_tight_limits() => true,
            // As over TCP, what comes to an end that is closed resets, and so it may what is still on its way to here.
            Reason::ResetByPeer if has_direct && reads_no_more => true,
            Reason::DirectLost => has_direct && self.causes.were_directs_broken(host, peer, since),
            // A connector that gave up or died before it knew of the connection never joins it.
            Reason::ResetByPeer if left_in_order => false,
            Reason::ResetByPeer if side == Side::Acceptor => aborted || dead || !joined,
            Reason::ResetByPeer => aborted || dead || self.causes.was_unlistened(to, port, since),
            Reason::Closed => side == Side::Acceptor && self.causes.was_unlistened(to, port, since),
            Reason::PeerAppDied => dead,
            // What was open goes on, if the next daemon may take it.
            Reason::DaemonLost => self.causes.may_not_be_adopted(host) && self.causes.was_daemon_killed(host, since),
            // Who waits for the other end gives up only after long.
            Reason::PeerLost if self.causes.waits() => dead || !joined || self.causes.explains_giving_up(host, peer),
            reason => self.causes.was_lane_lost(host, peer, since, reason),
        };
        if !is_explained {
            let name = self.record(id).name(side);
            self.fail(
                now,
                "unexplained",
                format!("{name}: reset with `{}`, for which there is no cause", reason.key()),
            );
        }
    }
}
