//! What a command says, and how it ends: exit codes, stdout and stderr, tables, and the signals that ask it to stop. It
//! knows neither daemons nor connections.
//!
//! Owns exit codes, and what goes to which stream. It must never know daemons or connections. May use nothing of the
//! house. Order of calls: none.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `out`

mod exit;
pub mod out;
pub mod signals;
pub mod table;

pub use exit::{Failure, USAGE};
