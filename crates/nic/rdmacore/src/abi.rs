//! The C structures of libibverbs that cross the boundary: rdma-core's public `infiniband/verbs.h`, whose layout is
//! stable since `IBVERBS_1.1`. Sizes and offsets are asserted against those of the header on 64-bit Linux.

#![allow(non_camel_case_types)] // the names of the C header

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

macro_rules! opaque {
    ($($name:ident),*) => {$(
        #[repr(C)]
        pub(crate) struct $name { _opaque: [u8; 0] }
    )*};
}
opaque!(ibv_device, ibv_ah);

#[repr(C)]
pub(crate) struct ibv_context_ops {
    _before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(crate) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _before_post_srq_recv: [*mut c_void; 7],
    pub(crate) post_srq_recv:
        Option<unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _before_post_send: [*mut c_void; 4],
    pub(crate) post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub(crate) post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    _after: [*mut c_void; 5],
}

/// The public head of the context; the library appends private parts.
#[repr(C)]
pub(crate) struct ibv_context {
    _device: *mut ibv_device,
    pub(crate) ops: ibv_context_ops,
    _cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

#[repr(C)]
pub(crate) struct ibv_pd {
    _context: *mut ibv_context,
    _handle: u32,
}

#[repr(C)]
pub(crate) struct ibv_comp_channel {
    _context: *mut ibv_context,
    pub(crate) fd: c_int,
    _refcnt: c_int,
}

/// The public head of a CQ.
#[repr(C)]
pub(crate) struct ibv_cq {
    _context: *mut ibv_context,
    _channel: *mut ibv_comp_channel,
    _cq_context: *mut c_void,
    _handle: u32,
    pub(crate) cqe: c_int,
}

/// The public head of a QP.
#[repr(C)]
pub(crate) struct ibv_qp {
    _context: *mut ibv_context,
    _pointers: [*mut c_void; 5],
    _handle: u32,
    pub(crate) qp_num: u32,
}

opaque!(ibv_srq);

#[repr(C)]
pub(crate) struct ibv_mr {
    _context: *mut ibv_context,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_sge {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_rdma {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_atomic {
    pub(crate) remote_addr: u64,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct wr_ud {
    pub(crate) ah: *mut ibv_ah,
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union wr_union {
    pub(crate) rdma: wr_rdma,
    pub(crate) atomic: wr_atomic,
    pub(crate) ud: wr_ud,
    pub(crate) zero: [u64; 4],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_send_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_send_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
    pub(crate) opcode: c_uint,
    pub(crate) send_flags: c_uint,
    pub(crate) imm_data: u32,
    pub(crate) wr: wr_union,
    /// XRC, memory windows and TSO, which are not used.
    pub(crate) _rest: [u64; 7],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_recv_wr {
    pub(crate) wr_id: u64,
    pub(crate) next: *mut ibv_recv_wr,
    pub(crate) sg_list: *mut ibv_sge,
    pub(crate) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_wc {
    pub(crate) wr_id: u64,
    pub(crate) status: c_uint,
    pub(crate) opcode: c_uint,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm_data: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: c_uint,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
pub(crate) struct ibv_device_attr {
    _head: [u64; 12],
    _vendor: [u32; 3],
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    _device_cap_flags: c_uint,
    pub(crate) max_sge: c_int,
    _max_sge_rd: c_int,
    _max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    _max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    _middle: [c_int; 13],
    _max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    _max_srq_sge: c_int,
    _tail: [u8; 8],
}

/// `ibv_query_port@IBVERBS_1.1` fills the part before `flags` alone; the whole is reserved.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ibv_port_attr {
    pub(crate) state: c_uint,
    pub(crate) max_mtu: c_uint,
    pub(crate) active_mtu: c_uint,
    pub(crate) gid_tbl_len: c_int,
    _port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    _rest: [u32; 7],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_cap {
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
}

#[repr(C)]
pub(crate) struct ibv_qp_init_attr {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut ibv_cq,
    pub(crate) recv_cq: *mut ibv_cq,
    pub(crate) srq: *mut ibv_srq,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) qp_type: c_uint,
    pub(crate) sq_sig_all: c_int,
}

#[repr(C)]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_srq_attr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_gid {
    pub(crate) raw: [u8; 16],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_global_route {
    pub(crate) dgid: ibv_gid,
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_ah_attr {
    pub(crate) grh: ibv_global_route,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct ibv_qp_attr {
    pub(crate) qp_state: c_uint,
    pub(crate) cur_qp_state: c_uint,
    pub(crate) path_mtu: c_uint,
    pub(crate) path_mig_state: c_uint,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: c_uint,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) ah_attr: ibv_ah_attr,
    pub(crate) alt_ah_attr: ibv_ah_attr,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_async_event {
    /// A CQ, QP or SRQ pointer, or a port number, by `event_type`.
    pub(crate) element: *mut c_void,
    pub(crate) event_type: c_uint,
}

// Values of the enums, in the header's order.
pub(crate) const IBV_QPT_RC: c_uint = 2;
pub(crate) const IBV_QPT_UC: c_uint = 3;
pub(crate) const IBV_QPT_UD: c_uint = 4;

pub(crate) mod qp_attr_mask {
    use std::ffi::c_int;
    pub(crate) const STATE: c_int = 1;
    pub(crate) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(crate) const PKEY_INDEX: c_int = 1 << 4;
    pub(crate) const PORT: c_int = 1 << 5;
    pub(crate) const QKEY: c_int = 1 << 6;
    pub(crate) const AV: c_int = 1 << 7;
    pub(crate) const PATH_MTU: c_int = 1 << 8;
    pub(crate) const TIMEOUT: c_int = 1 << 9;
    pub(crate) const RETRY_CNT: c_int = 1 << 10;
    pub(crate) const RNR_RETRY: c_int = 1 << 11;
    pub(crate) const RQ_PSN: c_int = 1 << 12;
    pub(crate) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(crate) const SQ_PSN: c_int = 1 << 16;
    pub(crate) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(crate) const DEST_QPN: c_int = 1 << 20;
}

pub(crate) mod send_flag {
    use std::ffi::c_uint;
    pub(crate) const FENCE: c_uint = 1;
    pub(crate) const SIGNALED: c_uint = 1 << 1;
    pub(crate) const SOLICITED: c_uint = 1 << 2;
    pub(crate) const INLINE: c_uint = 1 << 3;
}

/// `IBV_WC_WITH_IMM` in `wc_flags`.
pub(crate) const WC_WITH_IMM: c_uint = 1 << 1;
/// `IBV_PORT_ACTIVE`.
pub(crate) const PORT_ACTIVE: c_uint = 4;

/// The name of a device, as `ibv_get_device_name` gives it.
pub(crate) type DeviceName = *const c_char;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<ibv_context_ops>() == 256);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 88);
    assert!(offset_of!(ibv_context_ops, req_notify_cq) == 96);
    assert!(offset_of!(ibv_context_ops, post_srq_recv) == 160);
    assert!(offset_of!(ibv_context_ops, post_send) == 200);
    assert!(offset_of!(ibv_context_ops, post_recv) == 208);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_cq, cqe) == 28);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(offset_of!(ibv_mr, lkey) == 36 && size_of::<ibv_mr>() == 48);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(offset_of!(ibv_device_attr, max_res_rd_atom) == 152);
    assert!(offset_of!(ibv_device_attr, max_srq_wr) == 216);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(size_of::<ibv_srq_init_attr>() == 24);
    assert!(size_of::<ibv_global_route>() == 24 && size_of::<ibv_ah_attr>() == 32);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, pkey_index) == 120);
    assert!(offset_of!(ibv_qp_attr, timeout) == 130);
    assert!(offset_of!(ibv_qp_attr, rate_limit) == 136);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<ibv_recv_wr>() == 32 && size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_comp_channel>() == 16);
};
