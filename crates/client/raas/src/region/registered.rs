//! A region's memory, registered for this program's operations.
//!
//! Owns the registration: the daemon is told when nobody uses it any more.

use std::sync::Arc;

use control::Request;
use shm::Region;

use crate::attachment::Attachment;
use crate::park::lock;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) attachment: Arc<Attachment>,
    pub(super) number: u32,
    pub(super) epoch: u64,
    pub(super) memory: Region,
    /// Which daemon of the session has it registered.
    pub(super) daemon: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let attachment = &self.attachment;
        if attachment.check_fork().is_ok() && lock(&attachment.tables).session.daemons_before() == self.daemon {
            self.attachment.tell(&Request::RegionDetach { number: self.number });
        }
    }
}
