//! Calls that read.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::{all, on_socket, one};
use crate::connection::is_empty;
use crate::options::TCP_INQ;
use crate::{real, table};

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::read(fd, buffer, len) };
    // The kernel asks no socket for nothing.
    if len == 0 {
        return original();
    }
    on_socket(fd, &mut original, &mut |connection, original| connection.receive(fd, &one(buffer, len), 0, original))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::readv(fd, parts, count) };
    // SAFETY: the program promised so many parts.
    match usize::try_from(count).map(|count| unsafe { all(parts, count) }) {
        Ok(parts) if table::is_known(fd) && !is_empty(parts) => {
            on_socket(fd, &mut original, &mut |connection, original| connection.receive(fd, parts, 0, original))
        }
        _ => original(),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::preadv2(fd, parts, count, offset, flags) };
    // SAFETY: the program promised so many parts.
    match usize::try_from(count).map(|count| unsafe { all(parts, count) }) {
        // Another offset than "here" is refused for sockets.
        Ok(parts) if offset == -1 && table::is_known(fd) && !is_empty(parts) => {
            let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
            on_socket(fd, &mut original, &mut |connection, original| connection.receive(fd, parts, flags, original))
        }
        _ => original(),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pread64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the two are one where files have 64 bits.
    unsafe { preadv2(fd, parts, count, offset, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::recv(fd, buffer, len, flags) };
    on_socket(fd, &mut original, &mut |connection, original| connection.receive(fd, &one(buffer, len), flags, original))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    let mut is_the_kernels = false;
    let mut original = || {
        is_the_kernels = true;
        // SAFETY: the program's own arguments.
        unsafe { real::recvfrom(fd, buffer, len, flags, address, size) }
    };
    let result = on_socket(fd, &mut original, &mut |connection, original| {
        connection.receive(fd, &one(buffer, len), flags, original)
    });
    if result >= 0 && !is_the_kernels && !size.is_null() {
        // As TCP does: who sent it is not said.
        // SAFETY: the program gave a pointer to a length.
        unsafe { size.write(0) };
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let mut is_the_kernels = false;
    let mut original = || {
        is_the_kernels = true;
        // SAFETY: the program's own arguments.
        unsafe { real::recvmsg(fd, message, flags) }
    };
    if message.is_null() {
        return original();
    }
    let mut left = None;
    let result = on_socket(fd, &mut original, &mut |connection, original| {
        // SAFETY: the program's own message, whose list of parts has so many.
        let parts = unsafe { all((*message).msg_iov, (*message).msg_iovlen) };
        let result = connection.receive(fd, parts, flags, original);
        left = connection.left(fd);
        result
    });
    if result >= 0 && !is_the_kernels {
        // SAFETY: the program's own message.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            put_left(&mut *message, left);
        }
    }
    result
}

/// Puts what is left to be read beside the bytes, as the kernel does for `TCP_INQ`.
///
/// # Safety
///
/// `message` has room for as much beside its bytes as it says.
unsafe fn put_left(message: &mut msghdr, left: Option<c_int>) {
    let room = std::mem::replace(&mut message.msg_controllen, 0);
    let Some(left) = left.filter(|_| !message.msg_control.is_null()) else { return };
    const BYTES: c_uint = size_of::<c_int>() as c_uint;
    // SAFETY: the two compute with numbers.
    let (len, space) = unsafe { (libc::CMSG_LEN(BYTES) as usize, libc::CMSG_SPACE(BYTES) as usize) };
    if room < len {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let head = libc::cmsghdr { cmsg_len: len, cmsg_level: libc::IPPROTO_TCP, cmsg_type: TCP_INQ };
    let begin = message.msg_control.cast::<u8>();
    // SAFETY: the caller's promise: there is room for `len` bytes, which the head and the number behind it take.
    unsafe {
        begin.cast::<libc::cmsghdr>().write_unaligned(head);
        begin.add(len - size_of::<c_int>()).cast::<c_int>().write_unaligned(left);
    }
    message.msg_controllen = space.min(room);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !table::is_known(fd) {
        // SAFETY: the program's own arguments.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    let mut flags = flags;
    for n in 0..count as usize {
        // SAFETY: the program promised `count` messages.
        let message = unsafe { &mut *messages.add(n) };
        // SAFETY: as above.
        let result = unsafe { recvmsg(fd, &raw mut message.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        match c_uint::try_from(result) {
            Ok(len) => message.msg_len = len,
            Err(_) if n > 0 => return n as c_int,
            Err(_) => return -1,
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    count as c_int
}

// ---- as compilers call them where they know the size of the buffer

/// The program would have written behind its buffer.
fn check(len: size_t, room: size_t) {
    if len > room {
        // SAFETY: abort has no conditions.
        unsafe { libc::abort() }
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
    check(len, room);
    // SAFETY: the program's own arguments.
    unsafe { read(fd, buffer, len) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(len, room);
    // SAFETY: the program's own arguments.
    unsafe { recv(fd, buffer, len, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> ssize_t {
    check(len, room);
    // SAFETY: the program's own arguments.
    unsafe { recvfrom(fd, buffer, len, flags, address, size) }
}
