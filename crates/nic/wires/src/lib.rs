//! What a software NIC decides about the wire of a queue pair, without I/O.
//!
//! Owns endpoints that list wires, the rule by which two ends choose one ([`choose`]), when one is avoided
//! ([`Unreached`]), the records of encrypted streams ([`Sealed`]), how far their keys are used ([`KeyUse`]), and the keys
//! of sealed packets ([`Secrets`]). It must never take a wire or a key that the other end does not take too. `softnic`
//! stands on it, and the simulator's hosts.
//!
//! May use `iwarp`, `records`, `rnic`, `roce`, `verbs`. Order of calls: [`choose`] before a queue pair is connected;
//! what came of a connection is told to [`Unreached`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod endpoint;
mod key_use;
mod sealed;
mod sealing;
mod unreached;

pub use endpoint::*;
pub use key_use::{KeyUse, Telling};
pub use sealed::{Opened, SealFault, Sealed};
pub use sealing::{Secrets, accept_datagrams, accept_roce};
pub use unreached::Unreached;
