//! A thread that looks at slots: takes requests, executes them, leaves or sends the responses.
//!
//! Owns when it looks and when it sleeps. It looks with yields in between while calls come, then sleeps until a client
//! notifies it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raas::{Region, RegionError};

use super::execute::{Answer, execute};
use super::ring::{Ring, Taken};
use super::slabs::{Slab, Slabs};
use super::spin::SpinTime;
use super::turns::Turns;
use super::work::Work;
use super::{Counters, Shared, TICK};

/// All slots are looked at once in so many rounds; otherwise only those where the next calls are expected. Repeated
/// requests lie elsewhere.
const ROUNDS_FOR_ALL: u64 = 16;
/// Notifications that are taken at once.
const NOTES_MAX: usize = 64;
/// The pause before another attempt to have memory, when the daemon was lost.
const RENEW_PAUSE: Duration = Duration::from_millis(100);

/// Works until the server stops.
pub(crate) fn run(shared: &Shared, slabs: &Slabs) {
    while !shared.is_over() {
        let spin = SpinTime::new(slabs.awake_for(false), Instant::now());
        let work = Work { shared, slabs, place: slabs.place(), spin };
        if let Err(error) = watch(&work) {
            tracing::warn!(%error, "the memory for requests is gone: it is made anew");
            while !shared.is_over() && slabs.renew().is_err() {
                std::thread::sleep(RENEW_PAUSE);
            }
        }
    }
}

/// Works until the server stops or the memory is gone.
fn watch(work: &Work<'_>) -> Result<(), RegionError> {
    let (slabs, region) = (work.slabs, &work.place.region);
    let mut rings: Vec<Ring> = Vec::new();
    let mut turns = Turns::new(work);
    let (mut known, mut round, mut worked) = (0, 0u64, Instant::now());
    while !work.shared.is_over() {
        let changes = slabs.changes();
        if changes != known {
            known = changes;
            let active = slabs.active();
            follow(&mut rings, &active, slabs.slots());
            turns.follow(&active);
        }
        let is_all = round.is_multiple_of(ROUNDS_FOR_ALL);
        if is_all {
            drain_notes(region)?;
        }
        let mut did = turns.round(is_all)?;
        for ring in &mut rings {
            did |= look_at(work, ring, is_all)?;
        }
        round += 1;
        let now = Instant::now();
        if did {
            worked = now;
        } else if now - worked < slabs.awake_for(turns.has_members()) || work.spin.is_promised(now) || !turns.is_quiet()
        {
            std::thread::yield_now();
        } else {
            Counters::add(&work.shared.counters.sleeps);
            match region.recv_notification_timeout(TICK) {
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

/// Takes what is new in a slab; says whether there was something.
fn look_at(work: &Work<'_>, ring: &mut Ring, is_all: bool) -> Result<bool, RegionError> {
    let mut did = false;
    while let Some(taken) = ring.take_next(work, is_all)? {
        let slab = Arc::clone(ring.slab());
        let Taken { header, arrived, .. } = taken;
        match execute(work.shared, &slab.record, slab.transport, (&header, taken.payload()), arrived) {
            Answer::Send(outcome) => work.answer(&slab, &header, &outcome, None)?,
            // The client asks again.
            Answer::Running | Answer::Nothing => {}
        }
        did = true;
    }
    Ok(did)
}

/// The slabs as they are granted now.
fn follow(rings: &mut Vec<Ring>, active: &[Arc<Slab>], slots: u16) {
    rings.retain(|ring| !ring.slab().is_over());
    for slab in active.iter().filter(|slab| !slab.has_turns()) {
        if !rings.iter().any(|ring| Arc::ptr_eq(ring.slab(), slab)) {
            rings.push(Ring::new(Arc::clone(slab), slab.offset, slots, 1));
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
