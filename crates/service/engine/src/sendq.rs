//! The send queue of one lane: what is posted and not completed.
//!
//! Owns the count of work requests and bytes, which of them are signalled, and the slots of control frames. It must
//! never stage more than the queue holds: callers ask [`SendQueue::has_room`] first, so that the device never refuses.
//! How many bytes it holds is its [`Window`]'s business.
//!
//! Completions of an RC queue pair come in order, and that of a signalled work request speaks for all before it (IBTA
//! 10.8.5.1). Work requests are numbered; the number is the `wr_id`.

use std::collections::VecDeque;

use verbs::{Payload, PostError, Provider, Qpn, SendFlags, SendOp, SendWr, Sge, Time};

use crate::limits::{POST_BATCH, SIGNAL_WRS, SIGNALS_PER_FLIGHT};
use crate::window::Window;

/// A completion that no posted work request can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("completion of work request {got}, outstanding are {first}..{next}")]
pub(crate) struct StrayCompletion {
    got: u64,
    first: u64,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Posted {
    bytes: u32,
    frame_slot: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
struct Staged {
    seq: u64,
    op: SendOp,
    sge: Sge,
    flags: SendFlags,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    depth: usize,
    window: Window,
    posted: VecDeque<Posted>,
    /// Number of the first work request in `posted`.
    first: u64,
    inflight_bytes: u64,
    unsignalled_wrs: u32,
    unsignalled_bytes: u64,
    /// The last work request that is signalled.
    signalled: u64,
    staged: Vec<Staged>,
    frame_slots: Vec<u16>,
}

impl SendQueue {
    /// An empty queue for `depth` work requests of at most `bytes_max` bytes together, and `slots` control frames.
    pub(crate) fn new(depth: usize, bytes_max: u64, slots: u16) -> Self {
        Self {
            depth,
            window: Window::new(bytes_max),
            // Made with use: most lanes never have many.
            posted: VecDeque::new(),
            first: 1,
            inflight_bytes: 0,
            // The first of a queue pair is signalled, because the window wants to know the path.
            unsignalled_wrs: SIGNAL_WRS,
            unsignalled_bytes: 0,
            signalled: 0,
            staged: Vec::new(),
            frame_slots: (0..slots).rev().collect(),
        }
    }

    /// Forgets everything: the queue pair is destroyed. Numbers go on, so that none is used twice.
    pub(crate) fn reset(&mut self, slots: u16) {
        let (first, window) = (self.next(), self.window.renewed());
        *self = Self { first, window, ..Self::new(self.depth, 0, slots) };
    }

    /// The number that the next work request gets.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.posted.len() as u64
    }

    /// Whether something is posted and not completed.
    pub(crate) fn has_outstanding(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Whether all up to and including work request `seq` are completed.
    pub(crate) fn is_completed(&self, seq: u64) -> bool {
        seq < self.first
    }

    /// Whether a work request with `bytes` fits and leaves `spare` places free.
    #[inline]
    pub(crate) fn has_room(&self, bytes: u32, spare: usize) -> bool {
        // A window that has become smaller may be full of what nobody signalled. The next one will be.
        let fits = self.inflight_bytes + u64::from(bytes) <= self.window.bytes() || self.signalled < self.first;
        self.posted.len() + spare < self.depth && fits
    }

    /// How many bytes may be in flight.
    pub(crate) fn window(&mut self) -> &mut Window {
        &mut self.window
    }

    /// Whether the path is long (`window.rs`).
    #[inline]
    pub(crate) fn is_far(&self) -> bool {
        self.window.is_far()
    }

    /// Whether it is not near.
    #[inline]
    pub(crate) fn is_distant(&self) -> bool {
        self.window.is_distant()
    }

    /// Whether it may be, as far as is known.
    pub(crate) fn may_be_far(&self) -> bool {
        self.window.may_be_far()
    }

    /// Whether three quarters of the bytes that may be in flight are.
    #[inline]
    pub(crate) fn is_nearly_full(&self) -> bool {
        self.inflight_bytes >= self.window.bytes() / 4 * 3
    }

    /// Whether one more control frame fits. Frames do not count in the window, else data could hold them up.
    pub(crate) fn has_frame_room(&self) -> bool {
        self.posted.len() < self.depth && !self.frame_slots.is_empty()
    }

    /// A slot for a control frame, to be staged with it.
    pub(crate) fn take_frame_slot(&mut self) -> Option<u16> {
        self.frame_slots.pop()
    }

    /// Gives back a slot that was not used after all.
    pub(crate) fn put_frame_slot(&mut self, slot: u16) {
        self.frame_slots.push(slot);
    }

    /// Appends a WRITE; its number. Its completion is told by itself only if somebody waits for it.
    pub(crate) fn stage_data(&mut self, op: SendOp, sge: Sge, is_signalled: bool) -> u64 {
        self.inflight_bytes += u64::from(sge.len);
        self.stage(op, sge, None, is_signalled)
    }

    /// Appends a READ or WRITE of an operation; its number. Somebody waits for its end, so it is signalled.
    pub(crate) fn stage_operation(&mut self, op: SendOp, sge: Sge) -> u64 {
        self.inflight_bytes += u64::from(sge.len);
        self.stage(op, sge, None, true)
    }

    /// Appends a control frame that lies in `slot`; its number.
    pub(crate) fn stage_frame(&mut self, sge: Sge, slot: u16, signalled: bool) -> u64 {
        self.stage(SendOp::Send, sge, Some(slot), signalled)
    }

    fn stage(&mut self, op: SendOp, sge: Sge, frame_slot: Option<u16>, signalled: bool) -> u64 {
        let seq = self.next();
        self.unsignalled_wrs += 1;
        self.unsignalled_bytes += u64::from(sge.len);
        let due =
            self.unsignalled_wrs >= SIGNAL_WRS || self.unsignalled_bytes >= self.window.bytes() / SIGNALS_PER_FLIGHT;
        let flags = if signalled || due { SendFlags::SIGNALED } else { SendFlags::empty() };
        if flags.contains(SendFlags::SIGNALED) {
            self.unsignalled_wrs = 0;
            self.unsignalled_bytes = 0;
            self.signalled = seq;
        }
        let bytes = if frame_slot.is_none() { sge.len } else { 0 };
        self.posted.push_back(Posted { bytes, frame_slot });
        self.staged.push(Staged { seq, op, sge, flags });
        seq
    }

    /// Whether [`Self::flush`] should be called before more is staged.
    #[inline]
    pub(crate) fn is_batch_full(&self) -> bool {
        self.staged.len() >= POST_BATCH
    }

    /// Hands what is staged to the device. An error means that the queue pair is broken.
    pub(crate) fn flush<P: Provider>(&mut self, nic: &mut P, qpn: Qpn, now: Time) -> Result<(), PostError> {
        if self.staged.iter().any(|s| s.flags.contains(SendFlags::SIGNALED)) {
            self.window.on_posted(self.signalled, self.inflight_bytes, now);
        }
        for batch in self.staged.chunks(POST_BATCH) {
            // A lone work request is the common case of low load, and the one that latency hangs on.
            match batch.len() {
                1 => post::<P, 1>(nic, qpn, batch)?,
                2..=4 => post::<P, 4>(nic, qpn, batch)?,
                _ => post::<P, POST_BATCH>(nic, qpn, batch)?,
            }
        }
        self.staged.clear();
        Ok(())
    }

    /// A successful completion: everything up to `seq` is done.
    pub(crate) fn on_completion(&mut self, seq: u64, now: Time) -> Result<(), StrayCompletion> {
        let next = self.next();
        if seq < self.first || seq >= next {
            return Err(StrayCompletion { got: seq, first: self.first, next });
        }
        let before = self.inflight_bytes;
        while self.first <= seq {
            let Some(done) = self.posted.pop_front() else { break };
            self.first += 1;
            self.inflight_bytes -= u64::from(done.bytes);
            self.frame_slots.extend(done.frame_slot);
        }
        self.window.on_completed(seq, before - self.inflight_bytes, now);
        Ok(())
    }
}

/// Posts up to `N` work requests from arrays of that size.
fn post<P: Provider, const N: usize>(nic: &mut P, qpn: Qpn, batch: &[Staged]) -> Result<(), PostError> {
    let Some(last) = batch.len().checked_sub(1) else { return Ok(()) };
    let sges: [[Sge; 1]; N] = std::array::from_fn(|i| [batch[i.min(last)].sge]);
    let wrs: [SendWr<'_>; N] = std::array::from_fn(|i| {
        let s = &batch[i.min(last)];
        SendWr { wr_id: s.seq, op: s.op, payload: Payload::Sges(&sges[i]), flags: s.flags, dest: None }
    });
    nic.post_send(qpn, &wrs[..batch.len().min(N)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::{Lkey, RemoteAddr, Rkey};

    fn sge(len: u32) -> Sge {
        Sge { addr: 0, len, lkey: Lkey(1) }
    }

    fn write() -> SendOp {
        SendOp::WriteImm(RemoteAddr { addr: 0, rkey: Rkey(1) }, 1)
    }

    fn signalled(q: &SendQueue) -> Vec<u64> {
        q.staged.iter().filter(|s| s.flags.contains(SendFlags::SIGNALED)).map(|s| s.seq).collect()
    }

    #[test]
    fn the_first_one_in_sixteen_and_an_eighth_of_the_flight_is_signalled() {
        let mut q = SendQueue::new(256, 1 << 20, 4);
        (0..40).for_each(|_| _ = q.stage_data(write(), sge(100), false));
        assert_eq!(signalled(&q), [1, 17, 33]);
        let mut q = SendQueue::new(256, 512 << 10, 4);
        (0..4).for_each(|_| _ = q.stage_data(write(), sge(32 << 10), false));
        assert_eq!(signalled(&q), [1, 3]);
        let slot = q.take_frame_slot().unwrap();
        q.stage_frame(sge(50), slot, true);
        assert_eq!(signalled(&q), [1, 3, 5]);
    }

    #[test]
    fn a_window_that_becomes_smaller_never_stops_the_queue() {
        let piece = 60 << 10;
        let mut q = SendQueue::new(256, 64 << 20, 4);
        let first = q.stage_data(write(), sge(piece), false);
        // Not behind few bytes: so the path's time is not known after it, and the window gets small.
        q.window().on_posted(first, 1 << 20, Time::ZERO);
        (0..4).for_each(|_| _ = q.stage_data(write(), sge(piece), false));
        assert_eq!(signalled(&q), [first], "those behind it do not tell their completion");
        q.on_completion(first, Time(1)).unwrap();
        assert!(q.inflight_bytes + u64::from(piece) > q.window.bytes(), "{}", q.window.bytes());
        assert!(q.has_room(piece, 1), "else nothing would ever complete");
        let next = q.stage_data(write(), sge(piece), false);
        assert_eq!(signalled(&q), [first, next]);
        assert!(!q.has_room(piece, 1), "its completion comes");
    }

    #[test]
    fn a_completion_speaks_for_all_before_it() {
        let mut q = SendQueue::new(4, 1000, 1);
        q.stage_data(write(), sge(400), false);
        let slot = q.take_frame_slot().unwrap();
        assert!(!q.has_frame_room());
        q.stage_frame(sge(900), slot, false);
        assert!(q.has_room(600, 1) && !q.has_room(601, 1) && !q.has_room(1, 2));
        q.stage_data(write(), sge(600), false);
        q.stage_data(write(), sge(0), false);
        assert!(!q.has_room(0, 0));
        assert_eq!(q.inflight_bytes, 1000);
        q.on_completion(2, Time::ZERO).unwrap();
        assert_eq!(q.inflight_bytes, 600);
        assert!(q.has_frame_room() && q.is_completed(2) && !q.is_completed(3));
        assert!(q.on_completion(2, Time::ZERO).is_err());
        assert!(q.on_completion(5, Time::ZERO).is_err());
        q.on_completion(4, Time::ZERO).unwrap();
        assert_eq!((q.inflight_bytes, q.next()), (0, 5));
        q.stage_data(write(), sge(1), false);
        q.reset(1);
        assert_eq!((q.next(), q.inflight_bytes), (6, 0));
        assert!(q.is_completed(5));
    }
}
