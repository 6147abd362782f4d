//! Whole daemons in this process, on loopback addresses of their own, with applications, strangers and liars.

#![allow(clippy::disallowed_types)] // tests may use atomics
mod control_socket;
mod datagrams;
mod direct;
mod engines;
mod false_peer;
mod far_regions;
mod hosts;
mod lane_resets;
mod liars;
mod life;
mod links;
mod messages;
mod middle;
mod peer_port;
mod regions;
mod restarts;
mod same_host;
mod several_users;
mod two_hosts;
mod wires;
