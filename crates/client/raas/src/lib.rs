//! Sockets over RDMA as a Service: the client library.
//!
//! A program talks to the daemon of its host (`raas daemon`), which owns the RDMA device and shares it among all
//! programs. [`Listener`] and [`Stream`] are used like those of `std::net`; the bytes travel through rings in shared
//! memory: on one host straight from program to program, to other hosts through the two daemons and one queue pair
//! between them.
//!
//! A server that sends back what it gets:
//!
//! ```no_run
//! use std::io::{Read, Write};
//!
//! fn main() -> Result<(), raas::Error> {
//!     let listener = raas::Listener::bind("0.0.0.0:7000")?;
//!     for stream in listener.incoming() {
//!         let mut stream = stream?;
//!         std::thread::spawn(move || -> std::io::Result<()> {
//!             let mut buffer = vec![0; 64 * 1024];
//!             loop {
//!                 let count = stream.read(&mut buffer)?;
//!                 if count == 0 {
//!                     return Ok(());
//!                 }
//!                 stream.write_all(&buffer[..count])?;
//!             }
//!         });
//!     }
//!     Ok(())
//! }
//! ```
//!
//! And its client:
//!
//! ```no_run
//! use std::io::{Read, Write};
//! use std::net::Shutdown;
//!
//! fn main() -> Result<(), raas::Error> {
//!     let mut stream = raas::Stream::connect("10.0.0.2:7000")?;
//!     println!("connected over {:?}: {}", stream.path(), stream.reason());
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(Shutdown::Write)?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     assert_eq!(answer, "hello");
//!     Ok(())
//! }
//! ```
//!
//! What a read or write does at each end of a connection, what threads and `fork` may do, and what each error means:
//! docs/use/client.md.
//!
//! It must never be needed by a daemon, or reach one otherwise than through its socket and its memory. May use
//! `control`, `kernels`, `raas-core`, `shm`. Order of calls: a [`Session`], or the global one; then listeners,
//! streams, regions in any order; what is dropped is closed.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(not(test), warn(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap))]

mod addresses;
#[cfg(feature = "tokio")]
pub mod aio;
mod answer_wait;
mod any_error;
mod asking;
mod attachment;
mod bell;
mod bind;
mod calls;
mod carrier;
mod conn;
mod connecting;
mod control_socket;
mod datagram;
mod datagram_error;
mod datagram_making;
mod datagram_paths;
mod descriptor;
mod dial;
mod direct_tcp;
mod driver;
mod edge;
pub mod elsewhere;
mod error;
mod fallback;
mod fallback_tcp;
mod flags;
pub mod inspect;
mod kept;
mod leading;
mod lend;
mod listen_options;
mod listener;
mod listening;
mod loan;
mod lookup;
pub mod meeting;
mod message;
mod message_call;
mod message_error;
mod message_listener;
mod message_making;
mod naming;
mod park;
mod patience;
mod peer_timeout;
mod per_process;
mod poller;
mod port_request;
mod reactor;
mod region;
mod region_table;
mod returning;
mod ring_size;
mod session;
mod showing;
mod socket_watch;
mod stream;
mod successor;
mod tables;
#[cfg(feature = "tokio")]
mod task_patience;
mod tcp;
mod tcp_listener;
mod tcp_row;
mod watch;
mod watch_end;
mod with_fd;

pub use any_error::Error;
pub use connecting::Connecting;
#[doc(hidden)]
pub use control::debug_says_the_words;
pub use control::{NotAKey, NotAnAccess, PathKind, Reason, RegionAccess, RegionKey, RegionRefusal};
pub use datagram::DatagramSocket;
pub use datagram_error::DatagramError;
pub use datagram_making::DatagramOptions;
pub use dial::ConnectOptions;
pub use error::{AcceptError, BindError, ConnectError, SessionError, StreamError};
pub use fallback::{Fallback, FallbackCause, NotOverTcp};
pub use flags::{Flags, FlagsError, Transport, Verb};
/// Kernels: what can be run at a region by [`Region::call`], and why one has no answer (docs/use/kernels.md).
pub use kernels;
pub use lend::{Lent, View};
pub use listen_options::ListenOptions;
pub use listener::{Incoming, Listener};
pub use loan::{Loan, LoanMut};
pub use message::MessageStream;
pub use message_error::MessageError;
pub use message_listener::{IncomingMessages, MessageListener};
pub use naming::{LookupError, resolve};
pub use per_process::PerProcess;
pub use raas_core::{LOAN_BYTES_MAX, LOANS_MAX, MESSAGE_BYTES_MAX, Readiness};
pub use region::{
    Batch, Completion, Ended, Mapped, Notification, Pending, Quorum, QuorumError, Region, RegionError, RegionOptions,
    RegionSlice,
};
pub use session::{Session, SessionBuilder};
pub use stream::{ReadHalf, Stream, WriteHalf};
pub use with_fd::{HasReadyFd, WithFd};
