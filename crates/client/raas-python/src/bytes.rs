//! The bytes of Python objects that offer a buffer: `bytes`, `bytearray`, `memoryview`, `array`, numpy arrays.
//!
//! Owns the slices made of them. An object's memory stays where it is while its buffer is held: Python refuses to resize
//! it. Another thread of the program may write to it meanwhile, as with the standard `socket`; so the library only copies
//! these bytes, and never decides by them.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;

/// Bytes to be sent.
#[derive(Debug)]
pub(crate) struct Source(PyUntypedBuffer);

impl Source {
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        check(&buffer)?;
        Ok(Self(buffer))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: `check` found the buffer C-contiguous, so `len_bytes` bytes follow its start, and it keeps them there
        // while it lives. What another thread writes meanwhile can tear bytes, which are valid in every state.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

/// Room for bytes that are received.
#[derive(Debug)]
pub(crate) struct Target(PyUntypedBuffer);

impl Target {
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        check(&buffer)?;
        if buffer.readonly() {
            return Err(PyTypeError::new_err("a buffer to receive into must be writable"));
        }
        Ok(Self(buffer))
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.0.len_bytes() == 0 {
            return &mut [];
        }
        // SAFETY: as in `Source::as_slice`, and the buffer is not read-only, which `get` checked.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast::<u8>(), self.0.len_bytes()) }
    }
}

fn check(buffer: &PyUntypedBuffer) -> PyResult<()> {
    if buffer.is_c_contiguous() { Ok(()) } else { Err(PyBufferError::new_err("the buffer's bytes must be contiguous")) }
}
