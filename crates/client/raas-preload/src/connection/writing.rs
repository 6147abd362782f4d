//! Writing to a connection, whichever part takes the next bytes.
//!
//! It must never write to TCP once `W` was said, and never write to the stream before `W` is in it.

use std::ffi::c_int;
use std::io::{IoSlice, Write};
use std::sync::atomic::Ordering;

use libc::iovec;
use raas::Reason;

use super::guard::Moves;
use super::reading::rest_of;
use super::waiting::Awaited;
use super::{Connection, Side, are_valid, bytes_of};
use crate::errno::{self, fail};
use crate::{inside, say};

/// Urgent bytes, and sends of which the kernel says when it has done with the memory.
const KERNELS_ALONE: c_int = libc::MSG_OOB | libc::MSG_ZEROCOPY;
/// Pieces that go into the ring in one call.
const SLICES_MAX: usize = 64;

impl Connection {
    /// Writes `parts`. `original` is the program's call, for the time in which the kernel takes the bytes.
    pub(crate) fn send(&self, fd: c_int, parts: &[iovec], flags: c_int, original: &mut dyn FnMut() -> isize) -> isize {
        self.send_asked(fd, parts, bytes_of(parts), flags, original)
    }

    /// Has the kernel take `asked` bytes that the program's call names without giving them. None: the stream takes what
    /// is written, and nothing was.
    pub(crate) fn send_in_kernel(&self, fd: c_int, asked: usize, original: &mut dyn FnMut() -> isize) -> Option<isize> {
        let mut was_asked = false;
        // No parts: should the connection be upgraded right now, nothing is written to the stream.
        let result = self.send_asked(fd, &[], asked, libc::MSG_NOSIGNAL, &mut || {
            was_asked = true;
            original()
        });
        was_asked.then_some(result)
    }

    /// `asked`: bytes of which the program learns how many were taken.
    fn send_asked(
        &self,
        fd: c_int,
        parts: &[iovec],
        asked: usize,
        flags: c_int,
        original: &mut dyn FnMut() -> isize,
    ) -> isize {
        if flags & KERNELS_ALONE != 0 && !self.is_the_kernels() && !inside::is_inside() {
            // What could not go back is reset, as the call says.
            self.keep_on_tcp(fd, Reason::KernelOption);
        }
        self.touch(fd);
        if let Err(code) = self.pass_guard(fd, Moves::Out { with_syn: flags & libc::MSG_FASTOPEN != 0 }) {
            return fail(code);
        }
        if self.is_lost() && !self.regain() {
            say::LOST.say("a connection that the parent process had upgraded was used after fork");
            self.spoil(fd);
            return fail(libc::ECONNRESET);
        }
        let result = loop {
            if self.is_going_back() {
                match self.await_back(!self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0) {
                    Ok(()) => continue,
                    Err(code) => return fail(code),
                }
            }
            if let Some(_entered) = self.writers.enter() {
                let result = self.in_kernel(Some(Side::Write), original);
                if let Ok(count) = u64::try_from(result) {
                    self.tcp_out.fetch_add(count, Ordering::AcqRel);
                }
                // Room is an edge then, also if it is the stream's. Who was given less room than asked for waits for it.
                let is_short = match usize::try_from(result) {
                    Ok(count) => count < asked,
                    Err(_) => errno::get() == libc::EAGAIN,
                };
                if is_short {
                    self.note_full();
                }
                return result;
            }
            if inside::is_inside() {
                // The handler of a fault, in the middle of this thread's work with streams.
                return fail(libc::EINTR);
            }
            if !are_valid(parts) {
                // The kernel says what is wrong with them, and takes nothing.
                return self.in_kernel(None, original);
            }
            self.hear_ask_at_times(fd);
            if let Some(result) = self.send_to_stream(fd, parts, flags) {
                break result;
            }
        };
        if result < 0 && errno::get() == libc::EPIPE && flags & libc::MSG_NOSIGNAL == 0 {
            // SAFETY: the call takes no pointers. The signal is the program's, as the kernel would send it.
            unsafe { libc::raise(libc::SIGPIPE) };
            errno::set(libc::EPIPE);
        }
        result
    }

    /// None: the connection goes back to TCP, and nothing was written.
    fn send_to_stream(&self, fd: c_int, parts: &[iovec], flags: c_int) -> Option<isize> {
        if flags & libc::MSG_OOB != 0 {
            return Some(fail(libc::EOPNOTSUPP));
        }
        let total: usize = parts.iter().map(|part| part.iov_len).sum();
        if self.is_write_shut.load(Ordering::Acquire) {
            return Some(fail(libc::EPIPE));
        }
        let may_wait = !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
        let (until, mut done) = (self.until(false), 0usize);
        while done < total {
            match self.pour(parts, done) {
                Ok(count) => done += count,
                Err(libc::EAGAIN) if self.is_bound_higher(fd) => {}
                Err(libc::EAGAIN) if may_wait => {
                    if let Err(code) = self.wait(Awaited { is_read: false, stream: true, fd: -1 }, until) {
                        return Some(if done > 0 { done as isize } else { fail(code) });
                    }
                }
                Err(libc::EPIPE) if self.is_going_back() || !self.writes_stream() => {
                    return (done > 0).then_some(done as isize);
                }
                // A reset is told once. Afterwards the connection cannot be written.
                Err(libc::ECONNRESET) if done == 0 && self.is_reset_told.swap(true, Ordering::AcqRel) => {
                    return Some(fail(libc::EPIPE));
                }
                Err(code) => {
                    if code == libc::EAGAIN {
                        self.note_full();
                    }
                    return Some(if done > 0 { done as isize } else { fail(code) });
                }
            }
        }
        Some(done as isize)
    }

    /// Writes from byte `skip` on what fits.
    fn pour(&self, parts: &[iovec], skip: usize) -> Result<usize, c_int> {
        let _inside = inside::enter();
        if !self.is_settled.load(Ordering::Relaxed) {
            self.say_rest().map_err(|e| errno::of(&e))?;
        }
        let mut stream = self.stream().ok_or(libc::ECONNRESET)?;
        if let [part] = parts {
            // SAFETY: the program vouches for its buffer during its call.
            let bytes =
                unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>().add(skip), part.iov_len - skip) };
            return stream.write(bytes).map_err(|e| errno::of(&e));
        }
        let rest = rest_of(parts, skip);
        // SAFETY: as above.
        let bytes = |part: &iovec| unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len) };
        let slices: Vec<_> = rest.iter().take(SLICES_MAX).map(|part| IoSlice::new(bytes(part))).collect();
        stream.write_vectored(&slices).map_err(|e| errno::of(&e))
    }
}
