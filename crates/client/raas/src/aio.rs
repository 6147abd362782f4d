//! Streams and listeners for tokio (cargo feature `tokio`).
//!
//! [`Stream`] is tokio's [`AsyncRead`](tokio::io::AsyncRead) and [`AsyncWrite`](tokio::io::AsyncWrite), so that hyper,
//! tonic and the like run on it; [`Incoming`] is the stream of connections that servers take; [`MessageStream`] keeps
//! boundaries. Tasks are woken by the session's watcher thread, or one for kernel TCP (docs/use/client.md); no runtime is
//! bound to a stream, which may move from one to another.
//!
//! It must never block a task, except for the daemon's locks, which are held only briefly.
//!
//! ```no_run
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn example() -> std::io::Result<()> {
//! let listener = raas::aio::Listener::bind("0.0.0.0:7000").await?;
//! tokio::spawn(async move {
//!     loop {
//!         let (mut stream, _peer) = listener.accept().await?;
//!         tokio::spawn(async move {
//!             let (mut reader, mut writer) = tokio::io::split(&mut stream);
//!             tokio::io::copy(&mut reader, &mut writer).await
//!         });
//!     }
//! #   #[allow(unreachable_code)]
//! #   std::io::Result::Ok(())
//! });
//! let mut stream = raas::aio::Stream::connect("10.0.0.2:7000").await?;
//! stream.write_all(b"hello").await?;
//! stream.shutdown().await?;
//! let mut answer = String::new();
//! stream.read_to_string(&mut answer).await?;
//! # Ok(())
//! # }
//! ```

mod datagram;
mod dialing;
mod halves;
mod listener;
mod message;
mod stream;

pub use self::datagram::DatagramSocket;
pub use self::halves::{OwnedReadHalf, OwnedWriteHalf};
pub use self::listener::{Incoming, Listener};
pub use self::message::{MessageListener, MessageStream};
pub use self::stream::Stream;
