//! Loading libibverbs and finding its functions.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use crate::abi::*;

/// The file names under which rdma-core installs the library.
const NAMES: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];

/// libibverbs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not there.
    #[error("rdma-core is not installed ({0}): install libibverbs1 and ibverbs-providers, or use device = \"softnic\"")]
    NotInstalled(String),
    /// It is too old.
    #[error("libibverbs lacks {symbol}: rdma-core 28 or newer is needed ({cause})")]
    Symbol {
        /// Which function.
        symbol: &'static str,
        /// The loader's words.
        cause: String,
    },
}

/// Why the last call of the library on this thread failed.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

macro_rules! functions {
    ($($name:ident : fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions of libibverbs that are used, valid as long as `_library` is loaded.
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            _library: Library,
        }

        impl Functions {
            fn resolve(library: Library) -> Result<Self, LoadError> {
                $(
                    // SAFETY: the type is that of the function in rdma-core's public header, whose ABI the symbol
                    // version (the library's default) fixes; the pointer is kept beside the loaded library.
                    let $name = *unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> $ret>(concat!(stringify!($name), "\0").as_bytes())
                    }
                    .map_err(|e| LoadError::Symbol { symbol: stringify!($name), cause: e.to_string() })?;
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }
    };
}

functions! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list: fn(*mut *mut ibv_device) -> ();
    ibv_get_device_name: fn(*mut ibv_device) -> DeviceName;
    ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device: fn(*mut ibv_context) -> c_int;
    ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
    ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
    ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut ibv_cq, c_uint) -> ();
    ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
    ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
    ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
    ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
    ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event: fn(*mut ibv_async_event) -> ();
}

impl Functions {
    /// Loads the library.
    pub(crate) fn load() -> Result<Self, LoadError> {
        let mut cause = String::new();
        for name in NAMES {
            // SAFETY: loading runs the initialisers of libibverbs and its dependencies, which any program that links it
            // runs at start; they have no preconditions.
            match unsafe { Library::new(name) } {
                Ok(library) => return Self::resolve(library),
                Err(e) => cause = e.to_string(),
            }
        }
        Err(LoadError::NotInstalled(cause))
    }
}

/// Whether libibverbs can be loaded and has what is needed, for callers that only report it.
pub fn library_present() -> Result<(), LoadError> {
    Functions::load().map(drop)
}
