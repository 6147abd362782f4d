//! Queue pairs of the software RoCEv2 NIC, without sockets: two that talk to each other, and one against a script.

mod congestion;
mod datagram;
mod datagrams;
mod distance;
mod forged;
mod hostile;
mod owed;
mod pair;
mod pair_batches;
mod pair_discard;
mod pair_duplicates;
mod pair_errors;
mod pair_not_ready;
mod pair_operations;
mod pair_owed;
mod pair_queues;
mod pair_storm;
mod rules;
mod script;
mod scripted;
mod sealed;
mod standby;
mod unreliable;
mod unreliable_any;
