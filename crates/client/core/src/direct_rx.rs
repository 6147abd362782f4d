//! Reading from a stream's own TCP connection, behind the peer's switch.
//!
//! Owns the bytes that were taken out of it to be lent, peeked at, or read by short reads. It must never take more from TCP while some of
//! these are left.

use std::sync::Arc;

use crate::Side;
use crate::direct::Direct;

/// Bytes that are taken out at a time, to be lent or for short reads.
const STAGE_BYTES: usize = 64 << 10;
/// A shorter read takes more than it needs out of TCP, so that the next ones need no system call.
const SHORT_READ_BYTES: usize = 8 << 10;

#[derive(Debug)]
pub(crate) struct DirectRx {
    direct: Arc<Direct>,
    /// Taken out of TCP, and not yet read, from `at` to `end`.
    staged: Vec<u8>,
    at: usize,
    end: usize,
    taken: u64,
    /// Messages come by the ring now. What was taken out of TCP waits.
    pub(crate) is_on_ring: bool,
}

impl DirectRx {
    pub(crate) fn new(direct: &Arc<Direct>, is_on_ring: bool) -> Self {
        Self { direct: Arc::clone(direct), staged: Vec::new(), at: 0, end: 0, taken: 0, is_on_ring }
    }

    /// Bytes that were read in all.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    fn rest(&self) -> &[u8] {
        &self.staged[self.at..self.end]
    }

    /// The ring has nothing now: whether TCP has its end, which nobody would find else.
    pub(crate) fn look_for_end(&mut self) {
        self.stage();
    }

    /// What is there; 0 if there is nothing, at the end, and after an error.
    pub(crate) fn take(&mut self, buf: &mut [u8]) -> usize {
        let count = if self.rest().is_empty() && (buf.len() >= SHORT_READ_BYTES || self.stage() == 0) {
            recv(&self.direct, buf)
        } else {
            let count = self.peek_ahead(0, buf);
            self.at += count;
            count
        };
        self.taken += count as u64;
        count
    }

    /// Takes bytes out of TCP to be lent, unless some are there; how many are there.
    pub(crate) fn stage(&mut self) -> u64 {
        if self.rest().is_empty() {
            // Cleared once alone: in a conversation that would cost more than the read.
            self.staged.resize(STAGE_BYTES, 0);
            self.at = 0;
            self.end = recv(&self.direct, &mut self.staged);
        }
        self.rest().len() as u64
    }

    pub(crate) fn peek_ahead(&self, ahead: u64, buf: &mut [u8]) -> usize {
        let from = usize::try_from(ahead).unwrap_or(usize::MAX);
        let bytes = self.rest().get(from..).unwrap_or_default();
        let count = bytes.len().min(buf.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        count
    }

    pub(crate) fn consume(&mut self, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.rest().len());
        self.at += count;
        self.taken += count as u64;
    }

    /// Whether bytes were taken out of TCP and not read.
    pub(crate) fn is_staged(&self) -> bool {
        !self.rest().is_empty()
    }

    /// Whether nothing is there any more, and nothing comes.
    pub(crate) fn is_spent(&self) -> bool {
        !self.is_staged() && (self.direct.is_over() || self.direct.broken().is_some())
    }

    /// Whether a read finds bytes. TCP's end alone is no news: a read that finds it goes on waiting, for the lane's word.
    pub(crate) fn has_news(&mut self) -> bool {
        if self.is_staged() {
            return true;
        }
        // Behind the end the socket stays readable.
        if self.direct.is_over() || !self.direct.socket.is_ready(Side::Read) {
            return false;
        }
        !self.direct.socket.has_end() || self.stage() > 0
    }
}

fn recv(direct: &Direct, buf: &mut [u8]) -> usize {
    if !direct.is_granted() {
        // Messages may be told of before the peer's words came.
        direct.advance();
    }
    if direct.is_over() || !direct.is_granted() || buf.is_empty() {
        return 0;
    }
    match direct.socket.recv(buf) {
        Ok(Some(0)) => {
            direct.on_over();
            0
        }
        Ok(count) => count.unwrap_or(0),
        Err(broken) => {
            direct.on_broken(broken);
            0
        }
    }
}
