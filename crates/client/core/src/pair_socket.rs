//! The socket by which two processes of a host wake each other, and by which each learns of the other's end.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use control::Reason;
use shm::{Drained, PairTeller, WakeSocket};

use crate::Life;

/// Wake messages drained at once from which on some may have been lost to a full socket: then everybody is woken.
const WAKES_SUSPICIOUS: usize = 16;

/// The wake socket of a pair; shared by all its connections.
#[derive(Debug)]
pub struct PairSocket {
    id: u64,
    peer_pid: u32,
    socket: WakeSocket,
    life: Arc<Life>,
    /// The peer's look for which a datagram was sent.
    sent: AtomicU64,
}

/// What was read from a pair's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Those slots have news that were added to the caller's list.
    Slots,
    /// Every slot may have news.
    All,
    /// The other process has ended, and every slot gets the news. The socket has nothing more to say.
    HungUp,
}

impl PairSocket {
    pub(crate) fn new(id: u64, peer_pid: u32, socket: WakeSocket, life: Arc<Life>) -> Self {
        Self { id, peer_pid, socket, life, sent: AtomicU64::new(0) }
    }

    /// The pair's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The process at the other end.
    pub fn peer_pid(&self) -> u32 {
        self.peer_pid
    }

    /// Whether the other process is there.
    pub fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Readable when the other process has news.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    /// Takes the numbers of slots that were sent, without waiting, and adds them to `slots`. What was noted beside them
    /// is to be taken next ([`crate::Session::take_told`]).
    pub fn drain(&self, slots: &mut Vec<u32>) -> Woken {
        match self.socket.drain(slots) {
            Ok(Drained::Empty | Drained::Woken) if slots.len() < WAKES_SUSPICIOUS => Woken::Slots,
            Ok(Drained::Empty | Drained::Woken) => Woken::All,
            Ok(Drained::Hangup) | Err(_) => {
                self.life.lose(Reason::PeerAppDied);
                Woken::HungUp
            }
        }
    }

    /// Has the other process look at the slot of `teller`.
    pub(crate) fn tell(&self, slot: u32, teller: &PairTeller) {
        if let Some(telling) = teller.tell(&self.sent) {
            self.wake_slot(slot);
            teller.note_sent(telling, &self.sent);
        }
    }

    /// A full socket means that the peer has more wakes waiting than it can miss (see [`WAKES_SUSPICIOUS`]); an error
    /// means that it has ended, and the hangup of the socket wakes every waiter.
    pub(crate) fn wake_slot(&self, slot: u32) {
        if self.socket.wake_slot(slot).is_err() {
            self.life.lose(Reason::PeerAppDied);
        }
    }
}
