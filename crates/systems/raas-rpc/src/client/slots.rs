//! Requests by WRITE into slots of the server's memory; responses fetched by READ, or by datagrams (RFP, HERD).
//!
//! Owns the slots' ends at the client, and the choice between the two ways of responses. It must never take a response
//! of which a part is missing, or one for somebody else's slab.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raas::{Batch, Completion, DatagramSocket, MessageStream, Pending, Readiness, Region};

use super::channel::{Channel, ChannelOver, Deliver};
use super::turns::Turns;
use super::writes::Writes;
use crate::client::ClientCounters;
use crate::frame::{BUSY_AWAKE, RESPONSE_HEADER_BYTES, RequestHeader, ResponseHeader, Turn, request_flag};
use crate::hello::{Grant, Transport};
use crate::layout::Layout;
use crate::rule::Rule;
use crate::server::lock;

/// Bytes of a response that the first READ takes: the paper's F.
const FETCH_BYTES: usize = 256;
/// Time between two READs for the same call, at least: on one host a READ takes no time at all.
const FETCH_SPACING: Duration = Duration::from_micros(10);
/// How long a wait for a datagram lasts before the server's life is looked at.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_OF_TURNS: Duration = Duration::from_millis(400);
/// How long the client of RFP waits for a datagram before it looks what else it waits for.
const REPLY_WAIT: Duration = Duration::from_millis(1);
/// Time without a response after which a request is sent again.
const REPEAT_AFTER: Duration = Duration::from_millis(50);
/// Looks without waiting that found nothing, between two at the server's life.
const LOOKS_PER_CONTROL: u32 = 256;
/// A datagram has no more bytes.
const DATAGRAM_BYTES: usize = 4096;

/// What is counted.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    notifications: AtomicU64,
    fetches: AtomicU64,
    failed: AtomicU64,
    datagrams: AtomicU64,
    in_turn: AtomicU64,
}

/// A call whose response is looked for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// When its last request left.
    at: Instant,
    /// The server is to send the response.
    is_reply: bool,
    /// It was sent once.
    is_first: bool,
    /// Fetches that found none.
    failed: u32,
}

/// See the head of this file.
pub(crate) struct Slots {
    control: MessageStream,
    region: Region,
    socket: DatagramSocket,
    grant: Grant,
    layout: Layout,
    response_bytes_max: usize,
    transport: Transport,
    rule: Mutex<Rule>,
    turns: Option<Turns>,
    /// The calls whose responses are looked for.
    calls: Mutex<BTreeMap<u64, Asked>>,
    /// When the request left whose response came last, and later by what is known of how long it lay at the server; and
    /// whether the server was busy then.
    awake_at: Mutex<Option<(Instant, bool)>>,
    writes: Writes,
    /// Responses that are being fetched, of a caller that does not wait for that.
    fetching: Mutex<Option<Fetch>>,
    fetched_at: Mutex<Option<Instant>>,
    /// Looks without waiting that found nothing.
    looks: AtomicU32,
    counts: Counts,
}

/// READs of the responses of these calls.
#[derive(Debug)]
struct Fetch {
    calls: Vec<u64>,
    reads: Pending,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Slots {
    pub(crate) fn new(
        control: MessageStream,
        region: Region,
        socket: DatagramSocket,
        transport: Transport,
        (grant, layout, response_bytes_max): (Grant, Layout, u32),
        turns: Option<Turns>,
    ) -> Self {
        Self {
            control,
            region,
            socket,
            grant,
            layout,
            response_bytes_max: response_bytes_max as usize,
            transport,
            rule: Mutex::default(),
            turns,
            calls: Mutex::default(),
            awake_at: Mutex::default(),
            writes: Writes::default(),
            fetching: Mutex::default(),
            fetched_at: Mutex::default(),
            looks: AtomicU32::new(0),
            counts: Counts::default(),
        }
    }

    /// Whether the server looks at its slots now: it does so for a time after each request, and it had one when the
    /// request was sent whose response came last. Half of that time is left for the way.
    fn is_server_awake(&self) -> bool {
        let awake = Duration::from_micros(self.grant.awake_us.into()) / 2;
        let of = |is_busy| if is_busy { awake * BUSY_AWAKE } else { awake };
        lock(&self.awake_at).is_some_and(|(at, is_busy)| at.elapsed() < of(is_busy))
    }

    fn is_reply(&self) -> bool {
        self.transport != Transport::Rfp || lock(&self.rule).is_reply()
    }

    /// The server's end is heard on the control connection; nothing else comes there.
    fn check_control(&self) -> Result<(), ChannelOver> {
        if !self.control.readiness()?.contains(Readiness::READ) {
            return Ok(());
        }
        match self.control.receive(&mut [0; 64]) {
            Ok(Some(_)) => Err(ChannelOver("the server sent a message where none belongs".into())),
            Ok(None) => Err(ChannelOver("the server closed the connection".into())),
            Err(e) => Err(e.into()),
        }
    }

    /// A response is here.
    fn took(&self, sequence: u64, is_busy: bool, turn: Option<Turn>) {
        if let Some(call) = lock(&self.calls).remove(&sequence) {
            // Of a repeated request nobody knows which one the server counts from.
            let turn = turn.filter(|_| call.is_first);
            if let (Some(turns), Some(turn)) = (&self.turns, turn) {
                turns.on_turn(turn, call.at);
                turns.on_wait(call.at.elapsed());
            }
            let then = call.at + turn.map_or(Duration::ZERO, |turn| turn.waited());
            let mut at = lock(&self.awake_at);
            if at.is_none_or(|(at, _)| at <= then) {
                *at = Some((then, is_busy));
            }
        }
    }

    fn response_at(&self, sequence: u64) -> u64 {
        self.grant.offset + self.layout.response_at(self.layout.slot_of(sequence))
    }

    /// Bytes of the first READ.
    fn fetch_bytes(&self) -> usize {
        FETCH_BYTES.min(RESPONSE_HEADER_BYTES + self.response_bytes_max)
    }

    /// The response of a call, of which `frame` was read, if it is there and whole. If it is long this is another READ.
    fn complete(&self, sequence: u64, mut frame: Vec<u8>) -> Result<Option<(ResponseHeader, Vec<u8>)>, ChannelOver> {
        let head = ResponseHeader::peek(&frame);
        let Some(head) = head.filter(|h| h.sequence == sequence && h.token == self.grant.token) else {
            return Ok(None);
        };
        let (first, len) = (frame.len(), head.len as usize);
        if len > self.response_bytes_max || head.is_in_slot() {
            return Ok(None);
        }
        if RESPONSE_HEADER_BYTES + len > first {
            frame.resize(RESPONSE_HEADER_BYTES + len, 0);
            self.region.read(self.response_at(sequence) + first as u64, &mut frame[first..])?;
            add(&self.counts.fetches);
        }
        Ok(ResponseHeader::decode(&frame).map(|(header, payload)| (header, payload.to_vec())))
    }

    fn fetch(&self, sequence: u64) -> Result<Option<(ResponseHeader, Vec<u8>)>, ChannelOver> {
        let mut frame = vec![0; self.fetch_bytes()];
        self.region.read(self.response_at(sequence), &mut frame)?;
        add(&self.counts.fetches);
        self.complete(sequence, frame)
    }

    /// One READ for each call that the server does not answer by datagram, all in one submission. Says whether something
    /// came, and which calls are to be asked for again because the server is to reply from now on. Unless it `waits`,
    /// what was submitted is looked at when it is called again.
    fn fetch_all(&self, waits: bool, deliver: &mut Deliver<'_>) -> Result<(bool, Vec<u64>), ChannelOver> {
        let mut fetch = match lock(&self.fetching).take() {
            Some(fetch) => fetch,
            None => self.begin_fetch()?,
        };
        let mut ended = if waits {
            fetch.reads.wait()?
        } else if let Some(ended) = fetch.reads.try_take() {
            ended
        } else {
            *lock(&self.fetching) = Some(fetch);
            return Ok((false, Vec::new()));
        };
        let (mut came, mut again) = (false, Vec::new());
        for (number, sequence) in fetch.calls.into_iter().enumerate() {
            add(&self.counts.fetches);
            let found = self.complete(sequence, ended.take_bytes(number)?)?;
            let Some(failed) = lock(&self.calls).get(&sequence).map(|call| call.failed) else { continue };
            if let Some((header, payload)) = found {
                lock(&self.rule).on_fetched(failed);
                self.took(sequence, header.is_busy(), None);
                deliver(header, payload);
                came = true;
                continue;
            }
            add(&self.counts.failed);
            if let Some(call) = lock(&self.calls).get_mut(&sequence) {
                call.failed += 1;
            }
            if lock(&self.rule).on_failed(failed + 1) {
                again.push(sequence);
            }
        }
        Ok((came, again))
    }

    fn begin_fetch(&self) -> Result<Fetch, ChannelOver> {
        let calls: Vec<u64> =
            lock(&self.calls).iter().filter(|(_, call)| !call.is_reply).map(|(sequence, _)| *sequence).collect();
        let mut batch = Batch::new();
        for sequence in &calls {
            batch.read(&self.region, self.response_at(*sequence), self.fetch_bytes());
        }
        *lock(&self.fetched_at) = Some(Instant::now());
        Ok(Fetch { calls, reads: batch.submit()? })
    }

    /// Calls under way, and how many of these the server answers by datagram.
    fn under_way(&self) -> (usize, usize) {
        let calls = lock(&self.calls);
        (calls.len(), calls.values().filter(|call| call.is_reply).count())
    }

    /// Takes the datagrams that are there, or waits for one until `until`.
    fn take_datagrams(&self, until: Option<Instant>, deliver: &mut Deliver<'_>) -> Result<bool, ChannelOver> {
        if until.is_none() && !self.socket.readiness()?.contains(Readiness::READ) {
            return Ok(false);
        }
        let mut buffer = [0; DATAGRAM_BYTES];
        let mut came = false;
        loop {
            let may_wait = until.filter(|_| !came);
            match may_wait {
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
                    self.socket.set_read_timeout(Some(left))?;
                }
                None if !self.socket.readiness()?.contains(Readiness::READ) => return Ok(came),
                None => self.socket.set_read_timeout(Some(Duration::from_micros(1)))?,
            }
            let len = match self.socket.recv(&mut buffer) {
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(came),
                Err(e) => return Err(e.into()),
            };
            came |= self.take_datagram(&buffer[..len], deliver)?;
        }
    }

    fn take_datagram(&self, frame: &[u8], deliver: &mut Deliver<'_>) -> Result<bool, ChannelOver> {
        add(&self.counts.datagrams);
        let Some((header, payload)) = ResponseHeader::decode(frame) else { return Ok(false) };
        let is_wanted = lock(&self.calls).contains_key(&header.sequence);
        if header.token != self.grant.token || !is_wanted {
            return Ok(false);
        }
        let turn = header.turn;
        let (header, payload) = if header.is_in_slot() {
            // If it is not whole yet the request is repeated in its time.
            let Some(fetched) = self.fetch(header.sequence)? else { return Ok(false) };
            fetched
        } else {
            (header, payload.to_vec())
        };
        lock(&self.rule).on_reply(header.run_us);
        self.took(header.sequence, header.is_busy(), turn);
        deliver(header, payload);
        Ok(true)
    }

    /// Writes, and wakes the server unless it looks.
    fn write(&self, at: u64, frame: Vec<u8>, is_awake: bool) -> Result<(), ChannelOver> {
        let mut batch = Batch::new();
        if is_awake {
            batch.write_as(&self.region, at, frame, Completion::Posted);
        } else {
            add(&self.counts.notifications);
            batch.write_notify(&self.region, at, frame, self.grant.slab);
        }
        self.writes.begin(batch)
    }
}

impl Channel for Slots {
    fn send(&self, mut header: RequestHeader, payload: &[u8]) -> Result<(), ChannelOver> {
        header.token = self.grant.token;
        let is_reply = self.is_reply();
        if is_reply {
            header.flags |= request_flag::REPLY;
        }
        let is_first = header.attempt == 0;
        let asked = Asked { at: Instant::now(), is_reply, is_first, failed: 0 };
        lock(&self.calls).insert(header.sequence, asked);
        let frame = header.encode(payload);
        add(&self.counts.requests);
        let slot_at = self.layout.request_at(self.layout.slot_of(header.sequence));
        let Some(turns) = &self.turns else {
            return self.write(self.grant.offset + slot_at, frame, is_first && self.is_server_awake());
        };
        match turns.seat_at().filter(|_| is_first) {
            // The server does not sleep while anybody has a turn.
            Some(seat_at) => {
                add(&self.counts.in_turn);
                self.write(seat_at + slot_at, frame, true)
            }
            None => turns.lay(&frame, |laid| {
                self.write(turns.word_at(), laid.to_le_bytes().to_vec(), is_first && self.is_server_awake())
            }),
        }
    }

    fn receive(&self, until: Instant, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver> {
        // Many clients that wait for their turns look rarely.
        let look = if self.turns.is_some() { LOOK_OF_TURNS } else { LOOK };
        let end = until.min(Instant::now() + look);
        loop {
            let began = Instant::now();
            self.writes.look()?;
            let (all, replies) = self.under_way();
            let (mut came, mut again) = (false, Vec::new());
            if replies < all {
                (came, again) = self.fetch_all(true, deliver)?;
                came |= replies > 0 && self.take_datagrams(None, deliver)?;
            } else {
                // With RFP the next call may be one that is fetched.
                let wait = if self.transport == Transport::Rfp { REPLY_WAIT } else { look };
                came |= self.take_datagrams(Some(end.min(began + wait)), deliver)?;
            }
            if came || !again.is_empty() {
                return Ok(again);
            }
            if Instant::now() >= end {
                self.check_control()?;
                return Ok(Vec::new());
            }
            while began.elapsed() < FETCH_SPACING {
                std::thread::yield_now();
            }
        }
    }

    fn look(&self, deliver: &mut Deliver<'_>) -> Result<Vec<u64>, ChannelOver> {
        self.writes.look()?;
        let (all, replies) = self.under_way();
        let (mut came, mut again) = (false, Vec::new());
        let is_spaced = || lock(&self.fetched_at).is_none_or(|at| at.elapsed() >= FETCH_SPACING);
        if replies < all && (lock(&self.fetching).is_some() || is_spaced()) {
            (came, again) = self.fetch_all(false, deliver)?;
        }
        if replies > 0 {
            came |= self.take_datagrams(None, deliver)?;
        }
        if !came && self.looks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOOKS_PER_CONTROL) {
            self.check_control()?;
        }
        Ok(again)
    }

    fn cancel(&self, header: RequestHeader) {
        lock(&self.calls).remove(&header.sequence);
        // If it does not arrive the call is executed, and its response thrown away.
        let _ = self.control.send(&RequestHeader { flags: request_flag::CANCEL, len: 0, ..header }.encode(&[]));
    }

    fn repeat_after(&self) -> Option<Duration> {
        Some(self.turns.as_ref().map_or(REPEAT_AFTER, Turns::repeat_after))
    }

    fn count(&self, counters: &mut ClientCounters) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.requests += load(&self.counts.requests);
        counters.notifications += load(&self.counts.notifications);
        counters.fetches += load(&self.counts.fetches);
        counters.failed_fetches += load(&self.counts.failed);
        counters.datagrams += load(&self.counts.datagrams);
        counters.in_turn += load(&self.counts.in_turn);
        let rule = lock(&self.rule);
        counters.switches_to_reply += rule.to_reply;
        counters.switches_to_fetch += rule.to_fetch;
    }
}
