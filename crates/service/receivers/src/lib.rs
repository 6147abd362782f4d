//! Taking descriptors from strangers.
//!
//! A descriptor that a program sends may be a file of its own FUSE mount or a socket that lingers. Then `fstat`, `close`
//! and even the end of a process that has it wait for the program, for ever if it likes, and no signal ends that. So no
//! thread of the daemon may have such a descriptor. It looks at a message without taking its descriptors
//! (`control::receive_bare`); one that has some is taken by a *receiver*, a process that serves the programs of one user
//! and may be lost. A receiver asks each descriptor what it is by questions that the kernel answers itself (seals, kind of
//! socket), passes memory on, says the addresses of a TCP connection, and closes everything else.
//!
//! Receivers are made by the *spawner*, a process that the daemon makes while it may still make processes. Both end when
//! the daemon does, however it does.
//!
//! A receiver also has a second descriptor of the control socket of each program that it serves, so that it, and not the
//! daemon, closes the last one: that closes what lies unread in it.
//!
//! Owns the two kinds of processes and what is said to them. It must never let a descriptor of a program reach the
//! daemon before it is known to be a memfd.
//!
//! May use nothing of the house. Order of calls: the spawner is made before the daemon gives up the right to make
//! processes; then it makes a receiver for each user.
#![deny(missing_docs)]

mod options;
mod orders;
mod process;
mod receiver;
mod spawner;
mod words;

pub use options::{allow_descriptors, network_namespace, peer_groups, peer_process, refuse_descriptors};
pub use receiver::{PLACES_MAX, Receiver};
pub use spawner::{RECEIVERS_MAX, Spawner};
pub use words::{Kind, SocketEnds, Taken, Verdict};
