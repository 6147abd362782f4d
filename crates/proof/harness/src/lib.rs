//! What the starters of judges and measurements share: child processes under a watchdog, the workspace as Cargo and git
//! know it, its programs, and counts of what passed. It judges nothing itself.
//!
//! Owns the watchdog, the ledger of seconds and the installer. It must never judge anything. May use nothing of the
//! house. Order of calls: none.
#![forbid(unsafe_code)]

pub mod build;
pub mod child;
pub mod itself;
pub mod ledger;
pub mod packages;
pub mod programs;
pub mod repo;
pub mod result_lines;
pub mod tally;
