//! Operations on regions that are submitted together.
//!
//! Owns what each operation's result is: bytes of a read, a number of an atomic, nothing of a write.

use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bytes::Source;
use crate::failure::OrRaise;
use crate::maybe_open::lock;
use crate::region::Region;
use crate::shown::Shown;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Read,
    Write,
    Atomic,
}

/// Operations on regions of one host, submitted together and begun in this order. Each returns its number.
#[pyclass(frozen, module = "raas")]
#[derive(Debug, Default)]
pub(crate) struct Batch(Mutex<(raas::Batch, Vec<Kind>)>);

impl Batch {
    fn add(
        &self,
        py: Python<'_>,
        region: &Region,
        kind: Kind,
        add: impl FnOnce(&mut raas::Batch, &raas::Region) -> usize,
    ) -> PyResult<usize> {
        let region = region.get(py)?;
        let mut own = lock(&self.0);
        own.1.push(kind);
        Ok(add(&mut own.0, &region))
    }
}

#[pymethods]
impl Batch {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __repr__(&self) -> String {
        Shown::of("raas.Batch").fact("operations", self.__len__()).end()
    }

    fn __len__(&self) -> usize {
        lock(&self.0).1.len()
    }

    /// The next operation begins when all before it are done.
    fn fence(&self) {
        lock(&self.0).0.fence();
    }

    fn read(&self, py: Python<'_>, region: &Region, offset: u64, bytes: usize) -> PyResult<usize> {
        self.add(py, region, Kind::Read, |batch, region| batch.read(region, offset, bytes))
    }

    #[pyo3(signature = (region, offset, data, *, notify=None))]
    fn write(
        &self,
        py: Python<'_>,
        region: &Region,
        offset: u64,
        data: &Bound<'_, PyAny>,
        notify: Option<u32>,
    ) -> PyResult<usize> {
        let bytes = Source::get(data)?.as_slice().to_vec();
        self.add(py, region, Kind::Write, |batch, region| match notify {
            Some(tag) => batch.write_notify(region, offset, bytes, tag),
            None => batch.write(region, offset, bytes),
        })
    }

    fn compare_swap(&self, py: Python<'_>, region: &Region, offset: u64, expected: u64, new: u64) -> PyResult<usize> {
        self.add(py, region, Kind::Atomic, |batch, region| batch.compare_swap(region, offset, expected, new))
    }

    fn fetch_add(&self, py: Python<'_>, region: &Region, offset: u64, value: u64) -> PyResult<usize> {
        self.add(py, region, Kind::Atomic, |batch, region| batch.fetch_add(region, offset, value))
    }

    fn swap(&self, py: Python<'_>, region: &Region, offset: u64, value: u64) -> PyResult<usize> {
        self.add(py, region, Kind::Atomic, |batch, region| batch.swap(region, offset, value))
    }

    /// Submits them, waits for their end, and returns the result of each: bytes, a number, or None. The error of the
    /// operation that failed first is raised; none behind it that had not begun was done. The batch is empty then.
    fn run<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (batch, kinds) = std::mem::take(&mut *lock(&self.0));
        let mut ended = py.detach(|| batch.run()).or_raise(py)?;
        ended.check().or_raise(py)?;
        let results = PyList::empty(py);
        for (number, kind) in kinds.iter().enumerate() {
            match kind {
                Kind::Read => results.append(PyBytes::new(py, &ended.take_bytes(number).or_raise(py)?))?,
                Kind::Atomic => results.append(ended.value(number).or_raise(py)?)?,
                Kind::Write => results.append(py.None())?,
            }
        }
        Ok(results)
    }
}
