//! Connections of messages.
//!
//! Owns the mapping of Python's calls on the library's. A message is received whole or stays where it is.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use raas::{ListenOptions, Readiness};

use crate::address::{Pair, address, pair};
use crate::bytes::{Source, Target};
use crate::failure::OrRaise;
use crate::lend::{Lent, View};
use crate::listener::{Accepting, accept};
use crate::maybe_open::{Direction, MaybeOpen, Waits};
use crate::region::Region;
use crate::session::{Session, session_of};
use crate::stream::{connect_options, how_of};

impl Waits for raas::MessageStream {
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

/// A connection of messages: each arrives whole, as it was sent, and in order.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct MessageStream(pub(crate) MaybeOpen<raas::MessageStream>);

#[pymethods]
impl MessageStream {
    fn __repr__(&self) -> String {
        self.0.shown("raas.MessageStream", |stream, shown| {
            let shown = shown.address("laddr", stream.local_addr()).address("raddr", stream.peer_addr());
            shown.fact("path", stream.path().as_str()).failure(stream.failure())
        })
    }

    /// Sends one message, which may be empty. On an error none of it was sent.
    fn send(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = Source::get(data)?;
        let bytes = source.as_slice();
        self.0.wait(py, Direction::Out, self.0.deadline(), |stream| stream.send(bytes))
    }

    /// The next message; None at the end.
    fn receive<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let got = self.0.wait(py, Direction::In, self.0.deadline(), raas::MessageStream::receive_vec)?;
        Ok(got.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Receives the next message into a buffer and returns its length; None at the end. A message that does not fit is
    /// kept, and the error says its size.
    fn receive_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let mut target = Target::get(buffer)?;
        let room = target.as_mut_slice();
        self.0.wait(py, Direction::In, self.0.deadline(), |stream| stream.receive(room))
    }

    /// Sends `bytes` bytes at `offset` of a region as a message without copying them: they are lent until the receiver gives
    /// them back, which the result tells. Until then they must not be written to.
    fn lend(&self, py: Python<'_>, region: &Region, offset: u64, bytes: u64) -> PyResult<Lent> {
        let region = region.get(py)?;
        let lent = self.0.wait(py, Direction::Out, self.0.deadline(), |stream| stream.lend(&region, offset, bytes))?;
        Ok(Lent(lent))
    }

    /// The next message without copying it if it was lent on this host; None at the end.
    fn receive_view(&self, py: Python<'_>) -> PyResult<Option<View>> {
        let got = self.0.wait(py, Direction::In, self.0.deadline(), raas::MessageStream::receive_view)?;
        got.map(|view| View::adopt(py, view)).transpose()
    }

    /// The longest message that can be sent here.
    #[getter]
    fn len_max(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.get(py)?.len_max())
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

    /// How the messages travel: `shm`, `lane` or `leased`.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.get(py)?.path().as_str())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.0.close(py);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Messages until the end.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.receive(py)
    }
}

/// Connects to the first of the addresses that answers with messages.
#[pyfunction]
#[pyo3(signature = (addresses, *, timeout=None, ring_bytes=0, session=None))]
pub(crate) fn connect_messages(
    py: Python<'_>,
    addresses: Vec<Pair>,
    timeout: Option<f64>,
    ring_bytes: u32,
    session: Option<&Session>,
) -> PyResult<MessageStream> {
    let to: Vec<SocketAddr> = addresses.iter().map(address).collect::<PyResult<_>>()?;
    let (session, options) = (session_of(py, session)?, connect_options(timeout, ring_bytes)?);
    let connected = py.detach(|| raas::MessageStream::connect_with(&session, &to[..], options)).or_raise(py)?;
    MaybeOpen::new(py, connected).map(MessageStream)
}

/// A port on which connections of messages are accepted.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct MessageListener(MaybeOpen<Accepting<raas::MessageListener>>);

#[pymethods]
impl MessageListener {
    #[new]
    #[pyo3(signature = (at, *, backlog=128, ring_bytes=0, session=None))]
    fn new(py: Python<'_>, at: Pair, backlog: u32, ring_bytes: u32, session: Option<&Session>) -> PyResult<Self> {
        let (at, session) = (address(&at)?, session_of(py, session)?);
        let options = ListenOptions::new().backlog(backlog).ring_bytes(ring_bytes);
        let listener = py.detach(|| raas::MessageListener::bind_with(&session, at, options)).or_raise(py)?;
        MaybeOpen::new(py, Accepting::new(listener)).map(Self)
    }

    fn __repr__(&self) -> String {
        self.0.shown("raas.MessageListener", |accepting, shown| shown.address("laddr", accepting.listener.local_addr()))
    }

    /// The next connection and the address of its other end.
    fn accept(&self, py: Python<'_>) -> PyResult<(MessageStream, Pair)> {
        let (stream, peer): (raas::MessageStream, SocketAddr) = accept!(self.0, py)?;
        Ok((MessageStream(MaybeOpen::new(py, stream)?), pair(peer)))
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

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) {
        self.0.close(py);
    }
}
