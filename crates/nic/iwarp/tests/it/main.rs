//! Queue pairs of the software iWARP NIC, without sockets: two that talk to each other, and one against raw bytes.

mod closing;
mod hostile;
mod operations;
mod pair;
mod raw;
mod siw_frames;
mod startup;
mod streams;
