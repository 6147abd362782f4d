//! Datagrams.
//!
//! Owns the mapping of Python's calls on the library's.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use raas::{DatagramOptions, Readiness};

use crate::address::{Pair, address, pair};
use crate::bytes::{Source, Target};
use crate::failure::OrRaise;
use crate::maybe_open::{Direction, MaybeOpen, Waits};
use crate::session::{Session, session_of};

/// No datagram is longer.
const DATAGRAM_MAX: usize = 4096;

impl Waits for raas::DatagramSocket {
    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.set_nonblocking(on)
    }

    fn bound(&self, way: Direction, time: Duration) -> io::Result<()> {
        match way {
            Direction::In => self.set_read_timeout(Some(time)),
            // Of a link to another host, which takes longer than a slice to make.
            Direction::Out => Ok(()),
        }
    }

    fn ready_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.ready_fd()
    }

    fn readiness(&self) -> io::Result<Readiness> {
        self.readiness()
    }
}

/// A socket for datagrams of up to 4080 bytes: each arrives whole or not at all.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct DatagramSocket(MaybeOpen<raas::DatagramSocket>);

#[pymethods]
impl DatagramSocket {
    /// Binds to an address of this host; port 0 is any free one.
    #[new]
    #[pyo3(signature = (at, *, ring_bytes=0, session=None))]
    fn new(py: Python<'_>, at: Pair, ring_bytes: u32, session: Option<&Session>) -> PyResult<Self> {
        let (at, session) = (address(&at)?, session_of(py, session)?);
        let options = DatagramOptions::new().ring_bytes(ring_bytes);
        let socket = py.detach(|| options.bind(&session, at)).or_raise(py)?;
        MaybeOpen::new(py, socket).map(Self)
    }

    fn __repr__(&self) -> String {
        self.0.shown("raas.DatagramSocket", |socket, shown| {
            shown.address("laddr", socket.local_addr()).failure(socket.failure())
        })
    }

    fn sendto(&self, py: Python<'_>, data: &Bound<'_, PyAny>, to: Pair) -> PyResult<usize> {
        let (source, to) = (Source::get(data)?, address(&to)?);
        let bytes = source.as_slice();
        self.0.wait(py, Direction::Out, self.0.deadline(), |socket| socket.send_to(bytes, to))
    }

    /// The next datagram and its sender.
    fn recvfrom<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Pair)> {
        let mut room = vec![0; DATAGRAM_MAX];
        let (len, from) = self.0.wait(py, Direction::In, self.0.deadline(), |socket| socket.recv_from(&mut room))?;
        Ok((PyBytes::new(py, &room[..len]), pair(from)))
    }

    /// As `recvfrom`, into a buffer; a datagram that does not fit is kept.
    fn recvfrom_into(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<(usize, Pair)> {
        let mut target = Target::get(buffer)?;
        let room = target.as_mut_slice();
        let (len, from) = self.0.wait(py, Direction::In, self.0.deadline(), |socket| socket.recv_from(room))?;
        Ok((len, pair(from)))
    }

    /// The longest datagram to a host.
    fn max_payload(&self, py: Python<'_>, to: Pair) -> PyResult<usize> {
        let (socket, to) = (self.0.get(py)?, address(&to)?);
        py.detach(|| socket.max_payload(to)).or_raise(py)
    }

    fn getsockname(&self, py: Python<'_>) -> PyResult<Pair> {
        self.0.get(py)?.local_addr().or_raise(py).map(pair)
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
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.0.close(py);
    }
}
