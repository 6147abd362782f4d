//! How a connection ends.
//!
//! Owns the flags of both directions' ends and decides which of Fin, Stop and Reset is owed to the peer, whether data may still
//! leave, and when nothing can touch the connection's memory any more. It must never say [`Close::is_over`] while
//! the peer daemon may still post a WRITE to our ring, or before the application gave the slot back.
//!
//! Rules. *Fin* follows the last data of its sender, and neither Fin nor Reset is followed by a WRITE: who received one of them knows
//! that its ring is quiet. *Stop* makes the receiver drop what it has not sent and answer Fin, if it did not yet. *Reset* makes the
//! receiver drop everything and answer Reset, unless it sent Fin or Reset before. A lane whose queue pair is
//! destroyed ("severed") is as good as both.

use control::{Reason, route_flag};

/// Ends of both directions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Close {
    fin_asked: bool,
    fin_sent: bool,
    fin_received: bool,
    stop_asked: bool,
    stop_sent: bool,
    stop_received: bool,
    reset_asked: Option<Reason>,
    reset_sent: bool,
    reset_received: bool,
    severed: bool,
    app_released: bool,
}

impl Close {
    // ---- what happened here

    /// The application will write no more.
    pub(crate) fn on_app_fin(&mut self) {
        self.fin_asked = true;
    }

    /// The application will read no more.
    pub(crate) fn on_app_stop(&mut self) {
        self.stop_asked = true;
    }

    /// The application, or the engine for it, aborts. The first reason stays.
    pub(crate) fn on_abort(&mut self, reason: Reason) {
        self.reset_asked.get_or_insert(reason);
    }

    /// The application does not use slot and rings any more.
    pub(crate) fn on_app_released(&mut self) {
        self.app_released = true;
    }

    /// The lane's queue pair is destroyed.
    pub(crate) fn on_severed(&mut self) {
        self.severed = true;
    }

    // ---- what the peer said

    /// False: the peer ended its direction before.
    pub(crate) fn on_fin(&mut self) -> bool {
        let first = !self.fin_received && !self.reset_received;
        self.fin_received = true;
        first
    }

    pub(crate) fn on_stop(&mut self) {
        self.stop_received = true;
    }

    /// False: the peer sent it before.
    pub(crate) fn on_reset(&mut self) -> bool {
        !std::mem::replace(&mut self.reset_received, true)
    }

    // ---- what was sent

    pub(crate) fn fin_was_sent(&mut self) {
        self.fin_sent = true;
    }

    pub(crate) fn stop_was_sent(&mut self) {
        self.stop_sent = true;
    }

    pub(crate) fn reset_was_sent(&mut self) {
        self.reset_sent = true;
    }

    // ---- a new incarnation of the lane

    /// What arrived of the peer's ends, as [`control::route_flag`]s.
    pub(crate) fn arrived(&self) -> u8 {
        let bit = |is, bit| if is { bit } else { 0 };
        bit(self.fin_received, route_flag::FIN)
            | bit(self.stop_received, route_flag::STOP)
            | bit(self.reset_received, route_flag::RESET)
    }

    /// What of the own ends arrived at the peer: the others are owed again. False: the peer names one that was not sent.
    pub(crate) fn on_arrived(&mut self, flags: u8) -> bool {
        let has = |bit| flags & bit != 0;
        let (fin, stop, reset) = (has(route_flag::FIN), has(route_flag::STOP), has(route_flag::RESET));
        let invented = (fin && !self.fin_sent) || (stop && !self.stop_sent) || (reset && !self.reset_sent);
        if !invented {
            (self.fin_sent, self.stop_sent, self.reset_sent) = (fin, stop, reset);
        }
        !invented
    }

    // ---- what follows

    /// Whether ring data may still be sent.
    #[inline]
    pub(crate) fn may_send_data(&self) -> bool {
        !(self.own_end() || self.stop_received || self.reset_received || self.reset_asked.is_some())
    }

    /// Whether the application's tail still counts.
    pub(crate) fn app_may_write(&self) -> bool {
        self.may_send_data() && !self.fin_asked
    }

    /// Whether a WRITE of the peer may still come.
    #[inline]
    pub(crate) fn may_receive(&self) -> bool {
        !self.peer_end()
    }

    /// Whether the peer has to hear what the application consumed.
    pub(crate) fn reports_heads(&self) -> bool {
        !(self.stop_sent || self.is_reset())
    }

    /// `drained`: everything that the application wrote has been sent.
    pub(crate) fn owes_fin(&self, drained: bool) -> bool {
        let last = (self.fin_asked && drained) || self.stop_received;
        last && !self.own_end() && self.reset_asked.is_none() && !self.reset_received
    }

    /// `all_read`: the peer sent Fin and the application consumed everything before it.
    pub(crate) fn owes_stop(&self, all_read: bool) -> bool {
        let pointless = self.stop_sent || all_read || self.reset_received || self.reset_sent || self.severed;
        self.stop_asked && !pointless && self.reset_asked.is_none()
    }

    /// The reason of the Reset that is owed.
    pub(crate) fn owes_reset(&self) -> Option<Reason> {
        if self.reset_sent || self.severed {
            None
        } else if self.reset_received {
            (!self.fin_sent).then_some(self.reset_asked.unwrap_or(Reason::ResetByPeer))
        } else {
            self.reset_asked
        }
    }

    /// Whether nobody can touch the connection's memory any more, and the peer knows all that it has to; the own
    /// WRITEs' completions come on top. `consumed`: the peer's application consumed everything that was sent. `told`: the
    /// peer was told so of everything that arrived here.
    pub(crate) fn is_over(&self, consumed: bool, told: bool) -> bool {
        let reset = self.reset_received || self.reset_sent || self.severed;
        let tx_done = consumed || self.stop_received || reset;
        let rx_done = told || self.stop_sent || reset;
        self.own_end() && self.peer_end() && self.app_released && tx_done && rx_done && self.owes_reset().is_none()
    }

    /// Whether the connection ended in order in both directions, so that a loss of the lane changes nothing.
    pub(crate) fn is_complete(&self, consumed: bool) -> bool {
        self.fin_sent && self.fin_received && (consumed || self.stop_received)
    }

    fn own_end(&self) -> bool {
        self.fin_sent || self.reset_sent || self.severed
    }

    fn peer_end(&self) -> bool {
        self.fin_received || self.reset_received || self.severed
    }

    // ---- for inspection

    pub(crate) fn is_app_released(&self) -> bool {
        self.app_released
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.reset_asked.is_some() || self.reset_received || self.reset_sent || self.severed
    }

    pub(crate) fn is_fin_received(&self) -> bool {
        self.fin_received
    }

    pub(crate) fn is_fin_asked(&self) -> bool {
        self.fin_asked
    }

    pub(crate) fn is_stop_asked(&self) -> bool {
        self.stop_asked
    }
}

#[cfg(test)]
mod tests;
