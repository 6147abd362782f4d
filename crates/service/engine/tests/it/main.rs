//! Engines on simulated NICs, joined by a simulated network, with simulated applications; virtual time, one seed.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, clippy::disallowed_macros)] // a test may print
mod apps;
mod close;
mod credits;
mod datagrams;
mod devices;
mod evil;
mod faults;
mod growth;
mod hostile;
mod lane_rest;
mod lanes;
mod late;
mod leased;
mod links;
mod many;
mod messages;
mod numbered;
mod operations;
mod redial;
mod resets;
mod rest;
mod returns;
mod shares;
mod soak;
mod sockets;
mod stalls;
mod stream;
mod tenants;
mod verbs_asked;
mod world;
mod writer;
