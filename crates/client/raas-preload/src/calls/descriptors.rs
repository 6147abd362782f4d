//! Calls about descriptors: closing, copying, modes. And the end of the process, and stdio.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::io::Write;

use libc::FILE;
use raas::Reason;

use super::programs::{STANDARD, hand_over, hand_over_of_parent};
use crate::kernel_tcp;
use crate::options::{self, Fate};
use crate::table::{self, Entry};
use crate::{errno, fork, heirs, hold, inside, own, owner, real};

/// The program closes a descriptor: what is known of it ends first.
fn forget(fd: c_int) {
    if !table::is_known(fd) {
        return;
    }
    let _held = hold::hold();
    let known = table::get(fd);
    if known.is_some() && fork::is_owner() && !inside::is_inside() {
        let code = errno::get();
        if let Some(Entry::Socket(connection)) = known {
            heirs::keep_for_children(fd, &connection);
        }
        match table::take(fd) {
            Some(Entry::Socket(connection)) => {
                if connection.is_lost() && table::descriptor_of(&connection).is_none() {
                    connection.renounce();
                }
                heirs::note_closing(&connection);
                if connection.is_switching() && table::descriptor_of(&connection).is_none() {
                    connection.close(fd);
                }
                let resets = connection.resets_at_close(fd) && table::descriptor_of(&connection).is_none();
                // What the stream has to say comes before TCP's end.
                drop(connection);
                if resets {
                    kernel_tcp::reset(fd);
                }
            }
            Some(Entry::Epoll(set)) if set.fd() == fd => {
                if let Some(other) = table::descriptor_of_set(&set) {
                    set.use_other(fd, other);
                }
            }
            _ => {}
        }
        errno::set(code);
    }
}

/// `new` is about to be a copy of `old`, and what it was is closed.
fn forget_over(old: c_int, new: c_int) {
    let is_open = |fd| {
        // SAFETY: the call takes no pointers.
        unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
    };
    if old != new && table::get(new).is_some() && is_open(old) {
        forget(new);
    }
}

/// Whether it is an epoll set, by the name that the kernel gives it. Without /proc nothing is.
fn is_epoll(fd: c_int) -> bool {
    const NAME: &[u8] = b"anon_inode:[eventpoll]";
    // On the stack: this may be a signal handler, which takes no memory.
    let (mut path, mut name) = ([0_u8; 32], [0_u8; NAME.len() + 1]);
    if write!(&mut path[..], "/proc/self/fd/{fd}\0").is_err() {
        return false;
    }
    // SAFETY: the path was written whole with the zero at its end, and the name has room for its length.
    let len = unsafe { libc::readlink(path.as_ptr().cast(), name.as_mut_ptr().cast(), name.len()) };
    usize::try_from(len).is_ok_and(|len| name[..len] == *NAME)
}

/// `new` is a copy of `old`.
fn copied(old: c_int, new: c_int) -> c_int {
    if new < 0 || new == old || inside::is_inside() || owner::is_in_sandbox() {
        return new;
    }
    let code = errno::get();
    // A set that has no TCP socket yet is not known. Both descriptors are to find the same one when it gets one.
    if table::get(old).is_none() && fork::is_owner() && is_epoll(old) {
        let _known = table::epoll_or_make(old);
    }
    match table::get(old) {
        Some(entry) if fork::is_owner() => {
            table::put(new, entry);
            if new < STANDARD {
                // Stdio uses it, and the programs that are started.
                hand_over(new);
            }
        }
        // A child of `vfork`, which is about to start a program.
        Some(_) if new < STANDARD => hand_over_of_parent(old, new),
        _ => forget(new),
    }
    errno::set(code);
    new
}

/// Jumps to `$by`, with the address of the caller as one more argument. It is of the library where the library closes.
macro_rules! with_caller {
    ($name:ident, $register:literal, $by:path) => {
        #[cfg(target_arch = "x86_64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(concat!("mov ", $register, ", [rsp]"), "jmp {by}", by = sym $by)
        }

        #[cfg(target_arch = "aarch64")]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            std::arch::naked_asm!(concat!("mov ", $register, ", x30"), "b {by}", by = sym $by)
        }
    };
}

#[cfg(target_arch = "x86_64")]
with_caller!(close, "rsi", close_by);
#[cfg(target_arch = "aarch64")]
with_caller!(close, "x1", close_by);

unsafe extern "C-unwind" fn close_by(fd: c_int, caller: usize) -> c_int {
    if own::has(fd) {
        if !own::is_code(caller) {
            return errno::fail(libc::EBADF) as c_int;
        }
        shm::note_closed(fd);
    } else {
        forget(fd);
    }
    // SAFETY: the call takes no pointers.
    unsafe { real::close(fd) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        table::known(first as usize, last as usize).into_iter().for_each(forget);
    }
    // SAFETY: the call takes no pointers.
    own::without(first, last, |first, last| unsafe { real::close_range(first, last, flags) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    // SAFETY: the call takes no pointers.
    let is_done = unsafe { close_range(first, c_uint::MAX, 0) } == 0;
    if !is_done {
        // A kernel without it. There may be none of the library's beyond those that are known.
        let last = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = last.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let numbers: Vec<c_int> = numbers.filter(|fd| *fd >= first as c_int).collect();
        numbers.into_iter().for_each(|fd| {
            // SAFETY: the call takes no pointers.
            let _ = unsafe { close_by(fd, 0) };
        });
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the call takes no pointers.
    copied(fd, unsafe { real::dup(fd) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if own::has(new) && old != new {
        return errno::fail(libc::EBUSY) as c_int;
    }
    forget_over(old, new);
    // SAFETY: the call takes no pointers.
    copied(old, unsafe { real::dup2(old, new) })
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if own::has(new) && old != new {
        return errno::fail(libc::EBUSY) as c_int;
    }
    forget_over(old, new);
    // SAFETY: the call takes no pointers.
    copied(old, unsafe { real::dup3(old, new, flags) })
}

/// The connection is to be on TCP, and stays there.
fn keep(fd: c_int, why: Reason) {
    if let Some(connection) = table::socket(fd) {
        // What could not go back is reset, as the next call says.
        connection.keep_on_tcp(fd, why);
    }
}

// The C library's `fcntl` and `ioctl` take a variable argument. On the supported processors it comes where a third
// argument of this size does.

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    if command == libc::F_SETFL && argument & libc::O_ASYNC as c_ulong != 0 {
        keep(fd, Reason::KernelSignals);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::fcntl(fd, command, argument) };
    if result >= 0 && options::of_command(command) == Fate::After {
        keep(fd, Reason::KernelOption);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return copied(fd, result),
        libc::F_SETFL if result >= 0 => {
            if let Some(connection) = table::socket(fd) {
                connection.set_nonblocking(argument & libc::O_NONBLOCK as c_ulong != 0);
            }
        }
        _ => {}
    }
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_ulong) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe { fcntl(fd, command, argument) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let connection = if matches!(request, libc::FIONREAD | libc::FIONBIO) { table::socket(fd) } else { None };
    if let Some(connection) = &connection
        && request == libc::FIONREAD
        && let Some(unread) = connection.unread_of_both(fd)
    {
        let unread = c_int::try_from(unread).unwrap_or(c_int::MAX);
        // SAFETY: for this request the program gave a pointer to an int.
        unsafe { argument.cast::<c_int>().write_unaligned(unread) };
        return 0;
    }
    let fate = options::of_request(request);
    if fate == Fate::Before {
        keep(fd, Reason::KernelSignals);
    }
    // SAFETY: the program's own arguments.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result >= 0 && fate == Fate::After {
        keep(fd, Reason::KernelOption);
    }
    if let Some(connection) = &connection
        && request == libc::FIONBIO
        && result == 0
    {
        // SAFETY: the kernel has just read an int there.
        connection.set_nonblocking(unsafe { argument.cast::<c_int>().read_unaligned() } != 0);
    }
    result
}

// ---- stdio, whose own reads and writes nobody sees

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    hand_over(fd);
    // SAFETY: the program's own arguments.
    unsafe { real::fdopen(fd, mode) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: the program's own stream.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: as above.
    let result = unsafe { real::fclose(file) };
    forget(fd);
    result
}

// ---- the end

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn _exit(code: c_int) -> ! {
    if fork::is_owner() {
        crate::answers::end_in_order();
    }
    // SAFETY: the call takes no pointers.
    unsafe {
        real::_exit(code);
        libc::abort()
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)] // the C library calls it so
unsafe extern "C-unwind" fn _Exit(code: c_int) -> ! {
    // SAFETY: the two are one.
    unsafe { _exit(code) }
}

/// For tests of programs: which path a connection has. 0: not decided; 1: kernel TCP for good; 2: both directions are on
/// a stream at this end; 3: kernel TCP for good, polled at both ends. Negative: no TCP socket that this library knows.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C-unwind" fn raas_run_path(fd: c_int) -> c_int {
    match table::socket(fd) {
        None => -1,
        Some(connection) => {
            connection.pump(fd);
            connection.path()
        }
    }
}
