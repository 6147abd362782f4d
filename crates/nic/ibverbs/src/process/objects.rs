//! The objects as programs see them: each begins with its public structure of the C header, and goes on with what is
//! this library's own.
//!
//! Owns their layout. It must never put anything before a public structure, or move it: programs hold pointers to it.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::Mutex;

use rdmacore::abi;
use verbs::{AhId, CqId, MrId, PdId, Qpn, SrqId};

use crate::events::{Acked, Queue};
use crate::process::Process;

/// What follows the public part of a device: libraries of vendors look into their own structure around every device that
/// they are shown, and find zeroes.
const BEYOND: usize = 1024;

/// `struct ibv_device`.
#[repr(C)]
pub(crate) struct Device {
    pub(crate) ops: [usize; 2],
    pub(crate) node_type: c_int,
    pub(crate) transport_type: c_int,
    pub(crate) name: [u8; 64],
    pub(crate) dev_name: [u8; 64],
    pub(crate) dev_path: [u8; 256],
    pub(crate) ibdev_path: [u8; 256],
    pub(crate) beyond: [u8; BEYOND],
}

/// `struct verbs_context`, and the process's NIC behind it.
#[repr(C)]
pub(crate) struct Context {
    /// Functions of the extended interface, by their place in the structure.
    pub(crate) extended: [usize; EXTENDED],
    /// Bytes of the public structure.
    pub(crate) sz: usize,
    pub(crate) public: abi::ibv_context,
    pub(crate) num_comp_vectors: c_int,
    pub(crate) mutex: [u64; 5],
    /// All ones: the extended interface is there.
    pub(crate) abi_compat: usize,
    pub(crate) process: &'static Process,
    /// Asynchronous events of the objects of this context.
    pub(crate) events: Queue<AsyncItem>,
}

/// Places in [`Context::extended`].
pub(crate) const EXTENDED: usize = 39;
pub(crate) const QUERY_PORT: usize = 0;
pub(crate) const PRIVATE: usize = 26;
pub(crate) const QUERY_DEVICE_EX: usize = 27;
pub(crate) const PLACEHOLDERS: [usize; 3] = [29, 31, 38];

/// An asynchronous event that waits to be taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AsyncItem {
    /// The object's address, or the port's number.
    pub(crate) element: usize,
    pub(crate) kind: u32,
}

/// `struct ibv_pd`.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) public: abi::ibv_pd,
    pub(crate) id: PdId,
    /// Objects that stand on it, beside those that the NIC counts.
    pub(crate) users: Mutex<u32>,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) public: abi::ibv_mr,
    pub(crate) id: MrId,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) public: abi::ibv_comp_channel,
    /// Addresses of CQs.
    pub(crate) events: Queue<usize>,
}

/// `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) public: abi::ibv_cq,
    pub(crate) mutex_and_cond: [u64; 11],
    pub(crate) events_completed: [u32; 2],
    pub(crate) id: CqId,
    /// Completion events that were taken and not acknowledged.
    pub(crate) completions: Acked,
    /// Likewise asynchronous ones.
    pub(crate) asynchronous: Acked,
}

/// `struct ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) context: *mut abi::ibv_context,
    pub(crate) srq_context: *mut c_void,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) mutex_and_cond: [u64; 11],
    pub(crate) events_completed: u32,
    pub(crate) id: SrqId,
    pub(crate) attr: Mutex<abi::ibv_srq_attr>,
    pub(crate) asynchronous: Acked,
}

/// `struct ibv_qp`. The pointers of the public head: context of the program, PD, send CQ, receive CQ, SRQ.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) public: abi::ibv_qp,
    pub(crate) state: u32,
    pub(crate) qp_type: u32,
    pub(crate) mutex_and_cond: [u64; 11],
    pub(crate) events_completed: u32,
    pub(crate) qpn: Qpn,
    pub(crate) cap: abi::ibv_qp_cap,
    pub(crate) sq_sig_all: c_int,
    /// Attributes as the program set them.
    pub(crate) attr: Mutex<abi::ibv_qp_attr>,
    pub(crate) asynchronous: Acked,
}

/// `struct ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) context: *mut abi::ibv_context,
    pub(crate) pd: *mut Pd,
    pub(crate) handle: u32,
    pub(crate) id: AhId,
}

impl Context {
    /// That of a pointer which a program was given.
    ///
    /// # Safety
    ///
    /// `public` is what [`crate::context`] gave out, and the context is open.
    pub(crate) unsafe fn of<'a>(public: *mut abi::ibv_context) -> &'a Self {
        // SAFETY: every context of this library is a `Context`, in which the public one lies at this place.
        unsafe { &*public.byte_sub(offset_of!(Self, public)).cast::<Self>() }
    }
}

const _: () = {
    assert!(size_of::<abi::ibv_context>() == 272 && size_of::<abi::ibv_cq>() == 32 && size_of::<abi::ibv_qp>() == 56);
    assert!(offset_of!(Device, ibdev_path) == 408 && offset_of!(Device, beyond) == 664);
    assert!(offset_of!(Context, sz) == 312 && offset_of!(Context, public) == 320);
    assert!(offset_of!(Context, num_comp_vectors) - offset_of!(Context, public) == 272);
    assert!(offset_of!(Context, abi_compat) - offset_of!(Context, public) == 320);
    assert!(QUERY_DEVICE_EX * 8 == 216);
    assert!(offset_of!(Cq, mutex_and_cond) == 32 && offset_of!(Cq, events_completed) == 120);
    assert!(offset_of!(Srq, handle) == 24 && offset_of!(Srq, mutex_and_cond) == 32);
    assert!(offset_of!(Srq, events_completed) == 120);
    assert!(offset_of!(Qp, state) == 56 && offset_of!(Qp, qp_type) == 60 && offset_of!(Qp, mutex_and_cond) == 64);
    assert!(offset_of!(Qp, events_completed) == 152 && offset_of!(Ah, handle) == 16);
};
