//! A link between two hosts as a model: what happens to each packet, and when. And the caches of a hardware NIC
//! ([`rnic`]).
//!
//! The simulator and the benches' relay use the same model, so that what one shows can be looked for with the other. It
//! has no I/O: time is an argument, chance comes from a seed, and packets are numbers of bytes.
//!
//! ```
//! use std::time::Duration;
//! use netmodel::{Fate, Link, LinkShape, QueueShape};
//! use verbs::Time;
//!
//! // 12 Mbit/s carry 1,500 bytes in a millisecond.
//! let queue = QueueShape { rate_bits_per_s: 12_000_000, packets_max: 1, ..QueueShape::default() };
//! let mut link = Link::new(LinkShape { queue, delay: Duration::from_millis(10), ..LinkShape::default() });
//! assert_eq!(link.offer(Time::ZERO, 1500), Fate::Arrives { at: Time(11_000_000), mark: false });
//! assert_eq!(link.offer(Time::ZERO, 1500), Fate::Full);
//! ```
//!
//! Owns what becomes of a packet. It must never have a packet's bytes, or a clock. May use `verbs`. Order of calls:
//! packets are offered in the order of time.
#![forbid(unsafe_code)]

mod bottleneck;
mod link;
pub mod rnic;
mod schedule;

pub use bottleneck::{Bottleneck, Passage, QueueShape};
pub use link::{Counts, Fate, Link, LinkShape};
pub use schedule::Schedule;
