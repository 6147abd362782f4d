//! Regions: memory with a name that programs of this host and of others read and write.
//!
//! Owns the operations on one, and their checks. It must never do a part of an operation that it refuses.

mod ask;
mod completion;
mod error;
mod handle;
mod local;
mod notes;
mod options;
mod queue;
mod remote;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{RegionAccess, RegionKey};
use shm::AtomicOp;

pub use completion::Completion;
pub use error::RegionError;
pub use options::RegionOptions;

use crate::session::Session;
use handle::Handle;

/// A handle to a region: memory with a name, a size and a key, that programs read and write without its owner taking
/// part (docs/memory.md).
///
/// The program that makes a region with [`RegionOptions::create`] owns it. It ends when the owner drops it or dies,
/// unless [`RegionOptions::outlives`] was set. Others open it with [`Region::open`] by host, name and key. On one host
/// the memory is mapped by all of them: an operation is a copy or an instruction, without a system call.
///
/// Offsets and lengths are in bytes. 8 bytes at a multiple of 8 are never torn: each is as one store left it, whatever
/// was read or written. The other operations of this type, those on 8 bytes, are atomic with each other, in one order
/// for all programs, and with the owner's.
///
/// ```no_run
/// use raas::{Region, RegionOptions, Session};
///
/// fn main() -> Result<(), raas::RegionError> {
///     let session = Session::global()?;
///     let counters = RegionOptions::new().create(&session, "counters", 4096)?;
///     println!("the key is {}", counters.key().to_hex());
///     // Another program, with that key:
///     let other = Region::open(&session, "127.0.0.1".parse().expect("an address"), "counters", counters.key())?;
///     assert_eq!(other.fetch_add(8, 5)?, 0);
///     assert_eq!(counters.load(8)?, 5);
///     Ok(())
/// }
/// ```
///
/// Any number of threads may use one handle, and cloning gives another handle on the same. In a child made by `fork`
/// every use fails with [`SessionError::Forked`](crate::SessionError::Forked).
#[derive(Clone)]
pub struct Region(Arc<Handle>);

impl Region {
    /// Opens a region of a host, for all that it allows: reading, writing and atomics. `host` is an address of this
    /// host (the unspecified one stands for it), or another's.
    pub fn open(session: &Session, host: IpAddr, name: &str, key: RegionKey) -> Result<Self, RegionError> {
        Self::open_for(session, host, name, key, RegionAccess::ALL)
    }

    /// As [`Region::open`], for less than all. A handle that is only for reading is mapped so, and its program cannot
    /// write however it tries.
    pub fn open_for(
        session: &Session,
        host: IpAddr,
        name: &str,
        key: RegionKey,
        access: RegionAccess,
    ) -> Result<Self, RegionError> {
        Ok(Self(Handle::open(&session.attachment, host, name, key, access)?))
    }

    /// Ends all handles to a region of this host but its owner's, as [`Region::revoke`]: for who has the key and is the
    /// owner's user, or root. A region without an owner ends. Returns the new epoch.
    pub fn revoke_by_name(
        session: &Session,
        name: &str,
        key: RegionKey,
        new_key: Option<RegionKey>,
    ) -> Result<u64, RegionError> {
        handle::revoke(&session.attachment, name, key, new_key)
    }

    // ---- what it is

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its number on its host, as in `raas region ls`.
    pub fn number(&self) -> u64 {
        self.0.number()
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// The epoch for which this handle holds: 1, and one more after each revoke.
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// What this handle may do.
    pub fn access(&self) -> RegionAccess {
        self.0.access()
    }

    /// The key that opens it.
    pub fn key(&self) -> RegionKey {
        self.0.key()
    }

    /// Whether this program made it, by this handle or a clone of it.
    pub fn is_owner(&self) -> bool {
        self.0.is_owner()
    }

    // ---- reading and writing

    /// Copies `buf.len()` bytes from `offset` out.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        self.0.read(offset, &mut [IoSliceMut::new(buf)])
    }

    /// Copies bytes from `offset` on into several buffers, one after the other.
    pub fn read_vectored(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), RegionError> {
        self.0.read(offset, bufs)
    }

    /// Copies `buf` to `offset`. When it returns every later look at these bytes, by whomever, sees them.
    pub fn write(&self, offset: u64, buf: &[u8]) -> Result<(), RegionError> {
        self.write_as(offset, buf, Completion::Visible)
    }

    /// Copies several buffers to `offset`, one behind the other.
    pub fn write_vectored(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), RegionError> {
        self.0.write(offset, bufs, Completion::Visible, None)
    }

    /// As [`Region::write`], and returns as soon as `completion` says. [`RegionError::NoPersistence`] for
    /// [`Completion::Persistent`].
    pub fn write_as(&self, offset: u64, buf: &[u8], completion: Completion) -> Result<(), RegionError> {
        if completion == Completion::Persistent {
            return Err(RegionError::NoPersistence);
        }
        self.0.write(offset, &[IoSlice::new(buf)], completion, None)
    }

    /// As [`Region::write`], and then tells the owner: it gets `tag` from [`Region::recv_notification`], and sees the
    /// bytes by then. If the owner cannot be told, the error says why, and the bytes are written all the same.
    pub fn write_notify(&self, offset: u64, buf: &[u8], tag: u32) -> Result<(), RegionError> {
        self.0.write(offset, &[IoSlice::new(buf)], Completion::Visible, Some(tag))
    }

    // ---- 8 bytes at a time

    /// The 8 bytes at `offset`, a multiple of 8, as a number in the host's byte order.
    pub fn load(&self, offset: u64) -> Result<u64, RegionError> {
        self.0.load(offset)
    }

    /// Stores 8 bytes at `offset`, a multiple of 8.
    pub fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        self.0.store(offset, value)
    }

    /// Stores `new` if `expected` is there; returns what was there.
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::CompareSwap { expected, new })
    }

    /// Adds, modulo 2^64; returns what was there.
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Add(value))
    }

    /// Stores `value`; returns what was there.
    pub fn swap(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Swap(value))
    }

    /// Keeps the bits that are set in `bits`; returns what was there.
    pub fn fetch_and(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::And(bits))
    }

    /// Sets bits; returns what was there.
    pub fn fetch_or(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Or(bits))
    }

    /// Turns bits round; returns what was there.
    pub fn fetch_xor(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Xor(bits))
    }

    /// Stores `value` if it is less than what is there; returns what was there.
    pub fn fetch_min(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Min(value))
    }

    /// Stores `value` if it is greater than what is there; returns what was there.
    pub fn fetch_max(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.0.atomic(offset, AtomicOp::Max(value))
    }

    // ---- the owner's part

    /// Ends all other handles to this region, of this host and of others: a use of one fails with
    /// [`RegionError::Revoked`]. When this returns no access by an older handle can reach the region any more. With
    /// `new_key` the region is opened by that key from then on. Returns the new epoch. This handle goes on.
    pub fn revoke(&self, new_key: Option<RegionKey>) -> Result<u64, RegionError> {
        self.0.revoke(new_key)
    }

    /// Ends the region of this owner, also one that would outlive it.
    pub fn delete(self) {
        self.0.delete();
    }

    /// Waits for a notification of [`Region::write_notify`], without end, and takes it; in the order in which they
    /// came. [`RegionError::NotOwner`] if this handle is not the owner's.
    pub fn recv_notification(&self) -> Result<u32, RegionError> {
        self.0.recv_notification(None)
    }

    /// As [`Region::recv_notification`], for at most `timeout`; then fails with [`RegionError::TimedOut`].
    pub fn recv_notification_timeout(&self, timeout: Duration) -> Result<u32, RegionError> {
        self.0.recv_notification(Some(timeout))
    }

    /// As [`Region::recv_notification`], for tasks.
    #[cfg(feature = "tokio")]
    pub async fn notification(&self) -> Result<u32, RegionError> {
        std::future::poll_fn(|context| self.0.poll_notification(context)).await
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("name", &self.name())
            .field("bytes", &self.bytes())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}
