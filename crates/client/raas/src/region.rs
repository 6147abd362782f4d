//! Regions: memory with a name that programs of this host and of others read and write.
//!
//! Owns the operations on one, and their checks. It must never do a part of an operation that it refuses.

mod alarm;
mod ask;
mod batch;
mod completion;
mod error;
mod flight;
mod handle;
mod handle_source;
mod later;
mod lent_copy;
mod local;
mod mapped;
mod notes;
mod options;
mod pending;
mod queue;
mod quorum;
mod registered;
mod remote;
mod slice;

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{RegionAccess, RegionKey};
use shm::AtomicOp;

pub use batch::Batch;
pub use completion::Completion;
pub use error::RegionError;
pub use mapped::Mapped;
pub use notes::Notification;
pub use options::RegionOptions;
pub(crate) use options::random_key;
pub use pending::{Ended, Pending};
pub use quorum::{Quorum, QuorumError};
pub use slice::RegionSlice;

use crate::session::Session;
pub(crate) use handle::{Handle, Lender};
pub(crate) use handle_source::CurrentHandle;
use handle_source::HandleSource;

/// A handle to a region: memory with a name, a size and a key, that programs read and write without its owner taking
/// part (docs/use/regions.md).
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
///     println!("the key is {}", counters.key());
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
pub struct Region(Arc<HandleSource>);

impl Region {
    /// Opens a region of a host, for all that it allows: reading, writing and atomics. `host` is an address of this
    /// host (the unspecified one stands for it), or another's.
    ///
    /// When a daemon ends, of this host or of the region's, the next use opens the region again and goes on, if it is the
    /// same one and was not revoked (docs/operate/restart.md). It waits for that as long as the session waits for a daemon.
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
        let handle = Handle::open(&session.attachment, host, name, key, (access, false))?;
        Ok(Self(Arc::new(HandleSource::of_host(handle, host, access))))
    }

    /// As [`Region::open_for`], and the handle's operations get a *leased lane*: a queue pair between the two hosts that
    /// nothing else uses, and an operation queue of their own. So they wait for no other program's bytes. When the owner
    /// revokes the region, its daemon destroys that queue pair at once, and asks this host for nothing. The lane ends
    /// with the handle and with the program. The daemons bound how many there are (`leased_lanes_max`), and refuse one
    /// more with [`RegionRefusal::TooMany`](crate::RegionRefusal::TooMany). For a region of this host, which is mapped,
    /// this is [`Region::open_for`]. See docs/inside/lanes.md.
    pub fn open_leased(
        session: &Session,
        host: IpAddr,
        name: &str,
        key: RegionKey,
        access: RegionAccess,
    ) -> Result<Self, RegionError> {
        Ok(Self::once(Handle::open(&session.attachment, host, name, key, (access, true))?))
    }

    /// Becomes the one writer of a region that was made with [`RegionOptions::single_writer`]. `term` must be greater than
    /// that of every take-over before; otherwise the error is [`RegionError::Superseded`] with the greatest. When this
    /// returns, nothing that the writer before began can reach the region any more, whether its program and its daemon run
    /// or stand still: the daemon of the region's host has destroyed its queue pair and its registration. What it had begun
    /// may have landed before. Readers, the owner and the bytes stay. Returns the handle, and the term of the take-over
    /// before: 0 if there was none, or if an earlier daemon granted it.
    ///
    /// The handle may do what the region allows, but run kernels. All handles of the program that write regions of that
    /// host have one leased lane and one operation queue, as [`Region::open_leased`] has for one handle: a program may
    /// write 4,096 regions. The handle is over when another program takes the region over
    /// ([`RegionError::Superseded`]), or when the daemon of either host ends: take it over again by a greater term. What
    /// was on its way when it was fenced off may break the lane's queue pair. That is made anew, and the program's WRITEs
    /// to its other regions that were on their way then end with [`RegionError::OutcomeUnknown`]; after 16 times in 60 s
    /// the lane ends, and with it all these handles. On the
    /// region's own host the daemon does its operations, because what is mapped cannot be taken away. The owner alone has
    /// the region mapped for writing; an owner that is to be fenced off as well writes by such a handle.
    pub fn take_over(
        session: &Session,
        host: IpAddr,
        name: &str,
        key: RegionKey,
        term: u64,
    ) -> Result<(Self, u64), RegionError> {
        let (handle, last_term) = Handle::take_over(&session.attachment, host, name, key, term)?;
        Ok((Self::once(handle), last_term))
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

    /// Of a handle that does not open itself again.
    fn once(handle: Arc<Handle>) -> Self {
        Self(Arc::new(HandleSource::once(handle)))
    }

    // ---- what it is

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Its number on its host, as in `raas region ls`.
    pub fn number(&self) -> u64 {
        self.0.now().number()
    }

    /// The number that was drawn when it was made. It goes with the region from daemon to daemon, and through revokes; a
    /// region that is made anew by the same name has another one. It is no secret.
    pub fn id(&self) -> u64 {
        self.0.now().line().id
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.now().bytes()
    }

    /// The epoch for which this handle holds: 1, and one more after each revoke, and with each daemon to which its owner
    /// brought it.
    pub fn epoch(&self) -> u64 {
        self.0.now().epoch()
    }

    /// What this handle may do.
    pub fn access(&self) -> RegionAccess {
        self.0.now().access()
    }

    /// The key that opens it.
    pub fn key(&self) -> RegionKey {
        self.0.now().key()
    }

    /// Whether this program made it, by this handle or a clone of it.
    pub fn is_owner(&self) -> bool {
        self.0.now().is_owner()
    }

    /// Whether it lies on this host, so that its operations are copies and instructions of the processor. Otherwise they
    /// are verbs.
    pub fn is_here(&self) -> bool {
        self.0.now().is_here()
    }

    /// The handle that counts; the region is opened again if it must be.
    pub(crate) fn handle(&self) -> Result<CurrentHandle<'_>, RegionError> {
        self.0.settled()
    }

    // ---- reading and writing

    /// Copies `buf.len()` bytes from `offset` out.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), RegionError> {
        self.0.run(|handle| handle.read(offset, &mut [IoSliceMut::new(buf)]))
    }

    /// Copies bytes from `offset` on into several buffers, one after the other.
    pub fn read_vectored(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), RegionError> {
        self.0.run(|handle| handle.read(offset, bufs))
    }

    /// Copies `buf` to `offset`. When it returns every later look at these bytes, by whomever, sees them.
    pub fn write(&self, offset: u64, buf: &[u8]) -> Result<(), RegionError> {
        self.write_as(offset, buf, Completion::Visible)
    }

    /// Copies several buffers to `offset`, one behind the other.
    pub fn write_vectored(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), RegionError> {
        self.0.run(|handle| handle.write(offset, bufs, Completion::Visible, None))
    }

    /// As [`Region::write`], and returns as soon as `completion` says. [`RegionError::NoPersistence`] for
    /// [`Completion::Persistent`].
    pub fn write_as(&self, offset: u64, buf: &[u8], completion: Completion) -> Result<(), RegionError> {
        if completion == Completion::Persistent {
            return Err(RegionError::NoPersistence);
        }
        self.0.run(|handle| handle.write(offset, &[IoSlice::new(buf)], completion, None))
    }

    /// As [`Region::write`], and then tells the owner: it gets `tag` from [`Region::recv_notification`], and sees the
    /// bytes by then. While the owner has no room for more, this waits; if it takes none for 2 s, the error is
    /// [`RegionRefusal::NotificationsFull`](crate::RegionRefusal::NotificationsFull). If the owner cannot be told, the error
    /// says why, and the bytes are written all the same.
    pub fn write_notify(&self, offset: u64, buf: &[u8], tag: u32) -> Result<(), RegionError> {
        self.0.run(|handle| handle.write(offset, &[IoSlice::new(buf)], Completion::Visible, Some(tag)))
    }

    /// The memory of a part of this region by its address; see [`Mapped`] for what that means.
    /// [`RegionError::NotHere`] for a region of another host.
    pub fn map(&self, offset: u64, len: u64) -> Result<Mapped, RegionError> {
        let handle = self.handle()?;
        Mapped::of_region(&handle, offset, len)
    }

    // ---- between regions

    /// A part of this region of this host, as the local end of operations on regions of other hosts. The first one
    /// registers the region with the daemon, and waits for its answer; so does the first use after a revoke moved the
    /// region. [`RegionError::NotLocal`] for a region of another host.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RegionSlice, RegionError> {
        let handle = self.handle()?;
        RegionSlice::new(&handle, offset, len)
    }

    /// Reads from `offset` on into parts of other regions, one after the other: the bytes go straight there.
    pub fn read_into(&self, offset: u64, slices: &[RegionSlice]) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        batch.read_into(self, offset, slices);
        batch.run()?.check()
    }

    /// Writes parts of other regions to `offset`, one behind the other: the bytes come straight from there. Returns as
    /// soon as `completion` says; with [`Completion::Posted`] too they may be changed then.
    pub fn write_from(&self, offset: u64, slices: &[RegionSlice], completion: Completion) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        batch.write_from(self, offset, slices, completion);
        batch.run()?.check()
    }

    // ---- 8 bytes at a time

    fn atomic(&self, offset: u64, op: AtomicOp) -> Result<u64, RegionError> {
        self.0.run(|handle| handle.atomic(offset, op))
    }

    /// The 8 bytes at `offset`, a multiple of 8, as a number in the host's byte order.
    pub fn load(&self, offset: u64) -> Result<u64, RegionError> {
        self.0.run(|handle| handle.load(offset))
    }

    /// Stores 8 bytes at `offset`, a multiple of 8.
    pub fn store(&self, offset: u64, value: u64) -> Result<(), RegionError> {
        self.0.run(|handle| handle.store(offset, value))
    }

    /// Stores `new` if `expected` is there; returns what was there.
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::CompareSwap { expected, new })
    }

    /// Adds, modulo 2^64; returns what was there.
    pub fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Add(value))
    }

    /// Stores `value`; returns what was there.
    pub fn swap(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Swap(value))
    }

    /// Keeps the bits that are set in `bits`; returns what was there.
    pub fn fetch_and(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::And(bits))
    }

    /// Sets bits; returns what was there.
    pub fn fetch_or(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Or(bits))
    }

    /// Turns bits round; returns what was there.
    pub fn fetch_xor(&self, offset: u64, bits: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Xor(bits))
    }

    /// Stores `value` if it is less than what is there; returns what was there.
    pub fn fetch_min(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Min(value))
    }

    /// Stores `value` if it is greater than what is there; returns what was there.
    pub fn fetch_max(&self, offset: u64, value: u64) -> Result<u64, RegionError> {
        self.atomic(offset, AtomicOp::Max(value))
    }

    // ---- kernels

    /// Runs a kernel at this region, on its host, and returns what it answers: one round trip, whatever it does
    /// (docs/use/kernels.md). The handle needs [`RegionAccess::EXECUTE`]. It runs exactly once, unless the error says that
    /// nobody knows.
    pub fn run(&self, kernel: &str, args: &[u8]) -> Result<Vec<u8>, RegionError> {
        self.run_with(kernel, args, &[])
    }

    /// As [`Region::run`], with other regions of the same host that the kernel may use, at most 16.
    pub fn run_with(&self, kernel: &str, args: &[u8], others: &[Self]) -> Result<Vec<u8>, RegionError> {
        let mut batch = Batch::new();
        let number = batch.run_kernel_with(self, kernel, args, others)?;
        batch.run()?.take_bytes(number)
    }

    /// As [`Region::run`], for a built-in kernel with its arguments and its answer as types.
    pub fn call<C: kernels::Call>(&self, call: &C) -> Result<C::Answer, RegionError> {
        self.call_with(call, &[])
    }

    /// As [`Region::call`], with other regions of the same host that the kernel may use, at most 16.
    pub fn call_with<C: kernels::Call>(&self, call: &C, others: &[Self]) -> Result<C::Answer, RegionError> {
        self.read_answer::<C>(&self.run_with(C::NAME, &call.args(), others)?)
    }

    /// Installs a user kernel at this region of this owner: a WebAssembly module of at most 48 KiB, which from then on
    /// any handle with [`RegionAccess::EXECUTE`] can run by `kernel`'s name. One of the same name is
    /// replaced. What a module exports, and may import, is in docs/use/kernels.md. [`RegionError::NotOwner`] if this handle
    /// is not the owner's.
    pub fn install_kernel(&self, kernel: &str, module: &[u8]) -> Result<(), RegionError> {
        self.0.now().install(kernel, module)
    }

    /// As [`Region::call`], for tasks.
    #[cfg(feature = "tokio")]
    pub async fn call_async<C: kernels::Call>(&self, call: &C) -> Result<C::Answer, RegionError> {
        let mut batch = Batch::new();
        let number = batch.run_kernel(self, C::NAME, &call.args())?;
        let mut ended = batch.submit()?.await?;
        self.read_answer::<C>(&ended.take_bytes(number)?)
    }

    fn read_answer<C: kernels::Call>(&self, bytes: &[u8]) -> Result<C::Answer, RegionError> {
        let unread = || format!("region `{}`: {} bytes that are no answer of `{}`", self.name(), bytes.len(), C::NAME);
        C::answer(bytes).ok_or_else(|| crate::SessionError::Protocol(unread()).into())
    }

    // ---- the owner's part

    /// Ends all other handles to this region, of this host and of others: a use of one fails with
    /// [`RegionError::Revoked`]. When this returns no access by an older handle can reach the region any more. With
    /// `new_key` the region is opened by that key from then on. Returns the new epoch. This handle goes on.
    pub fn revoke(&self, new_key: Option<RegionKey>) -> Result<u64, RegionError> {
        self.0.now().revoke(new_key)
    }

    /// Ends the region of this owner, also one that would outlive it.
    pub fn delete(self) {
        self.0.now().delete();
    }

    /// Waits for a notification of [`Region::write_notify`], without end, and takes it; in the order in which they
    /// came. [`RegionError::NotOwner`] if this handle is not the owner's; [`RegionError::NotificationsLost`] once after the
    /// daemon has ended, which may have had some.
    pub fn recv_notification(&self) -> Result<u32, RegionError> {
        self.recv_notified(None).map(|notification| notification.tag)
    }

    /// As [`Region::recv_notification`], for at most `timeout`; then fails with [`RegionError::TimedOut`].
    pub fn recv_notification_timeout(&self, timeout: Duration) -> Result<u32, RegionError> {
        self.recv_notified(Some(timeout)).map(|notification| notification.tag)
    }

    /// As [`Region::recv_notification`], with which bytes were written and from where; `None` for `timeout` waits without
    /// end.
    pub fn recv_notified(&self, timeout: Option<Duration>) -> Result<Notification, RegionError> {
        self.0.now().recv_notification(timeout)
    }

    /// As [`Region::recv_notification`], for tasks.
    #[cfg(feature = "tokio")]
    pub async fn notification(&self) -> Result<u32, RegionError> {
        self.notified().await.map(|notification| notification.tag)
    }

    /// As [`Region::recv_notified`], for tasks.
    #[cfg(feature = "tokio")]
    pub async fn notified(&self) -> Result<Notification, RegionError> {
        let handle = Arc::clone(&self.0.now());
        std::future::poll_fn(|context| handle.poll_notification(context)).await
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
