//! The C library's own functions, behind the names that this library exports.
//!
//! Owns their addresses, which the dynamic linker gives when one is first called.

use std::ffi::{CStr, c_char, c_int, c_short, c_uint, c_ulong, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t,
    posix_spawnattr_t, sigset_t, size_t, sockaddr,
};
use libc::{socklen_t, ssize_t, timespec, timeval, uid_t};

/// The next function of this name after this library.
fn resolve(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    optional(place, name).unwrap_or_else(|| {
        // A C library without it has no caller of it either.
        // SAFETY: abort has no conditions.
        unsafe { libc::abort() }
    })
}

/// The same of a library that may not be there.
pub(crate) fn optional(place: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    let known = place.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: the name ends with a zero, and the handle is one that dlsym takes.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    place.store(found, Ordering::Relaxed);
    (!found.is_null()).then_some(found)
}

/// The C library's function of this name.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) fn address(name: &CStr) -> *mut c_void {
    resolve(&AtomicPtr::new(null_mut()), name)
}

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// Finds all of them, so that no signal handler has to.
        #[cfg_attr(test, expect(dead_code, reason = "run when the library is loaded"))]
        pub(crate) fn resolve_all() {
            $( optional(&place::$name, place::name::$name); )*
        }

        /// The functions that were found, and their names.
        #[allow(non_upper_case_globals)]
        mod place {
            use super::*;
            $( pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(null_mut()); )*

            pub(super) mod name {
                use super::*;
                $( pub(in super::super) const $name: &CStr =
                    match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    }; )*
            }
        }
    $(
        /// As the C library's.
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
            let found = resolve(&place::$name, place::name::$name);
            // SAFETY: the dynamic linker gave the address of the C function of this name, which has this type.
            let real: unsafe extern "C-unwind" fn($($ty),*) -> $ret = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller keeps to what the C function asks for.
            unsafe { real($($arg),*) }
        }
    )* };
}

real! {
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: c_ulong) -> c_int;
    ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, size: *mut socklen_t) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, size: socklen_t) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, len: size_t, flags: c_uint) -> ssize_t;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    epoll_ctl(set: c_int, what: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    _exit(code: c_int) -> ();
    execve(path: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    execv(path: *const c_char, words: *const *const c_char) -> c_int;
    execvp(file: *const c_char, words: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    fexecve(fd: c_int, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    execveat(dir: c_int, path: *const c_char, words: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int;
    posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawnp(child: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, words: *const *const c_char, environment: *const *const c_char) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    daemon(keeps_directory: c_int, keeps_output: c_int) -> c_int;
    pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t, start: extern "C-unwind" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> c_int;
    clone(function: extern "C-unwind" fn(*mut c_void) -> c_int, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut c_void, local: *mut c_void, child: *mut c_void) -> c_int;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    setuid(user: uid_t) -> c_int;
    setrlimit(resource: c_uint, limits: *const libc::rlimit) -> c_int;
    prlimit(process: pid_t, resource: c_uint, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int;
    seteuid(user: uid_t) -> c_int;
    setreuid(user: uid_t, effective: uid_t) -> c_int;
    setresuid(user: uid_t, effective: uid_t, saved: uid_t) -> c_int;
}

/// Bits of `poll`, as its structure has them.
pub(crate) type PollBits = c_short;
