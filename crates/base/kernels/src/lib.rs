//! Programs that run where a region's bytes are (docs/use/kernels.md).
//!
//! Owns what kernels do, what they may touch, and how long they run. It has no I/O, thread or clock: whoever runs a
//! [`Job`] gives it the memory and a slice of fuel, and gets it back when the slice is spent. It must never touch a byte
//! outside of the memory that it was given, run longer than its fuel, or keep more memory than its limits say.
//!
//! May use `control`, `shm`. Order of calls: [`Job`]s are made, run slice by slice until one is done, and dropped.

mod builtin;
mod failure;
#[cfg(feature = "wasm")]
mod frames;
mod fuel;
mod job;
mod library;
mod limits;
mod program;
mod request;
#[cfg(feature = "wasm")]
mod user;
mod view;

pub use builtin::chain::{Chain, Found, Order, Pointer};
pub use builtin::consistent::Consistent;
pub use builtin::hyperloglog::{Distinct, PRECISION_MAX, PRECISION_MIN, estimate};
pub use builtin::shuffle::{Shuffle, Target};
pub use builtin::sorted::{Begin, Bits, Links, Sorted, Sought};
pub use builtin::tree::Tree;
pub use failure::Failure;
pub use fuel::Fuel;
pub use job::{Job, Progress};
pub use library::Library;
pub use limits::*;
pub use request::{BadRequest, Call, Request};
#[cfg(feature = "wasm")]
pub use user::{NotAKernel, UserKernel};
pub use view::View;
