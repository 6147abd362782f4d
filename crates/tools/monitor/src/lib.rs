//! What tools that look at a daemon share: samples of its state, what happened between two of them, the same for
//! Prometheus, and the page of `raas web`. It asks as any other inspector does, through the control socket, so it can
//! neither change a daemon nor get in the way of its engines.
//!
//! Owns samples, differences between two, and how they are shown. It must never change a daemon. May use `control`,
//! `raas`. Order of calls: two samples, then what happened between them.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod exposition;
mod page;
mod rates;
mod sample;
mod server;
mod tenants;

pub use exposition::{CONTENT_TYPE, LANES_MAX};
pub use page::{PageError, Web};
pub use rates::{Flow, Rates};
pub use sample::Sample;
pub use server::{Metrics, serve_metrics};
pub use tenants::{TENANTS_MAX, Tenants};
