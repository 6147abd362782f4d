//! The simulator: whole hosts in virtual time, from one seed, with checkers apart from the world.
//!
//! A host is the real `roce::Nic`, the real `iwarp::Qp` where a lane is on TCP, the real `engine::Engine` and the real control plane (`plane`); network, TCP and
//! applications are simulated. A seed draws a [`Plan`]: which faults are on and how strong, what applications do. A run
//! is a function of its plan alone, so a seed that broke a promise breaks it again. docs/proof/testing.md tells how to use
//! it.
//!
//! Owns the world, the plans and the checkers. It must never depend on anything but the plan, or let a checker ask
//! the world how it did something. May use `control`, `dispatch`, `engine`, `histories`, `iwarp`, `netmodel`,
//! `plane`, `raas-core`, `records`, `roce`, `shm`, `verbs`, `wires`. Order of calls: [`Plan`], then a run, which says
//! what was broken.
#![forbid(unsafe_code)]

mod address;
mod app;
mod check;
mod conn;
mod content;
mod crowd;
mod direct;
mod host;
pub mod incast;
mod links;
mod network;
pub mod plan;
mod regions;
mod run;
mod socket;
mod streams;
mod swarm;
mod tap;
mod tcp;
mod trace;
mod user;
mod wire;
mod world;
mod writers;

pub use address::address;
pub use app::Answers;
pub use check::{Checks, Datagrams, RecordId, Side, Violation};
pub use plan::Plan;
pub use run::{Outcome, run_crowd, run_plan, run_seed, trace_crowd, trace_seed};
pub use tap::Tap;
pub use trace::Trace;
pub use world::World;
