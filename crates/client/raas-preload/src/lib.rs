//! Sockets of unmodified programs over RaaS: the library that `raas run` preloads (docs/use/run.md).
//!
//! It stands between a program and the C library's socket calls. A descriptor that is no TCP socket of the program's
//! goes through untouched, and so does a TCP connection until it is upgraded. Nothing here is for other crates; the
//! names that it exports are those of the C library.
//!
//! Rules: a call looks at its descriptor without a lock that could be held for long. No lock is held while a call
//! blocks. What the library itself calls goes to the C library (`inside`), so nothing here calls itself.
//!
//! Owns which descriptors are upgraded connections, and when they go back. It must never change what a program sees
//! of TCP, but for docs/use/run-differences.md. May use `raas`, `raas-core`, `shm`. Order of calls: that of the
//! program, at any time, from signal handlers and children too.

// Other names would not be the C library's.
#![allow(clippy::missing_safety_doc)]
// Under test nothing is exported, so that the test program keeps its own C library.
#![cfg_attr(test, allow(dead_code))]

mod answers;
mod calls;
mod connection;
mod desk;
mod epoll_set;
mod errno;
mod fork;
mod handlers;
mod heap;
mod heirs;
mod hold;
mod inside;
mod kernel_tcp;
mod life;
mod options;
mod own;
mod owner;
mod poll_set;
mod polled;
mod real;
mod rings;
mod sandbox;
mod say;
mod shared_page;
mod sleep;
mod spin;
mod summary;
mod table;
mod threads;
mod wish;

/// Descriptors of the library are above, as far as the limit of the process has room: programs count on the low ones.
#[cfg(not(test))]
const NUMBERS_ABOVE: std::os::fd::RawFd = 600;

/// Run by the dynamic linker when the library is loaded.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

#[cfg(not(test))]
#[global_allocator]
static HEAP: heap::Heap = heap::Heap;

#[cfg(not(test))]
extern "C" fn init() {
    life::watch_end();
    real::resolve_all();
    own::note_place();
    desk::keep_environment();
    say::keep_stderr();
    summary::join();
    shm::keep_numbers_above(NUMBERS_ABOVE);
    fork::watch_forks();
    connection::Connection::on_stream(answers::attend);
}
