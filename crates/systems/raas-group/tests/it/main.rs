//! Groups over daemons in this process.
//!
//! Owns what a group promises where its hosts are real daemons: commits, reads, fail-overs and memories that come back.

mod groups;
mod leases;
mod synced;
