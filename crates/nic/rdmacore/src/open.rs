//! Opening a device by its name. It must never keep the library's list of devices.

use std::ffi::CStr;

use crate::abi::ibv_context;
use crate::device::SelectError;
use crate::library::{Functions, LoadError, errno};

/// A device cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No library.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// No device.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// The library does not know the device that the kernel has.
    #[error(
        "libibverbs does not list {0}: install its provider (ibverbs-providers), and check that /dev/infiniband/uverbs* may be read and written by this user"
    )]
    NotListed(String),
    /// A call failed.
    #[error("{call} on {device} failed with errno {errno}")]
    Os {
        /// Device name.
        device: String,
        /// Which call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

pub(crate) fn open_context(lib: &Functions, name: &str) -> Result<*mut ibv_context, OpenError> {
    let mut count = 0;
    // SAFETY: the out-pointer is valid.
    let list = unsafe { (lib.ibv_get_device_list)(&mut count) };
    if list.is_null() {
        return Err(OpenError::Os { device: name.to_string(), call: "ibv_get_device_list", errno: errno() });
    }
    let mut opened = Err(OpenError::NotListed(name.to_string()));
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` valid entries.
        let device = unsafe { *list.add(i) };
        // SAFETY: the name of a listed device is a C string that lives as long as the list.
        let found = unsafe { CStr::from_ptr((lib.ibv_get_device_name)(device)) };
        if found.to_bytes() == name.as_bytes() {
            // SAFETY: the device is listed.
            let context = unsafe { (lib.ibv_open_device)(device) };
            opened = if context.is_null() {
                Err(OpenError::Os { device: name.to_string(), call: "ibv_open_device", errno: errno() })
            } else {
                Ok(context)
            };
            break;
        }
    }
    // SAFETY: the list came from the library; open contexts keep their device alive.
    unsafe { (lib.ibv_free_device_list)(list) };
    opened
}
