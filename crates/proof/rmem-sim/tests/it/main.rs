//! The structures on the model, and over real daemons beside it; groups of `agree` on the model.

mod daemons;
mod groups;
mod second;
mod stories;
mod tensors;
