//! Every way in which a connection ends.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Said {
    Data,
    Head(u64),
    Fin,
    Stop,
    Reset,
}

/// One end, with counts in place of rings.
#[derive(Default)]
struct End {
    close: Close,
    written: u64,
    sent: u64,
    arrived: u64,
    read: u64,
    consumed_by_peer: u64,
    head_sent: u64,
    inbox: VecDeque<Said>,
    over: bool,
}

impl End {
    fn all_read(&self) -> bool {
        self.close.is_fin_received() && self.read == self.arrived
    }

    fn app(&mut self, action: u8) {
        if self.over {
            return;
        }
        match action {
            0 if self.close.app_may_write() => self.written += 1,
            1 if self.read < self.arrived && !self.close.is_stop_asked() => self.read += 1,
            2 => self.close.on_app_fin(),
            3 => self.close.on_app_stop(),
            4 => self.close.on_abort(Reason::ResetByPeer),
            5 => self.release(),
            _ => {}
        }
    }

    fn release(&mut self) {
        if self.over {
            return;
        }
        self.close.on_app_fin();
        self.close.on_app_stop();
        self.close.on_app_released();
    }

    /// Sends one thing, as the lane does: data first, then ends.
    fn send(&mut self, peer: &mut End) -> bool {
        if self.over {
            return false;
        }
        let said = if self.close.owes_reset().is_some() {
            self.close.reset_was_sent();
            Said::Reset
        } else if self.close.may_send_data() && self.sent < self.written {
            self.sent += 1;
            Said::Data
        } else if self.close.owes_stop(self.all_read()) {
            self.close.stop_was_sent();
            Said::Stop
        } else if self.close.owes_fin(self.sent == self.written) {
            self.close.fin_was_sent();
            Said::Fin
        } else if self.close.reports_heads() && self.head_sent < self.read {
            self.head_sent = self.read;
            Said::Head(self.read)
        } else {
            return false;
        };
        peer.inbox.push_back(said);
        true
    }

    fn receive(&mut self) -> bool {
        let Some(said) = self.inbox.pop_front() else { return false };
        if self.over {
            assert_ne!(said, Said::Data, "a WRITE into a ring that was given away");
            return true;
        }
        match said {
            Said::Data => {
                assert!(self.close.may_receive(), "a WRITE after the end");
                self.arrived += 1;
            }
            Said::Head(n) => self.consumed_by_peer = n,
            Said::Fin => assert!(self.close.on_fin(), "two ends of one direction"),
            Said::Stop => self.close.on_stop(),
            Said::Reset => drop(self.close.on_reset()),
        }
        true
    }

    fn end(&mut self, peer: &End) {
        if !self.over && self.close.is_over(self.consumed_by_peer == self.sent, self.head_sent == self.arrived) {
            assert!(!self.inbox.contains(&Said::Data), "over with a WRITE on its way");
            assert!(!peer.close.may_send_data(), "over while the peer may send");
            self.over = true;
        }
    }
}

fn settle(a: &mut End, b: &mut End) {
    let mut rounds = 0;
    while a.send(b) | b.send(a) | a.receive() | b.receive() {
        a.end(b);
        b.end(a);
        rounds += 1;
        assert!(rounds < 10_000, "the two ends talk for ever");
    }
}

proptest! {
    #[test]
    fn every_end_is_safe_and_comes(steps in proptest::collection::vec((any::<bool>(), 0u8..12), 0..200)) {
        let (mut a, mut b) = (End::default(), End::default());
        for (who, action) in steps {
            let (me, peer) = if who { (&mut a, &mut b) } else { (&mut b, &mut a) };
            match action {
                0..=5 => me.app(action),
                6..=8 => drop(me.send(peer)),
                _ => drop(me.receive()),
            }
            me.end(peer);
        }
        a.release();
        b.release();
        settle(&mut a, &mut b);
        a.end(&b);
        b.end(&a);
        prop_assert!(a.over && b.over, "{:?}\n{:?}", a.close, b.close);
    }

    #[test]
    fn orderly_close_loses_nothing(writes in (0u64..20, 0u64..20)) {
        let (mut a, mut b) = (End::default(), End::default());
        (0..writes.0).for_each(|_| a.app(0));
        (0..writes.1).for_each(|_| b.app(0));
        a.app(2);
        b.app(2);
        settle(&mut a, &mut b);
        prop_assert_eq!((a.arrived, b.arrived), (writes.1, writes.0));
        (0..20).for_each(|_| { a.app(1); b.app(1); });
        settle(&mut a, &mut b);
        prop_assert!(!a.over && !b.over);
        a.release();
        b.release();
        settle(&mut a, &mut b);
        a.end(&b);
        b.end(&a);
        prop_assert!(a.over && b.over);
    }
}

#[test]
fn crossing_resets_need_no_answer() {
    let (mut a, mut b) = (End::default(), End::default());
    for e in [&mut a, &mut b] {
        e.release();
        e.close.on_abort(Reason::PeerAppDied);
    }
    assert!(a.send(&mut b) && b.send(&mut a));
    assert!(a.receive() && b.receive());
    assert!(!a.send(&mut b) && !b.send(&mut a));
    a.end(&b);
    b.end(&a);
    assert!(a.over && b.over);
}

#[test]
fn a_reset_waits_for_the_peers_word() {
    let mut a = Close::default();
    a.on_app_released();
    a.on_abort(Reason::PeerAppDied);
    assert_eq!(a.owes_reset(), Some(Reason::PeerAppDied));
    a.reset_was_sent();
    assert!(!a.is_over(true, true), "the peer may still have WRITEs on their way");
    assert!(a.on_fin());
    assert!(a.is_over(false, false));
}

#[test]
fn a_severed_lane_ends_everything_but_the_application() {
    let mut a = Close::default();
    a.on_severed();
    assert!(!a.may_send_data() && a.owes_reset().is_none() && !a.owes_fin(true));
    assert!(!a.is_over(false, false));
    a.on_app_released();
    assert!(a.is_over(false, false));
}
