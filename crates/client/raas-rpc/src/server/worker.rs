//! A thread that looks at slots: takes requests, executes them, leaves or sends the responses.
//!
//! Owns what it has seen of each slot. It looks with yields in between while calls come, then sleeps until a client
//! notifies it. It must never take a request of which a part is missing, or one without the slab's token.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raas::{Region, RegionError};

use super::connection::response;
use super::execute::{Answer, execute};
use super::slabs::{Place, Slab, Slabs};
use super::{Counters, Shared, TICK};
use crate::frame::{REQUEST_HEADER_BYTES, RESPONSE_IN_SLOT, RequestHeader, request_flag, word};
use crate::once::Outcome;

/// All slots are looked at once in so many rounds; otherwise only those where the next calls are expected. Repeated
/// requests lie elsewhere.
const ROUNDS_FOR_ALL: u64 = 16;
/// Notifications that are taken at once.
const NOTES_MAX: usize = 64;
/// The pause before another attempt to have memory, when the daemon was lost.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// What a worker has seen of a slab.
struct Watched {
    slab: Arc<Slab>,
    /// The head of each slot as it was last taken.
    seen: Vec<u64>,
    /// The number after the highest that was taken.
    next: u64,
}

/// Works until the server stops.
pub(crate) fn run(shared: &Shared, slabs: &Slabs) {
    while !shared.is_over() {
        if let Err(error) = watch(shared, slabs) {
            tracing::warn!(%error, "the memory for requests is gone: it is made anew");
            while !shared.is_over() && slabs.renew().is_err() {
                std::thread::sleep(RENEW_PAUSE);
            }
        }
    }
}

/// Works until the server stops or the memory is gone.
fn watch(shared: &Shared, slabs: &Slabs) -> Result<(), RegionError> {
    let place = slabs.place();
    let mut watched: Vec<Watched> = Vec::new();
    let (mut known, mut round, mut worked) = (0, 0u64, Instant::now());
    while !shared.is_over() {
        let changes = slabs.changes();
        if changes != known {
            known = changes;
            follow(&mut watched, slabs);
        }
        let is_all = round.is_multiple_of(ROUNDS_FOR_ALL);
        if is_all {
            drain_notes(&place.region)?;
        }
        let mut did = false;
        for one in &mut watched {
            did |= look_at(shared, slabs, &place, one, is_all)?;
        }
        round += 1;
        if did {
            worked = Instant::now();
        } else if worked.elapsed() < slabs.awake() {
            std::thread::yield_now();
        } else {
            Counters::add(&shared.counters.sleeps);
            match place.region.recv_notification_timeout(TICK) {
                Ok(_) => worked = Instant::now(),
                Err(RegionError::TimedOut { .. }) => {}
                Err(e) => return Err(e),
            }
            // Whatever woke it, all are looked at before it sleeps again.
            round = 0;
        }
    }
    Ok(())
}

/// The slabs as they are granted now.
fn follow(watched: &mut Vec<Watched>, slabs: &Slabs) {
    let active = slabs.active();
    watched.retain(|one| !one.slab.is_over());
    for slab in active {
        if !watched.iter().any(|one| Arc::ptr_eq(&one.slab, &slab)) {
            watched.push(Watched { slab, seen: vec![0; slabs.slots().into()], next: 1 });
        }
    }
}

/// They only wake.
fn drain_notes(region: &Region) -> Result<(), RegionError> {
    for _ in 0..NOTES_MAX {
        match region.recv_notification_timeout(Duration::ZERO) {
            Ok(_) => {}
            Err(RegionError::TimedOut { .. }) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Takes what is new in a slab; says whether there was something.
fn look_at(
    shared: &Shared,
    slabs: &Slabs,
    place: &Place,
    one: &mut Watched,
    is_all: bool,
) -> Result<bool, RegionError> {
    let mut did = false;
    if is_all {
        for slot in 0..slabs.slots().into() {
            did |= look_at_slot(shared, slabs, place, one, slot)?;
        }
        return Ok(did);
    }
    while look_at_slot(shared, slabs, place, one, slabs.layout.slot_of(one.next))? {
        did = true;
    }
    Ok(did)
}

fn look_at_slot(
    shared: &Shared,
    slabs: &Slabs,
    place: &Place,
    one: &mut Watched,
    slot: u64,
) -> Result<bool, RegionError> {
    let at = one.slab.offset + slabs.layout.request_at(slot);
    let head = u64::from_le_bytes(place.region.load(at)?.to_ne_bytes());
    let Some(seen) = one.seen.get_mut(slot as usize) else { return Ok(false) };
    if head == *seen || head == 0 || one.slab.is_over() {
        return Ok(false);
    }
    let arrived = Instant::now();
    let Some(frame) = copy_frame(shared, &place.region, at)? else {
        Counters::add(&shared.counters.torn);
        return Ok(false);
    };
    let Some((header, payload)) = RequestHeader::decode(&frame) else {
        // The rest is on its way; or a client wrote what is no request, which costs this look at each round.
        Counters::add(&shared.counters.torn);
        return Ok(false);
    };
    *seen = word(header.sequence, header.attempt);
    if header.token != one.slab.token || slabs.layout.slot_of(header.sequence) != slot {
        Counters::add(&shared.counters.refused);
        return Ok(false);
    }
    one.next = one.next.max(header.sequence + 1);
    match execute(shared, &one.slab.record, one.slab.transport, (&header, payload), arrived) {
        Answer::Send(outcome) => answer(shared, slabs, place, &one.slab, &header, &outcome)?,
        // The client asks again.
        Answer::Running | Answer::Nothing => {}
    }
    Ok(true)
}

/// A request with its payload, as it lies there; `None` if its length cannot be.
fn copy_frame(shared: &Shared, region: &Region, at: u64) -> Result<Option<Vec<u8>>, RegionError> {
    let mut frame = vec![0; REQUEST_HEADER_BYTES];
    region.read(at, &mut frame)?;
    let Some(header) = RequestHeader::peek(&frame) else { return Ok(None) };
    if header.len > shared.settings.request_bytes_max {
        return Ok(None);
    }
    frame.resize(REQUEST_HEADER_BYTES + header.len as usize, 0);
    region.read(at + REQUEST_HEADER_BYTES as u64, &mut frame[REQUEST_HEADER_BYTES..])?;
    Ok(Some(frame))
}

fn answer(
    shared: &Shared,
    slabs: &Slabs,
    place: &Place,
    slab: &Slab,
    request: &RequestHeader,
    outcome: &Outcome,
) -> Result<(), RegionError> {
    let mut header = response(request, outcome);
    let frame = header.encode(&outcome.payload);
    let is_sent = request.flags & request_flag::REPLY != 0;
    if !is_sent || frame.len() > slab.datagram_max {
        leave(slabs, place, slab, request.sequence, &frame)?;
    }
    if is_sent {
        let frame = if frame.len() > slab.datagram_max {
            header.flags |= RESPONSE_IN_SLOT;
            header.encode(&[])
        } else {
            frame
        };
        Counters::add(&shared.counters.datagrams);
        // A datagram may be lost in any case: then the client asks again.
        if let Err(error) = place.socket.send_to(&frame, slab.datagrams) {
            tracing::debug!(%error, to = %slab.datagrams, "a response was not sent");
        }
    }
    Ok(())
}

/// Leaves a response in its slot; its first word comes last.
fn leave(slabs: &Slabs, place: &Place, slab: &Slab, sequence: u64, frame: &[u8]) -> Result<(), RegionError> {
    let at = slab.offset + slabs.layout.response_at(slabs.layout.slot_of(sequence));
    let (first, rest) = frame.split_at(8);
    place.region.write(at + 8, rest)?;
    let first = first.try_into().map_or(0, u64::from_ne_bytes);
    place.region.store(at, first)
}
