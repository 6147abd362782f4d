//! A `libibverbs.so.1` on the software NIC: programs that use verbs run, as they are, on a machine without RDMA hardware.
//!
//! The program gets the library by `raas verbs`, or by `LD_PRELOAD` and `LD_LIBRARY_PATH`. It finds one device, `soft0`,
//! whose GIDs are the addresses of the host, and speaks RoCEv2 with other software NICs, kernel rxe and hardware. The names
//! that are exported, and their versions, are those of rdma-core (nodes.map). A call that is not implemented answers
//! EOPNOTSUPP, or as its man page says, and never crashes.
//!
//! Owns the C interface: structures ([`rdmacore::abi`] has those that both sides of it share), errno, numbers of events and
//! attributes. It must never take a rule of a protocol into its own hands. May use `rdmacore`, `softnic`, `verbs`. Order of
//! calls: that of the program, from any thread. All `unsafe` of the crate is at pointers of the program, which the man
//! pages ask to be valid.
#![deny(missing_docs)]
// The functions are those of the C header, whose man pages say what they ask for.
#![allow(clippy::missing_safety_doc, unreachable_pub, missing_docs)]

mod address_handle;
mod asynchronous;
mod completion;
mod context;
mod device;
mod errors;
mod events;
mod from_kernel;
mod memory;
mod modify;
mod names;
mod place;
mod post;
mod process;
mod queue_pair;
mod refused;
mod shared_receive;
