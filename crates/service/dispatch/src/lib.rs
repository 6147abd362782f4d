//! Between what the control plane decides and what an engine does: each command as the calls of an engine that carry it
//! out, and each word of an engine as the input of the control plane that it is.
//!
//! Owns the two mappings, so that the daemon (`raasd`) and the simulator (`sim`) have the same one; no I/O. It must
//! never decide or keep anything: a driver has the queues between the two, and the engines' names of programs
//! ([`plane::Names`]). It may use `plane` and `engine`, which know nothing of each other, and what both stand on.
//!
//! May use `control`, `engine`, `kernels`, `plane`, `shm`, `verbs`. Order of calls: a command after the commands
//! before it; words of an engine in the order in which it said them.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod command;
mod hear;
mod report;

pub use command::{Command, Mapped, attach};
pub use hear::{Left, hear};
pub use report::Report;
