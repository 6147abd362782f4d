//! Messages by reference: slices of a region that are lent instead of copied.
//!
//! Owns the end of a loan: a view gives its slice back when it is released and no buffer of it is out.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::address::seconds;
use crate::exports::{Bytes, Exports, hand_out, take_back};
use crate::failure::OrRaise;
use crate::maybe_open::{SLICE, lock};
use crate::shown::Shown;

/// A slice that was lent, as its lender has it: not to be written to until it is back.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct Lent(pub(crate) raas::Lent);

#[pymethods]
impl Lent {
    fn __repr__(&self, py: Python<'_>) -> String {
        let how = match py.detach(|| self.0.is_back()) {
            Ok(true) => "back",
            Ok(false) => "out",
            Err(_) => "lost",
        };
        Shown::of("raas.Lent").word(how).end()
    }

    /// Whether the receiver gave it back, or ended.
    fn is_back(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.0.is_back()).or_raise(py)
    }

    /// Waits until it is back. False: it is not, after `timeout` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let deadline = seconds(timeout)?.and_then(|time| std::time::Instant::now().checked_add(time));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            if py.detach(|| self.0.wait_timeout(slice)).or_raise(py)? {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_some_and(|left| left <= SLICE) {
                return Ok(false);
            }
        }
    }
}

/// The bytes of a message.
#[derive(Debug, Clone)]
enum Content {
    /// In the lender's memory.
    Lent(Arc<raas::View>),
    /// Sent as bytes, or fetched from another host.
    Copy(Arc<Vec<u8>>),
}

/// A message as its receiver sees it: read-only bytes with the buffer protocol, in the lender's memory where that is on
/// this host. Release it to give the slice back.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct View {
    content: Mutex<Option<Content>>,
    len: u64,
    exports: Exports,
}

impl View {
    pub(crate) fn adopt(py: Python<'_>, view: raas::View) -> PyResult<Self> {
        let len = view.len();
        let content = py.detach(|| match view.map() {
            Ok(Some(_)) => Ok(Content::Lent(Arc::new(view))),
            Ok(None) => view.to_vec().map(|bytes| Content::Copy(Arc::new(bytes))),
            Err(error) => Err(error),
        });
        Ok(Self { content: Mutex::new(Some(content.or_raise(py)?)), len, exports: Exports::default() })
    }

    /// It, unless it was given back.
    fn content(&self) -> Option<Content> {
        lock(&self.content).clone()
    }
}

#[pymethods]
impl View {
    fn __repr__(&self) -> String {
        let how = match self.content() {
            Some(Content::Lent(_)) => "lent",
            Some(Content::Copy(_)) => "copied",
            None => "released",
        };
        Shown::of("raas.View").fact("nbytes", self.len).word(how).end()
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.len
    }

    /// Whether the bytes are the lender's, and were not copied.
    #[getter]
    fn is_lent(&self) -> bool {
        matches!(self.content(), Some(Content::Lent(_)))
    }

    /// Raises `raas.Revoked` if the lender's region was revoked: what was read may be something else.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.content() {
            Some(Content::Lent(view)) => match view.map().or_raise(py)? {
                Some(mapped) => mapped.check().or_raise(py),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Gives the slice back. `BufferError` while buffers of it are out.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.exports.check_none("the message is given back")?;
        let content = lock(&self.content).take();
        py.detach(|| drop(content));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.release(py)
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.len)?)
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (py, own) = (slf.py(), slf.get());
        let bytes = match own.content() {
            Some(Content::Lent(lent)) => match lent.map().or_raise(py)? {
                Some(mapped) => Bytes::mapped(mapped, lent),
                None => return Err(PyBufferError::new_err("the message is not of this host")),
            },
            Some(Content::Copy(copy)) => Bytes::own(copy),
            None => return Err(PyBufferError::new_err("the message was given back")),
        };
        // SAFETY: the interpreter's `view`.
        unsafe { hand_out(slf.as_any(), &own.exports, bytes, view, flags) }
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter gives each buffer back once.
        unsafe { take_back(&self.exports, view) }
    }
}
