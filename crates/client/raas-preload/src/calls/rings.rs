//! Calls that make rings (`io_uring`), by the library that programs use for it and by number.
//!
//! `syscall` is written here in full, and asks for no address of the C library's: allocators call it before they can
//! give memory.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use crate::say::Once;
use crate::{errno, fork, inside, real, rings, table};

static LOST: Once = Once::new();

macro_rules! of_liburing {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => { $(
        /// As liburing's. Who looks for it where liburing is not loaded learns that there are no rings.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            static PLACE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            };
            let Some(found) = real::optional(&PLACE, NAME) else { return -libc::ENOSYS };
            before_ring();
            // SAFETY: the dynamic linker gave the address of liburing's function of this name, which has this type.
            let real: unsafe extern "C-unwind" fn($($ty),*) -> c_int = unsafe { std::mem::transmute(found) };
            // SAFETY: the program's own arguments.
            unsafe { real($($arg),*) }
        }
    )* };
}

of_liburing! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, memory: *mut c_void, len: usize);
    io_uring_setup(entries: c_uint, params: *mut c_void);
}

/// Connections go back before a ring may use them.
extern "C" fn before_ring() {
    let code = errno::get();
    if rings::note_ring() && fork::is_owner() && !inside::is_inside() {
        for fd in table::known(0, usize::MAX) {
            if table::socket(fd).is_some_and(|connection| !connection.go_back(fd)) {
                LOST.say("a connection could not go back to kernel TCP, and is reset");
            }
        }
    }
    errno::set(code);
}

/// What the kernel answered is an error.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn fail(answer: c_long) -> c_long {
    errno::set(c_int::try_from(-answer).unwrap_or(libc::EINVAL));
    -1
}

/// As the C library's: the number and six arguments, in its order of registers, become those of the kernel.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp rdi, {setup}",
        "jne 2f",
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
        setup = const libc::SYS_io_uring_setup,
        before = sym before_ring,
        fail = sym fail,
    )
}

/// As the C library's.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    naked_asm!(
        "cmp x0, #{setup}",
        "b.ne 2f",
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
        setup = const libc::SYS_io_uring_setup,
        before = sym before_ring,
        fail = sym fail,
    )
}
