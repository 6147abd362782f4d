//! What fuzzers drive: every parser of bytes that strangers send, and the NIC as a whole against a model.
//!
//! A target is a plain function of bytes that panics when a promise is broken. Three things drive them: the replay of
//! the kept corpora (`tests/replay.rs`, part of the test command), a seeded mutator in the same test, and libFuzzer
//! (`fuzz/`). A target must be deterministic, and must read nothing except its argument.
//!
//! Owns the targets and the models. It must never excuse a promise that is broken. May use `control`, `engine`,
//! `iwarp`, `kernels`, `plane`, `raasd`, `records`, `rnic`, `roce`, `shm`, `verbs`. Order of calls: none: each target
//! is one call.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod handshake;
mod input;
mod iwarp_stream;
mod kernel;
mod model;
mod nic;
mod parsers;
mod sealed_packet;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, and that of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Takes any bytes; panics when a promise is broken.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "roce_packet", run: parsers::roce_packet },
    Target { name: "lane_frame", run: parsers::lane_frame },
    Target { name: "datagram", run: parsers::datagram },
    Target { name: "operation", run: parsers::operation },
    Target { name: "kernel", run: kernel::kernel },
    Target { name: "app_request", run: parsers::app_request },
    Target { name: "app_reply", run: parsers::app_reply },
    Target { name: "peer_message", run: parsers::peer_message },
    Target { name: "handshake", run: handshake::handshake },
    Target { name: "configuration", run: parsers::configuration },
    Target { name: "nic", run: nic::nic },
    Target { name: "nic_unreliable", run: nic::nic_unreliable },
    Target { name: "sealed_packet", run: sealed_packet::sealed_packet },
    Target { name: "mpa_startup", run: iwarp_stream::mpa_startup },
    Target { name: "iwarp_stream", run: iwarp_stream::iwarp_stream },
];

/// The target of that name; panics if there is none.
pub fn target(name: &str) -> fn(&[u8]) {
    TARGETS.iter().find(|t| t.name == name).map(|t| t.run).expect("a target of the list")
}
