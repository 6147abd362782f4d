//! Memory that others may change, as buffers of Python: regions, and messages that were lent.
//!
//! Owns the mapping of each buffer that was handed out: it lives until Python gives the buffer back, so a `memoryview` or a
//! numpy array never points to what is not there. That other programs write to the bytes meanwhile is what regions are
//! for: Python reads and writes them as those of `multiprocessing.shared_memory`, without any order.

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use raas::Mapped;

use crate::maybe_open::lock;

/// The epochs of the buffers that are out.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<Vec<u64>>);

impl Exports {
    /// How many are out, and how many of them are not of `epoch`.
    pub(crate) fn count(&self, epoch: u64) -> (usize, usize) {
        let all = lock(&self.0);
        (all.len(), all.iter().filter(|own| **own != epoch).count())
    }

    /// Fails if some are out.
    pub(crate) fn check_none(&self, what: &str) -> PyResult<()> {
        match lock(&self.0).len() {
            0 => Ok(()),
            out => Err(PyBufferError::new_err(format!(
                "{out} views of these bytes are alive: release them (`memoryview.release`, `del` of arrays) before {what}"
            ))),
        }
    }

    fn take(&self, epoch: u64) {
        let mut all = lock(&self.0);
        if let Some(at) = all.iter().position(|own| *own == epoch) {
            all.swap_remove(at);
        }
    }
}

/// What keeps the bytes of a buffer where they are, with their epoch.
struct PinnedBuffer {
    epoch: u64,
    _owner: Box<dyn Send + Sync>,
}

/// Bytes that are to be handed out.
pub(crate) struct Bytes {
    start: *mut u8,
    len: u64,
    is_writable: bool,
    kept: PinnedBuffer,
}

impl Bytes {
    /// A mapping, which the buffer keeps with `owner`.
    pub(crate) fn mapped(mapped: Mapped, owner: impl Send + Sync + 'static) -> Self {
        let (start, len, is_writable) = (mapped.as_ptr(), mapped.len(), mapped.is_writable());
        let epoch = mapped.epoch();
        Self { start, len, is_writable, kept: PinnedBuffer { epoch, _owner: Box::new((mapped, owner)) } }
    }

    /// Memory of this process, which nobody writes to: the buffer keeps it.
    pub(crate) fn own(bytes: Arc<Vec<u8>>) -> Self {
        let (start, len) = (bytes.as_ptr().cast_mut(), bytes.len() as u64);
        Self { start, len, is_writable: false, kept: PinnedBuffer { epoch: 0, _owner: Box::new(bytes) } }
    }
}

/// Fills `view` for `owner`.
///
/// # Safety
///
/// `view` is what the interpreter gave to `__getbuffer__` of `owner`.
pub(crate) unsafe fn hand_out(
    owner: &Bound<'_, PyAny>,
    exports: &Exports,
    bytes: Bytes,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no place for the buffer"));
    }
    let Bytes { start, len, is_writable, kept } = bytes;
    let len = isize::try_from(len).map_err(|_| PyBufferError::new_err("too long to be addressed"))?;
    // SAFETY: the caller's promise for `view`. `len` bytes follow `start` while `kept` lives, by how `Bytes` are made, and
    // it lives until the buffer is given back. The call takes a reference to the owner.
    let filled =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start.cast(), len, c_int::from(!is_writable), flags) };
    if filled != 0 {
        return Err(PyErr::fetch(owner.py()));
    }
    lock(&exports.0).push(kept.epoch);
    // SAFETY: FillInfo has filled all of `view`, and `internal` is for the exporter's use.
    unsafe { (*view).internal = Box::into_raw(Box::new(kept)).cast() };
    Ok(())
}

/// Takes back what `hand_out` filled.
///
/// # Safety
///
/// `view` is what the interpreter gave to `__releasebuffer__`, once for each buffer that `hand_out` filled.
pub(crate) unsafe fn take_back(exports: &Exports, view: *mut ffi::Py_buffer) {
    // SAFETY: the caller's promise; `internal` is the box that `hand_out` put there, and nobody else has it.
    let kept = unsafe { Box::from_raw((*view).internal.cast::<PinnedBuffer>()) };
    exports.take(kept.epoch);
}
