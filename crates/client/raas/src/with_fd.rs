//! A stream, listener or socket together with its descriptor.
//!
//! Owns the promise that the descriptor is there. It must never make one unless a program asked for it: most streams
//! have none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::connecting::Connecting;
use crate::datagram::DatagramSocket;
use crate::listener::Listener;
use crate::message::MessageStream;
use crate::message_listener::MessageListener;
use crate::stream::Stream;

mod sealed {
    use std::io;
    use std::os::fd::BorrowedFd;

    pub trait Sealed {
        /// The descriptor, without making it readable; it was made before.
        fn made_fd(&self) -> io::Result<BorrowedFd<'_>>;
    }
}

/// What has a `ready_fd`. Only types of this crate can.
pub trait HasReadyFd: sealed::Sealed {
    /// The descriptor, made when it is first asked for; see [`Stream::ready_fd`].
    fn ready_fd(&self) -> io::Result<BorrowedFd<'_>>;
}

/// A stream, listener or socket together with the descriptor of its `ready_fd`, for event loops that want [`AsFd`] or
/// [`AsRawFd`].
///
/// The types themselves are not `AsFd`: their bytes travel through memory, so most have no descriptor, and the one that
/// they make on request is for **polling alone**. It turns readable when the readiness has changed, and `readiness()`
/// makes it unreadable again; reading, writing and socket options do nothing useful on it.
///
/// ```no_run
/// use rustix::event::{PollFd, PollFlags, poll};
///
/// # fn main() -> Result<(), raas::Error> {
/// let stream = raas::WithFd::new(raas::Stream::connect("10.0.0.2:7000")?)?;
/// poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).map_err(std::io::Error::from)?;
/// if stream.get_ref().readiness()?.contains(raas::Readiness::READ) {
///     println!("{} bytes", stream.get_ref().unread_bytes()?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WithFd<T>(T);

impl<T: HasReadyFd> WithFd<T> {
    /// Makes the descriptor. The first one of a session starts the session's watcher thread.
    pub fn new(inner: T) -> io::Result<Self> {
        inner.ready_fd()?;
        Ok(Self(inner))
    }

    /// The value that the descriptor belongs to.
    pub fn get_ref(&self) -> &T {
        &self.0
    }

    /// The value that the descriptor belongs to, to be changed.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }

    /// Without the promise; the descriptor stays.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T: HasReadyFd> AsFd for WithFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.made_fd().expect("it was made by `new`, and lives as long as what it belongs to")
    }
}

impl<T: HasReadyFd> AsRawFd for WithFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

macro_rules! has_ready_fd {
    ($($name:ty),*) => { $(
        impl sealed::Sealed for $name {
            fn made_fd(&self) -> io::Result<BorrowedFd<'_>> {
                Self::made_fd(self)
            }
        }

        impl HasReadyFd for $name {
            fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
                Self::ready_fd(self)
            }
        }
    )* };
}
has_ready_fd!(Stream, Listener, MessageStream, MessageListener, DatagramSocket, Connecting);
