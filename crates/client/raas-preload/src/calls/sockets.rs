//! Making, connecting, accepting, ending sockets, and their options.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use libc::{sockaddr, socklen_t};
use raas::Reason;

use crate::connection::{Connection, Role};
use crate::kernel_tcp::is_tcp;
use crate::options::{self, Fate, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW};
use crate::table::{self, Entry};
use crate::{desk, errno, fork, owner, real};

fn note(fd: c_int, role: Role, is_nonblocking: bool) {
    if fork::is_owner() {
        table::put(fd, Entry::Socket(Arc::new(Connection::new(role, is_nonblocking))));
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 {
        let is_stream = kind & 0xf == libc::SOCK_STREAM && matches!(protocol, 0 | libc::IPPROTO_TCP);
        if matches!(domain, libc::AF_INET | libc::AF_INET6) && is_stream {
            note(fd, Role::Fresh, kind & libc::SOCK_NONBLOCK != 0);
        } else if fork::is_owner() {
            drop(table::take(fd));
        }
    }
    fd
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    let result = unsafe { real::connect(fd, address, len) };
    if let Some(connection) = table::socket(fd)
        && connection.role() == Role::Fresh
    {
        let code = errno::get();
        if result == 0 || matches!(code, libc::EINPROGRESS | libc::EINTR | libc::EALREADY | libc::EISCONN) {
            connection.set_role(Role::Connected);
            connection.look_early(fd);
        }
        errno::set(code);
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if let Some(connection) = table::socket(fd) {
        connection.set_role(Role::Kernel);
    }
    // SAFETY: the call takes no pointers.
    unsafe { real::listen(fd, backlog) }
}

fn note_accepted(listener: c_int, fd: c_int, is_nonblocking: bool) {
    if fd < 0 || owner::is_in_sandbox() {
        return;
    }
    let code = errno::get();
    let of = table::socket(listener);
    if of.is_some() || is_tcp(fd) {
        note(fd, Role::Accepted, is_nonblocking);
    }
    if let (Some(of), Some(connection)) = (of, table::socket(fd)) {
        connection.inherit(&of);
    }
    errno::set(code);
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's own arguments.
    let accepted = unsafe { real::accept(fd, address, len) };
    note_accepted(fd, accepted, false);
    accepted
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    let accepted = unsafe { real::accept4(fd, address, len, flags) };
    note_accepted(fd, accepted, flags & libc::SOCK_NONBLOCK != 0);
    accepted
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    match table::socket(fd) {
        Some(connection) if !connection.is_the_kernels() && (0..=2).contains(&how) => {
            connection.shutdown(fd, how) as c_int
        }
        // SAFETY: the call takes no pointers.
        _ => unsafe { real::shutdown(fd, how) },
    }
}

/// Programs look into what it says of the connection's state, whether the other end is still there.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if options::of_option(level, name) == Fate::BeforeGet {
        keep_before(fd);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::getsockopt(fd, level, name, value, len) };
    if result == 0
        && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        // SAFETY: the kernel has just written the length.
        && unsafe { len.read_unaligned() } as usize == size_of::<c_int>()
        && let Some(connection) = table::socket(fd)
    {
        let error = value.cast::<c_int>();
        // SAFETY: the kernel has just written an int there.
        unsafe { error.write_unaligned(connection.take_error(error.read_unaligned())) };
    }
    if result == 0
        && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO)
        // SAFETY: the kernel has just written the length.
        && unsafe { len.read_unaligned() } > 0
        && let Some(connection) = table::socket(fd)
    {
        let state = value.cast::<u8>();
        // SAFETY: the kernel has just written so many bytes, of which the state is the first.
        unsafe { state.write(connection.state_of(state.read())) };
    }
    result
}

/// The connection is to be on TCP before the kernel is asked.
fn keep_before(fd: c_int) {
    if let Some(connection) = table::socket(fd) {
        // What could not go back is reset, as the next call says.
        connection.keep_on_tcp(fd, Reason::KernelOption);
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) && desk::requires_encryption() {
        // The first bytes would go with the SYN.
        return errno::fail(libc::EOPNOTSUPP) as c_int;
    }
    let fate = options::of_option(level, name);
    if fate == Fate::Before {
        keep_before(fd);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result == 0
        && fate != Fate::NoMatter
        && let Some(connection) = table::socket(fd)
    {
        // SAFETY: the kernel has just read so many bytes there.
        let number = || (len as usize >= size_of::<c_int>()).then(|| unsafe { value.cast::<c_int>().read_unaligned() });
        match fate {
            Fate::Honoured if level == libc::IPPROTO_TCP => {
                connection.set_tells_left(number().is_some_and(|on| on != 0))
            }
            // SAFETY: as above.
            Fate::Honoured => unsafe { honour(&connection, name, value, len) },
            Fate::After => drop(connection.keep_on_tcp(fd, Reason::KernelOption)),
            Fate::Unless(nothing) if number() != Some(nothing) => {
                connection.keep_on_tcp(fd, Reason::KernelOption);
            }
            _ => {}
        }
    }
    let is_buffer = matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE | libc::SO_BUF_LOCK);
    if result == 0
        && is_buffer
        && level == libc::SOL_SOCKET
        && let Some(connection) = table::socket(fd)
    {
        connection.note_buffers(fd);
    }
    result
}

/// Does on the stream what an option of a socket does on TCP.
///
/// # Safety
///
/// `value` points to `len` bytes.
unsafe fn honour(connection: &Connection, name: c_int, value: *const c_void, len: socklen_t) {
    if name == libc::SO_RCVLOWAT && len as usize >= size_of::<c_int>() {
        // SAFETY: the caller's promise.
        return connection.set_low_water(unsafe { value.cast::<c_int>().read_unaligned() });
    }
    if (len as usize) < size_of::<libc::timeval>() {
        return;
    }
    // SAFETY: the caller's promise.
    let time = unsafe { value.cast::<libc::timeval>().read_unaligned() };
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let time = seconds.saturating_add(Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0)));
    match name {
        libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW => connection.set_timeouts(Some(time), None),
        libc::SO_SNDTIMEO | SO_SNDTIMEO_NEW => connection.set_timeouts(None, Some(time)),
        _ => {}
    }
}
