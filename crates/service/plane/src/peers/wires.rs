//! Lanes whose wire is silent: whether it is the wire that fails, or everything to the peer (docs/operate/failover.md).
//!
//! Owns the question on the link. A lane leaves its wire only if the peer's daemon answers while the wire is silent, and
//! soon: an answer that comes late says that the link was down as well.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use control::PeerMessage;
use verbs::Time;

use super::{PeerAction, Peers, engine_of};
use crate::LaneCommand;

/// An answer that takes longer does not count, and the next question may be asked.
const ANSWER_WITHIN: Duration = Duration::from_millis(250);

/// A question that was asked on a link.
#[derive(Debug)]
pub(super) struct Asked {
    number: u64,
    at: Time,
    /// Numbers of the lanes that it is about.
    lanes: BTreeSet<u32>,
}

impl Peers {
    /// An engine says that nothing comes back over the wire of its lane, and that there is another one. Told again while
    /// that lasts.
    pub fn on_wire_silent(&mut self, now: Time, peer: IpAddr, lane: u32) {
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        if established.lane_mut(lane).is_none() {
            return;
        }
        let number = match &mut established.asked {
            Some(asked) if now.saturating_since(asked.at) <= ANSWER_WITHIN => {
                asked.lanes.insert(lane);
                return;
            }
            Some(asked) => asked.number.wrapping_add(1),
            None => 0,
        };
        established.asked = Some(Asked { number, at: now, lanes: BTreeSet::from([lane]) });
        let (link, message) = (established.link, PeerMessage::LinkAsk { number });
        self.actions.push_back(PeerAction::Send { link, message });
    }

    /// The peer's daemon answers.
    pub(super) fn on_link_answer(&mut self, now: Time, peer: IpAddr, number: u64) {
        let Some(established) = self.peers.get_mut(&peer).and_then(|p| p.established.as_mut()) else { return };
        let Some(asked) = established.asked.as_mut().filter(|asked| asked.number == number) else { return };
        if now.saturating_since(asked.at) > ANSWER_WITHIN {
            return;
        }
        for lane in std::mem::take(&mut asked.lanes) {
            let command = LaneCommand::LeaveWire { peer };
            self.actions.push_back(PeerAction::Engine { engine: engine_of(lane), lane, command });
        }
    }
}

#[cfg(test)]
mod tests;
