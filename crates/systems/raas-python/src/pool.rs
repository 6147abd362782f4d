//! Pools of tensors as Python's objects: the owner's, and a reader's.
//!
//! Owns the mapping of Python's calls on the library's.

use std::net::IpAddr;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tensor::{Layout, PoolOptions, TensorRef};

use crate::address::seconds;
use crate::failure::{OrRaise, closed};
use crate::maybe_open::lock;
use crate::session::{Session, session_of};
use crate::shown::Shown;
use crate::tensor::{Content, Tensor, copy_in};

/// A tensor that somebody holds: reader, name, generation, bytes, whether it was freed, seconds.
type HolderRow = (String, String, u64, u64, bool, f64);

fn rows(holders: Vec<tensor::Holder>) -> Vec<HolderRow> {
    let row = |h: tensor::Holder| (h.reader, h.name, h.generation, h.bytes, h.is_freed, h.held.as_secs_f64());
    holders.into_iter().map(row).collect()
}

/// What was done: gets, bytes copied, READs, bytes read.
fn four(counts: tensor::Counts) -> (u64, u64, u64, u64) {
    (counts.gets, counts.bytes_copied, counts.reads, counts.bytes_read)
}

/// Memory of this program for tensors, which readers on any host get by name.
#[pyclass(frozen, name = "Pool", module = "raas.tensor")]
#[derive(Debug)]
pub(crate) struct Pool(Mutex<Option<tensor::Pool>>);

impl Pool {
    fn inner(&self, py: Python<'_>) -> PyResult<tensor::Pool> {
        let inner = lock(&self.0).clone();
        inner.ok_or_else(|| closed(py))
    }
}

/// A type's name: of numpy's and torch's types, or a string.
fn word_of(dtype: &Bound<'_, PyAny>) -> PyResult<String> {
    // numpy's scalar types are classes.
    match dtype.getattr_opt("__name__")? {
        Some(name) => name.extract(),
        None => dtype.str()?.extract(),
    }
}

#[pymethods]
impl Pool {
    /// Makes a pool of `bytes`. Without `key` it gets a random one.
    #[new]
    #[pyo3(signature = (name, bytes, *, key=None, names_max=None, other_users=false, session=None))]
    fn new(
        py: Python<'_>,
        name: &str,
        bytes: u64,
        key: Option<&str>,
        names_max: Option<usize>,
        other_users: bool,
        session: Option<&Session>,
    ) -> PyResult<Self> {
        let mut options = PoolOptions::new().other_users(other_users);
        if let Some(key) = key {
            options = options.key(key.parse().map_err(|_| PyValueError::new_err("a key is 32 hexadecimal digits"))?);
        }
        if let Some(names_max) = names_max {
            options = options.names_max(names_max);
        }
        let session = session_of(py, session)?;
        py.detach(|| options.create(&session, name, bytes)).or_raise(py).map(|pool| Self(Mutex::new(Some(pool))))
    }

    fn __repr__(&self) -> String {
        const CLASS: &str = "raas.tensor.Pool";
        let Some(pool) = lock(&self.0).clone() else { return Shown::closed(CLASS) };
        Shown::of(CLASS).fact("name", format_args!("{:?}", pool.name())).fact("number", pool.number()).end()
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.inner(py)?.name().to_owned())
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.inner(py)?.key().to_string())
    }

    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.inner(py)?.number())
    }

    #[getter]
    fn free_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        let pool = self.inner(py)?;
        Ok(py.detach(|| pool.free_bytes()))
    }

    /// A tensor to be filled, of float32 unless told otherwise: by `numpy.asarray(tensor)`, `torch.from_dlpack(tensor)` or `write`. Strides are in elements.
    #[pyo3(signature = (shape, dtype=None, *, strides=None))]
    fn empty(
        &self,
        py: Python<'_>,
        shape: Vec<u64>,
        dtype: Option<&Bound<'_, PyAny>>,
        strides: Option<Vec<u64>>,
    ) -> PyResult<Tensor> {
        let pool = self.inner(py)?;
        let word = dtype.map_or_else(|| Ok("float32".to_owned()), word_of)?;
        let layout = word.parse().and_then(|dtype| match strides {
            Some(strides) => Layout::strided(dtype, &shape, &strides),
            None => Layout::new(dtype, &shape),
        });
        let layout = layout.or_raise(py)?;
        py.detach(|| pool.make(layout)).or_raise(py).map(Tensor::draft)
    }

    /// A tensor to be filled, with the bytes of an array of another framework: one copy.
    fn copy(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        copy_in(&self.inner(py)?, array)
    }

    /// Gives a tensor that was filled its name, and returns its generation. `BufferError` while arrays of it are alive.
    /// Any other array is copied in.
    fn put(&self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
        let pool = self.inner(py)?;
        let draft = match tensor.cast::<Tensor>() {
            Ok(own) => own.get().take_draft()?,
            Err(_) => copy_in(&pool, tensor)?.take_draft()?,
        };
        py.detach(|| pool.put(name, draft)).or_raise(py)
    }

    /// The tensor of a name, held by this program itself.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        let pool = self.inner(py)?;
        py.detach(|| pool.get(name)).or_raise(py).map(Tensor::held)
    }

    /// Takes the name away, and waits until nobody holds the tensor, at most `timeout` seconds. Who holds it then.
    #[pyo3(signature = (name, timeout=0.0))]
    fn free(&self, py: Python<'_>, name: &str, timeout: f64) -> PyResult<Vec<HolderRow>> {
        let (pool, timeout) = (self.inner(py)?, seconds(Some(timeout))?.unwrap_or_default());
        py.detach(|| pool.free_and_wait(name, timeout)).or_raise(py).map(rows)
    }

    /// Brings a tensor of a reader into this pool: from another host by one READ.
    fn fetch(&self, py: Python<'_>, tensor: &Tensor) -> PyResult<Tensor> {
        let Content::Held(held) = tensor.content(py)? else {
            return Err(PyValueError::new_err("it is a draft: only a tensor that is held is fetched"));
        };
        let pool = self.inner(py)?;
        py.detach(|| pool.fetch(&held)).or_raise(py).map(Tensor::draft)
    }

    fn holders(&self, py: Python<'_>) -> PyResult<Vec<HolderRow>> {
        let pool = self.inner(py)?;
        Ok(rows(py.detach(|| pool.holders())))
    }

    /// `(name, generation, bytes)` of each.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64)>> {
        Ok(self.inner(py)?.names())
    }

    /// Takes all tensors away from the readers of other programs.
    fn revoke(&self, py: Python<'_>) -> PyResult<()> {
        let pool = self.inner(py)?;
        py.detach(|| pool.revoke()).or_raise(py)
    }

    /// `(gets, bytes copied, READs, bytes read)`.
    fn counts(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        Ok(four(self.inner(py)?.counts()))
    }

    /// Answers no reader any more. Its memory ends with its last tensor.
    fn close(&self, py: Python<'_>) {
        let pool = lock(&self.0).take();
        py.detach(|| drop(pool));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// A pool of another program, on any host.
#[pyclass(frozen, name = "Reader", module = "raas.tensor")]
#[derive(Debug)]
pub(crate) struct Reader(tensor::Reader);

#[pymethods]
impl Reader {
    /// Opens the pool of that name at a host (127.0.0.1: this one). `timeout`: seconds that its program has to answer.
    #[new]
    #[pyo3(signature = (host, name, key, *, timeout=10.0, session=None))]
    fn new(
        py: Python<'_>,
        host: &str,
        name: &str,
        key: &str,
        timeout: f64,
        session: Option<&Session>,
    ) -> PyResult<Self> {
        let host: IpAddr = host.parse().map_err(|_| PyValueError::new_err(format!("`{host}` is no address")))?;
        let key = key.parse().map_err(|_| PyValueError::new_err("a key is 32 hexadecimal digits"))?;
        let (session, patience) = (session_of(py, session)?, seconds(Some(timeout))?.unwrap_or_default());
        let reader = py.detach(|| tensor::Reader::open(&session, host, name, key));
        reader.or_raise(py).map(|reader| Self(reader.patience(patience)))
    }

    fn __repr__(&self) -> String {
        Shown::of("raas.tensor.Reader").fact("name", format_args!("{:?}", self.0.name())).end()
    }

    /// Holds the tensor that has a name.
    fn get(&self, py: Python<'_>, name: &str) -> PyResult<Tensor> {
        py.detach(|| self.0.get(name)).or_raise(py).map(Tensor::held)
    }

    /// Holds the very tensor of a reference (`Tensor.reference`), or raises: `stale`, `freed`.
    fn get_ref(&self, py: Python<'_>, reference: (u64, String, u64)) -> PyResult<Tensor> {
        let (pool, name, generation) = reference;
        let reference = TensorRef { pool, name, generation };
        py.detach(|| self.0.get_ref(&reference)).or_raise(py).map(Tensor::held)
    }

    /// `(gets, bytes copied, READs, bytes read)`.
    fn counts(&self) -> (u64, u64, u64, u64) {
        four(self.0.counts())
    }
}
