//! The structures over real daemons.

mod budgets;
mod by_kernel;
mod faults;
mod hosts;
