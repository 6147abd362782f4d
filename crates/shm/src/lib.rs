//! Memory shared with a peer that may be hostile. Byte tables: docs/shm-layout.md.
#![deny(missing_docs)]
#![allow(clippy::todo, missing_debug_implementations)] // skeleton

mod region;
mod segment;
mod ring;
mod doorbell;
mod layout;
mod wake;
pub use region::*;
pub use segment::*;
pub use ring::*;
pub use doorbell::*;
pub use layout::*;
pub use wake::*;
