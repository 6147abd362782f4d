//! One suite of verbs semantics, the same bodies for every provider.
//!
//! A [`Rig`] is two devices that can reach each other, in virtual time or on a real network. Each case of [`CASES`]
//! gets a fresh one, connects queue pairs on it and checks what the specification says; it returns a [`Failure`] that
//! says what was seen instead. If a provider is known to differ, [`Rig::differences`] names the case and the reason.
//! Such a case must *fail*, so that the table cannot outlive the difference, unless the entry says that a race decides.
//!
//! Owns the cases, and what each must show. It must never know a provider. May use `verbs`. Order of calls: a [`Rig`]
//! for each case.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod cases;
mod datagrams;
mod iwarp;
mod outcome;
mod pair;
mod rig;
mod run;

pub use cases::CASES;
pub use iwarp::{BY_ENDPOINTS, ON_IWARP};
pub use outcome::{Failure, Outcome};
pub use pair::{End, Options, Pair, Step, all_access, pattern};
pub use rig::{Difference, Rig, Side};
pub use run::{Case, Report, Verdict, run_all, run_case};
