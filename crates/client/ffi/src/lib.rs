//! The RaaS paper's programming interface (its Figure 4) for C and C++: `libraas.so`, `libraas.a`, `raas.h`.
//!
//! | module | owns |
//! |---|---|
//! | [`connections`] | the functions that make and end connections, listeners and sockets |
//! | [`transfers`] | the functions that send and receive |
//! | `pointers` | what a program's pointers lead to |
//! | [`target`] | addresses as C has them |
//! | [`flags`] | the bits of FLAGS |
//! | `socket` | one descriptor: what it stands for, and waiting |
//! | `table` | the descriptors of this process |
//! | `failure` | errno and the text of `raas_error` |
//!
//! A function returns -1 (`RAAS_FAILED` where it counts bytes), sets errno, and leaves a text for `raas_error`. No panic
//! leaves the library, and nothing is done with a pointer that is null. docs/use/c.md is for users.
//!
//! It must never unwind into C, or follow a pointer that is null. May use `raas`. Order of calls: that of sockets;
//! docs/use/c.md has it.

pub mod connections;
mod failure;
pub mod flags;
mod pointers;
mod socket;
mod table;
pub mod target;
pub mod transfers;
