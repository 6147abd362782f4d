//! Other daemons: links coming, speaking and going, and what the peers' state machine wants done.

use std::sync::Arc;

use control::{PeerMessage, Reason};
use plane::{LaneCommand, LinkId, PeerAction};

use super::{DATAGRAM_ENGINE, Hub};
use crate::command::Command;
use crate::dial::dial;
use crate::link::LinkInput;
use crate::link_queue::LinkQueue;

impl Hub {
    pub(super) fn on_link(&mut self, input: LinkInput) {
        let now = self.now();
        match input {
            LinkInput::Hello { link, source, hello, verdict } => {
                let answer = self.peers.handle_hello(now, link, source, hello);
                // A link that is gone by now says so by its Down.
                let _ = verdict.send(answer);
            }
            LinkInput::Up { link, path, peer, out } => {
                self.dials.remove(&link);
                self.links.insert(link, LinkQueue::new(out));
                self.peers.handle_up_over(now, link, peer, Some(path));
            }
            LinkInput::Message { link, message } => self.peers.handle_message(now, link, message),
            LinkInput::Silent { link, silent } => {
                self.peers.handle_silent(link, silent);
                self.peers.seek_path(now, link, silent);
            }
            LinkInput::Down { link, reason } => {
                self.links.remove(&link);
                self.peers.handle_down(now, link, reason);
            }
            LinkInput::DirectHello { hello, verdict } => self.on_direct_hello(&hello, verdict),
            LinkInput::DirectSocket { number, socket } => self.directs.handle_socket(number, socket),
            LinkInput::DirectDialed { peer, number, connection, result } => {
                self.directs.on_dialed(peer, number, connection, result);
            }
            LinkInput::DialFailed { link, reason } => {
                self.dials.remove(&link);
                self.peers.handle_dial_failed(now, link, reason);
            }
        }
    }

    pub(super) fn settle_peers(&mut self) {
        while let Some(action) = self.peers.poll_action() {
            match action {
                PeerAction::Dial { link, peer, deadline, ways } => {
                    let task = dial(Arc::clone(&self.link_context), link, peer, deadline, ways);
                    self.dials.insert(link, self.dial_tasks.spawn(task));
                }
                PeerAction::CancelDial { link } => {
                    if let Some(task) = self.dials.remove(&link) {
                        task.abort();
                    }
                }
                PeerAction::Send { link, message } => self.send_to_peer(link, message),
                PeerAction::Close { link, reason, detail } => {
                    if let Some(queue) = self.links.remove(&link) {
                        queue.close(PeerMessage::Bye { reason, detail });
                    }
                }
                PeerAction::Direct { peer, message } => self.on_direct_message(peer, message),
                PeerAction::Meet { peer, message } => self.on_meet_message(peer, message),
                PeerAction::Region { peer, message } => self.on_region_message(peer, message),
                PeerAction::Engine { engine, lane, command } => {
                    let lost = match command {
                        LaneCommand::Lost { peer, reason } => Some((peer, reason)),
                        _ => None,
                    };
                    self.command(engine, Command::Lane { lane, command });
                    if let Some((peer, reason)) = lost {
                        self.on_region_lane_gone(peer, lane, reason);
                        if lane == DATAGRAM_ENGINE {
                            self.meetings.handle_peer_gone(peer, reason);
                        }
                    }
                }
            }
        }
    }

    pub(super) fn send_to_peer(&mut self, link: LinkId, message: PeerMessage) {
        let Some(queue) = self.links.get_mut(&link) else { return };
        if queue.say(message, self.turn.clone()).is_err() {
            tracing::warn!("a peer's daemon does not read its control link");
            self.links.remove(&link);
            let now = self.now();
            self.peers.handle_down(now, link, Reason::PeerLost);
        }
    }

    /// Says what waits for links that have room. Whether something waits still.
    pub(super) fn say_waiting(&mut self) -> bool {
        let mut waits = false;
        self.links.values_mut().for_each(|queue| waits |= queue.say_waiting());
        waits
    }
}
