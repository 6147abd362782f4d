//! The cursors of a connection's two directions, all absolute 64-bit offsets.
//!
//! Owns their order: a head never passes what was sent or arrived, and that never passes the tail, or the ring. It must
//! never take a value of the application's or the peer's that it did not check against its own.
//!
//! The rings are mirrored: byte `o` of a direction lies at `o % ring_bytes` of the sender's transmit ring and of the
//! receiver's receive ring. A transmit ring keeps its bytes until the peer's application consumed them, so bytes that
//! fit it have room in the peer's, and a lane that is reset can send again from any offset that the peer names.

use std::ops::Range;

use shm::{PeerFault, Span, check_cursor};

use super::Piece;
use crate::numbers::few;
use crate::ring_size::RingSize;

/// The words of a program's session, or of its peer, say what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadWords;

/// The direction to the peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct TxCursors {
    span: Span,
    /// Written by the application.
    tail: u64,
    /// Posted to the lane.
    sent: u64,
    /// Consumed by the peer's application.
    head: u64,
    /// Bytes sent that the application's row has counted already.
    counted: u64,
}

impl TxCursors {
    pub(super) fn new(size: RingSize) -> Self {
        Self { span: size.span(), tail: 0, sent: 0, head: 0, counted: 0 }
    }

    /// Takes over the words of a daemon before this one: what was sent is known only by the peer.
    pub(super) fn adopt(&mut self, head: u64, tail: u64, grown_at: u64) -> Result<(), BadWords> {
        (self.head, self.tail) = (head, tail);
        if self.span.restore(grown_at) && self.unconsumed() <= self.span.fill_max() { Ok(()) } else { Err(BadWords) }
    }

    /// After that: nothing is to be sent before the peer said what arrived, and what that daemon sent is counted.
    pub(super) fn begin_after(&mut self) {
        (self.sent, self.counted) = (self.tail, self.tail);
    }

    /// The rings have this size.
    pub(super) fn set_size(&mut self, size: RingSize) {
        self.span = size.span();
    }

    /// Tail and head are those of messages: there is no stream.
    pub(super) fn take_for_messages(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.tail), std::mem::take(&mut self.head))
    }

    // ---- what they say

    #[inline]
    pub(super) fn span(&self) -> Span {
        self.span
    }

    /// All of the ring is used from an offset on, which is given.
    pub(super) fn grow(&mut self) -> Option<u64> {
        self.span.grow(self.head)
    }

    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that the peer's application has not consumed, as far as is known.
    pub(super) fn unconsumed(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    /// Bytes that the application may still write.
    fn room(&self) -> u64 {
        self.span.room(self.tail, self.head)
    }

    /// Whether the ring is full.
    pub(super) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Whether half of the ring is free.
    pub(super) fn has_half_room(&self) -> bool {
        self.unconsumed() <= self.span.fill_max() / 2
    }

    /// Whether all that was written was sent.
    pub(super) fn is_all_sent(&self) -> bool {
        self.sent == self.tail
    }

    /// Whether all that was sent was consumed.
    pub(super) fn is_consumed(&self) -> bool {
        self.head == self.sent
    }

    /// Bytes that the ring must keep.
    pub(super) fn in_use(&self) -> Range<u64> {
        self.head..self.tail
    }

    /// Whether the peer can have so much.
    pub(super) fn may_have_arrived(&self, to: u64) -> bool {
        to.wrapping_sub(self.head) <= self.sent.wrapping_sub(self.head)
    }

    // ---- what moves them

    /// The application's word for the tail.
    #[inline]
    pub(super) fn take_tail(&mut self, word: u64) -> Result<(), PeerFault> {
        let limit = self.tail.wrapping_add(self.room());
        self.tail = check_cursor("tx_tail", self.tail, word, limit, self.span.full())?;
        Ok(())
    }

    /// The next contiguous piece before `end` of at most `max` bytes.
    #[inline]
    pub(super) fn next_piece(&self, end: u64, max: u32) -> Piece {
        let (at, together) = self.span.place(self.sent);
        let bytes = end.wrapping_sub(self.sent).min(together).min(max.into());
        Piece { at, bytes: few(bytes) }
    }

    /// So many bytes more are posted, or may be read by the peer.
    #[inline]
    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.sent = self.sent.wrapping_add(bytes);
    }

    /// The peer's word for the head. True: it moved.
    pub(super) fn on_head(&mut self, consumed: u64) -> Result<bool, PeerFault> {
        let head = check_cursor("Head", self.head, consumed, self.sent, self.span.full())?;
        Ok(std::mem::replace(&mut self.head, head) != head)
    }

    /// What was sent beyond this did not arrive. The caller knows that the peer can have so much.
    pub(super) fn go_back(&mut self, to: u64) {
        self.sent = to;
    }

    /// The peer's words for what arrived and was consumed, where this end does not know what it sent.
    pub(super) fn on_back(&mut self, arrived: u64, consumed: u64) -> Result<(), BadWords> {
        let of = |offset: u64| offset.wrapping_sub(self.head);
        if of(consumed) > of(arrived) || of(arrived) > self.unconsumed() {
            return Err(BadWords);
        }
        (self.head, self.sent) = (consumed, arrived);
        Ok(())
    }

    /// Bytes of `carried` that were not counted.
    pub(super) fn uncounted(&self, carried: u64) -> u64 {
        carried.wrapping_sub(self.counted)
    }

    /// They are.
    pub(super) fn count(&mut self, bytes: u64) {
        self.counted = self.counted.wrapping_add(bytes);
    }
}

/// The direction from the peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RxCursors {
    span: Span,
    /// Arrived.
    tail: u64,
    /// Consumed by the application.
    head: u64,
    /// Told to the peer: it may send up to `reported + ring_bytes`.
    reported: u64,
    /// Bytes that arrived and that the application's row has counted already.
    counted: u64,
}

impl RxCursors {
    pub(super) fn new(size: RingSize) -> Self {
        Self { span: size.span(), tail: 0, head: 0, reported: 0, counted: 0 }
    }

    /// Takes over the words of a daemon before this one.
    pub(super) fn adopt(&mut self, tail: u64, head: u64, grown_at: u64) -> Result<(), BadWords> {
        (self.tail, self.head) = (tail, head);
        if self.span.restore(grown_at) && self.unread() <= self.span.fill_max() { Ok(()) } else { Err(BadWords) }
    }

    /// After that: what was consumed will be told, and what that daemon received is counted.
    pub(super) fn begin_after(&mut self) {
        (self.reported, self.counted) = (self.head, self.tail);
    }

    /// The rings have this size.
    pub(super) fn set_size(&mut self, size: RingSize) {
        self.span = size.span();
    }

    /// Tail and head are those of messages: there is no stream.
    pub(super) fn take_for_messages(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.tail), std::mem::take(&mut self.head))
    }

    // ---- what they say

    #[inline]
    pub(super) fn span(&self) -> Span {
        self.span
    }

    pub(super) fn set_span(&mut self, span: Span) {
        self.span = span;
    }

    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn reported(&self) -> u64 {
        self.reported
    }

    /// Bytes that the application has not consumed.
    pub(super) fn unread(&self) -> u64 {
        self.tail.wrapping_sub(self.head)
    }

    /// Bytes consumed and not reported.
    pub(super) fn unreported(&self) -> u64 {
        self.head.wrapping_sub(self.reported)
    }

    /// Whether all that arrived was consumed.
    pub(super) fn is_all_read(&self) -> bool {
        self.head == self.tail
    }

    /// Whether the peer knows that all that arrived was consumed.
    pub(super) fn is_all_reported(&self) -> bool {
        self.reported == self.tail
    }

    /// Bytes that the peer may still send.
    #[inline]
    pub(super) fn granted(&self) -> u64 {
        self.span.room(self.tail, self.reported)
    }

    /// Where what arrives next belongs, and how many bytes of it lie together.
    #[inline]
    pub(super) fn next_place(&self) -> (u64, u64) {
        self.span.place(self.tail)
    }

    /// Bytes that the ring must keep.
    pub(super) fn in_use(&self) -> Range<u64> {
        self.head..self.tail
    }

    // ---- what moves them

    /// The application's word for the head.
    #[inline]
    pub(super) fn take_head(&mut self, word: u64) -> Result<(), PeerFault> {
        self.head = check_cursor("rx_head", self.head, word, self.tail, self.span.full())?;
        Ok(())
    }

    /// So many bytes more arrived. The tail.
    #[inline]
    pub(super) fn on_arrived(&mut self, bytes: u64) -> u64 {
        self.tail = self.tail.wrapping_add(bytes);
        self.tail
    }

    /// All before this offset counts as arrived.
    pub(super) fn skip_to(&mut self, end: u64) {
        self.tail = end;
    }

    /// What was consumed is told to the peer. The head.
    pub(super) fn report(&mut self) -> u64 {
        self.reported = self.head;
        self.head
    }

    /// Bytes of `carried` that were not counted.
    pub(super) fn uncounted(&self, carried: u64) -> u64 {
        carried.wrapping_sub(self.counted)
    }

    /// They are.
    pub(super) fn count(&mut self, bytes: u64) {
        self.counted = self.counted.wrapping_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: RingSize = RingSize::fixed(4096);

    #[test]
    fn the_application_writes_no_more_than_there_is_room() {
        let mut tx = TxCursors::new(SIZE);
        assert!(tx.take_tail(4097).is_err());
        assert_eq!((tx.take_tail(4096), tx.is_full()), (Ok(()), true));
        assert!(tx.take_tail(4095).is_err(), "it does not take back what it wrote");
        assert!(tx.on_head(1).is_err(), "nothing was sent");
        tx.on_sent(4096);
        assert_eq!((tx.on_head(2048), tx.on_head(2048)), (Ok(true), Ok(false)));
        assert!(tx.has_half_room() && !tx.is_consumed());
        assert_eq!(tx.take_tail(4096 + 2048), Ok(()));
    }

    #[test]
    fn a_piece_ends_at_the_end_of_the_ring_and_at_its_bounds() {
        let mut tx = TxCursors::new(SIZE);
        tx.take_tail(4096).unwrap();
        tx.on_sent(4000);
        tx.on_head(4000).unwrap();
        tx.take_tail(5000).unwrap();
        assert_eq!(tx.next_piece(tx.tail(), 4096), Piece { at: 4000, bytes: 96 });
        assert_eq!(tx.next_piece(tx.tail(), 7), Piece { at: 4000, bytes: 7 });
        assert_eq!(tx.next_piece(4010, 4096), Piece { at: 4000, bytes: 10 });
        tx.on_sent(96);
        assert_eq!(tx.next_piece(tx.tail(), 4096), Piece { at: 0, bytes: 904 });
    }

    #[test]
    fn a_lane_goes_back_only_to_what_was_sent_and_not_consumed() {
        let mut tx = TxCursors::new(SIZE);
        tx.take_tail(3000).unwrap();
        tx.on_sent(2000);
        tx.on_head(500).unwrap();
        assert!(!tx.may_have_arrived(499) && !tx.may_have_arrived(2001));
        assert!(tx.may_have_arrived(500) && tx.may_have_arrived(2000));
        tx.go_back(600);
        assert_eq!((tx.sent(), tx.is_all_sent()), (600, false));
    }

    #[test]
    fn a_daemon_takes_words_over_only_in_their_order() {
        let mut tx = TxCursors::new(SIZE);
        assert_eq!(tx.adopt(100, 100 + 4097, 0), Err(BadWords));
        assert_eq!(tx.adopt(100, 3100, 0), Ok(()));
        assert_eq!(tx.on_back(3101, 200), Err(BadWords), "more arrived than was written");
        assert_eq!(tx.on_back(300, 301), Err(BadWords), "more was consumed than arrived");
        assert_eq!((tx.on_back(300, 200), tx.sent(), tx.head()), (Ok(()), 300, 200));
        let mut rx = RxCursors::new(SIZE);
        assert_eq!(rx.adopt(99, 100, 0), Err(BadWords), "more was read than arrived");
        assert_eq!(rx.adopt(4100, 100, 0), Ok(()));
        rx.begin_after();
        assert_eq!((rx.granted(), rx.unreported(), rx.uncounted(4100)), (96, 0, 0));
    }

    #[test]
    fn what_is_read_is_granted_again_when_the_peer_was_told() {
        let mut rx = RxCursors::new(SIZE);
        assert_eq!((rx.granted(), rx.on_arrived(4096), rx.granted()), (4096, 4096, 0));
        assert!(rx.take_head(4097).is_err());
        rx.take_head(1000).unwrap();
        assert_eq!((rx.granted(), rx.unread(), rx.unreported()), (0, 3096, 1000));
        assert_eq!((rx.report(), rx.granted(), rx.unreported()), (1000, 1000, 0));
        assert_eq!(rx.next_place(), (0, 4096));
    }
}
