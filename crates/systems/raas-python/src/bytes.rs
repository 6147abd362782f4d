//! The bytes of Python objects that offer a buffer: `bytes`, `bytearray`, `memoryview`, `array`, numpy arrays.
//!
//! Owns the slices made of them. An object's memory stays where it is while its buffer is held: Python refuses to resize
//! it. Another thread of the program may write to it meanwhile, as with the standard `socket`; so the library only copies
//! these bytes, and never decides by them.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use tensor::{DType, Layout};

use crate::failure::OrRaise;

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

/// An array with a buffer, of any strides that do not go backwards.
#[derive(Debug)]
pub(crate) struct Elements(PyUntypedBuffer);

impl Elements {
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        PyUntypedBuffer::get(object).map(Self)
    }

    /// Type, shape and strides.
    pub(crate) fn layout(&self, py: Python<'_>) -> PyResult<Layout> {
        let item = self.0.item_size();
        let word = word_of(self.0.format().to_str().unwrap_or_default(), item);
        let dtype: DType = word.parse().or_raise(py)?;
        let shape: Vec<u64> = self.0.shape().iter().map(|count| *count as u64).collect();
        let backwards =
            || PyBufferError::new_err("strides that go backwards, or between elements: make it contiguous first");
        let strides = self.0.strides().iter().map(|stride| {
            let stride = usize::try_from(*stride).ok().filter(|stride| stride.is_multiple_of(item.max(1)));
            stride.map(|stride| (stride / item.max(1)) as u64).ok_or_else(backwards)
        });
        Layout::strided(dtype, &shape, &strides.collect::<PyResult<Vec<u64>>>()?).or_raise(py)
    }

    /// From its first element to the last, by the layout that it has.
    pub(crate) fn as_slice(&self, layout: &Layout) -> &[u8] {
        let bytes = usize::try_from(layout.bytes()).unwrap_or(0);
        if bytes == 0 {
            return &[];
        }
        // SAFETY: strides do not go backwards, which `layout` checked, so the last element of the buffer ends `bytes` behind
        // its start, and the buffer keeps them there while it lives. Torn bytes are valid, as in `Source::as_slice`.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast::<u8>(), bytes) }
    }
}

/// The type of elements, in numpy's words, for the letters of a buffer.
fn word_of(format: &str, item: usize) -> String {
    let (order, letters) = match format.as_bytes().first() {
        Some(b'>' | b'!') if item > 1 => (">", &format[1..]),
        Some(b'>' | b'!' | b'<' | b'=' | b'@' | b'|') => ("", &format[1..]),
        _ => ("", format),
    };
    let kind = match letters {
        "?" => return "bool".to_owned(),
        "b" | "h" | "i" | "l" | "q" => "i",
        "B" | "H" | "I" | "L" | "Q" => "u",
        "e" | "f" | "d" => "f",
        "Zf" | "Zd" => "c",
        other => return format!("buffer of `{other}`"),
    };
    format!("{order}{kind}{item}")
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
