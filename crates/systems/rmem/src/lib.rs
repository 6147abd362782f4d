//! Data structures and locks in the memory of several hosts, over regions of `raas`.
//!
//! A [`Pool`] is a list of regions, each of some host. A [`Client`] is one user of it. Structures ([`ListSet`], [`Map`],
//! [`Queue`], [`Counter`], registers, locks) lie in the pool's memory, and any client reaches them by a pointer of 64 bits
//! or by a name. All operations are one-sided: no program of the host where the memory lies takes part.
//!
//! Every operation is a future. A thread calls [`Wait::wait`] on it, a task awaits it.
//!
//! ```no_run
//! use raas::{RegionOptions, Session};
//! use rmem::{Client, Local, Map, Pool, Wait};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let session = Session::global()?;
//!     // Memory of this host, as the pool's only node. Others open it by host, name and key.
//!     let region = RegionOptions::new().create(&session, "pool", 64 << 20)?;
//!     let pool = Pool::new(vec![region])?;
//!     rmem::format(&pool, 0, rmem::LEASE).wait()?;
//!     let mut client = Client::join(pool).wait()?;
//!     let map = Map::create(&mut client, 1024, Local).wait()?;
//!     client.set_root("prices", map.ptr()).wait()?.ok();
//!     map.put(&mut client, 7, b"seven").wait()?;
//!     assert_eq!(map.get(&mut client, 7).wait()?.as_deref(), Some(b"seven".as_slice()));
//!     Ok(())
//! }
//! ```
//!
//! What it is for, when not to use it, what each operation costs and what happens when clients and hosts die:
//! docs/use/structures.md.
//!
//! Owns the pool's memory, its allocation and the structures in it. It must never need a program at the host of the
//! memory. May use `raas`. Order of calls: `format` once for a pool, [`Client::join`] for each user, then structures.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod alock;
mod barrier;
mod cache;
mod client;
mod counter;
mod error;
mod format;
mod heap;
mod layout;
mod lease_lock;
mod list;
mod map;
mod max_register;
mod member;
mod memory;
mod object;
mod place;
mod pool;
mod ptr;
mod queue;
mod register;
mod roots;
mod seek;
mod set;
mod wait;

pub use alock::{ALock, ALockGuard, ALockSeat, BUDGET};
pub use barrier::{Barrier, PARTIES_MAX};
pub use client::{ATTEMPTS_MAX, Client, LIMBO_MAX, Stats};
pub use counter::Counter;
pub use error::Error;
pub use format::{HEADER_BYTES, LEASE, MEMBERS_MAX, ROOTS_MAX, format};
pub use heap::IN_HAND_MAX;
pub use layout::{ALIGN_MAX, BLOCK_BYTES_MAX, LINE_BYTES, Layout};
pub use lease_lock::{LeaseGuard, LeaseLock};
pub use map::{BUCKETS_MAX, Map, VALUE_BYTES_MAX};
pub use max_register::MaxRegister;
pub use memory::{Atomic, Chain, Found, Memory, Step};
pub use object::{Object, Word};
pub use place::{ByKey, Choice, Local, On, Placement, RoundRobin};
pub use pool::{Pool, Submitted};
pub use ptr::{Address, EPOCH_BITS, NODE_BYTES_MAX, NODES_MAX, Ptr, TAG_BITS};
pub use queue::Queue;
pub use register::{REGISTER_BYTES_MAX, Register, RegisterWriter, WRITERS_MAX};
pub use set::ListSet;
pub use wait::Wait;
