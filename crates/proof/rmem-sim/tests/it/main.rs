//! The structures on the model, and over real daemons beside it.

mod daemons;
mod stories;
