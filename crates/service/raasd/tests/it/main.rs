//! Whole daemons in this process, on loopback addresses of their own, with applications, strangers and liars.

#![allow(clippy::disallowed_types)] // tests may use atomics
mod by_reference;
mod control_socket;
mod datagrams;
mod direct;
mod encryption;
mod engines;
mod false_peer;
mod far_regions;
mod frames;
mod hosts;
mod kernels;
mod kernels_here;
mod keys;
mod lane_resets;
mod leased_lanes;
mod liars;
mod life;
mod link_end;
mod links;
mod messages;
mod middle;
mod path_attacker;
mod peer_port;
mod policy;
mod region_batches;
mod region_locals;
mod regions;
mod restarts;
mod returns;
mod returns_far;
mod same_host;
mod several_users;
mod two_hosts;
mod verbs_asked;
mod wires;
