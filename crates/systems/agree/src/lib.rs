//! A replicated log and state machine over the memory of several hosts.
//!
//! Each member of a group is a host with one *memory*: a region that its daemon keeps, whatever becomes of the program
//! there. A leader takes the writer's place at a majority of memories, writes entries into all of them by one-sided
//! WRITEs, and calls an entry committed when a majority holds it. No program of another member takes part. The daemon's
//! fence is what a vote is elsewhere: it grants strictly higher terms only, and ends the older writer exactly (Mu, OSDI
//! 2020; Protected Memory Paxos, PODC 2019). What a leader makes of the logs that he finds is Raft's rule, so nothing
//! that may be committed is ever written over.
//!
//! This crate is the core: a state machine without I/O, thread and clock. A driver feeds a [`Replica`] with time and
//! answers, and carries out its [`Action`]s. Majorities are of memories, not of programs: any program that reaches a
//! majority of memories can lead.
//!
//! **Acknowledged means: in the memory of a majority.** It survives programs, daemons and all but a majority of memories.
//! It does not survive power that fails at a majority of hosts. Where the group [is synced](Settings::is_synced) it means:
//! in the files of a majority too, which a [`Scribe`] at each member writes; then it survives that.
//!
//! **What it stands on**, for each memory:
//!
//! - A daemon grants strictly higher fences only, and tells none of lower ones. After its restart it may have forgotten
//!   what it granted; then no writer is left either.
//! - Of a WRITE of an older writer nothing is seen after a grant that was not seen before it.
//! - Words of 8 bytes are never torn. A WRITE of several may be, in any order, if its writer dies.
//! - Memory that lost its bytes has another number.
//!
//! The rules, and why they hold: docs/inside/agree.md.
//!
//! Owns the rules of the log, of terms and of members. It must never count an entry as committed that a majority of
//! memories does not hold. May use nothing of the house. Order of calls: after each input of a [`Replica`] its
//! actions are taken until there is none, and carried out in that order.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod action;
mod confirm;
mod context;
mod describe;
mod detector;
mod entry;
mod error;
mod glance;
mod held;
mod journal;
mod kept;
mod layout;
mod learner;
mod lease;
mod log;
mod look;
mod machine;
mod members;
mod memory;
mod pace;
mod reign;
mod replica;
mod scan;
mod scribe;
mod settings;
mod term;
mod words;

pub use action::{Action, Answer, Event, Role};
pub use error::{BadJournal, BadSnapshot, OutOfRange, Refused};
pub use glance::{Beat, Glance, Glanced, Sight};
pub use journal::{Journal, Title};
pub use kept::Kept;
pub use layout::{LINE_BYTES, Layout, OWNER_AT};
pub use machine::{CLIENTS_MAX, Machine};
pub use members::{MEMBERS_MAX, Member, Members};
pub use replica::Replica;
pub use scribe::{Ask, Scribe};
pub use settings::Settings;
pub use term::Term;
