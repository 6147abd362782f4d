//! A model of remote memory that plays every order of steps from a seed, and on it the structures of `rmem`, groups of
//! `agree`, and pools of `tensor`.
//!
//! The code that is judged is the code that ships: the structures are written against `rmem::Memory`, and [`Remote`]
//! is that trait. Each operation of it is in flight until the scheduler carries out its steps, one at a time: reads and
//! writes of several words in parts, in any order that the trait allows. Between two steps anything may happen: other
//! clients go on, an operation is delayed for several leases, a client ends for good, a node dies. [`History`] has what
//! the clients saw, for `histories` to judge.
//!
//! A node's daemon may also grant the writer's place to one program, fence it for the next, end, and be back with its
//! bytes or without: so [`GroupPlan`] plays [`agree::Replica`], whose actions are flights as well.
//!
//! It must never depend on anything but the seed.
//!
//! Owns the model, its scheduler and its histories. May use `agree`, `histories`, `kernels`, `raas`, `rmem`, `shm`,
//! `tensor`. Order of calls: a plan, a run, a judgement.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod flight;
mod group;
mod history;
mod keeper;
mod remote;
mod scenario;
mod search;
mod tensors;
mod world;

pub use group::{GroupPlan, GroupStory};
pub use history::{Asked, Calls, History, WordAct};
pub use remote::Remote;
pub use scenario::{Kind, Scenario, Story, shrink};
pub use tensors::{TensorPlan, TensorStory};
pub use world::{Ended, Faults, World};
