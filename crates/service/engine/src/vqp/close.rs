//! How a connection ends.
//!
//! Owns how far either direction's end is, and an abort of both, and decides which of Fin, Stop and Reset is owed to
//! the peer, whether data may still leave, and when nothing can touch the connection's memory any more. It must never
//! say [`Close::is_over`] while the peer daemon may still post a WRITE to our ring, or before the application gave the
//! slot back.
//!
//! Rules. *Fin* follows the last data of its sender, and neither Fin nor Reset is followed by a WRITE: an end that
//! received one of them knows that its ring is quiet. *Stop* makes the receiver drop what it has not sent and answer
//! Fin, if it did not yet. *Reset* makes the receiver drop everything and answer Reset, unless it sent Fin or Reset
//! before. A severed lane, whose queue pair is destroyed, counts as both.
//!
//! ```text
//!   out:   Open -> Asked -> Sent            in:   Open -> StopOwed -> Stopped     (the application's and the engine's doing)
//!            \       |        |                     |        |           |
//!             v      v        v  Stop came          v        v           v        Fin came
//!             Stopped ---> SentStopped           Ended -> EndedOwed -> EndedStopped
//!
//!   reset: None -> Asked -> Sent                 any -> Severed
//!            \       |        |  Reset came
//!             v      v        v
//!             Received --> Exchanged
//! ```
//!
//! A new incarnation of the lane may show that what was sent did not arrive: then an arrow of sending is gone back.

use control::{Reason, route_flag};

/// The end of the direction that this application writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Out {
    #[default]
    Open,
    /// The application will write no more.
    Asked,
    /// The peer's application will read no more.
    Stopped,
    /// Fin left, after all data.
    Sent,
    /// Fin left, and the peer's application reads no more.
    SentStopped,
}

/// What changes [`Out`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutEvent {
    AppFin,
    StopCame,
    FinSent,
    FinLost,
}

impl Out {
    fn after(self, event: OutEvent) -> Self {
        use OutEvent::*;
        match (self, event) {
            (Self::Open, AppFin) => Self::Asked,
            (Self::Open | Self::Asked, StopCame) => Self::Stopped,
            (Self::Sent, StopCame) => Self::SentStopped,
            (Self::Open | Self::Asked, FinSent) => Self::Sent,
            (Self::Stopped, FinSent) => Self::SentStopped,
            (Self::Sent, FinLost) => Self::Asked,
            (Self::SentStopped, FinLost) => Self::Stopped,
            (same, _) => same,
        }
    }

    fn is_sent(self) -> bool {
        matches!(self, Self::Sent | Self::SentStopped)
    }

    fn is_stopped(self) -> bool {
        matches!(self, Self::Stopped | Self::SentStopped)
    }
}

/// The end of the direction that this application reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum In {
    #[default]
    Open,
    /// The application will read no more.
    StopOwed,
    /// Stop left.
    Stopped,
    /// Fin came.
    Ended,
    /// Fin came; the application will read no more of what was before it.
    EndedOwed,
    /// Fin came, and Stop left.
    EndedStopped,
}

/// What changes [`In`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InEvent {
    AppStop,
    StopSent,
    StopLost,
    FinCame,
}

impl In {
    fn after(self, event: InEvent) -> Self {
        use InEvent::*;
        match (self, event) {
            (Self::Open, AppStop) | (Self::Stopped, StopLost) => Self::StopOwed,
            (Self::Ended, AppStop) | (Self::EndedStopped, StopLost) => Self::EndedOwed,
            (Self::Open | Self::StopOwed, StopSent) => Self::Stopped,
            (Self::Ended | Self::EndedOwed, StopSent) => Self::EndedStopped,
            (Self::Open, FinCame) => Self::Ended,
            (Self::StopOwed, FinCame) => Self::EndedOwed,
            (Self::Stopped, FinCame) => Self::EndedStopped,
            (same, _) => same,
        }
    }

    fn is_ended(self) -> bool {
        matches!(self, Self::Ended | Self::EndedOwed | Self::EndedStopped)
    }

    fn is_stop_owed(self) -> bool {
        matches!(self, Self::StopOwed | Self::EndedOwed)
    }

    fn is_stop_sent(self) -> bool {
        matches!(self, Self::Stopped | Self::EndedStopped)
    }
}

/// The end of both directions at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Reset {
    #[default]
    None,
    /// The application aborts, or the engine for it.
    Asked(Reason),
    /// Reset left.
    Sent(Reason),
    /// The peer's came. With a reason if this end was about to send one, or does so for another.
    Received(Option<Reason>),
    /// Both.
    Exchanged(Option<Reason>),
    /// The lane's queue pair is destroyed: as good as both, and nothing of before counts.
    Severed,
}

/// What changes [`Reset`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResetEvent {
    Abort(Reason),
    ResetCame,
    ResetSent,
    ResetLost,
    Sever,
}

impl Reset {
    fn after(self, event: ResetEvent) -> Self {
        use ResetEvent::*;
        match (self, event) {
            (_, Sever) => Self::Severed,
            (Self::None, Abort(reason)) => Self::Asked(reason),
            // The first reason stays.
            (Self::Received(None), Abort(reason)) => Self::Received(Some(reason)),
            (Self::Exchanged(None), Abort(reason)) => Self::Exchanged(Some(reason)),
            (Self::None, ResetCame) => Self::Received(None),
            (Self::Asked(reason), ResetCame) => Self::Received(Some(reason)),
            (Self::Sent(reason), ResetCame) => Self::Exchanged(Some(reason)),
            (Self::Asked(reason), ResetSent) => Self::Sent(reason),
            (Self::Received(reason), ResetSent) => Self::Exchanged(reason),
            (Self::Sent(reason), ResetLost) => Self::Asked(reason),
            (Self::Exchanged(reason), ResetLost) => Self::Received(reason),
            (same, _) => same,
        }
    }

    fn is_sent(self) -> bool {
        matches!(self, Self::Sent(_) | Self::Exchanged(_))
    }

    fn has_come(self) -> bool {
        matches!(self, Self::Received(_) | Self::Exchanged(_))
    }
}

/// Ends of both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Close {
    out: Out,
    input: In,
    reset: Reset,
    /// The application has given slot and rings back.
    is_released: bool,
}

impl Close {
    // ---- what happened here

    /// The application will write no more.
    pub(crate) fn on_app_fin(&mut self) {
        self.out = self.out.after(OutEvent::AppFin);
    }

    /// The application will read no more.
    pub(crate) fn on_app_stop(&mut self) {
        self.input = self.input.after(InEvent::AppStop);
    }

    /// The application, or the engine for it, aborts. The first reason stays.
    pub(crate) fn on_abort(&mut self, reason: Reason) {
        self.reset = self.reset.after(ResetEvent::Abort(reason));
    }

    /// The application does not use slot and rings any more.
    pub(crate) fn on_app_released(&mut self) {
        self.is_released = true;
    }

    /// The lane's queue pair is destroyed.
    pub(crate) fn on_severed(&mut self) {
        self.reset = self.reset.after(ResetEvent::Sever);
    }

    // ---- what the peer said

    /// False: the peer ended its direction before.
    pub(crate) fn on_fin(&mut self) -> bool {
        let first = !self.input.is_ended() && !self.reset.has_come();
        self.input = self.input.after(InEvent::FinCame);
        first
    }

    pub(crate) fn on_stop(&mut self) {
        self.out = self.out.after(OutEvent::StopCame);
    }

    /// False: the peer sent it before.
    pub(crate) fn on_reset(&mut self) -> bool {
        let first = !self.reset.has_come();
        self.reset = self.reset.after(ResetEvent::ResetCame);
        first
    }

    // ---- what was sent

    pub(crate) fn fin_was_sent(&mut self) {
        self.out = self.out.after(OutEvent::FinSent);
    }

    pub(crate) fn stop_was_sent(&mut self) {
        self.input = self.input.after(InEvent::StopSent);
    }

    pub(crate) fn reset_was_sent(&mut self) {
        self.reset = self.reset.after(ResetEvent::ResetSent);
    }

    // ---- a new incarnation of the lane

    /// What arrived of the peer's ends, as [`control::route_flag`]s.
    pub(crate) fn arrived(&self) -> u8 {
        let bit = |is, bit| if is { bit } else { 0 };
        bit(self.input.is_ended(), route_flag::FIN)
            | bit(self.out.is_stopped(), route_flag::STOP)
            | bit(self.reset.has_come(), route_flag::RESET)
    }

    /// What of the own ends arrived at the peer: the others are owed again. False: the peer names one that was not
    /// sent.
    pub(crate) fn on_arrived(&mut self, flags: u8) -> bool {
        let has = |bit| flags & bit != 0;
        let (fin, stop, reset) = (has(route_flag::FIN), has(route_flag::STOP), has(route_flag::RESET));
        let (fin_sent, stop_sent, reset_sent) = (self.out.is_sent(), self.input.is_stop_sent(), self.reset.is_sent());
        if (fin && !fin_sent) || (stop && !stop_sent) || (reset && !reset_sent) {
            return false;
        }
        if !fin {
            self.out = self.out.after(OutEvent::FinLost);
        }
        if !stop {
            self.input = self.input.after(InEvent::StopLost);
        }
        if !reset {
            self.reset = self.reset.after(ResetEvent::ResetLost);
        }
        true
    }

    /// What of the own ends arrived at the peer, of an end that does not know what it sent.
    pub(crate) fn on_returned(&mut self, flags: u8) {
        let has = |bit| flags & bit != 0;
        if has(route_flag::FIN) {
            self.out = self.out.after(OutEvent::AppFin).after(OutEvent::FinSent);
        }
        if has(route_flag::STOP) {
            self.input = self.input.after(InEvent::AppStop).after(InEvent::StopSent);
        }
        if has(route_flag::RESET) {
            let asked = self.reset.after(ResetEvent::Abort(Reason::ResetByPeer));
            self.reset = asked.after(ResetEvent::ResetSent);
        }
    }

    // ---- what follows

    /// Whether ring data may still be sent.
    #[inline]
    pub(crate) fn may_send_data(&self) -> bool {
        matches!(self.out, Out::Open | Out::Asked) && !self.is_reset()
    }

    /// Whether the application's tail still counts.
    pub(crate) fn app_may_write(&self) -> bool {
        self.out == Out::Open && !self.is_reset()
    }

    /// Whether a WRITE of the peer may still come.
    #[inline]
    pub(crate) fn may_receive(&self) -> bool {
        !self.peer_end()
    }

    /// Whether the peer must learn what the application consumed.
    pub(crate) fn reports_heads(&self) -> bool {
        !(self.input.is_stop_sent() || self.is_reset())
    }

    /// `drained`: everything that the application wrote has been sent.
    pub(crate) fn owes_fin(&self, drained: bool) -> bool {
        let last = match self.out {
            Out::Asked => drained,
            Out::Stopped => true,
            Out::Open | Out::Sent | Out::SentStopped => false,
        };
        last && !self.is_reset()
    }

    /// `all_read`: the peer sent Fin and the application consumed everything before it.
    pub(crate) fn owes_stop(&self, all_read: bool) -> bool {
        self.input.is_stop_owed() && !all_read && !self.is_reset()
    }

    /// The reason of the Reset that is owed.
    pub(crate) fn owes_reset(&self) -> Option<Reason> {
        match self.reset {
            Reset::Asked(reason) => Some(reason),
            // Fin says all that an answer would.
            Reset::Received(reason) => (!self.out.is_sent()).then_some(reason.unwrap_or(Reason::ResetByPeer)),
            Reset::None | Reset::Sent(_) | Reset::Exchanged(_) | Reset::Severed => None,
        }
    }

    /// Whether the connection's memory cannot be touched any more, and the peer knows everything that it must know. The
    /// completions of this end's WRITEs are checked separately. `consumed`: the peer's application consumed everything
    /// that was sent. `told`: everything that was consumed here was reported to the peer.
    pub(crate) fn is_over(&self, consumed: bool, told: bool) -> bool {
        let reset = !matches!(self.reset, Reset::None | Reset::Asked(_));
        let out_done = consumed || self.out.is_stopped() || reset;
        let in_done = told || self.input.is_stop_sent() || reset;
        let ended = self.own_end() && self.peer_end();
        ended && self.is_released && out_done && in_done && self.owes_reset().is_none()
    }

    /// Whether the connection ended in order in both directions, so that a loss of the lane changes nothing.
    pub(crate) fn is_complete(&self, consumed: bool) -> bool {
        self.out.is_sent() && self.input.is_ended() && (consumed || self.out.is_stopped())
    }

    /// The same of an end that does not know whether its Fin left. A peer that has nothing of the connection any more then
    /// had it, or was not waiting for it.
    pub(crate) fn is_complete_but_for_fin(&self, consumed: bool) -> bool {
        self.input.is_ended() && (self.out.is_stopped() || (self.out != Out::Open && consumed))
    }

    fn own_end(&self) -> bool {
        self.out.is_sent() || self.reset.is_sent() || self.reset == Reset::Severed
    }

    fn peer_end(&self) -> bool {
        self.input.is_ended() || self.reset.has_come() || self.reset == Reset::Severed
    }

    // ---- for inspection

    pub(crate) fn is_app_released(&self) -> bool {
        self.is_released
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset != Reset::None
    }

    /// Whether the peer's application reads no more.
    pub(crate) fn is_told_to_stop(&self) -> bool {
        self.out.is_stopped()
    }

    pub(crate) fn is_fin_received(&self) -> bool {
        self.input.is_ended()
    }

    /// Whether this application's direction ends, at its own wish or the peer's.
    pub(crate) fn is_ending(&self) -> bool {
        self.out != Out::Open
    }

    pub(crate) fn is_stop_asked(&self) -> bool {
        self.input.is_stop_owed() || self.input.is_stop_sent()
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
