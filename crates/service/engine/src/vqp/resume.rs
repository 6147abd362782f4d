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
        let own_route = self.routes.own;
        match self.phase {
            Phase::Opening(_) if self.is_open_sent => {
                Some(RouteState { route: 0, own_route, rx_tail: 0, rx_head: 0, flags: route_flag::OPENING })
            }
            Phase::Opening(_) | Phase::Away(_) => None,
            Phase::Accepting | Phase::Open => {
                // What is reported here needs no Head.
                self.head_report = HeadReport::None;
                let (rx_tail, rx_head) = (self.rx.tail(), self.rx.report());
                Some(RouteState { route: self.routes.peer, own_route, rx_tail, rx_head, flags: self.close.arrived() })
            }
        }
    }

    /// What arrived at the peer: all else that was sent is to be sent again. True: the application has news.
    pub(crate) fn resume(&mut self, peer: &RouteState) -> Result<bool, Violation> {
        if !self.tx.may_have_arrived(peer.rx_tail) {
            let (first, last) = (self.tx.head(), self.tx.sent());
            return Err(Violation::BytesArrived { id: self.identity.id, found: peer.rx_tail, first, last });
        }
        // Nothing of a direction is sent after its Fin.
        let cut_short = peer.flags & route_flag::FIN != 0 && peer.rx_tail != self.tx.sent();
        if cut_short || !self.close.on_arrived(peer.flags) {
            return Err(Violation::EndArrived { id: self.identity.id });
        }
        self.tx.go_back(peer.rx_tail);
        self.forget_rendezvous();
        self.growth.on_resumed(self.tx.span().grown_at());
        self.on_head(peer.rx_head)
    }

    /// The answer to the peer's Open did not arrive, and nothing after it did. True: it is owed once more.
    pub(crate) fn answer_again(&mut self) -> Result<bool, Violation> {
        let route = self.routes.peer;
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
