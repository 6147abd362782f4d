//! How much a direction holds. On TCP that is the sender's buffer and the receiver's together: as much as the kernel
//! lets them grow, or what the program said. The stream's ring grows too; this makes it hold no more than a program
//! asked for.
//!
//! Decides the bound. It must never be one that TCP does not have.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use raas::Readiness;

use super::Connection;
use crate::inside;
use crate::kernel_tcp::{number, option, unread_of_tcp};

/// The program chose the size of the sender's buffer (`SO_BUF_LOCK`).
const SENDER_CHOSEN: c_int = 1;
/// Where `tcp_info` has the window that the other end offers, as far as it has read (Linux 5.4).
const OFFERED_AT: usize = 228;
const OFFERED_END: usize = OFFERED_AT + size_of::<u32>();
/// What a receiver offers at first where the kernel does not say, by Linux's `tcp_rmem`.
const OFFERED_USUALLY: u32 = 64 << 10;

impl Connection {
    /// What a `recvmsg` tells beside its bytes, if the program has asked for it: how many are left, and 1 at the end.
    pub(crate) fn left(&self, fd: c_int) -> Option<c_int> {
        if !self.tells_left.load(Ordering::Relaxed) {
            return None;
        }
        let of_tcp = if self.reads_kernel() { unread_of_tcp(fd) as u64 } else { 0 };
        let left = of_tcp + self.unread().unwrap_or(0);
        let is_over = || self.glance_at_stream().is_some_and(|found| found.contains(Readiness::HUP));
        Some(c_int::try_from(left).unwrap_or(c_int::MAX).max(c_int::from(left == 0 && is_over())))
    }

    /// The program chose the size of a buffer. Who waits for room looks again.
    pub(crate) fn note_buffers(&self, fd: c_int) {
        if self.bound(fd) {
            self.tell_all();
        }
    }

    /// A write found no room. Whether there is more by now: the other end reads what TCP had first.
    pub(super) fn is_bound_higher(&self, fd: c_int) -> bool {
        self.unread_max.load(Ordering::Relaxed) != u64::MAX && self.bound(fd)
    }

    /// Has the stream hold what TCP would, if there is one. Whether that is more than before.
    pub(super) fn bound(&self, fd: c_int) -> bool {
        if inside::is_inside() {
            // A signal handler, in the middle of this thread's work with streams: the next one counts.
            return false;
        }
        let _inside = inside::enter();
        let Some(stream) = self.stream() else { return false };
        let bytes = unread_max(fd);
        // A stream that broke says so when it is written.
        let _ = stream.set_unread_max(bytes);
        let bytes = bytes.unwrap_or(u64::MAX);
        bytes > self.unread_max.swap(bytes, Ordering::AcqRel)
    }
}

/// What a program that chose its sender's buffer leaves unread on TCP: that buffer, as the kernel counts it, and the
/// receiver's. Of that one TCP tells half, which is what it offers, less what it holds unread.
fn unread_max(fd: c_int) -> Option<u64> {
    let chosen = number(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK)?;
    if chosen & SENDER_CHOSEN == 0 {
        return None;
    }
    let sender = u64::try_from(number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)?).ok()?;
    Some(sender + 2 * u64::from(offered(fd)))
}

/// Bytes that the other end would take now.
fn offered(fd: c_int) -> u32 {
    let info = option::<OFFERED_END>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    info.and_then(|info| info[OFFERED_AT..].try_into().ok()).map_or(OFFERED_USUALLY, u32::from_ne_bytes)
}
