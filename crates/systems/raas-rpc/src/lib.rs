//! Remote procedure calls over RaaS: one interface, several transports of requests.
//!
//! A [`Service`] makes response bytes of request bytes; a codec stands on it. A [`Client`] calls it with a deadline, with
//! several calls under way, from any number of threads and tasks. Each call is executed **at most once**, whatever is
//! repeated, lost or connected anew meanwhile. How requests travel is chosen by name ([`Transport`]); docs/use/rpc.md says
//! what each costs, and when not to use this crate.
//!
//! ```no_run
//! use raas_rpc::{CallInfo, Client, Server, Transport};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The server:
//! let upper = |_: &CallInfo, request: &[u8]| Ok::<_, String>(request.to_ascii_uppercase());
//! let server = Server::serve("0.0.0.0:7100", upper)?;
//! // A client, on any host:
//! let client = Client::builder().transport(Transport::Herd).connect("10.0.0.2:7100")?;
//! assert_eq!(client.call(b"hello")?, b"HELLO");
//! # Ok(())
//! # }
//! ```
//!
//! Tasks of any runtime call by [`Client::call_async`], or through tower: a `Client` is a `tower_service::Service`.
//!
//! Owns transports, retries and what makes a call happen once. It must never execute a call twice. May use `raas`.
//! Order of calls: [`Server::serve`], then clients; calls of one client in any order and number.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod choice;
mod client;
mod error;
mod frame;
mod hello;
mod layout;
mod once;
mod rule;
mod server;
mod service;

pub use choice::{Choice, Reason};
pub use client::{Call, CallFuture, Client, ClientBuilder, ClientCounters};
pub use error::{CallError, OpenError, ServeError};
pub use hello::{ClientId, Refusal, Transport};
pub use once::WINDOW_MAX;
pub use server::{Server, ServerBuilder, ServerCounters};
pub use service::{CallInfo, Service};
