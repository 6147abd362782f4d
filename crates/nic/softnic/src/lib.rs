//! Provider 1: a software RNIC. RoCEv2 ([`roce`]) over plain unprivileged UDP sockets, with segmentation offload on
//! both sides where the kernel has it, and iWARP ([`iwarp`]) over TCP sockets; on any Linux machine, with no RDMA
//! hardware, kernel module or root.
//!
//! ```no_run
//! use softnic::{SoftNic, SoftNicConfig};
//! # fn main() -> Result<(), softnic::OpenError> {
//! let nic = SoftNic::open(SoftNicConfig::new("192.0.2.1".parse().expect("an address")))?;
//! # drop(nic); Ok(())
//! # }
//! ```
//!
//! For unit tests of RDMA code there is [`Fabric`]: hosts in one process, in virtual time, with faults from a seed.
//!
//! Counters beyond those of [`roce::NicCounters`]: `rx_socket_overflow` (datagrams that the kernel dropped at the
//! socket, mostly because its buffer was full), `rx_socket_errors`, `tx_socket_errors` (sends that the kernel refused,
//! which count as lost), `rx_syscalls`, `tx_syscalls`, `tx_would_block`, `gso_batches`, `gro_batches` (sends and
//! receives of several packets at once), `gso_batches_resigned` (batches that the kernel could not segment, sent packet
//! by packet), `udp_port_open` (1: other users of this host can send from the port at another address, and so in the
//! name of this NIC; always on loopback), `pcap_packets` and `pcap_left_out` (with a capture).
//!
//! Owns sockets, their options, progress and the thread that helps with it. It must never take a rule of a protocol
//! into its own hands: those are of `roce`, `iwarp` and `wires`. May use `iwarp`, `records`, `rnic`, `roce`, `shm`,
//! `verbs`, `wires`. Order of calls: as `verbs` says; who waits asks for notifications and looks once more before it
//! sleeps.
#![deny(missing_docs)]

mod background;
mod budget;
mod clock;
mod config;
mod device;
mod error;
mod fabric;
mod guard;
mod link;
mod pcap;
mod port;
mod provider;
pub mod share;
mod shared;
mod socket;
mod sys;
mod tcp;

pub use config::{Gso, KernelTls, Listener, PCAP_BYTES_DEFAULT, Progress, RCVBUF_BYTES_DEFAULT, SoftNicConfig};
pub use device::SoftNicDevice;
pub use error::OpenError;
pub use fabric::{Fabric, FabricCounters, FabricError, FabricHost, Faults, HostConfig};
pub use link::{host_addresses, link_mtu_bytes};
pub use provider::SoftNic;
pub use records::RecordLimit;
pub use share::Share;
pub use socket::udp_batches;
pub use tcp::congestion::begin_unpaced;
pub use tcp::crowd::Crowds;
pub use tcp::socket::prepare_stream;
