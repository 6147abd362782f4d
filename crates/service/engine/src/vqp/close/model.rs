//! The tables of [`super`], state by state; and the machine beside a plain model of eleven facts, over everything that
//! can be reached.

use std::collections::{BTreeSet, VecDeque};

use super::*;

const REASON: Reason = Reason::AppFault;
const OTHER: Reason = Reason::PeerTimeout;

#[test]
fn the_direction_that_is_written() {
    use Out::*;
    let events = [OutEvent::AppFin, OutEvent::StopCame, OutEvent::FinSent, OutEvent::FinLost];
    let table = [
        (Open, [Asked, Stopped, Sent, Open]),
        (Asked, [Asked, Stopped, Sent, Asked]),
        (Stopped, [Stopped, Stopped, SentStopped, Stopped]),
        (Sent, [Sent, SentStopped, Sent, Asked]),
        (SentStopped, [SentStopped, SentStopped, SentStopped, Stopped]),
    ];
    for (from, to) in table {
        assert_eq!(events.map(|event| from.after(event)), to, "{from:?}");
    }
}

#[test]
fn the_direction_that_is_read() {
    use In::*;
    let events = [InEvent::AppStop, InEvent::StopSent, InEvent::StopLost, InEvent::FinCame];
    let table = [
        (Open, [StopOwed, Stopped, Open, Ended]),
        (StopOwed, [StopOwed, Stopped, StopOwed, EndedOwed]),
        (Stopped, [Stopped, Stopped, StopOwed, EndedStopped]),
        (Ended, [EndedOwed, EndedStopped, Ended, Ended]),
        (EndedOwed, [EndedOwed, EndedStopped, EndedOwed, EndedOwed]),
        (EndedStopped, [EndedStopped, EndedStopped, EndedOwed, EndedStopped]),
    ];
    for (from, to) in table {
        assert_eq!(events.map(|event| from.after(event)), to, "{from:?}");
    }
}

#[test]
fn the_end_of_both() {
    use Reset::*;
    use ResetEvent::*;
    let events = [Abort(OTHER), ResetCame, ResetSent, ResetLost, Sever];
    let (r, o) = (Some(REASON), Some(OTHER));
    let table = [
        (None, [Asked(OTHER), Received(Option::None), None, None, Severed]),
        (Asked(REASON), [Asked(REASON), Received(r), Sent(REASON), Asked(REASON), Severed]),
        (Sent(REASON), [Sent(REASON), Exchanged(r), Sent(REASON), Asked(REASON), Severed]),
        (
            Received(Option::None),
            [Received(o), Received(Option::None), Exchanged(Option::None), Received(Option::None), Severed],
        ),
        (Received(r), [Received(r), Received(r), Exchanged(r), Received(r), Severed]),
        (
            Exchanged(Option::None),
            [Exchanged(o), Exchanged(Option::None), Exchanged(Option::None), Received(Option::None), Severed],
        ),
        (Exchanged(r), [Exchanged(r), Exchanged(r), Exchanged(r), Received(r), Severed]),
        (Severed, [Severed; 5]),
    ];
    for (from, to) in table {
        assert_eq!(events.map(|event| from.after(event)), to, "{from:?}");
    }
}

/// Each thing that can happen, as a fact of its own.
#[derive(Debug, Clone, Copy, Default)]
struct Facts {
    fin_asked: bool,
    fin_sent: bool,
    fin_received: bool,
    stop_asked: bool,
    stop_sent: bool,
    stop_received: bool,
    reset_asked: bool,
    reset_sent: bool,
    reset_received: bool,
    severed: bool,
    released: bool,
}

impl Facts {
    fn own_end(&self) -> bool {
        self.fin_sent || self.reset_sent || self.severed
    }

    fn peer_end(&self) -> bool {
        self.fin_received || self.reset_received || self.severed
    }

    fn is_reset(&self) -> bool {
        self.reset_asked || self.reset_received || self.reset_sent || self.severed
    }

    fn may_send_data(&self) -> bool {
        !(self.own_end() || self.stop_received || self.reset_received || self.reset_asked)
    }

    fn owes_fin(&self, drained: bool) -> bool {
        let last = (self.fin_asked && drained) || self.stop_received;
        last && !self.own_end() && !self.reset_asked && !self.reset_received
    }

    fn owes_stop(&self, all_read: bool) -> bool {
        let pointless = self.stop_sent || all_read || self.reset_received || self.reset_sent || self.severed;
        self.stop_asked && !pointless && !self.reset_asked
    }

    fn owes_reset(&self) -> bool {
        if self.reset_sent || self.severed {
            return false;
        }
        if self.reset_received { !self.fin_sent } else { self.reset_asked }
    }

    fn is_over(&self, consumed: bool, told: bool) -> bool {
        let reset = self.reset_received || self.reset_sent || self.severed;
        let tx_done = consumed || self.stop_received || reset;
        let rx_done = told || self.stop_sent || reset;
        self.own_end() && self.peer_end() && self.released && tx_done && rx_done && !self.owes_reset()
    }
}

/// One step of both; false if it cannot happen now.
fn step(close: &mut Close, facts: &mut Facts, event: usize) -> bool {
    match event {
        0 => (close.on_app_fin(), facts.fin_asked = true).1,
        1 => (close.on_app_stop(), facts.stop_asked = true).1,
        2 => (close.on_abort(REASON), facts.reset_asked = true).1,
        3 => (close.on_app_released(), facts.released = true).1,
        // Nothing comes over a lane that is gone.
        4..=6 | 10.. if facts.severed => return false,
        4 => {
            let first = !facts.fin_received && !facts.reset_received;
            facts.fin_received = true;
            assert_eq!(close.on_fin(), first);
        }
        5 => (close.on_stop(), facts.stop_received = true).1,
        6 => assert_eq!(close.on_reset(), !std::mem::replace(&mut facts.reset_received, true)),
        7 if facts.owes_fin(true) => (close.fin_was_sent(), facts.fin_sent = true).1,
        8 if facts.owes_stop(false) => (close.stop_was_sent(), facts.stop_sent = true).1,
        9 if facts.owes_reset() => (close.reset_was_sent(), facts.reset_sent = true).1,
        // The lane was reset: each set of what may have arrived.
        10..=17 => {
            let bits = event - 10;
            let has = |bit: usize| bits & bit != 0;
            let invented = (has(1) && !facts.fin_sent) || (has(2) && !facts.stop_sent) || (has(4) && !facts.reset_sent);
            let flag = |is: bool, flag: u8| if is { flag } else { 0 };
            let flags =
                flag(has(1), route_flag::FIN) | flag(has(2), route_flag::STOP) | flag(has(4), route_flag::RESET);
            assert_eq!(close.on_arrived(flags), !invented);
            if !invented {
                (facts.fin_sent, facts.stop_sent, facts.reset_sent) = (has(1), has(2), has(4));
            }
        }
        18 => (close.on_severed(), facts.severed = true).1,
        _ => return false,
    }
    true
}

fn compare(close: &Close, facts: &Facts) {
    for yes in [false, true] {
        assert_eq!(close.owes_fin(yes), facts.owes_fin(yes), "{close:?} {facts:?}");
        assert_eq!(close.owes_stop(yes), facts.owes_stop(yes), "{close:?} {facts:?}");
        assert_eq!(close.is_complete(yes), facts.fin_sent && facts.fin_received && (yes || facts.stop_received));
        for told in [false, true] {
            assert_eq!(close.is_over(yes, told), facts.is_over(yes, told), "{close:?} {facts:?}");
        }
    }
    let own = [
        close.owes_reset().is_some(),
        close.may_send_data(),
        close.app_may_write(),
        close.may_receive(),
        close.reports_heads(),
        close.is_reset(),
        close.is_stop_asked(),
        close.is_fin_received(),
        close.is_app_released(),
    ];
    let model = [
        facts.owes_reset(),
        facts.may_send_data(),
        facts.may_send_data() && !facts.fin_asked,
        !facts.peer_end(),
        !(facts.stop_sent || facts.is_reset()),
        facts.is_reset(),
        facts.stop_asked,
        facts.fin_received,
        facts.released,
    ];
    assert_eq!(own, model, "{close:?} {facts:?}");
    if !facts.severed {
        let bit = |is, bit| if is { bit } else { 0 };
        let arrived = bit(facts.fin_received, route_flag::FIN)
            | bit(facts.stop_received, route_flag::STOP)
            | bit(facts.reset_received, route_flag::RESET);
        assert_eq!(close.arrived(), arrived);
    }
}

#[test]
fn the_machine_says_what_eleven_facts_say_wherever_it_can_come() {
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([(Close::default(), Facts::default())]);
    while let Some((close, facts)) = queue.pop_front() {
        if !seen.insert(format!("{close:?} {facts:?}")) {
            continue;
        }
        compare(&close, &facts);
        for event in 0..19 {
            let (mut close, mut facts) = (close.clone(), facts);
            if step(&mut close, &mut facts, event) {
                queue.push_back((close, facts));
            }
        }
    }
    assert!(seen.len() > 300, "{}", seen.len());
}
