//! Lent parts of a connection's rings: to write into before sending, to look at before taking.
//!
//! Owns how far a loan was written, and its bounds. It must never give out a reference to shared memory: the other
//! process may change it at any time, so bytes are copied in and out, each once.

use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use crate::conn::Conn;
use crate::conn::lent::{Lent, Room};

/// Bytes that pass from the ring to a writer at a time.
const PASS_BYTES: usize = 4096;

/// Room in the transmit ring, lent by [`Stream::reserve`](crate::Stream::reserve). Writing fills it in order; it takes
/// as many bytes as were reserved and then 0. Dropping it without [`LoanMut::commit`] sends nothing.
pub struct LoanMut<'a> {
    conn: &'a Conn,
    room: Room<'a>,
    bytes: usize,
    written: usize,
}

impl<'a> LoanMut<'a> {
    pub(crate) fn new(conn: &'a Conn, room: Room<'a>, bytes: usize) -> Self {
        Self { conn, room, bytes, written: 0 }
    }

    /// Bytes that were written so far.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Bytes that can still be written.
    pub fn remaining(&self) -> usize {
        self.bytes - self.written
    }

    /// Overwrites bytes that were written before, for instance a length that is known only now. False: it does not lie
    /// within them, and nothing was written.
    pub fn patch(&mut self, at: usize, bytes: &[u8]) -> bool {
        let fits = at.checked_add(bytes.len()).is_some_and(|end| end <= self.written);
        fits && self.room.write_ahead(at as u64, bytes)
    }

    /// Sends what was written; says how many bytes.
    pub fn commit(mut self) -> usize {
        let is_sent = self.room.commit(self.conn.endpoint(), self.written as u64);
        if is_sent { self.written } else { 0 }
    }
}

impl Write for LoanMut<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let count = buf.len().min(self.remaining());
        // The room was there when it was reserved, and only this side uses it up.
        if !self.room.write_ahead(self.written as u64, &buf[..count]) {
            return Ok(0);
        }
        self.written += count;
        Ok(count)
    }

    /// Nothing to do: [`LoanMut::commit`] sends.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for LoanMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoanMut").field("bytes", &self.bytes).field("written", &self.written).finish()
    }
}

/// Bytes that arrived, lent by [`Stream::loan`](crate::Stream::loan); they stay until [`Loan::consume`] takes them.
///
/// A peer of this host that breaks the rules can change bytes that were not taken yet: a second look may show other
/// bytes. So a program must copy bytes first, and check and use the copy.
pub struct Loan<'a> {
    conn: &'a Conn,
    lent: Lent<'a>,
    bytes: usize,
}

impl<'a> Loan<'a> {
    pub(crate) fn new(conn: &'a Conn, lent: Lent<'a>) -> Self {
        let bytes = usize::try_from(lent.bytes).unwrap_or(usize::MAX);
        Self { conn, lent, bytes }
    }

    /// Bytes that are lent and not taken.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether all were taken.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes from `at` bytes into the loan on to `buf`; returns how many (fewer than `buf` holds at the end of
    /// the loan).
    pub fn copy_to(&self, at: usize, buf: &mut [u8]) -> usize {
        let count = buf.len().min(self.bytes.saturating_sub(at));
        self.lent.rx.peek_ahead(at as u64, &mut buf[..count])
    }

    /// Passes a part of the loan to `out`, without taking it. A range beyond the loan ends with it.
    pub fn write_to(&self, range: Range<usize>, mut out: impl Write) -> io::Result<()> {
        let mut pass = [0; PASS_BYTES];
        let mut at = range.start;
        while at < range.end {
            let count = self.copy_to(at, &mut pass[..PASS_BYTES.min(range.end - at)]);
            if count == 0 {
                return Ok(());
            }
            out.write_all(&pass[..count])?;
            at += count;
        }
        Ok(())
    }

    /// Takes bytes from the front of the loan, at most what is lent; says how many. The sender may use their room
    /// again.
    pub fn consume(&mut self, bytes: usize) -> usize {
        let count = bytes.min(self.bytes);
        self.conn.consume(&mut self.lent.rx, count as u64);
        self.bytes -= count;
        count
    }
}

impl fmt::Debug for Loan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("bytes", &self.bytes).finish()
    }
}
