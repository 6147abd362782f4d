//! Programs that misbehave, and the judges that watch daemons under them.
//!
//! [`tenant`] is an application that breaks every rule of the control socket and of the shared memory; [`siege`] runs
//! polite tenants beside it and counts what the daemons do and hold. Nothing here ships. It must never touch a daemon
//! that it did not start, and must send only to loopback.
//!
//! Owns the misdeeds, the polite programs beside them, and the counts. May use `agree`, `control`,
//! `histories`, `raas`, `raas-group`, `roce`, `shm`, `tap`, `tensor`, `verbs`. Order of calls: none: each judge
//! starts and ends its daemons.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod breach;
pub mod descriptors;
pub mod direct;
pub mod forger;
pub mod groups;
pub mod held;
pub mod host;
pub mod kernels;
pub mod kills;
pub mod memory;
pub mod namespace;
pub mod network;
pub mod numbers;
mod pair;
pub mod polite;
mod pulse;
pub mod raw;
pub mod readers;
pub mod requests;
pub mod restarts;
pub mod siege;
pub mod storm;
pub mod tenant;
pub mod tensors;
pub mod transfers;
pub mod verdict;
pub mod victim;
pub mod witness;
pub mod words;
pub mod writers;
