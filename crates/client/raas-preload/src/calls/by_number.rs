//! Calls by number (`syscall`): those that this library has to know of are seen before they are made.
//!
//! `syscall` is written here in full, and asks for no address of the C library's: allocators call it before they can
//! give memory.

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_void};

use super::{aio, rings, sandboxes};
use crate::{answers, errno, fork};

/// The program is about to make one of the calls that `syscall` stops at, with these arguments.
extern "C" fn before_call(number: c_long, first: usize, second: usize, third: *mut c_void) {
    match number {
        libc::SYS_io_uring_setup => rings::before_ring(),
        // SAFETY: the program's own arguments: a list of so many.
        libc::SYS_io_submit => unsafe { aio::before_submit(second, third.cast()) },
        libc::SYS_seccomp => sandboxes::before_seccomp(first, third),
        libc::SYS_prctl => sandboxes::before_prctl(first as c_int, second, third),
        // The process ends.
        libc::SYS_exit_group if fork::is_owner() => answers::end_in_order(),
        _ => {}
    }
}

/// What the kernel answered is an error.
extern "C" fn fail(answer: c_long) -> c_long {
    errno::set(c_int::try_from(-answer).unwrap_or(libc::EINVAL));
    -1
}

/// As [`syscall`], where the child has memory of its own and goes on at the same place.
#[cfg(target_arch = "x86_64")]
extern "C" fn fork_by_number(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long) -> c_long {
    let answer = super::life::forked(|| {
        let answer: c_long;
        // SAFETY: the program's own call. Both processes go on with the same stack and registers.
        unsafe {
            std::arch::asm!(
                "syscall", inlateout("rax") number => answer, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
                in("r8") e, lateout("rcx") _, lateout("r11") _,
            );
        }
        answer
    });
    if answer < 0 { fail(answer) } else { answer }
}

/// As [`syscall`], where the child has memory of its own and goes on at the same place.
#[cfg(target_arch = "aarch64")]
extern "C" fn fork_by_number(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long) -> c_long {
    let answer = super::life::forked(|| {
        let answer: c_long;
        // SAFETY: the program's own call. Both processes go on with the same stack and registers.
        unsafe {
            std::arch::asm!(
                "svc #0", in("x8") number, inlateout("x0") a => answer, in("x1") b, in("x2") c, in("x3") d, in("x4") e,
            );
        }
        answer
    });
    if answer < 0 { fail(answer) } else { answer }
}

/// As the C library's: the number and six arguments, in its order of registers, become those of the kernel.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {fork}",
        "je {fork_by_number}",
        "cmp rdi, {clone}",
        "jne 5f",
        "test esi, {shares}",
        "jz {fork_by_number}",
        "5:",
        "cmp rdi, {exit}",
        "je 4f",
        "cmp rdi, {setup}",
        "je 4f",
        "cmp rdi, {submit}",
        "je 4f",
        "cmp rdi, {seccomp}",
        "je 4f",
        "cmp rdi, {prctl}",
        "jne 2f",
        "4:",
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {fail}",
        fork = const libc::SYS_fork,
        clone = const libc::SYS_clone,
        shares = const libc::CLONE_VM,
        exit = const libc::SYS_exit_group,
        setup = const libc::SYS_io_uring_setup,
        submit = const libc::SYS_io_submit,
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        fork_by_number = sym fork_by_number,
        before = sym before_call,
        fail = sym fail,
    )
}

/// As the C library's.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp x0, #{clone}",
        "b.ne 5f",
        "tst x1, #{shares}",
        "b.eq {fork_by_number}",
        "5:",
        "cmp x0, #{exit}",
        "b.eq 4f",
        "cmp x0, #{setup}",
        "b.eq 4f",
        "cmp x0, #{submit}",
        "b.eq 4f",
        "cmp x0, #{seccomp}",
        "b.eq 4f",
        "cmp x0, #{prctl}",
        "b.ne 2f",
        "4:",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "bl {before}",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.cs 3f",
        "ret",
        "3:",
        "b {fail}",
        clone = const libc::SYS_clone,
        shares = const libc::CLONE_VM,
        exit = const libc::SYS_exit_group,
        setup = const libc::SYS_io_uring_setup,
        submit = const libc::SYS_io_submit,
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        fork_by_number = sym fork_by_number,
        before = sym before_call,
        fail = sym fail,
    )
}
