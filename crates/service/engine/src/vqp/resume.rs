//! A connection that goes on over the next incarnation of its lane.
//!
//! Owns what one end tells the other about it, and which sent bytes are taken back. It must never take back what the
//! peer confirmed, and never believe that something arrived that was not sent.

use control::{RouteState, route_flag};

use super::{HeadReport, Phase, Vqp};
use crate::violation::Violation;

impl Vqp {
    /// What arrived here. `None`: the peer cannot know of the connection, since its Open was never sent.
    pub(crate) fn report(&mut self) -> Option<RouteState> {
        let own_route = self.own_route;
        match self.phase {
            Phase::Opening(_) if self.is_open_sent => {
                Some(RouteState { route: 0, own_route, rx_tail: 0, rx_head: 0, flags: route_flag::OPENING })
            }
            Phase::Opening(_) | Phase::Away(_) => None,
            Phase::Accepting | Phase::Open => {
                // What is reported here needs no Head.
                self.rx_reported = self.rx_head;
                self.head_report = HeadReport::None;
                let (rx_tail, rx_head) = (self.rx_tail, self.rx_head);
                Some(RouteState { route: self.peer_route, own_route, rx_tail, rx_head, flags: self.close.arrived() })
            }
        }
    }

    /// What arrived at the peer: all else that was sent is to be sent again. True: the application has news.
    pub(crate) fn resume(&mut self, peer: &RouteState) -> Result<bool, Violation> {
        let unread = self.tx_sent.wrapping_sub(self.tx_head);
        if peer.rx_tail.wrapping_sub(self.tx_head) > unread {
            let (first, last) = (self.tx_head, self.tx_sent);
            return Err(Violation::BytesArrived { id: self.id, found: peer.rx_tail, first, last });
        }
        // Nothing of a direction is sent after its Fin.
        let cut_short = peer.flags & route_flag::FIN != 0 && peer.rx_tail != self.tx_sent;
        if cut_short || !self.close.on_arrived(peer.flags) {
            return Err(Violation::EndArrived { id: self.id });
        }
        self.tx_sent = peer.rx_tail;
        self.forget_rendezvous();
        self.growth.on_resumed(self.tx_span.grown_at());
        self.on_head(peer.rx_head)
    }

    /// The answer to the peer's Open did not arrive, and nothing after it did. True: it is owed once more.
    pub(crate) fn answer_again(&mut self) -> Result<bool, Violation> {
        let route = self.peer_route;
        let nothing = RouteState { route: 0, own_route: route, rx_tail: 0, rx_head: 0, flags: 0 };
        match self.phase {
            Phase::Opening(_) | Phase::Away(_) => Err(Violation::RouteState(route)),
            Phase::Accepting => Ok(false),
            Phase::Open => {
                self.resume(&nothing)?;
                self.phase = Phase::Accepting;
                Ok(true)
            }
        }
    }
}
