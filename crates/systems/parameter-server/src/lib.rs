//! An example: a parameter server in the manner of ps-lite, and a training with it. One program runs over kernel TCP
//! (and so under `raas run` too) and over crate `raas`.
//!
//! Servers hold numbers under the keys 0, 1, 2, ..., each server an equal range of them. Workers *push* pairs of key
//! and value, which the servers add to what they hold, and *pull* the values of keys. Both take many pairs at a time,
//! with keys in ascending order.
//!
//! ```text
//! worker                                            server
//!   | push: keys, values  --------------- message --->|  adds, publishes
//!   |<------------------------------------- done -----|
//!   | pull: keys          --------------- message --->|
//!   |<------------------------------------ values ----|
//! ```
//!
//! **Over TCP** a message is its length and its bytes, in one write. **Over RaaS** it is a message of a
//! [`raas::MessageStream`]. There the server also publishes its values in a region, and a worker that pulls READs them
//! from there: on one host that is a copy out of shared memory, between hosts a verb, and the server does nothing for
//! it. A push that was answered is in the region, so whoever pulls afterwards sees it.
//!
//! | module | owns |
//! |---|---|
//! | [`wire`] | bytes of requests and replies; pure |
//! | `link` | one connection, over either carrier |
//! | `values` | what a server holds, and its copy in the region |
//! | `server` | listening, one thread for each connection |
//! | `worker` | which key is whose, push and pull |
//! | `exchange` | the load of Figures 15 and 16 of the paper: pairs there and back, sums checked |
//! | `digits`, `training` | the load of Figure 17: images of digits, and softmax regression on them |
//!
//! What can fail: a server that ends is an error of the worker's next call, and what it held is gone. A request with a
//! key that the server does not hold, or with bytes that are no request, is refused as a whole and changes nothing.
//!
//! It must never change anything for a request that is refused. May use `raas`. Order of calls: servers first, then
//! workers: push and pull in any order.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod digits;
mod error;
mod exchange;
mod link;
mod server;
mod training;
mod values;
pub mod wire;
mod worker;

pub use digits::{CLASSES, Digits, PIXELS};
pub use error::{DigitsError, ServeError, WorkError};
pub use exchange::{Exchange, exchange};
pub use link::Over;
pub use server::Server;
pub use training::{PARAMETERS, Trained, Training, train};
pub use worker::Worker;
