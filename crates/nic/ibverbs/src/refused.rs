//! The names that have no more behind them than an answer: what the device does not have, and what drivers of hardware
//! call, of which there are none.
//!
//! Each answers EOPNOTSUPP, as errno or as its result. It must never answer as if it had done something.

use std::ffi::{c_int, c_void};

use crate::errors::null;

/// Functions whose answer is errno.
macro_rules! refused {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            libc::EOPNOTSUPP
        }
    )* };
}

/// Functions whose answer is an object, or NULL and errno.
macro_rules! without_object {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> *mut c_void {
            null(libc::EOPNOTSUPP)
        }
    )* };
}

/// Functions that do nothing and answer nothing: drivers make themselves known, and give things back that they never got.
macro_rules! silent {
    ($($name:ident)*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {}
    )* };
}

refused! {
    ibv_attach_mcast ibv_detach_mcast ibv_query_ece ibv_set_ece ibv_dealloc_dmah execute_ioctl
    ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
    ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex
    ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
    ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
    ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
    ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action
    ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq
    ibv_cmd_detach_mcast ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
    ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp
    ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
    ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port ibv_cmd_query_qp
    ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr ibv_cmd_reg_mr
    ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
}

without_object! {
    ibv_import_pd ibv_import_mr ibv_import_dm ibv_reg_dmabuf_mr ibv_reg_mr_ex ibv_alloc_dmah verbs_open_device
    _verbs_init_and_alloc_context
}

silent! {
    verbs_init_cq
    ibv_register_driver verbs_register_driver_34 verbs_register_driver_59 verbs_register_driver_64 verbs_set_ops
    verbs_uninit_context ibv_unimport_pd ibv_unimport_mr ibv_unimport_dm __verbs_log
}

/// Read by drivers.
#[unsafe(no_mangle)]
pub static verbs_allow_disassociate_destroy: bool = false;

/// Of a command of the kernel's interface: none has attributes.
#[unsafe(no_mangle)]
pub extern "C" fn __ioctl_final_num_attrs(_count: u32) -> u32 {
    0
}

/// `IBV_REREG_MR_ERR_INPUT`: the registration stays as it was.
const OLD_MR_IS_VALID: c_int = -1;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rereg_mr() -> c_int {
    crate::errors::set(libc::EOPNOTSUPP);
    OLD_MR_IS_VALID
}

/// `IBV_FORK_UNNEEDED`: no page is pinned, so a child takes none of the parent's registered memory away.
const FORK_UNNEEDED: c_int = 2;

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    FORK_UNNEEDED
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_start: *mut c_void, _bytes: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_start: *mut c_void, _bytes: usize) -> c_int {
    0
}
