//! A model of remote memory that plays every order of steps from a seed, and the structures of `rmem` on it.
//!
//! The code that is judged is the code that ships: the structures are written against `rmem::Memory`, and [`Remote`]
//! is that trait. Each operation of it is in flight until the scheduler carries out its steps, one at a time: reads and
//! writes of several words in parts, in any order that the trait allows. Between two steps anything may happen: other
//! clients go on, an operation is delayed for several leases, a client ends for good, a node dies. [`History`] has what
//! the clients saw, for `histories` to judge.
//!
//! It must never depend on anything but the seed.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod flight;
mod history;
mod remote;
mod scenario;
mod search;
mod world;

pub use history::{Asked, History};
pub use remote::Remote;
pub use scenario::{Kind, Scenario, Story, shrink};
pub use world::{Ended, Faults, World};
