//! Breaches of the rules of a datagram socket's rings.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use shm::{DatagramRecord, RECORD_HEADER_BYTES};

use super::Target;
use crate::raw::{RawApp, RawConnection, RawError};

const RING_BYTES: u32 = 65_536;

/// Binds a socket, writes `bytes` to the beginning of its ring, publishes `tail` and rings.
fn publish(name: &str, target: Target<'_>, bytes: &[u8], tail: u64) -> Result<String, RawError> {
    let (mut app, socket) = bound(name, target)?;
    socket.tx.0.write(socket.tx.1, bytes).map_err(|e| RawError::Unexpected(e.to_string()))?;
    socket.words.tx_tail.store(tail, Ordering::Release);
    app.ring(socket.slot);
    app.wait_for_end()
}

fn bound(name: &str, target: Target<'_>) -> Result<(RawApp, RawConnection), RawError> {
    let mut app = RawApp::attach(target.socket, name)?;
    let socket = app.bind(0, RING_BYTES)?;
    Ok((app, socket))
}

fn record(to: SocketAddr, bytes: u16) -> [u8; RECORD_HEADER_BYTES] {
    DatagramRecord { addr: to, bytes }.to_bytes()
}

pub(super) fn datagrams_beyond_the_ring(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &record(target.far, 8), u64::from(RING_BYTES) + 1)
}

pub(super) fn half_of_a_datagram_header(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &record(target.far, 0), RECORD_HEADER_BYTES as u64 / 2)
}

pub(super) fn a_datagram_longer_than_what_is_published(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &record(target.far, 4000), 1024)
}

pub(super) fn a_datagram_longer_than_the_ring(name: &str, target: Target<'_>) -> Result<String, RawError> {
    publish(name, target, &record(target.far, u16::MAX), RING_BYTES.into())
}

pub(super) fn reserved_bytes_of_a_datagram(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let mut header = record(target.far, 8);
    header[RECORD_HEADER_BYTES - 1] = 1;
    publish(name, target, &header, RECORD_HEADER_BYTES as u64 + 8)
}

/// A head beyond what arrived is seen when a datagram is to be put behind it.
pub(super) fn a_datagram_head_beyond_what_arrived(name: &str, target: Target<'_>) -> Result<String, RawError> {
    let (mut app, socket) = bound(name, target)?;
    socket.words.rx_head.store(8, Ordering::Release);
    let own = SocketAddr::new(*app.addresses.first().ok_or(RawError::Closed)?, socket.local.port());
    let header = record(own, 0);
    socket.tx.0.write(socket.tx.1, &header).map_err(|e| RawError::Unexpected(e.to_string()))?;
    socket.words.tx_tail.store(header.len() as u64, Ordering::Release);
    app.ring(socket.slot);
    app.wait_for_end()
}
