//! The first messages of a control link, in their order, for both sides.
//!
//! ```text
//! dialer     Hello sent -> peer's Hello -> Noise sent -> peer's Noise -> up
//! acceptor   peer's Hello -> Hello sent -> verdict of `Peers` -> peer's Noise -> Noise sent -> up
//! ```
//!
//! Owns that order, the time that it may take, and by which reason it ends. It must never let a message on that is not
//! due, nor answer as acceptor to one who has not shown that he has the key.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use control::{PeerMessage, Reason};
use verbs::Time;

use crate::handshake::{Handshake, unexpected};
use crate::{ClusterKeys, Identity, Introduction, Refusal, Seal, Side, Verdict};

/// What the daemon does for a link that is being opened. After `Up`, `Refuse` or `GiveUp` there is nothing more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpeningAction {
    /// Send this.
    Send(PeerMessage),
    /// Ask [`crate::Daemon::handle_hello`]; the answer is [`Opening::on_verdict`].
    Judge(Identity),
    /// Both sides have proven the key: tell [`crate::Daemon::handle_up`]. All frames from here on are sealed by
    /// [`Opening::take_seal`].
    Up(Identity),
    /// Say why, and close.
    Refuse(Refusal),
    /// Close; the peer has nothing to learn.
    GiveUp(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The peer's Hello is due.
    Hello,
    /// The verdict is due, and no message.
    Verdict,
    /// The peer's Noise message is due.
    Noise,
    Over,
}

/// A link that is being opened.
#[derive(Debug)]
pub struct Opening {
    handshake: Handshake,
    keys: ClusterKeys,
    /// Whom the dialer means.
    dialed: Option<IpAddr>,
    state: State,
    deadline: Time,
    actions: VecDeque<OpeningAction>,
}

impl Opening {
    /// The dialing side. `secret`: 32 fresh random bytes; `dialed`: who must answer; `limit`: time for all of it.
    pub fn dial(
        now: Time,
        own: Introduction,
        keys: ClusterKeys,
        secret: [u8; 32],
        dialed: IpAddr,
        limit: Duration,
    ) -> Self {
        let mut opening = Self::new(now, Handshake::new(Side::Dialer, own, secret), keys, Some(dialed), limit);
        let hello = opening.handshake.hello();
        opening.actions.push_back(OpeningAction::Send(hello));
        opening
    }

    /// The accepting side. `secret`: 32 fresh random bytes; `limit`: time for all of it.
    pub fn accept(now: Time, own: Introduction, keys: ClusterKeys, secret: [u8; 32], limit: Duration) -> Self {
        Self::new(now, Handshake::new(Side::Acceptor, own, secret), keys, None, limit)
    }

    fn new(now: Time, handshake: Handshake, keys: ClusterKeys, dialed: Option<IpAddr>, limit: Duration) -> Self {
        Self { handshake, keys, dialed, state: State::Hello, deadline: now + limit, actions: VecDeque::new() }
    }

    /// What to do next.
    pub fn poll_action(&mut self) -> Option<OpeningAction> {
        self.actions.pop_front()
    }

    /// What seals all frames after [`OpeningAction::Up`]; once.
    pub fn take_seal(&mut self) -> Option<Seal> {
        self.handshake.take_seal()
    }

    /// Whether a verdict is asked for: no message is read meanwhile.
    pub fn awaits_verdict(&self) -> bool {
        self.state == State::Verdict
    }

    /// Whether this is the accepting side and nothing was said: the first message may be one that opens no link.
    pub fn awaits_first(&self) -> bool {
        self.state == State::Hello && self.handshake.side() == Side::Acceptor
    }

    /// When [`Self::handle_timeout`] has something to do, if not over before.
    pub fn deadline(&self) -> Option<Time> {
        (self.state != State::Over).then_some(self.deadline)
    }

    /// The peer's next message. Ignored while a verdict is due, which no honest peer's is.
    pub fn handle_message(&mut self, message: PeerMessage) {
        if let PeerMessage::Bye { .. } = message {
            return self.end(OpeningAction::GiveUp(unexpected(&message, "nothing")));
        }
        let handled = match self.state {
            State::Hello => self.handle_hello(message),
            State::Noise => self.handle_noise(&message),
            State::Verdict => Err(unexpected(&message, "nothing")),
            State::Over => return,
        };
        if let Err(refusal) = handled {
            self.end(OpeningAction::Refuse(refusal));
        }
    }

    fn handle_hello(&mut self, message: PeerMessage) -> Result<(), Refusal> {
        if self.handshake.side() == Side::Acceptor {
            // Before it is judged: who speaks another version learns ours.
            self.actions.push_back(OpeningAction::Send(self.handshake.hello()));
        }
        let peer = self.handshake.handle_hello(message)?;
        match self.dialed {
            Some(dialed) if peer.address != dialed => {
                let detail =
                    format!("the daemon at {dialed} calls itself {}: use that address, or its `listen`", peer.address);
                Err(Refusal::new(Reason::BadAddress, detail))
            }
            Some(_) => {
                let noise = self.handshake.begin(&self.keys)?;
                self.actions.push_back(OpeningAction::Send(noise));
                self.state = State::Noise;
                Ok(())
            }
            None => {
                self.actions.push_back(OpeningAction::Judge(peer));
                self.state = State::Verdict;
                Ok(())
            }
        }
    }

    fn handle_noise(&mut self, message: &PeerMessage) -> Result<(), Refusal> {
        match self.handshake.side() {
            Side::Dialer => self.handshake.finish(message)?,
            Side::Acceptor => {
                let answer = self.handshake.answer(message, &self.keys)?;
                self.actions.push_back(OpeningAction::Send(answer));
            }
        }
        if let Some(peer) = self.handshake.peer() {
            self.end(OpeningAction::Up(peer));
        }
        Ok(())
    }

    /// The answer to [`OpeningAction::Judge`].
    pub fn on_verdict(&mut self, verdict: Verdict) {
        match verdict {
            _ if self.state != State::Verdict => {}
            Verdict::Proceed => self.state = State::Noise,
            Verdict::Refuse(reason, detail) => self.end(OpeningAction::Refuse(Refusal { reason, detail })),
        }
    }

    /// The connection ended, or a message could not be read or sent.
    pub fn handle_lost(&mut self, refusal: Refusal) {
        // Whoever listened there went away.
        let is_dialer = self.handshake.side() == Side::Dialer;
        let reason = if is_dialer && refusal.reason == Reason::PeerLost { Reason::PeerBusy } else { refusal.reason };
        let refusal = Refusal { reason, ..refusal };
        if matches!(reason, Reason::PeerLost | Reason::PeerBusy) {
            self.end(OpeningAction::GiveUp(refusal));
        } else {
            self.end(OpeningAction::Refuse(refusal));
        }
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.deadline {
            return;
        }
        self.end(match self.handshake.side() {
            Side::Dialer => {
                let detail = "the peer's daemon does not finish its part of the handshake";
                OpeningAction::GiveUp(Refusal::new(Reason::PeerBusy, detail))
            }
            Side::Acceptor => {
                let detail = "the handshake was not finished in time";
                OpeningAction::Refuse(Refusal::new(Reason::TimedOut, detail))
            }
        });
    }

    fn end(&mut self, last: OpeningAction) {
        if self.state != State::Over {
            self.state = State::Over;
            self.actions.push_back(last);
        }
    }
}

#[cfg(test)]
mod tests;
