//! The functions that make and end connections, listeners and datagram sockets, and say where they are.
//!
//! Owns which socket FLAGS stand for: UD a datagram socket, UC a connection of messages, everything else a stream. It must never leave a descriptor
//! open of which the program was not told.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::PoisonError;

use raas::{ConnectOptions, DatagramOptions, Flags, ListenOptions, MessageListener, MessageStream, Session, Transport};

use crate::failure::{self, Failure, call};
use crate::flags::{self, Waits};
use crate::pointers;
use crate::socket::{Kind, Memory, Side, Socket};
use crate::table;
use crate::target::{self, Target};

/// What a function that counts bytes returns when it failed: (uint32_t)-1, so that == -1 compares too.
pub const RAAS_FAILED: u32 = u32::MAX;

/// Connects to `t` and returns a descriptor, or -1. Waits for the answer. FLAGS 0: RC, and the service chooses. With
/// RAAS_UD the descriptor is a datagram socket at a free port, whose datagrams go to and come from `t` alone. With RAAS_UC
/// it is a connection of messages that may be lost, and the listener has RAAS_UC too.
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_connect(t: *const Target, flags: c_int) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let to = SocketAddr::from(*unsafe { pointers::read(t, "t") }?);
        let (flags, waits) = flags::split(flags, Waits::UnlessTold)?;
        if !waits {
            return Err(Failure::new(libc::EOPNOTSUPP, "raas_connect waits for its answer: leave RAAS_NOWAIT out"));
        }
        let transport = transport(flags)?;
        flags.check(transport)?;
        if transport == Transport::Uc {
            let options = ConnectOptions::new().flags(flags);
            let stream = MessageStream::connect_with(&Session::global()?, to, options)?;
            return table::insert(Socket::messages(stream, None)?);
        }
        if transport == Transport::Rc {
            let stream = ConnectOptions::new().flags(flags).connect(&Session::global()?, to)?;
            return table::insert(Socket::stream(stream, None)?);
        }
        let any = match to.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = DatagramOptions::new().flags(flags).bind(&Session::global()?, (any, 0))?;
        socket.connect(to)?;
        table::insert(Socket::datagram(socket)?)
    })
}

/// Listens at `t` (an address of this host or an unspecified one; port 0: any free one, which raas_local tells) and
/// returns a descriptor for raas_accept, or -1. With RAAS_UD it is a datagram socket, for raas_recvfrom and raas_sendto.
/// With RAAS_UC connections of messages are accepted, whose other ends have RAAS_UC too.
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_listen(t: *const Target, flags: c_int) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let at = SocketAddr::from(*unsafe { pointers::read(t, "t") }?);
        let (flags, _) = flags::split(flags, Waits::UnlessTold)?;
        let transport = transport(flags)?;
        flags.check(transport)?;
        if transport == Transport::Uc {
            let options = ListenOptions::new().flags(flags);
            return table::insert(Socket::message_listener(MessageListener::bind_with(
                &Session::global()?,
                at,
                options,
            )?)?);
        }
        if transport == Transport::Ud {
            return table::insert(Socket::datagram(
                DatagramOptions::new().flags(flags).bind(&Session::global()?, at)?,
            )?);
        }
        table::insert(Socket::listener(ListenOptions::new().flags(flags).bind(&Session::global()?, at)?)?)
    })
}

/// Takes the next connection of a listener and returns its descriptor, or -1. Waits for one, unless FLAGS have
/// RAAS_NOWAIT.
#[unsafe(no_mangle)]
pub extern "C" fn raas_accept(fd: c_int, flags: c_int) -> c_int {
    call(|| accept(fd, None, flags))
}

/// As raas_accept, with memory of the program's for what the connection receives: raas_recv_zero_copy gives bytes there
/// when it is not told another place. The memory must stay until raas_close of the connection has returned.
///
/// # Safety
/// `buf` is null (EFAULT) or leads to `len` bytes, which stay until the connection is closed, and which nothing else
/// uses during a raas_recv_zero_copy of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_accept_buffer(fd: c_int, buf: *mut c_void, len: u32, flags: c_int) -> c_int {
    call(|| {
        if len == 0 {
            return Err(Failure::new(libc::EINVAL, "a buffer of 0 bytes receives nothing: use raas_accept"));
        }
        // SAFETY: the caller's promise; it is looked at for null only.
        let room = unsafe { pointers::room(buf.cast(), len, "buf") }?;
        accept(fd, Some(Memory { start: room.as_mut_ptr(), len: room.len() }), flags)
    })
}

fn accept(fd: c_int, memory: Option<Memory>, flags: c_int) -> Result<c_int, Failure> {
    let socket = table::get(fd)?;
    if let Kind::MessageListener(listener) = &socket.kind {
        let (flags, waits) = flags::split(flags, Waits::UnlessTold)?;
        flags.check(Transport::Uc)?;
        let (stream, _) = socket.attempt(Side::Read, waits, || Ok(listener.get_ref().accept()?))?;
        return table::insert(Socket::messages(stream, memory)?);
    }
    let Kind::Listener(listener) = &socket.kind else {
        return Err(Failure::new(
            libc::EINVAL,
            format!("descriptor {fd} is no listener: raas_listen without RAAS_UD makes one"),
        ));
    };
    let (flags, waits) = flags::split(flags, Waits::UnlessTold)?;
    flags.check(Transport::Rc)?;
    let (stream, _) = socket.attempt(Side::Read, waits, || Ok(listener.get_ref().accept()?))?;
    if !flags.is_empty() {
        stream.set_flags(flags)?;
    }
    table::insert(Socket::stream(stream, memory)?)
}

/// Closes a descriptor: 0, or -1. What was sent is still delivered. Calls of other threads that wait at it fail with
/// EBADF. close(2) does not do this: it frees the number alone, and the connection stays until another descriptor of
/// libraas gets the number.
#[unsafe(no_mangle)]
pub extern "C" fn raas_close(fd: c_int) -> c_int {
    call(|| {
        let socket = table::remove(fd)?;
        socket.close();
        // After a receive into the program's memory that is under way in another thread.
        *socket.memory.lock().unwrap_or_else(PoisonError::into_inner) = None;
        drop(socket);
        // SAFETY: `table::insert` took the number out of its owner, and `table::remove` gives it to one caller alone.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(0)
    })
}

/// Ends a direction of a connection or both: `how` is SHUT_RD, SHUT_WR or SHUT_RDWR of sys/socket.h. 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn raas_shutdown(fd: c_int, how: c_int) -> c_int {
    call(|| {
        let socket = table::get(fd)?;
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            other => {
                let text = format!("{other} is none of SHUT_RD, SHUT_WR and SHUT_RDWR");
                return Err(Failure::new(libc::EINVAL, text));
            }
        };
        match &socket.kind {
            Kind::Stream(stream) => stream.get_ref().shutdown(how)?,
            Kind::Messages(stream) => stream.get_ref().shutdown(how)?,
            _ => return Err(Failure::new(libc::ENOTCONN, format!("descriptor {fd} is no connection"))),
        }
        Ok(0)
    })
}

/// Writes the address of this end to `t`: 0, or -1.
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_local(fd: c_int, t: *mut Target) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { pointers::place(t, "t") }?;
        *place = table::get(fd)?.local()?.into();
        Ok(0)
    })
}

/// Writes the address of the other end to `t`: 0, or -1.
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_peer(fd: c_int, t: *mut Target) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { pointers::place(t, "t") }?;
        *place = table::get(fd)?.peer()?.into();
        Ok(0)
    })
}

/// Writes the first address of `host` (IPv4, IPv6 or a name), and `port`, to `t`: 0, or -1.
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target. `host` is null (EFAULT) or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_target_set(t: *mut Target, host: *const c_char, port: u16) -> c_int {
    call(|| {
        // SAFETY: the caller's promises.
        let (place, host) = unsafe { (pointers::place(t, "t")?, pointers::text(host, "host")?) };
        *place = target::resolve(host, port)?;
        Ok(0)
    })
}

/// Writes `t` as text to `text`, as `10.0.0.2:7000` or `[::1]:7000`, with a zero byte at its end: 0, or -1 (ENOSPC if
/// `len` is too small; 56 bytes always suffice).
///
/// # Safety
/// `t` is null (EFAULT) or leads to a target. `text` is null (EFAULT) or leads to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raas_target_text(t: *const Target, text: *mut c_char, len: u32) -> c_int {
    call(|| {
        // SAFETY: the caller's promises.
        let (target, room) = unsafe { (*pointers::read(t, "t")?, pointers::room(text.cast(), len, "text")?) };
        let words = format!("{}\0", SocketAddr::from(target));
        let place = room.get_mut(..words.len()).ok_or_else(|| {
            Failure::new(libc::ENOSPC, format!("the text has {} bytes, and {len} were given", words.len()))
        })?;
        place.copy_from_slice(words.as_bytes());
        Ok(0)
    })
}

/// The text of the last failure in this thread: what failed, and what to do. It stays until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn raas_error() -> *const c_char {
    failure::last_text()
}

/// The reason of the last failure in this thread as a key of docs/reasons.md, "no-listener" for instance; "" if the
/// daemons gave none. It stays until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn raas_error_reason() -> *const c_char {
    failure::last_reason()
}

/// What is meant where FLAGS make a socket.
fn transport(flags: Flags) -> Result<Transport, Failure> {
    Ok(flags.transport()?.unwrap_or(Transport::Rc))
}
