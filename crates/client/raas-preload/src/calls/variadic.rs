//! Functions of the C library with a variable number of arguments, which Rust cannot have: something is done first, and
//! then the C library's function goes on with the caller's registers and stack as they were.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

use super::programs;
use crate::real;

/// Gives the C library's function its caller's arguments, after `$before`, which gets the first one and returns the
/// function.
#[cfg(target_arch = "x86_64")]
macro_rules! goes_on {
    ($name:ident, $before:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0",
                "movups [rsp + 16], xmm1",
                "movups [rsp + 32], xmm2",
                "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4",
                "movups [rsp + 80], xmm5",
                "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {before}",
                "mov r11, rax",
                "movups xmm0, [rsp]",
                "movups xmm1, [rsp + 16]",
                "movups xmm2, [rsp + 32]",
                "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]",
                "movups xmm5, [rsp + 80]",
                "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! goes_on {
    ($name:ident, $before:path) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "str x8, [sp, #80]",
                "stp q0, q1, [sp, #96]",
                "stp q2, q3, [sp, #128]",
                "stp q4, q5, [sp, #160]",
                "stp q6, q7, [sp, #192]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldr x8, [sp, #80]",
                "ldp q0, q1, [sp, #96]",
                "ldp q2, q3, [sp, #128]",
                "ldp q4, q5, [sp, #160]",
                "ldp q6, q7, [sp, #192]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                before = sym $before,
            )
        }
    };
}

goes_on!(execl, before_execl);
goes_on!(execle, before_execle);
goes_on!(execlp, before_execlp);
goes_on!(dprintf, before_dprintf);
goes_on!(__dprintf_chk, before_dprintf_chk);
goes_on!(vdprintf, before_vdprintf);
goes_on!(__vdprintf_chk, before_vdprintf_chk);

extern "C" fn before_execl(_path: usize) -> *mut c_void {
    programs::become_another();
    real::address(c"execl")
}

extern "C" fn before_execle(_path: usize) -> *mut c_void {
    programs::become_another();
    real::address(c"execle")
}

extern "C" fn before_execlp(_file: usize) -> *mut c_void {
    programs::become_another();
    real::address(c"execlp")
}

// Stdio's own writes are seen by nobody, so the connection goes back.

extern "C" fn before_dprintf(fd: c_int) -> *mut c_void {
    programs::hand_over(fd);
    real::address(c"dprintf")
}

extern "C" fn before_dprintf_chk(fd: c_int) -> *mut c_void {
    programs::hand_over(fd);
    real::address(c"__dprintf_chk")
}

extern "C" fn before_vdprintf(fd: c_int) -> *mut c_void {
    programs::hand_over(fd);
    real::address(c"vdprintf")
}

extern "C" fn before_vdprintf_chk(fd: c_int) -> *mut c_void {
    programs::hand_over(fd);
    real::address(c"__vdprintf_chk")
}
