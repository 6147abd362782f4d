//! Tensors as other frameworks pass them: DLPack, whose tensors keep their owner by a function that frees them.
//!
//! Owns the structures of DLPack 1.1 (dlpack.h) and what is freed when. It must never hand out memory as writable that is
//! not.

use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensor::{DType, Layout};

const CPU: i32 = 1;
const VERSION: (u32, u32) = (1, 1);
const READ_ONLY: u64 = 1;
const OLD: &CStr = c"dltensor";
const OLD_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Type {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: Type,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, which cannot say that it is read-only.
#[repr(C)]
#[derive(Debug)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// What an export keeps.
struct Kept {
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Box<dyn Send + Sync>,
}

fn type_of(dtype: DType) -> PyResult<Type> {
    let code = match dtype {
        DType::Bool => 6,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::Bf16 => 4,
        DType::C64 | DType::C128 => 5,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 12,
        other => return Err(PyBufferError::new_err(format!("DLPack has no type for {other}"))),
    };
    let bits = u8::try_from(dtype.bytes() * 8).map_err(|_| PyBufferError::new_err("an element is too long"))?;
    Ok(Type { code, bits, lanes: 1 })
}

fn dtype_of(found: Type) -> PyResult<DType> {
    let all = DType::ALL.iter().copied();
    let same = |dtype: &DType| type_of(*dtype).is_ok_and(|own| own == found);
    let unknown = || PyBufferError::new_err(format!("tensors have no elements of DLPack type {found:?}"));
    all.into_iter().find(same).ok_or_else(unknown)
}

/// `__dlpack_device__` of memory of the host.
pub(crate) fn device() -> (i32, i32) {
    (CPU, 0)
}

/// A tensor's memory as a capsule, which keeps `owner`.
pub(crate) fn export<'py>(
    py: Python<'py>,
    (layout, data, is_writable): (&Layout, *mut u8, bool),
    max_version: Option<(u32, u32)>,
    owner: impl Send + Sync + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
    if !is_writable && !is_versioned {
        return Err(PyBufferError::new_err(
            "the tensor is read-only, which this consumer's DLPack cannot say: take numpy.asarray(tensor), and what your \
             framework makes of a numpy array without a copy",
        ));
    }
    let whole = |numbers: &[u64]| numbers.iter().map(|n| i64::try_from(*n)).collect::<Result<Vec<_>, _>>();
    let too_long = |_| PyBufferError::new_err("too long to be addressed");
    let (shape, strides) = (whole(layout.shape()).map_err(too_long)?, whole(layout.strides()).map_err(too_long)?);
    let dtype = type_of(layout.dtype())?;
    // The boxes do not move, so neither do the numbers in their vectors.
    let mut kept = Box::new(Kept { shape, strides, _owner: Box::new(owner) });
    let tensor = DlTensor {
        data: data.cast(),
        device: Device { kind: CPU, id: 0 },
        ndim: i32::try_from(kept.shape.len()).unwrap_or(0),
        dtype,
        shape: kept.shape.as_mut_ptr(),
        strides: kept.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = Box::into_raw(kept).cast::<c_void>();
    if is_versioned {
        let flags = if is_writable { 0 } else { READ_ONLY };
        let version = [VERSION.0, VERSION.1];
        let made = ManagedVersioned { version, context, deleter: Some(delete_versioned), flags, tensor };
        let made = Box::into_raw(Box::new(made));
        // SAFETY: `made` is a box that the capsule, or who takes it, frees by its deleter, once.
        unsafe { capsule(py, made.cast(), VERSIONED, drop_versioned) }
    } else {
        let made = Box::into_raw(Box::new(Managed { tensor, context, deleter: Some(delete_old) }));
        // SAFETY: as above.
        unsafe { capsule(py, made.cast(), OLD, drop_old) }
    }
}

/// # Safety
///
/// `made` is what `destructor` frees if the capsule still has `name`.
unsafe fn capsule<'py>(
    py: Python<'py>,
    made: *mut c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: `made` is not null, and the name is there for ever. The result is a new reference, or null with an error.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(made, name.as_ptr(), Some(destructor))) }
}

unsafe extern "C" fn delete_old(managed: *mut Managed) {
    if managed.is_null() {
        return;
    }
    // SAFETY: DLPack calls this once, with what `export` made; its context is a box of `Kept`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Kept>()));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    if managed.is_null() {
        return;
    }
    // SAFETY: as in `delete_old`.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Box::from_raw(managed.context.cast::<Kept>()));
    }
}

unsafe extern "C" fn drop_old(capsule: *mut ffi::PyObject) {
    // SAFETY: Python ends a capsule of `export`. With this name nobody took it, so what it has was not freed.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) == 1 {
            delete_old(ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_old`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A tensor of another framework, which is freed with this.
#[derive(Debug)]
pub(crate) struct Foreign {
    layout: Layout,
    data: *const u8,
    taken: Taken,
}

#[derive(Debug)]
enum Taken {
    Old(*mut Managed),
    Versioned(*mut ManagedVersioned),
}

impl Foreign {
    /// What an object with `__dlpack__` gives, in memory of the host.
    pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let kind: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if kind.0 != CPU {
            let words =
                format!("the tensor is on device {kind:?}, not in memory of the host: copy it to the host first");
            return Err(PyBufferError::new_err(words));
        }
        let newest = PyDict::new(py);
        newest.set_item("max_version", VERSION)?;
        let given = match object.call_method("__dlpack__", (), Some(&newest)) {
            // Older producers do not know the word.
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
                object.call_method0("__dlpack__")
            }
            given => given,
        }?;
        let capsule = given.as_ptr();
        // SAFETY: Python says that it is a capsule of that name, so it has what DLPack says; with the other name it is this
        // program's to free, which `Drop` does.
        unsafe {
            if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast::<ManagedVersioned>();
                if (*managed).version[0] != VERSION.0 {
                    return Err(PyBufferError::new_err("the tensor is of a DLPack that has another form"));
                }
                let (layout, data) = read(&(*managed).tensor)?;
                rename(py, capsule, VERSIONED_USED)?;
                return Ok(Self { layout, data, taken: Taken::Versioned(managed) });
            }
            if ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) == 1 {
                let managed = ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr()).cast::<Managed>();
                let (layout, data) = read(&(*managed).tensor)?;
                rename(py, capsule, OLD_USED)?;
                return Ok(Self { layout, data, taken: Taken::Old(managed) });
            }
        }
        Err(PyBufferError::new_err("`__dlpack__` gave no capsule of a tensor"))
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// From its first element to its last.
    pub(crate) fn as_slice(&self) -> &[u8] {
        let bytes = usize::try_from(self.layout.bytes()).unwrap_or(0);
        if bytes == 0 || self.data.is_null() {
            return &[];
        }
        // SAFETY: shape and strides are the producer's, and none of its elements lies beyond `bytes`, by `Layout`. It keeps
        // them there until the deleter is called. What its program writes meanwhile can tear bytes, which are valid in every
        // state.
        unsafe { std::slice::from_raw_parts(self.data, bytes) }
    }
}

/// # Safety
///
/// The tensor is as DLPack says: `ndim` numbers follow `shape`, and `strides` unless that is null.
unsafe fn read(tensor: &DlTensor) -> PyResult<(Layout, *const u8)> {
    let dims = usize::try_from(tensor.ndim).map_err(|_| PyBufferError::new_err("a tensor of no dimensions"))?;
    let numbers = |from: *mut i64| -> PyResult<Vec<u64>> {
        if dims == 0 || from.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: the caller's promise.
        let found = unsafe { std::slice::from_raw_parts(from, dims) };
        let negative = |_| PyBufferError::new_err("strides that go backwards: make it contiguous first");
        found.iter().map(|number| u64::try_from(*number).map_err(negative)).collect()
    };
    let shape = numbers(tensor.shape)?;
    let dtype = dtype_of(tensor.dtype)?;
    let layout = if tensor.strides.is_null() {
        Layout::new(dtype, &shape)
    } else {
        Layout::strided(dtype, &shape, &numbers(tensor.strides)?)
    };
    let layout = layout.map_err(|error| PyBufferError::new_err(error.to_string()))?;
    let offset = usize::try_from(tensor.byte_offset).unwrap_or(0);
    Ok((layout, tensor.data.cast::<u8>().wrapping_add(offset).cast_const()))
}

/// # Safety
///
/// `capsule` is a capsule.
unsafe fn rename(py: Python<'_>, capsule: *mut ffi::PyObject, name: &'static CStr) -> PyResult<()> {
    // SAFETY: the caller's promise; the name is there for ever.
    if unsafe { ffi::PyCapsule_SetName(capsule, name.as_ptr()) } == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: it was taken from its capsule, which does not free it any more; nothing of it is used after this. This
        // runs with the interpreter's lock, which deleters of Python's objects need.
        unsafe {
            match self.taken {
                Taken::Old(managed) => {
                    if let Some(delete) = ptr::read(&raw const (*managed).deleter) {
                        delete(managed);
                    }
                }
                Taken::Versioned(managed) => {
                    if let Some(delete) = ptr::read(&raw const (*managed).deleter) {
                        delete(managed);
                    }
                }
            }
        }
    }
}
