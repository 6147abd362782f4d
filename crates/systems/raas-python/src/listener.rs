//! Ports on which connections are accepted.
//!
//! Owns the waiting of `accept`. The streams that it gives wait as long as it takes, whatever the listener does.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;
use raas::{Fallback, ListenOptions, Readiness};

use crate::address::{Pair, address, pair};
use crate::failure::OrRaise;
use crate::maybe_open::{Direction, MaybeOpen, SLICE, Waits, lock};
use crate::session::{Session, session_of};
use crate::stream::Stream;

/// A listener, and how long an accept of it waits at a time; none: it does not wait.
#[derive(Debug)]
pub(crate) struct Accepting<L> {
    pub(crate) listener: L,
    slice: Mutex<Option<Duration>>,
}

impl<L> Accepting<L> {
    pub(crate) fn new(listener: L) -> Self {
        Self { listener, slice: Mutex::new(Some(SLICE)) }
    }

    pub(crate) fn slice(&self) -> Option<Duration> {
        *lock(&self.slice)
    }

    fn set_slice(&self, slice: Option<Duration>) {
        *lock(&self.slice) = slice;
    }
}

macro_rules! waits {
    ($($listener:ty),*) => { $(
        impl Waits for Accepting<$listener> {
            fn set_nonblocking(&self, on: bool) -> io::Result<()> {
                self.set_slice((!on).then_some(SLICE));
                self.listener.set_nonblocking(on)
            }

            fn bound(&self, way: Direction, time: Duration) -> io::Result<()> {
                if way == Direction::In && self.slice().is_some() {
                    self.set_slice(Some(time));
                }
                Ok(())
            }

            fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
                self.listener.ready_fd()
            }

            fn readiness(&self) -> io::Result<Readiness> {
                self.listener.readiness()
            }
        }
    )* };
}
waits!(raas::Listener, raas::MessageListener);

/// Waits for a connection of either kind.
macro_rules! accept {
    ($held:expr, $py:expr) => {
        $held.wait($py, Direction::In, $held.deadline(), |accepting| {
            Ok(match accepting.slice() {
                Some(slice) => accepting.listener.accept_timeout(slice)?,
                None => accepting.listener.accept()?,
            })
        })
    };
}

/// A port on which connections of bytes are accepted.
#[pyclass(frozen, module = "raas._raas")]
#[derive(Debug)]
pub(crate) struct Listener(MaybeOpen<Accepting<raas::Listener>>);

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (at, *, backlog=128, ring_bytes=0, fallback=false, session=None))]
    fn new(
        py: Python<'_>,
        at: Pair,
        backlog: u32,
        ring_bytes: u32,
        fallback: bool,
        session: Option<&Session>,
    ) -> PyResult<Self> {
        let (at, session) = (address(&at)?, session_of(py, session)?);
        let options = ListenOptions::new().backlog(backlog).ring_bytes(ring_bytes);
        let options = if fallback { options.fallback(Fallback::Tcp) } else { options };
        let listener = py.detach(|| options.bind(&session, at)).or_raise(py)?;
        MaybeOpen::new(py, Accepting::new(listener)).map(Self)
    }

    fn __repr__(&self) -> String {
        self.0.shown("raas._raas.Listener", |accepting, shown| shown.address("laddr", accepting.listener.local_addr()))
    }

    /// The next connection and the address of its other end.
    fn accept(&self, py: Python<'_>) -> PyResult<(Stream, Pair)> {
        let (stream, peer): (raas::Stream, SocketAddr) = accept!(self.0, py)?;
        Ok((Stream::adopt(py, stream)?, pair(peer)))
    }

    fn getsockname(&self, py: Python<'_>) -> PyResult<Pair> {
        self.0.get(py)?.listener.local_addr().or_raise(py).map(pair)
    }

    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    #[pyo3(signature = (timeout))]
    fn settimeout(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.0.set_timeout(py, timeout)
    }

    fn gettimeout(&self) -> Option<f64> {
        self.0.timeout()
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.0.fileno(py)
    }

    fn readiness(&self, py: Python<'_>) -> PyResult<u8> {
        self.0.readiness(py)
    }
}

pub(crate) use accept;
