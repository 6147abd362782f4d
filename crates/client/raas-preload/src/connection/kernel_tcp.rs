//! The kernel's TCP connection below a connection: its state, and its ends.
//!
//! It must leave errno as it was where it looks on its own account.

use std::ffi::c_int;

use crate::errno;
use crate::real;

// States of a TCP connection (`tcp_states.h` of Linux).
pub(super) const ESTABLISHED: u8 = 1;
/// A connection is being made, and takes bytes that will go.
const BEGINS: [u8; 2] = [2, 3];
pub(super) const FIN_WAIT1: u8 = 4;
pub(super) const FIN_WAIT2: u8 = 5;
pub(super) const TIME_WAIT: u8 = 6;
pub(super) const CLOSE: u8 = 7;
pub(super) const CLOSE_WAIT: u8 = 8;
/// Those in which the other end may still send bytes.
const RECEIVES: [u8; 3] = [ESTABLISHED, FIN_WAIT1, FIN_WAIT2];

/// Ends directions of it (shutdown(2)).
pub(super) fn end(fd: c_int, how: c_int) -> isize {
    // SAFETY: the call takes no pointers.
    unsafe { real::shutdown(fd, how) as isize }
}

/// Whether the other end's kernel has ended its direction, or the connection is over.
pub(super) fn has_peer_ended(fd: c_int) -> bool {
    state(fd).is_some_and(|state| !RECEIVES.contains(&state))
}

/// Whether a connection is being made.
pub(super) fn is_connecting(fd: c_int) -> bool {
    state(fd).is_some_and(|state| BEGINS.contains(&state))
}

fn state(fd: c_int) -> Option<u8> {
    let mut state = [0u8; 1];
    let mut len = state.len() as libc::socklen_t;
    // SAFETY: there is room for so many bytes; the state is the first one of the structure, of which the kernel gives
    // as much as there is room for.
    let result =
        unsafe { real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, state.as_mut_ptr().cast(), &raw mut len) };
    (result == 0).then_some(state[0])
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
pub(super) fn unread_of_tcp(fd: c_int) -> usize {
    let mut count: c_int = 0;
    // SAFETY: for this request the kernel writes an int.
    let result = unsafe { real::ioctl(fd, libc::FIONREAD, (&raw mut count).cast()) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Whether the kernel would reset the connection at a close: by the program's wish, or because of unread bytes.
pub(super) fn resets_at_close(fd: c_int) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut len = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: there is room for so many bytes.
    let result =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw mut linger).cast(), &raw mut len) };
    result == 0 && linger.l_onoff != 0 && linger.l_linger == 0 || unread_of_tcp(fd) > 0
}

/// Has the kernel's socket show an end to who reads and waits, although the other end's has not sent it. Bytes that
/// come later are read all the same.
pub(super) fn show_end(fd: c_int) {
    let code = errno::get();
    end(fd, libc::SHUT_RD);
    errno::set(code);
}
