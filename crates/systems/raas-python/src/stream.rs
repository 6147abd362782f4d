//! Connections of bytes.
//!
//! Owns the mapping of Python's calls on the library's. `raas.socket` adds what a standard socket has besides.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use raas::{ConnectOptions, Fallback, Readiness};

use crate::address::{Pair, address, pair, seconds};
use crate::bytes::{Source, Target};
use crate::failure::{OrRaise, closed};
use crate::maybe_open::{Direction, MaybeOpen, Waits, lock};
use crate::session::{Session, session_of};
use crate::shown::Shown;

/// `recv` takes no more at a time, however much it may.
const RECV_MAX: usize = 1 << 20;

impl Waits for raas::Stream {
    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn bound(&self, way: Direction, time: Duration) -> io::Result<()> {
        match way {
            Direction::In => self.set_read_timeout(Some(time)),
            Direction::Out => self.set_write_timeout(Some(time)),
        }
    }

    fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.ready_fd()
    }

    fn readiness(&self) -> io::Result<Readiness> {
        self.readiness()
    }
}

/// `SHUT_RD`, `SHUT_WR`, `SHUT_RDWR`.
pub(crate) fn how_of(how: i32) -> PyResult<Shutdown> {
    match how {
        0 => Ok(Shutdown::Read),
        1 => Ok(Shutdown::Write),
        2 => Ok(Shutdown::Both),
        _ => Err(PyValueError::new_err("how must be SHUT_RD, SHUT_WR or SHUT_RDWR")),
    }
}

/// A connection of bytes.
#[pyclass(frozen, module = "raas._raas")]
#[derive(Debug)]
pub(crate) struct Stream(MaybeOpen<raas::Stream>);

impl Stream {
    pub(crate) fn adopt(py: Python<'_>, stream: raas::Stream) -> PyResult<Self> {
        MaybeOpen::new(py, stream).map(Self)
    }

    /// Bytes that are there, or come within the time of the mode.
    fn take<'py>(
        &self,
        py: Python<'py>,
        bytes: usize,
        mut read: impl FnMut(&raas::Stream, &mut [u8]) -> io::Result<usize> + Send,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut room = vec![0; bytes.min(RECV_MAX)];
        let count = self.0.wait(py, Direction::In, self.0.deadline(), |stream| read(stream, &mut room))?;
        Ok(PyBytes::new(py, &room[..count]))
    }
}

#[pymethods]
impl Stream {
    fn __repr__(&self) -> String {
        self.0.shown("raas._raas.Stream", |stream, shown| {
            let shown = shown.address("laddr", stream.local_addr()).address("raddr", stream.peer_addr());
            shown.fact("path", stream.path().as_str()).failure(stream.failure())
        })
    }

    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let source = Source::get(data)?;
        let bytes = source.as_slice();
        self.0.wait(py, Direction::Out, self.0.deadline(), |mut stream| stream.write(bytes))
    }

    fn sendall(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::get(data)?;
        let (mut rest, deadline) = (source.as_slice(), self.0.deadline());
        while !rest.is_empty() {
            let count = self.0.wait(py, Direction::Out, deadline, |mut stream| stream.write(rest))?;
            rest = &rest[count..];
        }
        Ok(())
    }

    fn recv<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, bytes, |mut stream, room| stream.read(room))
    }

    fn peek<'py>(&self, py: Python<'py>, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.take(py, bytes, |stream, room| stream.peek(room))
    }

    /// Receives into at most `bytes` of a buffer, 0 for all of it.
    #[pyo3(signature = (buffer, bytes=0))]
    fn recv_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, bytes: usize) -> PyResult<usize> {
        let mut target = Target::get(buffer)?;
        let room = target.as_mut_slice();
        let room = match bytes {
            0 => room,
            bytes => {
                let len = room.len();
                let short =
                    || PyValueError::new_err(format!("the buffer has {len} bytes, and {bytes} are to be received"));
                room.get_mut(..bytes).ok_or_else(short)?
            }
        };
        self.0.wait(py, Direction::In, self.0.deadline(), |mut stream| stream.read(room))
    }

    fn shutdown(&self, py: Python<'_>, how: i32) -> PyResult<()> {
        let (stream, how) = (self.0.get(py)?, how_of(how)?);
        py.detach(|| stream.shutdown(how)).or_raise(py)
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

    fn getpeername(&self, py: Python<'_>) -> PyResult<Pair> {
        self.0.get(py)?.peer_addr().or_raise(py).map(pair)
    }

    fn getsockname(&self, py: Python<'_>) -> PyResult<Pair> {
        self.0.get(py)?.local_addr().or_raise(py).map(pair)
    }

    /// The connection's number, as in `raas ss`.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.id())
    }

    /// How the bytes travel: `shm`, `lane`, `leased`, `tcp-direct` or `tcp`.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.get(py)?.path().as_str())
    }

    /// Why they travel that way: a key of docs/reasons.md.
    #[getter]
    fn reason(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.get(py)?.reason().key())
    }

    /// Why the connection is broken, if it is: a key of docs/reasons.md.
    #[getter]
    fn failure(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        Ok(self.0.get(py)?.failure().map(raas::Reason::key))
    }
}

/// Connects to the first of the addresses that answers.
#[pyfunction]
#[pyo3(signature = (addresses, *, timeout=None, ring_bytes=0, fallback=false, session=None))]
pub(crate) fn connect(
    py: Python<'_>,
    addresses: Vec<Pair>,
    timeout: Option<f64>,
    ring_bytes: u32,
    fallback: bool,
    session: Option<&Session>,
) -> PyResult<Stream> {
    let to: Vec<SocketAddr> = addresses.iter().map(address).collect::<PyResult<_>>()?;
    let options = connect_options(timeout, ring_bytes)?;
    let options = if fallback { options.fallback(Fallback::Tcp) } else { options };
    let own = session.map(|own| session_of(py, Some(own))).transpose()?;
    let stream = py.detach(|| options.dial(own.map_or_else(raas::Session::global, Ok), &to[..])).or_raise(py)?;
    Stream::adopt(py, stream)
}

pub(crate) fn connect_options(timeout: Option<f64>, ring_bytes: u32) -> PyResult<ConnectOptions> {
    let options = ConnectOptions::new().ring_bytes(ring_bytes);
    Ok(match seconds(timeout)? {
        Some(time) => options.timeout(time),
        None => options,
    })
}

/// A connection that is being made.
#[pyclass(frozen, module = "raas._raas")]
#[derive(Debug)]
pub(crate) struct Connecting(Mutex<Option<raas::Connecting>>);

#[pymethods]
impl Connecting {
    fn __repr__(&self) -> String {
        const CLASS: &str = "raas._raas.Connecting";
        let to = lock(&self.0).as_ref().map(raas::Connecting::peer_addr);
        to.map_or_else(|| Shown::closed(CLASS), |to| Shown::of(CLASS).address("raddr", Ok(to)).end())
    }

    /// A descriptor that turns readable when `finish` has something to say.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let number = lock(&self.0).as_ref().map(|connecting| connecting.ready_fd().map(|fd| fd.as_raw_fd()));
        number.ok_or_else(|| closed(py))?.or_raise(py)
    }

    /// The connection if it is made by now, None if nobody has answered yet.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<Stream>> {
        let finished = {
            let mut inner = lock(&self.0);
            let finished = inner.as_mut().map(raas::Connecting::try_finish);
            if !matches!(finished, Some(Ok(None))) {
                *inner = None;
            }
            finished
        };
        let finished = finished.ok_or_else(|| closed(py))?;
        finished.or_raise(py)?.map(|stream| Stream::adopt(py, stream)).transpose()
    }

    /// Stops it.
    fn close(&self) {
        *lock(&self.0) = None;
    }
}

/// Begins to connect, and does not wait.
#[pyfunction]
#[pyo3(signature = (to, *, ring_bytes=0, session=None))]
pub(crate) fn start_connect(
    py: Python<'_>,
    to: Pair,
    ring_bytes: u32,
    session: Option<&Session>,
) -> PyResult<Connecting> {
    let (session, options) = (session_of(py, session)?, connect_options(None, ring_bytes)?);
    let connecting = options.start(&session, address(&to)?).or_raise(py)?;
    Ok(Connecting(Mutex::new(Some(connecting))))
}
