//! A lease as its receiver has it, and the region that it opens.
//!
//! Owns the handle: it is opened once, when something is looked at, and closed with the lease.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use control::{RegionKey, Request};
use raas_core::LeaseRecord;

use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::park::lock;
use crate::region::{Handle, RegionError};

/// A lease as its receiver has it.
#[derive(Debug)]
pub(super) struct Borrowed {
    attachment: Arc<Attachment>,
    conn: Weak<Conn>,
    host: IpAddr,
    lease: u64,
    key: RegionKey,
    bytes: u64,
    handle: OnceLock<Arc<Handle>>,
    opening: Mutex<()>,
}

impl Borrowed {
    /// `host`: the lender's; unspecified: this one.
    pub(super) fn new(attachment: Arc<Attachment>, conn: Weak<Conn>, host: IpAddr, record: LeaseRecord) -> Self {
        let LeaseRecord { lease, bytes, key, .. } = record;
        Self { attachment, conn, host, lease, key, bytes, handle: OnceLock::new(), opening: Mutex::new(()) }
    }

    /// Bytes of the region.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The region. The first time the daemon is asked for it, and the caller waits.
    pub(super) fn handle(&self) -> Result<&Arc<Handle>, RegionError> {
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        // In a forked child the lock is the parent's.
        self.attachment.check_fork()?;
        let _one_at_a_time = lock(&self.opening);
        if let Some(handle) = self.handle.get() {
            return Ok(handle);
        }
        let handle = Handle::open_lease(&self.attachment, self.host, self.lease, self.key)?;
        Ok(self.handle.get_or_init(|| handle))
    }

    /// Says that a loan is not looked at any more: to the process at the other end, or to the daemon of its host.
    pub(super) fn give_back(&self, loan: u32) {
        if self.attachment.check_fork().is_err() {
            return;
        }
        if self.host.is_unspecified() {
            // Without its connection the loan is back when the lease is closed.
            if let Some(conn) = self.conn.upgrade() {
                conn.endpoint().give_loan_back(loan);
            }
            return;
        }
        let (host, lease, key, loans) = (self.host, self.lease, self.key, 1 << loan);
        self.attachment.tell(&Request::RegionLoansBack { host, lease, key, loans });
    }
}
