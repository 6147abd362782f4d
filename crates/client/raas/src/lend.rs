//! Messages by reference: slices of regions that are lent to the other end of a connection of messages
//! (docs/use/by-reference.md).
//!
//! Owns both directions of one connection. It must never keep the connection open.

mod borrowed;
mod borrowing;
mod lending;
mod lent;
mod view;

use std::io;
use std::sync::Arc;

pub use lent::Lent;
pub use view::View;

pub(crate) use borrowing::Borrowing;
use lending::Lending;

use crate::conn::Conn;
use crate::region::Region;

/// What one end of a connection lends and is lent.
#[derive(Debug)]
pub(crate) struct ByReference {
    lending: Arc<Lending>,
    pub(crate) borrowing: Borrowing,
}

impl ByReference {
    pub(crate) fn new(conn: &Arc<Conn>) -> Self {
        Self { lending: Arc::new(Lending::new(conn)), borrowing: Borrowing::new(conn) }
    }

    /// Sends a slice of a region as a message.
    pub(crate) fn lend(&self, conn: &Conn, region: &Region, offset: u64, len: u64) -> io::Result<Lent> {
        let (lease, number) = self.lending.lend(conn, region, offset, len)?;
        Ok(Lent::new(Arc::clone(&self.lending), lease, number, region.clone()))
    }
}

impl Drop for ByReference {
    /// The program gave the connection back: nothing more is lent on it. What is lent comes back when the other end has
    /// closed what it has open.
    fn drop(&mut self) {
        self.lending.close();
    }
}
