//! The kernel's TCP connection below a connection: its options, its state, what it has, and its ends.
//!
//! It must leave errno as it was where it looks on its own account.

use std::ffi::c_int;

use crate::errno;
use crate::real::{self, PollBits};

// States of a TCP connection (`tcp_states.h` of Linux).
pub(crate) const ESTABLISHED: u8 = 1;
/// A connection is being made, and takes bytes that will go.
const BEGINS: [u8; 2] = [2, 3];
pub(crate) const FIN_WAIT1: u8 = 4;
pub(crate) const FIN_WAIT2: u8 = 5;
pub(crate) const TIME_WAIT: u8 = 6;
pub(crate) const CLOSE: u8 = 7;
pub(crate) const CLOSE_WAIT: u8 = 8;
/// Those in which the other end may still send bytes.
const RECEIVES: [u8; 3] = [ESTABLISHED, FIN_WAIT1, FIN_WAIT2];

/// Ends directions of it (shutdown(2)).
pub(crate) fn end(fd: c_int, how: c_int) -> isize {
    // SAFETY: the call takes no pointers.
    unsafe { real::shutdown(fd, how) as isize }
}

/// Whether the other end's kernel has ended its direction, or the connection is over.
pub(crate) fn has_peer_ended(fd: c_int) -> bool {
    state(fd).is_some_and(|state| !RECEIVES.contains(&state))
}

/// Whether a connection is being made.
pub(crate) fn is_connecting(fd: c_int) -> bool {
    state(fd).is_some_and(|state| BEGINS.contains(&state))
}

/// The first byte of the structure.
fn state(fd: c_int) -> Option<u8> {
    let [state] = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Some(state)
}

/// The first bytes of an option, of which the kernel gives as much as there is room for. None: it has not so many.
pub(crate) fn option<const BYTES: usize>(fd: c_int, level: c_int, name: c_int) -> Option<[u8; BYTES]> {
    let (mut bytes, mut len) = ([0; BYTES], BYTES as libc::socklen_t);
    // SAFETY: there is room for so many bytes, and all lives through the call.
    let result = unsafe { real::getsockopt(fd, level, name, bytes.as_mut_ptr().cast(), &raw mut len) };
    (result == 0 && len as usize == BYTES).then_some(bytes)
}

/// An option that is an int.
pub(crate) fn number(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    option(fd, level, name).map(c_int::from_ne_bytes)
}

/// Whether the descriptor is a TCP socket.
pub(crate) fn is_tcp(fd: c_int) -> bool {
    number(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// What the kernel says of these bits now.
pub(crate) fn poll_now(fd: c_int, events: PollBits) -> PollBits {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the entry lives through the call.
    if unsafe { real::poll(&raw mut one, 1, 0) } > 0 { one.revents } else { 0 }
}

/// Looks at bytes that are there, and leaves them. How many; negative: an error.
pub(crate) fn peek(fd: c_int, bytes: &mut [u8]) -> isize {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: there is room for so many bytes.
    unsafe { real::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
}

/// Whether the kernel shows an end to readers.
pub(crate) fn has_tcp_ended(fd: c_int) -> bool {
    poll_now(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// Whether TCP is over in both directions.
pub(crate) fn has_hung_up(fd: c_int) -> bool {
    poll_now(fd, 0) & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Whether TCP has ended in order.
pub(crate) fn has_ended(fd: c_int) -> bool {
    peek(fd, &mut [0]) == 0 && has_peer_ended(fd)
}

/// Whether TCP has something to be read, its end included.
pub(crate) fn has_bytes_or_end(fd: c_int) -> bool {
    poll_now(fd, libc::POLLIN) != 0
}

/// Resets the connection now, as the close of the last descriptor would (`tcp_disconnect` of the kernel).
pub(crate) fn reset(fd: c_int) {
    // SAFETY: all of `sockaddr` may be zero, which names no address.
    let nobody: libc::sockaddr = unsafe { std::mem::zeroed() };
    let len = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address lives through the call.
    unsafe { real::connect(fd, &raw const nobody, len) };
}

/// Bytes that can be read from TCP. A look for them by a read would take an error that the program is to see.
pub(crate) fn unread_of_tcp(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: for this request the kernel writes an int.
    let result = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut count).cast()) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Whether the kernel would reset the connection at a close: by the program's wish, or because of unread bytes.
pub(crate) fn resets_at_close(fd: c_int) -> bool {
    let linger: Option<[u8; size_of::<libc::linger>()]> = option(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    // It is on, for no time.
    linger.is_some_and(|linger| linger[..4] != [0; 4] && linger[4..] == [0; 4]) || unread_of_tcp(fd) > 0
}

/// Has the kernel's socket show an end to who reads and waits, although the other end's has not sent it. Bytes that
/// come later are read all the same.
pub(crate) fn show_end(fd: c_int) {
    let code = errno::get();
    end(fd, libc::SHUT_RD);
    errno::set(code);
}
