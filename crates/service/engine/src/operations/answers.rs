//! What this end of a lane executed for the peer, until the peer is known to have the answers.
//!
//! Owns that nothing is executed twice: a frame of the peer is handled once or not at all, whatever becomes of queue
//! pairs, and an answer whose frame did not arrive is sent again without executing anything. It must never keep more
//! answers than the peer may wait for.

use std::collections::VecDeque;

use shm::OperationStatus;

use crate::frame::OperationRecord;
use crate::limits::OPERATIONS_PER_LANE_MAX;

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// Of an atomic, a notification, a confirmation.
    Executed { status: OperationStatus, value: u64 },
    /// What a kernel says, or why it has no answer.
    Ran { failed: bool, bytes: Vec<u8> },
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The peer's name of the operation.
    pub(crate) id: u32,
    pub(crate) said: Said,
}

impl Answer {
    /// As it travels.
    pub(crate) fn record(&self) -> OperationRecord {
        match &self.said {
            &Said::Executed { status, value } => OperationRecord::Executed { id: self.id, status, value },
            Said::Ran { failed, bytes } => {
                OperationRecord::Answer { id: self.id, failed: *failed, bytes: bytes.clone() }
            }
        }
    }
}

/// The peer asks for more at a time than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The answers of one end of a lane.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    owed: VecDeque<Answer>,
    /// Those that were sent, each with the number of its frame.
    sent: VecDeque<(u64, Answer)>,
}

impl Answers {
    /// Something was executed: its answer is owed.
    pub(crate) fn owe(&mut self, answer: Answer) -> Result<(), TooMany> {
        self.owed.push_back(answer);
        while self.owed.len() + self.sent.len() > OPERATIONS_PER_LANE_MAX as usize {
            // The peer has no more than so many without an answer, so it has this one.
            self.sent.pop_front().ok_or(TooMany)?;
        }
        Ok(())
    }

    /// The next one to send.
    pub(crate) fn front(&self) -> Option<&Answer> {
        self.owed.front()
    }

    /// It is in this frame.
    pub(crate) fn on_sent(&mut self, frame: u64) {
        if let Some(answer) = self.owed.pop_front() {
            self.sent.push_back((frame, answer));
        }
    }

    /// The peer handled this frame, and none after it: what was in later ones is owed again, in the old order.
    pub(crate) fn on_arrived(&mut self, frame: u64) {
        while self.sent.back().is_some_and(|(sent, _)| *sent > frame)
            && let Some((_, answer)) = self.sent.pop_back()
        {
            self.owed.push_front(answer);
        }
        self.sent.clear();
    }

    /// The peer waits for none of them any more.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: u32) -> Answer {
        Answer { id, said: Said::Executed { status: OperationStatus::Ok, value: id.into() } }
    }

    fn owed(answers: &Answers) -> Vec<u32> {
        answers.owed.iter().map(|a| a.id).collect()
    }

    #[test]
    fn what_did_not_arrive_is_owed_again_in_order() {
        let mut answers = Answers::default();
        (1..=6).for_each(|id| answers.owe(answer(id)).unwrap());
        for frame in [1, 1, 2, 3] {
            answers.on_sent(frame);
        }
        assert_eq!(owed(&answers), [5, 6]);
        answers.on_arrived(1);
        assert_eq!(owed(&answers), [3, 4, 5, 6]);
        answers.on_arrived(1);
        assert_eq!(owed(&answers), [3, 4, 5, 6], "said twice, it is the same");
    }

    #[test]
    fn no_more_are_kept_than_the_peer_may_wait_for() {
        let mut answers = Answers::default();
        for id in 0..3 * OPERATIONS_PER_LANE_MAX {
            answers.owe(answer(id)).unwrap();
            answers.on_sent(u64::from(id));
        }
        assert_eq!(answers.sent.len(), OPERATIONS_PER_LANE_MAX as usize);
        answers.clear();
        (0..OPERATIONS_PER_LANE_MAX).for_each(|id| answers.owe(answer(id)).unwrap());
        assert_eq!(answers.owe(answer(0)), Err(TooMany));
    }
}
