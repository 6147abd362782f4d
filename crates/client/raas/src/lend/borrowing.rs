//! The receiver's end: which leases it was told of, and the regions that it has open by them.
//!
//! Owns the way from a record of the other end to memory. It must never look at a region by anything but a lease that
//! was announced on this very connection.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, Weak};

use raas_core::{LEASES_MAX, LeaseRecord, LoanRecord};

use super::borrowed::Borrowed;
use super::view::View;
use crate::attachment::Attachment;
use crate::conn::Conn;
use crate::message_error::MessageError;
use crate::park::lock;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Borrowing {
    conn: Weak<Conn>,
    attachment: Arc<Attachment>,
    /// The lender's; unspecified: this one.
    host: IpAddr,
    leases: Mutex<[Option<Arc<Borrowed>>; LEASES_MAX as usize]>,
}

impl Borrowing {
    pub(super) fn new(conn: &Arc<Conn>) -> Self {
        let endpoint = conn.endpoint();
        let here = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        Self {
            conn: Arc::downgrade(conn),
            attachment: Arc::clone(&conn.attachment),
            host: if endpoint.is_lane() { endpoint.peer().ip() } else { here },
            leases: Mutex::default(),
        }
    }

    /// Whether the lender is on another host.
    pub(crate) fn is_far(&self) -> bool {
        !self.host.is_unspecified()
    }

    /// The other end has a lease for this one.
    pub(crate) fn announce(&self, record: LeaseRecord) {
        let place = record.place;
        let new = Borrowed::new(Arc::clone(&self.attachment), self.conn.clone(), self.host, record);
        let replaced = match lock(&self.leases).get_mut(place as usize) {
            Some(kept) => kept.replace(Arc::new(new)),
            None => None,
        };
        // Outside of the lock: it tells the daemon, unless views still use it.
        drop(replaced);
    }

    /// The view of a loan, or the fault of a lender that lends what it has not announced.
    pub(crate) fn view(&self, record: LoanRecord) -> Result<View, MessageError> {
        let LoanRecord { place, loan, offset, len } = record;
        let lease = lock(&self.leases).get(place as usize).cloned().flatten();
        let lease = lease.filter(|lease| offset.checked_add(len).is_some_and(|end| end <= lease.bytes()));
        let lease = lease.ok_or(MessageError::BadLoan)?;
        Ok(View::lent(lease, loan, offset, len))
    }
}
