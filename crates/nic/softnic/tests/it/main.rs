//! The software NIC behind the verbs interface, over loopback sockets and in virtual time.

mod conformance;
mod conformance_fabric;
mod contexts;
mod datagrams;
mod encrypted;
mod program_memory;
mod progress;
mod rig;
mod sealed;
mod standby;
mod tcp_wire;
mod unreliable;
mod verbs_over_sockets;
mod wire;
