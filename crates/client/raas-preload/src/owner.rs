//! Whose memory this is, and what others may have of the process. It must never take a child that shares its parent's memory (`vfork`) for the parent.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The process whose memory this is.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The process is in a sandbox, in which the library asks nobody for its number.
static IN_SANDBOX: AtomicBool = AtomicBool::new(false);
/// It is about to enter one.
static IS_SANDBOX_DUE: AtomicBool = AtomicBool::new(false);

/// How often descriptors of this process may have gone to another one.
static SHARES: AtomicU64 = AtomicU64::new(0);

/// It is this one. Said when the library is loaded, and in a forked child.
pub(crate) fn note() {
    OWNER.store(std::process::id(), Ordering::Relaxed);
}

/// The library will be out of the way: no connection leaves TCP any more.
pub(crate) fn note_sandbox_due() {
    IS_SANDBOX_DUE.store(true, Ordering::SeqCst);
}

/// Whether the library is out of the way, or about to be.
pub(crate) fn is_sandbox_due() -> bool {
    IS_SANDBOX_DUE.load(Ordering::SeqCst)
}

/// The library is out of the way.
pub(crate) fn note_sandbox() {
    IN_SANDBOX.store(true, Ordering::Release);
}

/// Whether the library is out of the way.
#[inline]
pub(crate) fn is_in_sandbox() -> bool {
    IN_SANDBOX.load(Ordering::Acquire)
}

/// Whether this is the process whose memory this is, and no child of `vfork`; not in a sandbox.
pub(crate) fn is_owner() -> bool {
    !is_in_sandbox() && OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// How often descriptors of this process may have gone to another one.
pub(crate) fn shares() -> u64 {
    SHARES.load(Ordering::Relaxed)
}

/// A child or another program is about to get descriptors of this process.
pub(crate) fn note_share() {
    SHARES.fetch_add(1, Ordering::Relaxed);
}
