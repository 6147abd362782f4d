//! Tensors of pools as Python's objects: numpy takes them by the buffer protocol, other frameworks by DLPack.
//!
//! Owns what is out of a tensor: a draft is put when nothing can write to it any more, and memory stays while an array of
//! it lives.

use std::ffi::{CStr, c_int};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use tensor::{DType, Error, Layout};

use crate::bytes::{Elements, Source};
use crate::dlpack::{self, Foreign};
use crate::failure::{OrRaise, closed};
use crate::maybe_open::lock;
use crate::shown::Shown;

/// What a tensor of Python is.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// It is filled.
    Draft(Arc<tensor::Draft>),
    /// It is read.
    Held(Arc<tensor::Tensor>),
}

impl Content {
    fn layout(&self) -> &Layout {
        match self {
            Self::Draft(draft) => draft.layout(),
            Self::Held(held) => held.layout(),
        }
    }

    /// Its first byte, and whether it may be written to.
    fn memory(&self) -> Result<(*mut u8, bool), Error> {
        match self {
            Self::Draft(draft) => Ok((draft.as_ptr(), true)),
            Self::Held(held) => held.as_ptr().map(|start| (start.cast_mut(), false)),
        }
    }
}

/// A tensor: one that this program fills (`Pool.empty`), or one that it holds (`get`), read-only.
///
/// `numpy.asarray(tensor)` and `torch.from_dlpack(tensor)` show its memory without a copy.
#[pyclass(frozen, name = "Tensor", module = "raas.tensor")]
#[derive(Debug)]
pub(crate) struct Tensor(Mutex<Option<Content>>);

impl Tensor {
    pub(crate) fn draft(draft: tensor::Draft) -> Self {
        Self(Mutex::new(Some(Content::Draft(Arc::new(draft)))))
    }

    pub(crate) fn held(held: tensor::Tensor) -> Self {
        Self(Mutex::new(Some(Content::Held(Arc::new(held)))))
    }

    pub(crate) fn content(&self, py: Python<'_>) -> PyResult<Content> {
        let content = lock(&self.0).clone();
        content.ok_or_else(|| closed(py))
    }

    /// The draft, which nobody can write to any more. `BufferError` while arrays of it are alive.
    pub(crate) fn take_draft(&self) -> PyResult<tensor::Draft> {
        let mut content = lock(&self.0);
        match content.take() {
            Some(Content::Draft(draft)) => Arc::try_unwrap(draft).map_err(|draft| {
                let out = Arc::strong_count(&draft) - 1;
                *content = Some(Content::Draft(draft));
                PyBufferError::new_err(format!(
                    "{out} arrays of this tensor are alive and can write to it: release them (`del`) before it gets a name"
                ))
            }),
            other => {
                *content = other;
                Err(PyBufferError::new_err("only a tensor that `empty` or `fetch` made is put, and once"))
            }
        }
    }

    fn of_layout<T>(&self, py: Python<'_>, what: impl FnOnce(&Layout) -> T) -> PyResult<T> {
        self.content(py).map(|content| what(content.layout()))
    }
}

#[pymethods]
impl Tensor {
    fn __repr__(&self) -> String {
        const CLASS: &str = "raas.tensor.Tensor";
        let Some(content) = lock(&self.0).clone() else { return Shown::closed(CLASS) };
        let layout = content.layout();
        let shown = Shown::of(CLASS).fact("dtype", layout.dtype()).fact("shape", format_args!("{:?}", layout.shape()));
        match content {
            Content::Draft(draft) => shown.fact("generation", draft.generation()).word("draft").end(),
            Content::Held(held) => {
                let shown = shown.fact("name", format_args!("{:?}", held.name())).fact("generation", held.generation());
                shown.word(if held.is_here() { "here" } else { "there" }).end()
            }
        }
    }

    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.of_layout(py, |layout| layout.dtype().name())
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.of_layout(py, |layout| layout.shape().to_vec())?)
    }

    /// In elements, as DLPack and torch have them.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.of_layout(py, |layout| layout.strides().to_vec())?)
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.of_layout(py, Layout::bytes)
    }

    #[getter]
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(match self.content(py)? {
            Content::Draft(draft) => draft.generation(),
            Content::Held(held) => held.generation(),
        })
    }

    /// Whether its memory is of this host, so that arrays can show it.
    #[getter]
    fn is_here(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(match self.content(py)? {
            Content::Draft(_) => true,
            Content::Held(held) => held.is_here(),
        })
    }

    /// `(pool, name, generation)` of a tensor that is held: what `Reader.get_ref` takes.
    #[getter]
    fn reference(&self, py: Python<'_>) -> PyResult<Option<(u64, String, u64)>> {
        Ok(match self.content(py)? {
            Content::Draft(_) => None,
            Content::Held(held) => {
                let tensor::TensorRef { pool, name, generation } = held.reference();
                Some((pool, name, generation))
            }
        })
    }

    /// Raises `raas.Revoked` if the pool has moved or was revoked: what was read may be old, what was written is lost.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let content = self.content(py)?;
        let checked = py.detach(|| match &content {
            Content::Draft(draft) => draft.check(),
            Content::Held(held) => held.check(),
        });
        checked.or_raise(py)
    }

    /// Copies bytes into a draft, from byte `at` of it on.
    #[pyo3(signature = (data, at=0))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, at: u64) -> PyResult<()> {
        let Content::Draft(draft) = self.content(py)? else {
            return Err(PyBufferError::new_err("a tensor that has a name is read-only"));
        };
        let source = Source::get(data)?;
        draft.write(at, source.as_slice()).or_raise(py)
    }

    /// All of its bytes, copied.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let content = self.content(py)?;
        let bytes = py.detach(|| match &content {
            Content::Held(held) => held.to_vec(),
            Content::Draft(draft) => {
                let mut all = vec![0; usize::try_from(draft.layout().bytes()).unwrap_or(0)];
                draft.read(0, &mut all).map(|()| all)
            }
        });
        Ok(PyBytes::new(py, &bytes.or_raise(py)?))
    }

    /// Brings its bytes into a draft of the same type and shape: from another host by one READ.
    fn fetch_into(&self, py: Python<'_>, draft: &Self) -> PyResult<()> {
        match (self.content(py)?, draft.content(py)?) {
            (Content::Held(held), Content::Draft(draft)) => py.detach(|| held.fetch_into(&draft)).or_raise(py),
            _ => Err(PyBufferError::new_err("a tensor that is held goes into one that `empty` made")),
        }
    }

    /// Gives it back, or the draft up. Arrays of it keep it until they end.
    fn release(&self, py: Python<'_>) {
        let content = lock(&self.0).take();
        py.detach(|| drop(content));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.release(py);
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::device()
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_device = dl_device.is_some_and(|asked| asked != dlpack::device());
        if stream.is_some() || is_device || copy == Some(true) {
            return Err(PyBufferError::new_err(
                "tensors are in memory of the host, without streams, and are not copied",
            ));
        }
        let content = self.content(py)?;
        let (start, is_writable) = content.memory().or_raise(py)?;
        dlpack::export(py, (content.layout(), start, is_writable), max_version, content.clone())
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let content = slf.get().content(slf.py())?;
        let memory = content.memory().or_raise(slf.py())?;
        // SAFETY: the interpreter's `view`; the memory is mapped while `content` lives.
        unsafe { show(&slf, content, memory, view, flags) }
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter gives each buffer back once, and `internal` is the box that `show` put there.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Shape>()) });
    }
}

/// What a buffer keeps.
struct Shape {
    shape: Vec<isize>,
    strides: Vec<isize>,
    _content: Content,
}

fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::U8 => c"B",
        DType::I8 => c"b",
        DType::U16 => c"H",
        DType::I16 => c"h",
        DType::U32 => c"I",
        DType::I32 => c"i",
        DType::U64 => c"Q",
        DType::I64 => c"q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// Fills `view` with all of a tensor.
///
/// # Safety
///
/// `view` is what the interpreter gave to `__getbuffer__` of `owner`. `memory` has the layout of `content`, and is mapped
/// while that lives.
unsafe fn show(
    owner: &Bound<'_, Tensor>,
    content: Content,
    (start, is_writable): (*mut u8, bool),
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let refuse = |why: &str| Err(PyBufferError::new_err(why.to_owned()));
    let layout = content.layout().clone();
    let asks = |flag: c_int| flags & flag == flag;
    let Some(format) = format_of(layout.dtype()) else {
        return refuse(&format!("buffers have no {}: use `from_dlpack` or `tobytes`", layout.dtype()));
    };
    if view.is_null() || asks(ffi::PyBUF_WRITABLE) && !is_writable {
        return refuse("the tensor is read-only");
    }
    let is_plain = layout.is_contiguous();
    let is_flat = is_plain && layout.shape().iter().filter(|count| **count != 1).count() <= 1;
    if !is_plain && (!asks(ffi::PyBUF_STRIDES) || asks(ffi::PyBUF_C_CONTIGUOUS) || asks(ffi::PyBUF_ANY_CONTIGUOUS))
        || asks(ffi::PyBUF_F_CONTIGUOUS) && !is_flat
    {
        return refuse("the tensor's elements do not follow each other as was asked");
    }
    let item = layout.dtype().bytes() as isize;
    // A layout's bytes are at most 1 GiB, so its numbers fit, unless it has no element at all.
    let whole = |number: &u64| isize::try_from(*number).unwrap_or(0);
    let mut kept = Box::new(Shape {
        shape: layout.shape().iter().map(whole).collect(),
        strides: layout.strides().iter().map(|stride| whole(stride).saturating_mul(item)).collect(),
        _content: content,
    });
    let elements = isize::try_from(layout.elements()).unwrap_or(0);
    let (shape, strides) = (kept.shape.as_mut_ptr(), kept.strides.as_mut_ptr());
    let or_null = |flag: c_int, numbers: *mut isize| if asks(flag) { numbers } else { std::ptr::null_mut() };
    // SAFETY: the caller's promise for `view`. Shape and strides are in `kept`, which lives until the buffer is given back,
    // and so does the memory. The owner's reference is the one that buffers have.
    unsafe {
        (*view).buf = start.cast();
        (*view).obj = owner.clone().into_any().into_ptr();
        (*view).len = elements.saturating_mul(item);
        (*view).itemsize = item;
        (*view).readonly = c_int::from(!is_writable);
        (*view).ndim = c_int::try_from(kept.shape.len()).unwrap_or(0);
        (*view).format = if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).shape = or_null(ffi::PyBUF_ND, shape);
        (*view).strides = or_null(ffi::PyBUF_STRIDES, strides);
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(kept).cast();
    }
    Ok(())
}

/// A draft with the bytes of an object with a buffer, or of a tensor of another framework: one copy.
pub(crate) fn copy_in(pool: &tensor::Pool, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = object.py();
    let draft = |layout: &Layout, bytes: &[u8]| {
        let draft = pool.make(layout.clone()).or_raise(py)?;
        draft.write(0, bytes).or_raise(py)?;
        Ok(Tensor::draft(draft))
    };
    // numpy's DLPack refuses arrays that are read-only, and its buffers say byte orders.
    if let Ok(buffer) = Elements::get(object) {
        let layout = buffer.layout(py)?;
        return draft(&layout, buffer.as_slice(&layout));
    }
    let foreign = Foreign::take(object)?;
    draft(foreign.layout(), foreign.as_slice())
}
