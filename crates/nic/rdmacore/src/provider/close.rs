//! The end of an opened device: each object is destroyed before what it stands on.

use super::RdmaCore;

impl Drop for RdmaCore {
    fn drop(&mut self) {
        // Errors cannot be handled here; the kernel destroys what is left when the process closes the device.
        // SAFETY (all calls below): each object is alive, owned by this value alone, and destroyed once, before what it
        // stands on: QPs before CQs and SRQs, all before the PD, the PD before the context.
        for (_, e) in std::mem::take(&mut self.qps) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_destroy_qp)(e.qp) };
        }
        for (_, ah) in std::mem::take(&mut self.ahs) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_destroy_ah)(ah) };
        }
        for (_, srq) in std::mem::take(&mut self.srqs) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_destroy_srq)(srq) };
        }
        for (_, cq) in std::mem::take(&mut self.cqs) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_destroy_cq)(cq) };
        }
        for (_, e) in std::mem::take(&mut self.mrs) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_dereg_mr)(e.mr) };
        }
        for (_, pd) in std::mem::take(&mut self.pds) {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_dealloc_pd)(pd) };
        }
        if !self.channel.is_null() {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_destroy_comp_channel)(self.channel) };
        }
        if !self.pd.is_null() {
            // SAFETY: see above.
            unsafe { (self.lib.ibv_dealloc_pd)(self.pd) };
        }
        // SAFETY: see above.
        unsafe { (self.lib.ibv_close_device)(self.context) };
    }
}
