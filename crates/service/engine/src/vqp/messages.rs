//! A connection of messages on UC (docs/use/unreliable.md): its rings hold messages, each behind four bytes of length.
//!
//! Owns the cursors of both rings and the message that is on its way in each direction. It must never give the
//! application a part of a message, one twice, or one before an earlier one; and never take a length of the
//! application's or the peer's that it did not check. For the lane such a connection is one whose stream has no bytes:
//! all that the lane knows of it, from Open to Reset, is as of any other.

use std::sync::atomic::Ordering;

use control::Kind;
use shm::{PeerFault, Span, check_cursor};

use super::{Phase, Vqp};
use crate::numbers::{count, low16};
use crate::ringpool::{Place, RingPool};
use crate::unreliable::losses::{Loss, Losses};
use crate::unreliable::piece::{PIECE_HEADER_BYTES, Piece};

/// Bytes in front of each message in a ring, little-endian: as the library frames messages.
pub(crate) const LENGTH_BYTES: usize = 4;

/// The application published what does not begin with a whole message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "connection {id}: {available} bytes in its ring do not begin with a whole message, whose length would be {bytes}"
)]
pub(crate) struct MessageFault {
    id: u64,
    bytes: u32,
    available: u64,
}

#[derive(Debug, Clone, Copy)]
struct Leaving {
    bytes: u32,
    sent: u32,
}

#[derive(Debug, Clone, Copy)]
struct Arriving {
    bytes: u32,
    have: u32,
}

/// How a piece leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    Write,
    /// WRITE was asked for, and the peer has no place.
    SendForWrite,
}

/// By what a piece leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leave {
    /// The queue pair.
    pub(crate) end: u32,
    /// Longest piece, header included.
    pub(crate) max: u32,
    /// WRITEs that left before it.
    pub(crate) writes: u64,
    pub(crate) way: Way,
}

/// What a connection has for its messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    pub(super) tx_tail: u64,
    /// Of the first message that has not left as a whole.
    pub(super) tx_head: u64,
    leaving: Option<Leaving>,
    /// Of the last message that began to leave, and the queue pair by which it did.
    number: u64,
    tx_end: u32,
    /// How the last piece left.
    last_way: Option<Way>,

    /// Of the last message that is whole.
    pub(super) rx_tail: u64,
    pub(super) rx_head: u64,
    arriving: Option<Arriving>,
    /// Of the last message of which a piece came, and the queue pair by which it did.
    last: u64,
    rx_end: u32,

    in_ready: bool,
    deficit: u32,
    sent: u64,
    received: u64,
    losses: Losses,
    pub(super) tx_bytes: u64,
    pub(super) rx_bytes: u64,
}

impl Messages {
    /// For a connection of that kind alone.
    pub(super) fn for_kind(kind: Kind) -> Option<Box<Self>> {
        (kind == Kind::Unreliable).then(Box::default)
    }

    /// Whether everything that was written has left, or need not.
    fn is_drained(&self) -> bool {
        self.tx_head == self.tx_tail
    }

    pub(super) fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// Counts a loss for the connection and for the host.
    fn lose(&mut self, losses: &mut Losses, loss: Loss, by: u64) {
        self.losses.count(loss, by);
        losses.count(loss, by);
    }

    /// The message in front is done with.
    fn pass(&mut self, bytes: u32) {
        self.leaving = None;
        self.tx_head = self.tx_head.wrapping_add(LENGTH_BYTES as u64 + u64::from(bytes));
    }
}

/// What to do with a piece that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Its bytes belong at this offset of the receive ring; [`Vqp::on_piece_in`] is next.
    At(u64),
    /// It is dropped, and counted.
    Dropped,
}

/// A piece that was taken out of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Bytes of it, header included.
    pub(crate) bytes: u32,
    /// It is the last of its message: the application has room.
    pub(crate) is_last: bool,
}

impl Vqp {
    /// Whether it carries messages on UC.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// Whether there is a message that may leave, as far as the connection knows.
    #[inline]
    pub(crate) fn wants_to_send_messages(&self) -> bool {
        let is_drained = self.messages.as_ref().is_none_or(|m| m.is_drained());
        !is_drained && self.phase == Phase::Open && self.close.may_send_data()
    }

    /// Whether nothing of the transmit ring is to leave any more: Fin may follow.
    pub(super) fn is_messages_drained(&self) -> bool {
        self.messages.as_ref().is_none_or(|m| m.is_drained() || !self.close.may_send_data())
    }

    /// Enters the list of those that have messages to send. False: it is there already.
    pub(crate) fn enter_messages(&mut self) -> bool {
        self.messages.as_mut().is_some_and(|m| {
            let entered = !std::mem::replace(&mut m.in_ready, true);
            if entered {
                m.deficit = 0;
            }
            entered
        })
    }

    /// It was taken out of that list.
    pub(crate) fn leave_messages(&mut self) {
        if let Some(m) = &mut self.messages {
            (m.in_ready, m.deficit) = (false, 0);
        }
    }

    /// Bytes that are left of its turn.
    pub(crate) fn message_deficit(&mut self) -> Option<&mut u32> {
        self.messages.as_mut().map(|m| &mut m.deficit)
    }

    /// Messages sent, received and lost on their way to this end.
    pub(crate) fn message_counts(&self) -> Option<(u64, u64, u64)> {
        self.messages.as_ref().map(|m| (m.sent, m.received, m.losses.messages()))
    }

    /// How the last piece left, if one did.
    pub(crate) fn last_way(&self) -> Option<Way> {
        self.messages.as_ref().and_then(|m| m.last_way)
    }

    // ---- from the application

    /// Takes the application's cursors, which belong to this connection.
    pub(super) fn look_at_messages(&mut self) -> Result<bool, PeerFault> {
        let Some(m) = &mut self.messages else { return Ok(false) };
        let before = (m.tx_tail, m.rx_head);
        if !self.close.is_stop_asked() && !self.close.is_reset() {
            let head = self.slot.words().rx_head.load(Ordering::Acquire);
            m.rx_head = check_cursor("rx_head", m.rx_head, head, m.rx_tail, self.rx.span().full())?;
        }
        if self.close.app_may_write() {
            let tail = self.slot.words().tx_tail.load(Ordering::Acquire);
            let limit = m.tx_head.wrapping_add(self.tx.span().full());
            m.tx_tail = check_cursor("tx_tail", m.tx_tail, tail, limit, self.tx.span().full())?;
        }
        Ok((m.tx_tail, m.rx_head) != before)
    }

    /// Takes the cursors over that were restored for a stream, from a daemon before this one.
    pub(super) fn restore_messages(&mut self) {
        let Some(m) = &mut self.messages else { return };
        (m.tx_tail, m.tx_head) = self.tx.take_for_messages();
        (m.rx_tail, m.rx_head) = self.rx.take_for_messages();
    }

    // ---- to the peer

    /// The next piece, copied out of the ring: what the application does with it meanwhile is its own matter. `None`:
    /// there is none.
    pub(crate) fn take_piece(
        &mut self,
        Leave { end, max, writes, way }: Leave,
        pool: &RingPool,
        losses: &mut Losses,
        out: &mut Vec<u8>,
    ) -> Result<Option<Taken>, MessageFault> {
        self.forget_old_end(end, losses);
        if !self.wants_to_send_messages() {
            return Ok(None);
        }
        let (place, span, id, route) = (self.rings.tx, self.tx.span(), self.identity.id, self.routes.peer);
        let Some(m) = &mut self.messages else { return Ok(None) };
        let leaving = match m.leaving {
            Some(leaving) => leaving,
            None => {
                let available = m.tx_tail.wrapping_sub(m.tx_head);
                let mut length = [0; LENGTH_BYTES];
                let is_read = available >= LENGTH_BYTES as u64 && read(pool, &place, &span, m.tx_head, &mut length);
                let bytes = u32::from_le_bytes(length);
                if !is_read || u64::from(bytes) + LENGTH_BYTES as u64 > available {
                    return Err(MessageFault { id, bytes, available });
                }
                m.number += 1;
                Leaving { bytes, sent: 0 }
            }
        };
        let len = (leaving.bytes - leaving.sent).min(max.saturating_sub(count(PIECE_HEADER_BYTES)));
        let piece =
            Piece { route, number: m.number, bytes: leaving.bytes, offset: leaving.sent, writes: low16(writes) };
        out.clear();
        out.extend_from_slice(&piece.to_bytes());
        out.resize(PIECE_HEADER_BYTES + len as usize, 0);
        let at = m.tx_head.wrapping_add(LENGTH_BYTES as u64 + u64::from(leaving.sent));
        if !read(pool, &place, &span, at, &mut out[PIECE_HEADER_BYTES..]) {
            return Err(MessageFault { id, bytes: leaving.bytes, available: m.tx_tail.wrapping_sub(m.tx_head) });
        }
        let is_last = leaving.sent + len == leaving.bytes;
        if is_last {
            m.pass(leaving.bytes);
            m.sent += 1;
            self.slot.publish_tx_head(m.tx_head);
        } else {
            m.leaving = Some(Leaving { sent: leaving.sent + len, ..leaving });
        }
        m.last_way = Some(way);
        m.tx_bytes = m.tx_bytes.wrapping_add(len.into());
        Ok(Some(Taken { bytes: count(PIECE_HEADER_BYTES) + len, is_last }))
    }

    /// What left in part by another queue pair is lost, and numbers begin again.
    fn forget_old_end(&mut self, end: u32, losses: &mut Losses) {
        let Some(m) = self.messages.as_mut().filter(|m| m.tx_end != end) else { return };
        (m.tx_end, m.number) = (end, 0);
        if let Some(leaving) = m.leaving {
            m.pass(leaving.bytes);
            self.slot.publish_tx_head(m.tx_head);
            m.lose(losses, Loss::Cut, 1);
        }
    }

    /// Whether half of the transmit ring is free.
    pub(crate) fn has_half_room_for_messages(&self) -> bool {
        self.messages.as_ref().is_some_and(|m| m.tx_tail.wrapping_sub(m.tx_head) <= self.tx.span().full() / 2)
    }

    // ---- from the peer

    /// A piece of `len` bytes came by the queue pair `end`. An error means that the application broke the rules.
    pub(crate) fn on_piece(
        &mut self,
        piece: &Piece,
        len: u32,
        end: u32,
        losses: &mut Losses,
    ) -> Result<Arrival, PeerFault> {
        let may_receive = self.phase == Phase::Open && self.close.may_receive();
        let Some(m) = &mut self.messages else { return Ok(Arrival::Dropped) };
        if !may_receive {
            m.lose(losses, Loss::NoConnection, 1);
            return Ok(Arrival::Dropped);
        }
        if m.rx_end != end {
            // What was on its way by another queue pair is lost. Its sender counts what left in part.
            (m.rx_end, m.last, m.arriving) = (end, 0, None);
        }
        if piece.number < m.last {
            m.lose(losses, Loss::Late, 1);
            return Ok(Arrival::Dropped);
        }
        if piece.number > m.last {
            self.on_first_piece(piece, losses)?;
        }
        let Some(m) = &mut self.messages else { return Ok(Arrival::Dropped) };
        // A message that is dropped was counted with its first piece.
        let Some(arriving) = m.arriving else { return Ok(Arrival::Dropped) };
        // UC takes a packet that begins a message whatever its number, also one that the network repeats.
        if arriving.bytes == piece.bytes && piece.offset < arriving.have {
            m.lose(losses, Loss::Late, 1);
            return Ok(Arrival::Dropped);
        }
        if (arriving.bytes, arriving.have) != (piece.bytes, piece.offset) || len > arriving.bytes - arriving.have {
            m.arriving = None;
            m.lose(losses, Loss::Torn, 1);
            return Ok(Arrival::Dropped);
        }
        Ok(Arrival::At(m.rx_tail.wrapping_add(LENGTH_BYTES as u64 + u64::from(piece.offset))))
    }

    /// A piece of a later message came: what is missing before it is lost, and it arrives if it can.
    fn on_first_piece(&mut self, piece: &Piece, losses: &mut Losses) -> Result<(), PeerFault> {
        let is_owned = self.slot.is_taken();
        let full = self.rx.span().full();
        let Some(m) = &mut self.messages else { return Ok(()) };
        if m.arriving.take().is_some() {
            m.lose(losses, Loss::Torn, 1);
        }
        m.lose(losses, Loss::Missing, piece.number - m.last - 1);
        m.last = piece.number;
        let needed = u64::from(piece.bytes) + LENGTH_BYTES as u64;
        if piece.offset != 0 {
            m.lose(losses, Loss::Torn, 1);
            return Ok(());
        }
        if needed > full {
            m.lose(losses, Loss::Malformed, 1);
            return Ok(());
        }
        // Before the application has taken the slot its words are those of a user before.
        if is_owned && !self.close.is_stop_asked() {
            let head = self.slot.words().rx_head.load(Ordering::Acquire);
            m.rx_head = check_cursor("rx_head", m.rx_head, head, m.rx_tail, full)?;
        }
        if needed > full - m.rx_tail.wrapping_sub(m.rx_head) {
            m.lose(losses, Loss::RingFull, 1);
        } else {
            m.arriving = Some(Arriving { bytes: piece.bytes, have: 0 });
        }
        Ok(())
    }

    /// Bytes of the message that is arriving are in the ring. `Some`: it is whole, with this length, which is to be
    /// written at this offset; [`Self::publish_message`] is next.
    pub(crate) fn on_piece_in(&mut self, bytes: u32) -> Option<(u64, [u8; LENGTH_BYTES])> {
        let m = self.messages.as_mut()?;
        let arriving = m.arriving.as_mut()?;
        arriving.have += bytes;
        (arriving.have == arriving.bytes).then(|| (m.rx_tail, arriving.bytes.to_le_bytes()))
    }

    /// The message is the application's.
    pub(crate) fn publish_message(&mut self) {
        let Some(m) = &mut self.messages else { return };
        let Some(arriving) = m.arriving.take() else { return };
        m.rx_tail = m.rx_tail.wrapping_add(LENGTH_BYTES as u64 + u64::from(arriving.bytes));
        m.received += 1;
        m.rx_bytes = m.rx_bytes.wrapping_add(arriving.bytes.into());
        self.slot.publish_rx_tail(m.rx_tail);
    }

    /// Copies bytes to an offset of the receive ring. False: the memory is gone.
    pub(crate) fn write_rx(&self, pool: &RingPool, at: u64, bytes: &[u8]) -> bool {
        let (place, together) = self.rx.span().place(at);
        let (first, second) = bytes.split_at(bytes.len().min(usize::try_from(together).unwrap_or(usize::MAX)));
        let start = self.rx.span().place(at.wrapping_add(first.len() as u64)).0;
        pool.write(&self.rings.rx, place, first) && pool.write(&self.rings.rx, start, second)
    }
}

/// Copies bytes from an offset of a ring. False: the memory is gone.
fn read(pool: &RingPool, ring: &Place, span: &Span, at: u64, out: &mut [u8]) -> bool {
    let (place, together) = span.place(at);
    let split = out.len().min(usize::try_from(together).unwrap_or(usize::MAX));
    let (first, second) = out.split_at_mut(split);
    let start = span.place(at.wrapping_add(split as u64)).0;
    pool.read(ring, place, first) && pool.read(ring, start, second)
}
