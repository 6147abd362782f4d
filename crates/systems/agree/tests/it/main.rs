//! The core with a driver of a few lines, whose memories answer at once: what each operation costs, and what is refused.

mod budgets;
mod memories;
mod refusals;
mod rules;
mod scribbled;
mod synced;
