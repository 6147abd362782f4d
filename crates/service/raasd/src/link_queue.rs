//! What waits to be said to a peer's daemon, and whose doing it is.
//!
//! Owns the order of what programs cause on a link. While the link has no room, that waits here, and each program whose
//! doing it is is not heard any more: it holds as many turns as it has messages on their way. So one that asks without end
//! costs others nothing but their turn. What the daemons say to each other by themselves has half of the link's queue to
//! itself; a peer that does not even take that loses its link.

use std::collections::VecDeque;
use std::sync::Arc;

use control::PeerMessage;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// Requests of one program of which something may be on its way to peers.
pub(crate) const TURNS: usize = 32;
/// Messages that wait for one link at most: with all turns of two thousand programs.
const WAITING_MAX: usize = 1 << 16;

/// The right of a program to be heard once more, until all that its request caused was said.
pub(crate) type Turn = Arc<OwnedSemaphorePermit>;

/// A message, and the turn of the program that caused it.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) message: PeerMessage,
    pub(crate) turn: Option<Turn>,
}

/// The peer does not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct LinkQueue {
    out: mpsc::Sender<Said>,
    waiting: VecDeque<Said>,
}

/// Whether programs cause it, as many as they like. These keep their order among themselves.
fn is_of_programs(message: &PeerMessage) -> bool {
    matches!(message, PeerMessage::Region(_) | PeerMessage::Meet(_))
}

impl LinkQueue {
    pub(crate) fn new(out: mpsc::Sender<Said>) -> Self {
        Self { out, waiting: VecDeque::new() }
    }

    /// Says a message, now or when there is room.
    pub(crate) fn say(&mut self, message: PeerMessage, turn: Option<Turn>) -> Result<(), Full> {
        if !is_of_programs(&message) {
            return match self.out.try_send(Said { message, turn: None }) {
                Err(TrySendError::Full(_)) => Err(Full),
                // A link that has ended says so itself.
                Ok(()) | Err(TrySendError::Closed(_)) => Ok(()),
            };
        }
        if self.waiting.len() >= WAITING_MAX {
            return Err(Full);
        }
        self.waiting.push_back(Said { message, turn });
        self.say_waiting();
        Ok(())
    }

    /// Says of what waits as much as there is room for. Whether something waits still.
    pub(crate) fn say_waiting(&mut self) -> bool {
        while self.out.capacity() > self.out.max_capacity() / 2
            && let Some(next) = self.waiting.pop_front()
        {
            let _ = self.out.try_send(next);
        }
        !self.waiting.is_empty()
    }

    /// The last word, if there is room; then the link closes.
    pub(crate) fn close(self, bye: PeerMessage) {
        let _ = self.out.try_send(Said { message: bye, turn: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::{MeetMessage, Reason};
    use tokio::sync::Semaphore;

    fn of_program(number: u64) -> PeerMessage {
        PeerMessage::Meet(MeetMessage::Withdraw { number })
    }

    #[test]
    fn what_programs_cause_waits_in_its_order_and_never_takes_the_daemons_room() {
        let (out, mut link) = mpsc::channel(8);
        let mut queue = LinkQueue::new(out);
        let turns = Arc::new(Semaphore::new(TURNS));
        let turn = || Some(Arc::new(Arc::clone(&turns).try_acquire_owned().unwrap()));
        for number in 0..20 {
            queue.say(of_program(number), turn()).unwrap();
        }
        assert_eq!((link.len(), turns.available_permits()), (4, TURNS - 20), "each keeps its turn");
        for _ in 0..4 {
            queue.say(PeerMessage::Heartbeat, None).unwrap();
        }
        assert_eq!(queue.say(PeerMessage::Heartbeat, None), Err(Full), "the peer reads nothing at all");
        let mut said = Vec::new();
        while let Ok(Said { message, .. }) = link.try_recv() {
            said.push(message);
            queue.say_waiting();
        }
        assert_eq!(
            said.iter().filter(|message| is_of_programs(message)).cloned().collect::<Vec<_>>(),
            (0..20).map(of_program).collect::<Vec<_>>()
        );
        assert_eq!(
            said.iter().position(|message| *message == PeerMessage::Heartbeat),
            Some(4),
            "no program holds it up"
        );
        assert_eq!(turns.available_permits(), TURNS, "all was said");
        assert!(!queue.say_waiting());
    }

    #[test]
    fn a_link_that_never_has_room_ends_before_it_costs_too_much() {
        let (out, _link) = mpsc::channel(2);
        let mut queue = LinkQueue::new(out);
        let ended = (0..).find(|number| queue.say(of_program(*number), None).is_err());
        assert_eq!(ended, Some(WAITING_MAX as u64 + 1));
        queue.close(PeerMessage::Bye { reason: Reason::PeerLost, detail: String::new() });
    }
}
