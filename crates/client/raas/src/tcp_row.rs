//! The daemon's row of a connection over kernel TCP, for `raas ss`.
//!
//! Owns its number. It must never outlive the connection.

use std::net::SocketAddr;
use std::sync::Arc;

use control::Request;

use crate::attachment::Attachment;

/// The daemon's row of a connection over kernel TCP: it stands from the making of this to its end.
#[derive(Debug)]
pub(crate) struct TcpRow {
    attachment: Arc<Attachment>,
    number: u64,
}

impl TcpRow {
    /// Tells the daemon.
    pub(crate) fn new(attachment: &Arc<Attachment>, local: SocketAddr, peer: SocketAddr) -> Self {
        let number = attachment.next_number();
        attachment.tell(&Request::TcpOpened { number, local, peer });
        Self { attachment: Arc::clone(attachment), number }
    }
}

impl Drop for TcpRow {
    fn drop(&mut self) {
        self.attachment.tell(&Request::TcpClosed { number: self.number });
    }
}
