//! Calls by which a process enters a sandbox: `prctl`, and `seccomp` by number; and those by which it takes from itself
//! the descriptors that the library needs to wait.

use std::ffi::{c_int, c_ulong, c_void};

use libc::{pid_t, rlimit};

use crate::{errno, owner, real, sandbox};

/// `RLIMIT_NOFILE` is a number of `prlimit(2)`, of which each C library makes another type.
type Resource = std::ffi::c_uint;
const DESCRIPTORS: Resource = 7;
/// The kernel polls no more descriptors at once than a process may have. The library polls these beside the program's.
const DESCRIPTORS_MIN: libc::rlim_t = 8;

/// `SECCOMP_SET_MODE_STRICT` and `SECCOMP_SET_MODE_FILTER`; others of `seccomp(2)` ask something.
const SET_STRICT: usize = 0;
const SET_FILTER: usize = 1;

/// `operation` of `seccomp(2)`, and its filter.
pub(super) fn before_seccomp(operation: usize, filter: *mut c_void) {
    // Without a filter the kernel refuses: programs ask so whether it knows filters.
    if operation == SET_STRICT || operation == SET_FILTER && !filter.is_null() {
        sandbox::enter();
    }
}

/// `option` of `prctl(2)` and its first two arguments.
pub(super) fn before_prctl(option: c_int, mode: usize, filter: *mut c_void) {
    if option != libc::PR_SET_SECCOMP {
        return;
    }
    match u32::try_from(mode) {
        Ok(libc::SECCOMP_MODE_STRICT) => sandbox::enter(),
        Ok(libc::SECCOMP_MODE_FILTER) if !filter.is_null() => sandbox::enter(),
        _ => {}
    }
}

/// As the C library's, which has a variable number of arguments; on the supported processors they come where those of
/// this type do. Like `syscall` it asks for no address, because allocators call it.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn prctl(
    option: c_int,
    first: c_ulong,
    second: *mut c_void,
    third: c_ulong,
    fourth: c_ulong,
) -> c_int {
    before_prctl(option, first as usize, second);
    // SAFETY: the program's own arguments.
    let answer = unsafe { by_kernel(option, first, second, third, fourth) };
    if (-4095..0).contains(&answer) {
        errno::set(c_int::try_from(-answer).unwrap_or(libc::EINVAL));
        return -1;
    }
    answer as c_int
}

/// # Safety
///
/// As prctl(2).
#[cfg(target_arch = "x86_64")]
unsafe fn by_kernel(option: c_int, first: c_ulong, second: *mut c_void, third: c_ulong, fourth: c_ulong) -> isize {
    let answer: isize;
    // SAFETY: the kernel changes these registers alone, and the memory that the caller allows.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_prctl as isize => answer,
            in("rdi") option as isize,
            in("rsi") first,
            in("rdx") second,
            in("r10") third,
            in("r8") fourth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// # Safety
///
/// As prctl(2).
#[cfg(target_arch = "aarch64")]
unsafe fn by_kernel(option: c_int, first: c_ulong, second: *mut c_void, third: c_ulong, fourth: c_ulong) -> isize {
    let answer: isize;
    // SAFETY: the kernel changes this register alone, and the memory that the caller allows.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_prctl as isize,
            inlateout("x0") option as isize => answer,
            in("x1") first,
            in("x2") second,
            in("x3") third,
            in("x4") fourth,
            options(nostack),
        );
    }
    answer
}

/// # Safety
///
/// `limits` is null or points to limits.
unsafe fn before_limits(resource: Resource, limits: *const rlimit) {
    // SAFETY: the caller's promise.
    if let Some(limits) = unsafe { limits.as_ref() }
        && resource == DESCRIPTORS
        && limits.rlim_cur < DESCRIPTORS_MIN
    {
        sandbox::enter();
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setrlimit(resource: Resource, limits: *const rlimit) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        before_limits(resource, limits);
        real::setrlimit(resource, limits)
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn setrlimit64(resource: Resource, limits: *const rlimit) -> c_int {
    // SAFETY: the two are one where numbers have 64 bits.
    unsafe { setrlimit(resource, limits) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn prlimit(process: pid_t, resource: Resource, new: *const rlimit, old: *mut rlimit) -> c_int {
    // In this order: in a sandbox nothing is asked.
    if process == 0 || !owner::is_in_sandbox() && u32::try_from(process) == Ok(std::process::id()) {
        // SAFETY: the program's own arguments.
        unsafe { before_limits(resource, new) };
    }
    // SAFETY: the program's own arguments.
    unsafe { real::prlimit(process, resource, new, old) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C-unwind" fn prlimit64(
    process: pid_t,
    resource: Resource,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: as above.
    unsafe { prlimit(process, resource, new, old) }
}
