//! Other daemons: links coming, speaking and going.

use control::{PeerMessage, Reason};
use plane::LinkId;

use super::Hub;
use crate::link::LinkInput;
use crate::link_queue::LinkQueue;

impl Hub {
    pub(super) fn on_link(&mut self, input: LinkInput) {
        let now = self.now();
        match input {
            LinkInput::Hello { link, source, hello, verdict } => {
                let answer = self.daemon.handle_hello(now, link, source, hello);
                // A link that is gone by now says so by its Down.
                let _ = verdict.send(answer);
            }
            LinkInput::Up { link, path, peer, out } => {
                self.dials.remove(&link);
                self.links.insert(link, LinkQueue::new(out));
                self.daemon.handle_up(now, link, peer, Some(path));
            }
            LinkInput::Message { link, message } => self.daemon.handle_message(now, link, message),
            LinkInput::Silent { link, silent } => self.daemon.handle_silent(now, link, silent),
            LinkInput::Down { link, reason } => {
                self.links.remove(&link);
                self.daemon.handle_down(now, link, reason);
            }
            LinkInput::DirectHello { hello, verdict } => {
                // One that is gone by now says so by its socket.
                let _ = verdict.send(self.daemon.judge_direct(now, &hello));
            }
            LinkInput::DirectSocket { number, socket } => self.daemon.handle_direct_socket(number, socket),
            LinkInput::DirectDialed { peer, number, connection, result } => {
                self.daemon.on_direct_dialed(peer, number, connection, result);
            }
            LinkInput::DialFailed { link, reason } => {
                self.dials.remove(&link);
                self.daemon.handle_dial_failed(now, link, reason);
            }
        }
    }

    pub(super) fn send_to_peer(&mut self, link: LinkId, message: PeerMessage) {
        let Some(queue) = self.links.get_mut(&link) else { return };
        if queue.say(message, self.turn.clone()).is_err() {
            tracing::warn!("a peer's daemon does not read its control link");
            self.links.remove(&link);
            let now = self.now();
            self.daemon.handle_down(now, link, Reason::PeerLost);
        }
    }

    /// Says what waits for links that have room. Whether something waits still.
    pub(super) fn say_waiting(&mut self) -> bool {
        let mut waits = false;
        self.links.values_mut().for_each(|queue| waits |= queue.say_waiting());
        waits
    }
}
