//! The functions that send and receive.
//!
//! Owns into which memory a receive goes. It must never write beyond the length that the program gave.

use std::ffi::{c_int, c_void};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::PoisonError;

use raas::{DatagramSocket, FlagsError, Transport, WithFd};

use crate::failure::{Failure, call};
use crate::flags::{self, Waits};
use crate::pointers;
use crate::socket::{Kind, Memory, Side, Socket};
use crate::table;
use crate::target::Target;

/// Sends up to `len` bytes (at most 1 GiB) and returns how many it took, or RAAS_FAILED. It does not wait: EAGAIN if
/// there is no room, unless FLAGS have RAAS_WAIT. The descriptor turns readable when there is room again. On a datagram
/// socket of raas_connect it sends one datagram, whole, and on a connection with RAAS_UC one message, whole (EMSGSIZE if
/// it is longer than the connection carries).
///
/// # Safety
/// `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_send(fd: c_int, buf: *const c_void, len: u32, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { pointers::bytes(buf.cast(), len, "buf") }?;
        let (flags, waits) = flags::split(flags, Waits::IfTold)?;
        flags.check(transport(&socket, fd)?)?;
        let sent = socket.attempt(Side::Write, waits, || match &socket.kind {
            Kind::Stream(stream) => stream.get_ref().write_with(bytes, flags),
            Kind::Messages(stream) => stream.get_ref().send_with(bytes, flags).map(|()| bytes.len()),
            Kind::Datagram(datagrams) => {
                let to = datagrams.get_ref().peer_addr()?;
                datagrams.get_ref().send_to_with(bytes, to, flags)
            }
            Kind::Listener(_) | Kind::MessageListener(_) => Err(io::ErrorKind::NotConnected.into()),
        });
        count(sent?)
    })
}

/// Receives up to `len` bytes and returns how many, 0 at the end, or RAAS_FAILED. It does not wait: EAGAIN if nothing is
/// there, unless FLAGS have RAAS_WAIT. On a datagram socket it receives one datagram (EMSGSIZE if `buf` is too small;
/// the datagram is kept), and so on a connection with RAAS_UC one message, of which an empty one is 0 bytes too.
///
/// # Safety
/// `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes that nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_recv(fd: c_int, buf: *mut c_void, len: u32, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        // SAFETY: the caller's promise.
        let room = unsafe { pointers::room(buf.cast(), len, "buf") }?;
        count(receive(&socket, fd, room, flags, Waits::IfTold)?.0)
    })
}

/// Receives into memory of the program's and waits for it, unless FLAGS have RAAS_NOWAIT. If *buf_addr is not null the
/// bytes go there; if it is null they go to the start of the memory of raas_accept_buffer, and *buf_addr is set to it.
/// `len` bounds the bytes; with the memory of raas_accept_buffer 0 means all of it. Returns how many bytes, 0 at the
/// end, or RAAS_FAILED. The bytes are copied once, from the ring in which they arrived.
///
/// # Safety
/// `buf_addr` is null (EFAULT) or leads to a pointer, which is null or leads to `len` bytes that nothing else uses
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_recv_zero_copy(fd: c_int, buf_addr: *mut *mut c_void, len: u32, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        // SAFETY: the caller's promise.
        count(unsafe { receive_placed(&socket, fd, buf_addr, len, flags) }?.0)
    })
}

/// Sends one datagram to `t` and returns its length, or RAAS_FAILED (EMSGSIZE if it is longer than one packet to that
/// host). It does not wait, unless FLAGS have RAAS_WAIT: the first datagram to a host may fail with EAGAIN, until the
/// daemons have a link. The descriptor is one of raas_listen or raas_connect with RAAS_UD.
///
/// # Safety
/// `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes. `t` is null (EFAULT) or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_sendto(fd: c_int, buf: *const c_void, len: u32, t: *const Target, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        // SAFETY: the caller's promises.
        let (bytes, to) = unsafe { (pointers::bytes(buf.cast(), len, "buf")?, *pointers::read(t, "t")?) };
        let datagrams = datagrams(&socket, fd)?;
        let (flags, waits) = flags::split(flags, Waits::IfTold)?;
        flags.check(Transport::Ud)?;
        let to = SocketAddr::from(to);
        count(socket.attempt(Side::Write, waits, || datagrams.get_ref().send_to_with(bytes, to, flags))?)
    })
}

/// Receives one datagram, writes the address of its sender to `t` (unless that is null), and returns its length, or
/// RAAS_FAILED (EMSGSIZE if `buf` is too small; the datagram is kept). It does not wait, unless FLAGS have RAAS_WAIT.
///
/// # Safety
/// `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes that nothing else uses during the call. `t` is null
/// or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_recvfrom(fd: c_int, buf: *mut c_void, len: u32, t: *mut Target, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        datagrams(&socket, fd)?;
        // SAFETY: the caller's promise.
        let room = unsafe { pointers::room(buf.cast(), len, "buf") }?;
        let (len, from) = receive(&socket, fd, room, flags, Waits::IfTold)?;
        if let (Some(from), false) = (from, t.is_null()) {
            // SAFETY: it is not null, and the caller promises a target there.
            unsafe { t.write(from.into()) };
        }
        count(len)
    })
}

/// Receives one datagram into memory of the program's at *buf_addr, `len` bytes of it, and waits for it, unless FLAGS
/// have RAAS_NOWAIT. 4096 bytes always suffice. Returns its length, or RAAS_FAILED. The bytes are copied once, from the
/// ring in which they arrived.
///
/// # Safety
/// `buf_addr` is null (EFAULT) or leads to a pointer, which is null (EINVAL) or leads to `len` bytes that nothing else
/// uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_recvfrom_zero_copy(fd: c_int, buf_addr: *mut *mut c_void, len: u32, flags: c_int) -> u32 {
    call(|| {
        let socket = table::get(fd)?;
        datagrams(&socket, fd)?;
        // SAFETY: the caller's promise.
        count(unsafe { receive_placed(&socket, fd, buf_addr, len, flags) }?.0)
    })
}

/// Bytes and, of a datagram, its sender.
type Received = (usize, Option<SocketAddr>);

/// Receives where `buf_addr` leads to, or else into the memory that came with the connection.
///
/// # Safety
/// As [`raas_recv_zero_copy`].
unsafe fn receive_placed(
    socket: &Socket,
    fd: c_int,
    buf_addr: *mut *mut c_void,
    len: u32,
    flags: c_int,
) -> Result<Received, Failure> {
    // SAFETY: the caller's promise.
    let place = unsafe { pointers::place(buf_addr, "buf_addr") }?;
    if !place.is_null() {
        // SAFETY: the caller's promise.
        let room = unsafe { pointers::room(place.cast(), len, "*buf_addr") }?;
        return receive(socket, fd, room, flags, Waits::UnlessTold);
    }
    // Held during the receive: nothing else of the library writes there meanwhile.
    let memory = socket.memory.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Memory { start, len: all }) = *memory else {
        let text = "*buf_addr is null, and the connection came without memory: set *buf_addr, or accept with \
                    raas_accept_buffer";
        return Err(Failure::new(libc::EINVAL, text));
    };
    let len = if len == 0 { all } else { pointers::check_len(len)?.min(all) };
    // SAFETY: `raas_accept_buffer` checked pointer and length, and the program promised that the memory stays and is
    // not used by others during this call; the lock keeps other receives out.
    let room = unsafe { std::slice::from_raw_parts_mut(start, len) };
    let received = receive(socket, fd, room, flags, Waits::UnlessTold)?;
    *place = start.cast();
    Ok(received)
}

fn receive(socket: &Socket, fd: c_int, room: &mut [u8], flags: c_int, waits: Waits) -> Result<Received, Failure> {
    let (flags, waits) = flags::split(flags, waits)?;
    flags.check(transport(socket, fd)?)?;
    socket.attempt(Side::Read, waits, || match &socket.kind {
        Kind::Stream(stream) => Ok((<&raas::Stream as Read>::read(&mut stream.get_ref(), room)?, None)),
        Kind::Datagram(datagrams) => datagrams.get_ref().recv_from(room).map(|(len, from)| (len, Some(from))),
        Kind::Messages(stream) => Ok((stream.get_ref().receive(room)?.unwrap_or(0), None)),
        Kind::Listener(_) | Kind::MessageListener(_) => Err(io::ErrorKind::NotConnected.into()),
    })
}

/// What carries the bytes of a descriptor.
fn transport(socket: &Socket, fd: c_int) -> Result<Transport, Failure> {
    match socket.kind {
        Kind::Stream(_) => Ok(Transport::Rc),
        Kind::Messages(_) => Ok(Transport::Uc),
        Kind::Datagram(_) => Ok(Transport::Ud),
        Kind::Listener(_) | Kind::MessageListener(_) => {
            Err(Failure::new(libc::ENOTCONN, format!("descriptor {fd} is a listener: raas_accept gives connections")))
        }
    }
}

fn datagrams(socket: &Socket, fd: c_int) -> Result<&WithFd<DatagramSocket>, Failure> {
    match &socket.kind {
        Kind::Datagram(datagrams) => Ok(datagrams),
        Kind::Stream(_) => Err(FlagsError::OtherTransport { asked: Transport::Ud, has: Transport::Rc }.into()),
        Kind::Messages(_) => Err(FlagsError::OtherTransport { asked: Transport::Ud, has: Transport::Uc }.into()),
        Kind::Listener(_) | Kind::MessageListener(_) => {
            Err(Failure::new(libc::EOPNOTSUPP, format!("descriptor {fd} is a listener, not a datagram socket")))
        }
    }
}

/// A count for C. It is at most 1 GiB, as the lengths that were checked.
fn count(bytes: usize) -> Result<u32, Failure> {
    u32::try_from(bytes).map_err(|_| Failure::new(libc::EOVERFLOW, format!("{bytes} bytes are no count for C")))
}
