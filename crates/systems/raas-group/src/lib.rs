//! Replicated state machines: a [`Group`] of hosts that all have the same state, and lose nothing that was committed as
//! long as a majority of their memories is there.
//!
//! Each member is a program with a daemon, whose region is the member's memory. Whoever leads writes the log into all of
//! them by one-sided WRITEs; no program of another member takes part in a commit. The rules are those of crate `agree`,
//! which this crate gives regions, threads and a clock.
//!
//! ```no_run
//! use agree::{BadSnapshot, Machine};
//! use raas::{RegionKey, Session};
//! use raas_group::GroupBuilder;
//!
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! impl Machine for Counter {
//!     fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
//!         self.0 += command.len() as u64;
//!         self.0.to_le_bytes().to_vec()
//!     }
//!     fn save(&self, into: &mut Vec<u8>) {
//!         into.extend_from_slice(&self.0.to_le_bytes());
//!     }
//!     fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
//!         self.0 = u64::from_le_bytes(bytes.try_into().map_err(|_| BadSnapshot)?);
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let session = Session::global()?;
//!     let hosts = [(1, "10.0.0.1".parse()?), (2, "10.0.0.2".parse()?), (3, "10.0.0.3".parse()?)];
//!     // The same in all three programs, but for whose host it is.
//!     let key: RegionKey = "00112233445566778899aabbccddeeff".parse()?;
//!     let group = GroupBuilder::new("orders", key).members(&hosts).me(1).open(&session, Counter::default())?;
//!     let committed = group.propose(b"four")?;
//!     println!("entry {} is in a majority's memory: {:?}", committed.index, committed.reply);
//!     println!("{}", group.read(|counter| counter.0)?);
//!     Ok(())
//! }
//! ```
//!
//! **Committed means: in the memory of a majority.** It does not survive power that fails at a majority of hosts. With
//! [`GroupBuilder::synced`] it means: and synced to files there, and survives that. Each answer [says](Committed::class) which.
//!
//! Owns the threads, regions and clocks of a group. It must never answer a read from a state that another leader may
//! have changed. May use `agree`, `raas`. Order of calls: [`GroupBuilder::open`] at each member, in any order; then
//! [`Group::propose`] and [`Group::read`] at any.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod builder;
mod class;
mod committed;
mod directory;
mod drive;
mod driver;
mod durable;
mod error;
mod founding;
mod group;
mod memories;
mod number;
mod proposal;
mod sign;
mod status;
mod wish;
mod worker;
mod writers;

pub use agree::{BadSnapshot, Machine, Members, Refused, Role, Term};
pub use builder::GroupBuilder;
pub use class::Class;
pub use committed::Committed;
pub use error::GroupError;
pub use group::Group;
pub use proposal::{Pending, Proposal};
pub use status::{MemberRole, MemberStatus, Status, status};
