//! Calls that write.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use super::{all, on_socket, one};
use crate::connection::{How, bytes_of};
use crate::{errno, handlers, inside, owner, real, table};

/// Bytes of a file that are copied at once.
const COPY: usize = 64 << 10;

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::write(fd, buffer, len) };
    on_socket(fd, &mut original, &mut |connection, original| connection.send(fd, &one(buffer, len), 0, original))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::writev(fd, parts, count) };
    let Ok(count) = usize::try_from(count) else { return original() };
    on_socket(fd, &mut original, &mut |connection, original| {
        // SAFETY: the program promised so many parts.
        connection.send(fd, unsafe { all(parts, count) }, 0, original)
    })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::pwritev2(fd, parts, count, offset, flags) };
    match usize::try_from(count) {
        // Another offset than "here" is refused for sockets.
        Ok(count) if offset == -1 => on_socket(fd, &mut original, &mut |connection, original| {
            let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
            // SAFETY: the program promised so many parts.
            connection.send(fd, unsafe { all(parts, count) }, flags, original)
        }),
        _ => original(),
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn pwrite64v2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the two are one where files have 64 bits.
    unsafe { pwritev2(fd, parts, count, offset, flags) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::send(fd, buffer, len, flags) };
    on_socket(fd, &mut original, &mut |connection, original| connection.send(fd, &one(buffer, len), flags, original))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::sendto(fd, buffer, len, flags, address, size) };
    on_socket(fd, &mut original, &mut |connection, original| connection.send(fd, &one(buffer, len), flags, original))
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::sendmsg(fd, message, flags) };
    if message.is_null() || !table::is_known(fd) {
        // SAFETY: the program's own message, or none.
        return if unsafe { passed_on(message) } { original() } else { errno::fail(libc::EINVAL) };
    }
    on_socket(fd, &mut original, &mut |connection, original| {
        // SAFETY: the program's own message, whose list of parts has so many.
        let parts = unsafe { all((*message).msg_iov, (*message).msg_iovlen) };
        connection.send(fd, parts, flags, original)
    })
}

/// Connections among the descriptors of a message stay on TCP. False: one is upgraded, and useless where it goes.
///
/// # Safety
///
/// `message` is null or points to a message.
unsafe fn passed_on(message: *const msghdr) -> bool {
    // SAFETY: the caller's promise.
    let Some(message) = (unsafe { message.as_ref() }) else { return true };
    if message.msg_control.is_null() || message.msg_controllen == 0 || inside::is_inside() {
        return true;
    }
    let mut all = true;
    // SAFETY: the message is the program's, with so much control data; the macros stay within it.
    let mut part = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: as above.
    while let Some(head) = unsafe { part.as_ref() } {
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            owner::note_share();
            // SAFETY: as above; a part's data begin behind its head.
            let data = unsafe { libc::CMSG_DATA(part) }.cast::<c_int>();
            let bytes = head.cmsg_len.saturating_sub(data as usize - part as usize);
            for n in 0..bytes / size_of::<c_int>() {
                // SAFETY: the part has so many descriptors.
                let passed = unsafe { data.add(n).read_unaligned() };
                all &= table::socket(passed).is_none_or(|connection| connection.hand_over(passed));
            }
        }
        // SAFETY: as above.
        part = unsafe { libc::CMSG_NXTHDR(message, part) };
    }
    all
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if table::socket(fd).is_none() {
        for n in 0..count as usize {
            // SAFETY: the program promised `count` messages.
            if !unsafe { passed_on(&raw const (*messages.add(n)).msg_hdr) } {
                return errno::fail(libc::EINVAL) as c_int;
            }
        }
        // SAFETY: the program's own arguments.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    for n in 0..count as usize {
        // SAFETY: the program promised `count` messages.
        let message = unsafe { &mut *messages.add(n) };
        // SAFETY: as above.
        let result = unsafe { sendmsg(fd, &raw const message.msg_hdr, flags) };
        match c_uint::try_from(result) {
            Ok(len) => {
                message.msg_len = len;
                // SAFETY: the program's own message, whose list of parts has so many.
                let parts = unsafe { all(message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) };
                if (len as usize) < bytes_of(parts) {
                    // As the kernel: the next message's bytes are not to come before the rest of this one's.
                    return n as c_int + 1;
                }
            }
            Err(_) if n > 0 => return n as c_int,
            Err(_) => return -1,
        }
    }
    count as c_int
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own arguments.
    let mut original = || unsafe { real::sendfile(out, from, offset, count) };
    on_socket(out, &mut original, &mut |connection, original| {
        let by_kernel = if connection.writes_stream() { None } else { connection.send_in_kernel(out, count, original) };
        by_kernel.unwrap_or_else(|| copy_file(out, from, offset, count))
    })
}

/// Copies a file into a stream: as much as fits in one go, as the kernel does.
fn copy_file(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut buffer = vec![0u8; COPY.min(count)];
    // SAFETY: the program's offset, or none.
    let mut at = match unsafe { offset.as_ref() } {
        Some(&at) => at,
        // SAFETY: the call takes no pointers.
        None => match unsafe { libc::lseek(from, 0, libc::SEEK_CUR) } {
            at if at >= 0 => at,
            // As the kernel says where it cannot read pages.
            _ if errno::get() == libc::ESPIPE => return errno::fail(libc::EINVAL),
            _ => return -1,
        },
    };
    let mut done = 0usize;
    while done < count {
        let want = buffer.len().min(count - done);
        // SAFETY: the buffer has room for `want` bytes.
        let found = unsafe { libc::pread(from, buffer.as_mut_ptr().cast(), want, at) };
        let sent = match usize::try_from(found) {
            Ok(0) => break,
            // SAFETY: the buffer has so many bytes.
            Ok(found) => unsafe { write(out, buffer.as_ptr().cast(), found) },
            Err(_) => -1,
        };
        let Ok(sent_bytes) = usize::try_from(sent) else {
            if done > 0 {
                break;
            }
            return -1;
        };
        done += sent_bytes;
        at += sent as off_t;
        if sent < found {
            break;
        }
    }
    let code = errno::get();
    if offset.is_null() {
        // SAFETY: the call takes no pointers.
        unsafe { libc::lseek(from, at, libc::SEEK_SET) };
    } else {
        // SAFETY: the program's offset.
        unsafe { offset.write(at) };
    }
    errno::set(code);
    done as ssize_t
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the program's own arguments; the two are one where files have 64 bits.
    unsafe { sendfile(out, from, offset, count) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the program's own arguments.
    let original = || unsafe { real::splice(from, from_offset, to, to_offset, len, flags) };
    // The kernel says what is wrong: one of the two must be a pipe, and neither a place in a file.
    let is_possible = from_offset.is_null() && to_offset.is_null() && (is_pipe(from) || is_pipe(to));
    if len == 0 || !is_possible || !table::is_known(from) && !table::is_known(to) {
        return original();
    }
    // SAFETY: the program's own arguments.
    handlers::restarting(|| unsafe { splice_held(from, to, len, flags, &original) })
}

/// # Safety
///
/// As the call `original`.
unsafe fn splice_held(from: c_int, to: c_int, len: size_t, flags: c_uint, original: &dyn Fn() -> ssize_t) -> ssize_t {
    let mut was_asked = false;
    let mut once = || {
        was_asked = true;
        original()
    };
    let result = match (table::socket(from), table::socket(to)) {
        (None, None) => return original(),
        (Some(connection), None) => match connection.reads_kernel_alone() {
            true => connection.receive(from, &[], 0, &mut once),
            false => -1,
        },
        (None, Some(connection)) => connection.send_in_kernel(to, len, &mut once).unwrap_or(-1),
        // A pipe must be one of the two.
        (Some(_), Some(_)) => -1,
    };
    if was_asked {
        return result;
    }
    // SAFETY: as above. The stream's part is copied.
    unsafe {
        match (table::socket(from).is_some(), table::socket(to).is_some()) {
            (true, false) => splice_out(from, to, len, flags),
            (false, true) => splice_in(from, to, len, flags),
            _ => errno::fail(libc::EINVAL),
        }
    }
}

fn is_pipe(fd: c_int) -> bool {
    let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for what the kernel says.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: the call succeeded, so it filled `about`.
    unsafe { about.assume_init() }.st_mode & libc::S_IFMT == libc::S_IFIFO
}

/// Bytes that a pipe takes without waiting if it says that it is writable.
const PIPE_BYTES: usize = 4096;

/// Whether `fd` is ready, or becomes so if the call may wait.
fn is_ready(fd: c_int, events: i16, flags: c_uint) -> bool {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let timeout = if flags & libc::SPLICE_F_NONBLOCK != 0 { 0 } else { -1 };
    // SAFETY: the entry lives through the call.
    unsafe { real::poll(&raw mut one, 1, timeout) == 1 }
}

/// From a connection into a pipe: no more than the pipe takes at once, so that no byte is taken in vain.
///
/// # Safety
///
/// None beyond those of the calls; both are descriptors of the program.
unsafe fn splice_out(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    if !is_ready(to, libc::POLLOUT, flags) {
        return errno::fail(libc::EAGAIN);
    }
    let mut buffer = [0u8; PIPE_BYTES];
    let how = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    let Some(connection) = table::socket(from) else { return errno::fail(libc::EINVAL) };
    let (into, room) = (buffer.as_mut_ptr().cast(), buffer.len().min(len));
    // The bytes may still, or again, be the kernel's by now: the connection changes between any two looks at it.
    // SAFETY: the buffer has so much room.
    let mut original = || unsafe { real::recv(from, into, room, how) };
    let count = connection.receive(from, &one(into, room), how, &mut original);
    if count <= 0 {
        return count;
    }
    // SAFETY: the buffer has so many bytes.
    unsafe { real::write(to, buffer.as_ptr().cast(), count.unsigned_abs()) }
}

/// From a pipe into a connection. What was taken from the pipe is written whole, so the call may wait for the stream.
///
/// # Safety
///
/// As [`splice_out`].
unsafe fn splice_in(from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    let Some(connection) = table::socket(to) else { return errno::fail(libc::EINVAL) };
    if connection.is_nonblocking() && connection.ready(to, libc::POLLOUT, How::Glance).now & libc::POLLOUT == 0 {
        connection.note_full();
        return errno::fail(libc::EAGAIN);
    }
    if !is_ready(from, libc::POLLIN, flags) {
        return errno::fail(libc::EAGAIN);
    }
    let mut buffer = vec![0u8; COPY.min(len)];
    // SAFETY: the buffer has so much room.
    let count = unsafe { real::read(from, buffer.as_mut_ptr().cast(), buffer.len()) };
    if count <= 0 {
        return count;
    }
    let mut done = 0usize;
    while done < count.unsigned_abs() {
        // SAFETY: the rest of the buffer.
        let sent = unsafe { send(to, buffer.as_ptr().add(done).cast(), count.unsigned_abs() - done, 0) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) if errno::get() == libc::EAGAIN => {
                connection.wait_for_room();
            }
            Err(_) if done > 0 => break,
            Err(_) => return -1,
        }
    }
    if done < len {
        // The program cannot know that there is room left.
        connection.note_full();
    }
    done as ssize_t
}
