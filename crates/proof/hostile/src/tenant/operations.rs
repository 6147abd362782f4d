//! What the hostile tenant does with operation queues: submissions that change under the engine, cursors that lie,
//! completions that nobody takes.
//!
//! Its second half owns a region at another host, so that what is valid travels over the lane that polite programs use.

use std::sync::atomic::Ordering;

use control::{RegionAccess, RegionKey, RegionPath, RegionSpec, Reply, Request};
use rand::{Rng, RngExt};
use shm::{Class, Opcode, SUBMISSION_BYTES, Submission};

use super::Tenant;
use super::loose::Loose;
use crate::raw::{RawApp, RawError};

const RING_BYTES: u32 = 65_536;
/// Bytes of the region of the second half.
const REGION_BYTES: u64 = 1 << 16;
/// Longest payload of a WRITE in the ring.
const PAYLOAD_BYTES: usize = 4096;
/// Submissions whose completions nobody takes, after which a program ends.
const UNTAKEN_MAX: u64 = 100_000;

/// A handle to the region of the second half, and that half, whose end ends the region.
#[derive(Debug)]
struct Far {
    handle: u32,
    epoch: u64,
    _owner: RawApp,
}

impl Tenant {
    /// Opens a region of the other host. None: that daemon has no place for one more.
    fn open_far(&mut self, app: &mut RawApp) -> Result<Option<Far>, RawError> {
        let mut owner = super::attach_patiently(&self.home.far_socket, "owns-a-far-region")?;
        let key = RegionKey::new(self.rng.random());
        let name = format!("far-{:x}", self.rng.random::<u64>());
        let spec = RegionSpec {
            name: name.clone(),
            bytes: REGION_BYTES,
            access: RegionAccess::ALL,
            key,
            huge_pages: false,
            outlives: false,
            other_users: true,
            single_writer: false,
        };
        let request = owner.number();
        owner.send(&Request::RegionCreate { request, spec }, &[])?;
        if opened(&mut owner, request)?.is_none() {
            return Ok(None);
        }
        let (request, host, access) = (app.number(), self.home.far.ip(), RegionAccess::ALL);
        app.send(
            &Request::RegionOpen {
                request,
                host,
                name,
                key,
                access,
                lease: None,
                leased_lane: self.rng.random_bool(0.3),
            },
            &[],
        )?;
        Ok(match opened(app, request)? {
            Some((RegionPath::Remote { handle }, epoch)) => Some(Far { handle, epoch, _owner: owner }),
            _ => None,
        })
    }

    fn any_submission(&mut self, far: Option<&Far>) -> Submission {
        let opcode = Opcode::ALL[self.rng.random_range(0..Opcode::ALL.len())];
        let class = Class::ALL[self.rng.random_range(0..Class::ALL.len())];
        let bytes = match opcode {
            opcode if opcode.is_atomic() => 8,
            _ => self.rng.random_range(0..=PAYLOAD_BYTES as u32),
        };
        let offset = match self.rng.random_range(0..4) {
            0 => self.rng.random(),
            _ => self.rng.random_range(0..REGION_BYTES / 8) * 8,
        };
        let is_true = self.rng.random_bool(0.8);
        let (region, epoch) = match far {
            Some(far) if is_true => (far.handle, far.epoch),
            _ => (self.rng.random(), self.rng.random_range(0..4)),
        };
        Submission {
            tag: self.rng.random(),
            opcode,
            flags: self.rng.random_range(0..4),
            class,
            // What no local region was attached for.
            segments: if opcode.is_atomic() || self.rng.random_bool(0.9) { 0 } else { self.rng.random_range(0..4) },
            region,
            epoch,
            offset,
            bytes,
            notify: self.rng.random(),
            operand: self.rng.random(),
            compare: self.rng.random(),
        }
    }

    /// Submissions of all kinds, most of which can be. Their payloads are rewritten after they were published, and now
    /// and then their heads, or the cursors; so is the ring of completions.
    pub(super) fn scribble_over_operations(&mut self) -> Result<u64, RawError> {
        let mut writes = 0;
        let mut noise = [0; PAYLOAD_BYTES];
        while self.has_time() {
            let mut app = self.attach("scribbles-over-operations")?;
            let far = self.open_far(&mut app)?;
            let mut loose = Loose::new(app.open_operations(RING_BYTES)?);
            while self.has_time() {
                self.rng.fill_bytes(&mut noise);
                let submission = self.any_submission(far.as_ref());
                while loose.room() < submission.ring_bytes() && self.has_time() && app.drain().is_ok() {
                    take_completions(&loose);
                    app.ring(loose.slot());
                    std::thread::yield_now();
                }
                if loose.room() < submission.ring_bytes() {
                    break;
                }
                let at = loose.tail();
                loose.put(at, &submission.to_bytes())?;
                loose.publish(submission.ring_bytes());
                app.ring(loose.slot());
                let from = if self.rng.random_bool(0.02) { 0 } else { SUBMISSION_BYTES as u64 };
                let behind = usize::try_from(submission.ring_bytes()).unwrap_or(0) - SUBMISSION_BYTES;
                loose.put(at + from, &noise[..behind.min(noise.len())])?;
                loose.scribble_over_arrivals(self.rng.random(), &noise)?;
                match self.rng.random_range(0..200) {
                    0 => loose.words().rx_head.store(self.rng.random(), Ordering::Release),
                    1 => loose.words().rx_head.store(0, Ordering::Release),
                    2 => loose.words().tx_tail.store(self.rng.random(), Ordering::Release),
                    _ => take_completions(&loose),
                }
                writes += 1;
                match app.drain() {
                    Err(e) if e.is_end() => break,
                    other => other?,
                }
            }
        }
        Ok(writes)
    }

    /// Operations that can be, as fast as they are taken, by programs that take no completion and then die.
    pub(super) fn never_take_completions(&mut self) -> Result<u64, RawError> {
        let mut sent = 0;
        while self.has_time() {
            let mut app = self.attach("never-takes-completions")?;
            let Some(far) = self.open_far(&mut app)? else { return Ok(sent + 1) };
            let mut queues = Vec::new();
            for _ in 0..4 {
                queues.push(Loose::new(app.open_operations(RING_BYTES)?));
            }
            let begun = sent;
            while self.has_time() && sent - begun < UNTAKEN_MAX {
                for loose in &mut queues {
                    let submission = Submission { segments: 0, flags: 0, ..self.any_submission(Some(&far)) };
                    if loose.room() >= submission.ring_bytes() {
                        loose.put(loose.tail(), &submission.to_bytes())?;
                        loose.publish(submission.ring_bytes());
                        sent += 1;
                    }
                    app.ring(loose.slot());
                }
                app.drain()?;
            }
        }
        Ok(sent)
    }
}

/// The path and epoch of a handle; none if it was refused.
fn opened(app: &mut RawApp, request: u64) -> Result<Option<(RegionPath, u64)>, RawError> {
    let result = app.wait_for(|reply| match reply {
        Reply::RegionOpened { request: r, result } if *r == request => Some(result.clone()),
        _ => None,
    })?;
    Ok(result.ok().map(|opened| (opened.path, opened.info.epoch)))
}

/// Says that all completions that came were taken, whatever is in them.
fn take_completions(loose: &Loose) {
    let words = loose.words();
    words.rx_head.store(words.rx_tail.load(Ordering::Acquire), Ordering::Release);
}
