//! Provider 2: RDMA devices through rdma-core's libibverbs.
//!
//! The library is loaded when a device is opened, so the program that contains this crate builds and starts on machines
//! without rdma-core and can say that it is missing. The few structures of its C interface that are needed are declared
//! in `abi`, which crate `ibverbs` shares: it is the other side of the same interface. All `unsafe` of the crate is calls through that
//! interface.
//!
//! Owns the calls of libibverbs and what they return. It must never need rdma-core to be built or to start, or hand a
//! structure of its to another crate but those of `abi`. May use `verbs`. Order of calls: [`verbs::Device::open`] first; then as `verbs`
//! says.
#![deny(missing_docs)]

#[doc(hidden)]
pub mod abi;
mod convert;
mod device;
mod library;
mod open;
mod post;
mod provider;

pub use device::{Choice, DeviceInfo, GidInfo, GidType, PortInfo, SelectError, choose, list_devices, list_devices_at};
pub use library::{LoadError, library_present};
pub use open::OpenError;
pub use provider::{OpenConfig, RdmaCore, RdmaDevice};
