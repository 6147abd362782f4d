//! The crate on daemons of its own: each transport, on one host and between two.

mod auto;
mod budgets;
mod calls;
mod hosts;
mod once;
mod turns;
