//! Control messages: between an application and its daemon (Unix socket), and between daemons (TCP).
//!
//! Both are postcard frames with a version in the first message of each side, a length limit, and types that say
//! what may happen. Nothing here is on the data path. A message from the other side is parsed into these types or
//! refused; its numbers are still only claims, checked where they are used.
//!
//! Owns the messages, their versions and lengths, reasons, and what else both sides of either socket must agree on.
//! It must never trust a number of the other side, or wait. May use nothing of the house. Order of calls: the first
//! message of each side has its version; afterwards whole messages, one at a time ([`encode`], [`decode`],
//! [`send_message`]).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod app;
mod debug_words;
mod frame;
mod inspect;
mod meet;
mod peer;
mod place;
mod reason;
mod region;
mod reply;
mod served;
mod successor;
mod ticket;
mod unix;
mod user_share;
mod words;

pub use app::*;
pub use frame::*;
pub use inspect::*;
pub use meet::*;
pub use peer::*;
pub use place::*;
pub use reason::*;
pub use region::*;
pub use reply::*;
pub use served::{is_served, served_sockets};
pub use successor::*;
pub use ticket::*;
pub use unix::*;
pub use user_share::UserShare;
pub use words::{foreign, is_plain, plain};

/// Version of the application protocol of this build.
pub const APP_VERSION: u32 = 9;
/// Version of the protocol between daemons (control link and frames on the lane) of this build.
pub const WIRE_VERSION: u32 = 11;
/// First port of those that nobody chose: of connects, and of listens and binds on port 0. The last one is 65,535.
pub const EPHEMERAL_PORT_FIRST: u16 = 32_768;
