//! TCP between the daemons: segments on their way, accepts, and what a dead process, machine or path does to
//! connections.

use std::time::Duration;

use super::{Event, World};
use crate::address::PATHS;
use crate::tcp::{EndOf, Segment};

impl World {
    /// Sends a segment from an end to the other one.
    pub(super) fn send_segment(&mut self, (connection, side): EndOf, segment: Segment) {
        let Some((from, to)) = self.tcp.hosts((connection, side)) else { return };
        self.trace.note(self.now, "link {}: {} tells {} {}", &[connection, from as u64, to as u64, segment.code()]);
        let target = (connection, 1 - side);
        if self.network.is_control_cut(from, to, self.tcp.path(connection)) {
            return self.tcp.hold(target, segment);
        }
        let delay = self.network.link_delay();
        self.deliver_after(target, segment, delay);
    }

    fn deliver_after(&mut self, to: EndOf, segment: Segment, delay: Duration) {
        let at = self.now + delay;
        let Some(end) = self.tcp.end(to) else { return };
        end.last_at = end.last_at.max(at);
        let at = end.last_at;
        self.queue.push(at, Event::Segment { to, segment: Box::new(segment) });
    }

    /// The daemon closes its end.
    pub(super) fn close_end(&mut self, end: EndOf) {
        self.send_segment(end, Segment::Fin);
        self.tcp.close(end);
    }

    /// Something between two hosts works again: what was held for a path that does is sent again.
    pub(super) fn on_path_back(&mut self, a: usize, b: usize) {
        let paths: Vec<usize> = (0..PATHS).filter(|path| !self.network.is_control_cut(a, b, *path)).collect();
        for (to, segment) in self.tcp.release(a, b, &paths) {
            let delay = self.some(Duration::from_millis(200));
            self.deliver_after(to, segment, delay);
        }
    }

    /// A machine is back: what was sent to it in the meantime is sent again.
    pub(super) fn on_machine_back(&mut self, host: usize) {
        for peer in (0..self.hosts.len()).filter(|peer| *peer != host) {
            self.on_path_back(peer, host);
        }
    }

    /// A daemon died. A kernel that lives says so to the peers.
    pub(super) fn on_daemon_dead(&mut self, host: usize, told: bool) {
        self.hosts[host].is_off = !told;
        for end in self.tcp.crash(host) {
            if told {
                self.send_segment(end, Segment::Rst);
            }
        }
    }

    pub(super) fn on_segment(&mut self, to: EndOf, segment: Segment) {
        let Some((host, peer)) = self.tcp.hosts(to) else { return };
        let life = self.life(host);
        if self.hosts[host].is_off {
            // The sender's kernel repeats it, and hears from the kernel that starts next. A dial gives up sooner than
            // its SYN is repeated.
            if !matches!(segment, Segment::Syn) {
                self.tcp.hold(to, segment);
            }
            return;
        }
        let is_running = self.hosts[host].running.is_some();
        let Some(end) = self.tcp.end(to) else { return };
        if matches!(segment, Segment::Syn) {
            if !is_running {
                return self.send_segment(to, Segment::Rst);
            }
            (end.life, end.is_open) = (Some(life), true);
            self.send_segment(to, Segment::SynAck);
            // A kernel accepts whether or not its daemon runs.
            return self.queue.push(self.now, Event::Accept { host, life, peer, connection: to.0 });
        }
        if !is_running || end.life != Some(life) {
            // Of a daemon of before.
            if !matches!(segment, Segment::Rst) {
                self.send_segment(to, Segment::Rst);
            }
            return;
        }
        if !end.is_open {
            return;
        }
        if let Some(until) = self.stalled(host) {
            // Those behind it arrive during the pause too, or after it, and so keep their order.
            return self.queue.push(until, Event::Segment { to, segment: Box::new(segment) });
        }
        self.trace.note(self.now, "link {}: {} hears {}", &[to.0, host as u64, segment.code()]);
        if self.count_down(host) {
            return;
        }
        let Some(running) = self.up(host) else { return };
        let Some(link) = running.control.by_connection.get(&to.0).copied() else { return };
        self.on_link_segment(host, link, segment);
    }
}
