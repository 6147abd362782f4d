//! Regions: memory with a name.
//!
//! Owns the mapping of Python's calls on the library's, and what a revoke means while buffers are out: the owner's own is
//! refused, and after another program's the buffers are stale, which `stale_views` and `check` say.

use std::ffi::c_int;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use raas::{RegionAccess, RegionError, RegionKey, RegionOptions};

use crate::address::seconds;
use crate::bytes::{Source, Target};
use crate::exports::{Bytes, Exports, hand_out, take_back};
use crate::failure::{OrRaise, closed};
use crate::maybe_open::{SLICE, lock};
use crate::session::{Session, session_of};
use crate::shown::Shown;

/// Memory with a name, which programs of this host and of others read and write.
///
/// A region of this host has the buffer protocol: `memoryview(region)` and `numpy.frombuffer(region, dtype)` show its
/// memory without a copy. Others may write to it at any time.
#[pyclass(frozen, module = "raas")]
#[derive(Debug)]
pub(crate) struct Region {
    inner: Mutex<Option<raas::Region>>,
    exports: Exports,
}

fn key_of(hex: &str) -> PyResult<RegionKey> {
    hex.parse().map_err(|_| PyValueError::new_err("a key is 32 hexadecimal digits"))
}

fn access_of(words: &str) -> PyResult<RegionAccess> {
    let unknown = || PyValueError::new_err(format!("`{words}` is no access: name some of read, write, atomic"));
    words.parse().map_err(|_| unknown())
}

impl Region {
    fn adopt(region: raas::Region) -> Self {
        Self { inner: Mutex::new(Some(region)), exports: Exports::default() }
    }

    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<raas::Region> {
        let inner = lock(&self.inner).clone();
        inner.ok_or_else(|| closed(py))
    }

    /// An operation, without the interpreter's lock: one on another host waits.
    fn operate<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&raas::Region) -> Result<T, RegionError> + Send,
    ) -> PyResult<T> {
        let region = self.get(py)?;
        py.detach(|| operation(&region)).or_raise(py)
    }
}

#[pymethods]
impl Region {
    /// Makes a region of `bytes` zeroes, which this program owns. Without `key` it gets a random one.
    #[staticmethod]
    #[pyo3(signature = (name, bytes, *, access="read,write,atomic", key=None, huge_pages=false, outlives=false,
                        other_users=false, session=None))]
    #[expect(clippy::too_many_arguments, reason = "Python's callers name them")]
    fn create(
        py: Python<'_>,
        name: &str,
        bytes: u64,
        access: &str,
        key: Option<&str>,
        huge_pages: bool,
        outlives: bool,
        other_users: bool,
        session: Option<&Session>,
    ) -> PyResult<Self> {
        let mut options = RegionOptions::new().access(access_of(access)?).huge_pages(huge_pages);
        options = options.outlives(outlives).other_users(other_users);
        if let Some(key) = key {
            options = options.key(key_of(key)?);
        }
        let session = session_of(py, session)?;
        py.detach(|| options.create(&session, name, bytes)).or_raise(py).map(Self::adopt)
    }

    /// Opens a region of the host with this address (127.0.0.1 or 0.0.0.0: this host).
    #[staticmethod]
    #[pyo3(signature = (host, name, key, *, access="read,write,atomic", session=None))]
    fn open(
        py: Python<'_>,
        host: &str,
        name: &str,
        key: &str,
        access: &str,
        session: Option<&Session>,
    ) -> PyResult<Self> {
        let host = host.parse().map_err(|_| PyValueError::new_err(format!("`{host}` is no address")))?;
        let (key, access, session) = (key_of(key)?, access_of(access)?, session_of(py, session)?);
        py.detach(|| raas::Region::open_for(&session, host, name, key, access)).or_raise(py).map(Self::adopt)
    }

    // ---- what it is

    /// All but the key.
    fn __repr__(&self) -> String {
        const CLASS: &str = "raas.Region";
        let Some(region) = lock(&self.inner).clone() else { return Shown::closed(CLASS) };
        let shown = Shown::of(CLASS).fact("name", format_args!("{:?}", region.name())).fact("nbytes", region.bytes());
        let shown = shown.fact("epoch", region.epoch()).fact("access", region.access());
        if region.is_owner() { shown.word("owner").end() } else { shown.end() }
    }

    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.name().to_owned())
    }

    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.bytes())
    }

    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.epoch())
    }

    #[getter]
    fn key(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.key().to_string())
    }

    #[getter]
    fn access(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.access().to_string())
    }

    #[getter]
    fn is_owner(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.get(py)?.is_owner())
    }

    /// Buffers of it that are out.
    #[getter]
    fn views(&self) -> usize {
        self.exports.count(0).0
    }

    /// Those of them that show memory which the region has left, since a revoke.
    #[getter]
    fn stale_views(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.exports.count(self.get(py)?.epoch()).1)
    }

    /// Raises what a use of the handle would, as `raas.Revoked`; also if buffers of it are stale.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let region = self.get(py)?;
        region.read(0, &mut []).or_raise(py)?;
        let (held, stale) = (region.epoch(), self.exports.count(region.epoch()).1);
        if stale == 0 {
            return Ok(());
        }
        let name = region.name().to_owned();
        Err(RegionError::Revoked { name, held: held - 1, current: held, may_have_landed: true }).or_raise(py)
    }

    // ---- bytes

    fn read<'py>(&self, py: Python<'py>, offset: u64, bytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        let region = self.get(py)?;
        if bytes as u64 > region.bytes() {
            // Before so much memory is taken.
            let (name, len) = (region.name().to_owned(), bytes as u64);
            return Err(RegionError::OutOfBounds { name, offset, len, bytes: region.bytes() }).or_raise(py);
        }
        let read = py.detach(|| {
            let mut room = vec![0; bytes];
            region.read(offset, &mut room).map(|()| room)
        });
        Ok(PyBytes::new(py, &read.or_raise(py)?))
    }

    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut target = Target::get(buffer)?;
        let room = target.as_mut_slice();
        self.operate(py, |region| region.read(offset, room))
    }

    /// With a tag: then tells the owner, who gets it from `notification`.
    #[pyo3(signature = (offset, data, *, notify=None))]
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>, notify: Option<u32>) -> PyResult<()> {
        let source = Source::get(data)?;
        let bytes = source.as_slice();
        self.operate(py, |region| match notify {
            Some(tag) => region.write_notify(offset, bytes, tag),
            None => region.write(offset, bytes),
        })
    }

    /// Tells the owner that what was written before is there, as `write` with a tag and no bytes.
    fn notify(&self, py: Python<'_>, tag: u32) -> PyResult<()> {
        self.operate(py, |region| region.write_notify(0, &[], tag))
    }

    /// The owner's: waits for a notification and takes it, in the order in which they came.
    #[pyo3(signature = (timeout=None))]
    fn notification(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u32> {
        let region = self.get(py)?;
        let deadline = seconds(timeout)?.and_then(|time| std::time::Instant::now().checked_add(time));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            match py.detach(|| region.recv_notification_timeout(slice)) {
                Err(RegionError::TimedOut { .. }) if left.is_none_or(|left| left > SLICE) => py.check_signals()?,
                taken => return taken.or_raise(py),
            }
        }
    }

    // ---- 8 bytes at a time

    fn load(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        self.operate(py, |region| region.load(offset))
    }

    fn store(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<()> {
        self.operate(py, |region| region.store(offset, value))
    }

    /// Stores `new` if `expected` is there; returns what was there, as all of these.
    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        self.operate(py, |region| region.compare_swap(offset, expected, new))
    }

    fn fetch_add(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_add(offset, value))
    }

    fn swap(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        self.operate(py, |region| region.swap(offset, value))
    }

    fn fetch_and(&self, py: Python<'_>, offset: u64, bits: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_and(offset, bits))
    }

    fn fetch_or(&self, py: Python<'_>, offset: u64, bits: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_or(offset, bits))
    }

    fn fetch_xor(&self, py: Python<'_>, offset: u64, bits: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_xor(offset, bits))
    }

    fn fetch_min(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_min(offset, value))
    }

    fn fetch_max(&self, py: Python<'_>, offset: u64, value: u64) -> PyResult<u64> {
        self.operate(py, |region| region.fetch_max(offset, value))
    }

    // ---- the owner's part, and the end

    /// Ends all other handles; returns the new epoch. `BufferError` while buffers of this handle are out: the region moves
    /// to other memory, and they would stay behind.
    #[pyo3(signature = (new_key=None))]
    fn revoke(&self, py: Python<'_>, new_key: Option<&str>) -> PyResult<u64> {
        self.exports.check_none("the region is revoked")?;
        let new_key = new_key.map(key_of).transpose()?;
        self.operate(py, |region| region.revoke(new_key))
    }

    /// Ends the region of this owner, also one that would outlive it.
    fn delete(&self, py: Python<'_>) -> PyResult<()> {
        let region = lock(&self.inner).take();
        let region = region.ok_or_else(|| closed(py))?;
        py.detach(|| region.delete());
        Ok(())
    }

    /// Gives the handle back. `BufferError` while buffers of it are out.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.exports.check_none("the region is closed")?;
        let region = lock(&self.inner).take();
        py.detach(|| drop(region));
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(usize::try_from(self.get(py)?.bytes())?)
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (py, own) = (slf.py(), slf.get());
        let region = own.get(py)?;
        let mapped = region.map(0, region.bytes()).or_raise(py)?;
        // SAFETY: the interpreter's `view`.
        unsafe { hand_out(slf.as_any(), &own.exports, Bytes::mapped(mapped, ()), view, flags) }
    }

    /// # Safety
    ///
    /// Called by the interpreter alone.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter gives each buffer back once.
        unsafe { take_back(&self.exports, view) }
    }
}
