//! The vocabulary of RDMA verbs, and the traits that devices implement: [`Device`], which opens contexts, and
//! [`Provider`], an open context.
//!
//! Names are those of the InfiniBand Architecture specification (IBTA) where it has one. The crate has no behaviour of
//! its own: a provider (the software NIC, rdma-core) implements it. Objects are small `Copy` identifiers, never
//! pointers, so that a provider can be simulated, restarted and put behind a process boundary.
//!
//! Registered memory is addressed from zero unless [`MrInit::iova`] says otherwise: the `addr` of an [`Sge`] or a
//! [`RemoteAddr`] is then an offset into what was registered. An owner that restarts changes keys, never addresses.
//!
//! It must never have a behaviour of its own, or name a device. May use `shm`. Order of calls: that of the IBTA: a
//! context, its memory and queues, then queue pairs; what is used is destroyed last.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
// A length or an index that does not fit is a bug that bytes from elsewhere look for.
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod attr;
mod device;
mod encrypt;
mod endpoint;
mod error;
mod grh;
mod ids;
mod provider;
mod roce_endpoint;
mod time;
mod transport;
mod wire;
mod work;

pub use attr::*;
pub use device::Device;
pub use encrypt::Encrypt;
pub use endpoint::*;
pub use error::*;
pub use grh::*;
pub use ids::*;
pub use provider::*;
pub use roce_endpoint::{RoceEndpoint, RocePort};
pub use shm::{AtomicOp, Region};
pub use time::Time;
pub use transport::Verb;
pub use wire::{Wire, WirePolicy};
pub use work::*;
