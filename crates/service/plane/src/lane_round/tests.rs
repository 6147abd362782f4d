//! Two sides with every order of their messages: rounds always come to one end, and no offer crosses into another
//! round.

use std::collections::VecDeque;

use super::*;

fn offer(qpn: u32) -> LaneOffer {
    LaneOffer {
        lane: 0,
        incarnation: qpn,
        endpoint: vec![1],
        capabilities: 0,
        max_msg_bytes: 1 << 20,
        credits: 8,
        send_bytes_max: 1024,
        datagrams: None,
    }
}

/// What an engine remembers: the end it made, the peer's end it took, whether the lane may be used.
#[derive(Debug, Default, PartialEq, Eq)]
struct FakeEngine {
    qpn: u32,
    peer_qpn: Option<u32>,
    ready: bool,
    /// Connections wait for a new queue pair: messages told, and whether all was heard.
    resumes: Option<(u32, bool)>,
    lost: Vec<Reason>,
    questions: VecDeque<RoundAction>,
}

/// Messages in which an engine tells what arrived.
const MESSAGES: u32 = 2;

impl FakeEngine {
    fn reset(&mut self) {
        (self.peer_qpn, self.ready, self.resumes) = (None, false, Some((0, false)));
    }

    fn tell(&mut self) -> Option<LaneRoutes> {
        let (told, _) = self.resumes.get_or_insert_default();
        *told += 1;
        (*told <= MESSAGES).then(|| LaneRoutes {
            lane: 0,
            incarnation: self.qpn,
            is_fresh: false,
            frames_received: 0,
            routes: Vec::new(),
            is_last: *told == MESSAGES,
        })
    }

    fn is_done(&self) -> bool {
        self.resumes.is_some_and(|r| r == (MESSAGES + 1, true))
    }
}

struct Side {
    round: LaneRound,
    engine: FakeEngine,
    inbox: VecDeque<PeerMessage>,
    next_qpn: u32,
}

struct Net {
    sides: [Side; 2],
    /// Engines that want the lane, and did not say so yet.
    wakes: [bool; 2],
    seed: u64,
}

impl Net {
    fn new(seed: u64) -> Self {
        let side = |n: u32| Side {
            round: LaneRound::new(0, 0),
            engine: FakeEngine::default(),
            inbox: VecDeque::new(),
            next_qpn: n * 1_000_000,
        };
        Self { sides: [side(1), side(2)], wakes: [false; 2], seed: seed.wrapping_mul(2).wrapping_add(1) }
    }

    fn random(&mut self, n: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % n
    }

    fn drain(&mut self, i: usize) {
        while let Some(action) = self.sides[i].round.poll_action() {
            match action {
                RoundAction::Send(message) => self.sides[1 - i].inbox.push_back(message),
                RoundAction::Ready => {
                    let side = &mut self.sides[i];
                    side.engine.ready = true;
                    // What must never go wrong.
                    assert!(side.engine.peer_qpn.is_some());
                    assert!(side.engine.resumes.is_none_or(|r| r == (MESSAGES + 1, true)), "{:?}", side.engine);
                    side.engine.resumes = None;
                }
                RoundAction::Lost(reason) => {
                    let engine = &mut self.sides[i].engine;
                    (engine.peer_qpn, engine.ready, engine.resumes) = (None, false, None);
                    engine.lost.push(reason);
                }
                RoundAction::Reset => self.sides[i].engine.reset(),
                RoundAction::Rest => {
                    self.sides[i].engine.reset();
                    // Now and then it had something to send.
                    if self.random(3) == 0 {
                        self.wakes[i] = true;
                    }
                }
                question => self.sides[i].engine.questions.push_back(question),
            }
        }
    }

    /// One step of side `i`: a message, or an answer of its engine. False: nothing to do.
    fn step(&mut self, i: usize, engine_first: bool, may_fail: bool) -> bool {
        let fails = may_fail && self.random(8) == 0;
        if std::mem::take(&mut self.wakes[i]) {
            self.want(i);
            return true;
        }
        let side = &mut self.sides[i];
        if (engine_first || side.inbox.is_empty())
            && let Some(question) = side.engine.questions.pop_front()
        {
            match question {
                RoundAction::MakeOffer { round } => {
                    side.next_qpn += 1;
                    side.engine.qpn = side.next_qpn;
                    (side.engine.peer_qpn, side.engine.ready) = (None, false);
                    let made = if fails { Err(Reason::LocalLimit) } else { Ok(offer(side.engine.qpn)) };
                    side.round.on_offer_made(round, made);
                }
                RoundAction::Accept { round, offer } => {
                    // An older end is gone, and cannot take an offer.
                    if round == side.round.number() && matches!(side.round.state, State::Accepting { .. }) {
                        side.engine.peer_qpn = Some(offer.incarnation);
                    }
                    side.round.on_accepted(round, if fails { Err(Reason::LaneFailed) } else { Ok(()) });
                }
                RoundAction::TellRoutes { round } => {
                    // Older questions were put before the reset, and find no queue pair.
                    let current = round == side.round.number() && side.engine.peer_qpn.is_some();
                    let routes = if current { side.engine.tell() } else { None };
                    let done = current && routes.is_none() && side.engine.is_done();
                    side.round.on_routes_told(round, routes, done);
                }
                RoundAction::TakeRoutes { round, routes } => {
                    // An answer to an older round finds another queue pair, and is not listened to.
                    if round == side.round.number() && side.engine.peer_qpn.is_some() {
                        assert_eq!(Some(routes.incarnation), side.engine.peer_qpn, "routes of another incarnation");
                        side.engine.resumes.get_or_insert_default().1 |= routes.is_last;
                    }
                    let done = side.engine.is_done();
                    side.round.on_routes_taken(round, if fails { Err(Reason::LaneFailed) } else { Ok(done) });
                }
                other => panic!("{other:?}"),
            }
        } else if let Some(message) = side.inbox.pop_front() {
            match message {
                PeerMessage::LaneOffer(offer) => side.round.handle_offer(offer),
                PeerMessage::LaneReady { .. } => side.round.handle_ready(),
                PeerMessage::LaneReset { reason, resumes, rests, .. } => {
                    side.round.handle_reset(reason, resumes, rests)
                }
                PeerMessage::LaneRoutes(routes) => side.round.handle_routes(routes),
                PeerMessage::LaneRoutesTaken { .. } => side.round.handle_routes_taken(),
                other => panic!("{other:?}"),
            }
            .unwrap();
        } else {
            return false;
        }
        self.drain(i);
        true
    }

    fn settle(&mut self) {
        for _ in 0..10_000 {
            let i = usize::from(self.random(2) == 1);
            let engine_first = self.random(2) == 1;
            if !self.step(i, engine_first, false) && !self.step(1 - i, engine_first, false) {
                return;
            }
        }
        panic!("two sides that never come to rest");
    }

    fn want(&mut self, i: usize) {
        self.sides[i].round.want();
        self.drain(i);
    }

    /// The engine gives its end up because nothing uses it.
    fn rest(&mut self, i: usize) {
        // The engine tells only of an end that it has.
        if self.sides[i].engine.ready {
            self.sides[i].engine.reset();
            self.sides[i].round.on_lane_rests();
            self.drain(i);
        }
    }

    fn assert_up(&self) {
        let [a, b] = &self.sides;
        assert!(a.engine.ready && b.engine.ready, "{:?} {:?}", a.round, b.round);
        assert_eq!((a.engine.peer_qpn, b.engine.peer_qpn), (Some(b.engine.qpn), Some(a.engine.qpn)));
        assert_eq!((&a.round.state, &b.round.state), (&State::Up, &State::Up));
    }
}

#[test]
fn one_wish_makes_a_lane() {
    let mut net = Net::new(1);
    net.want(0);
    net.settle();
    net.assert_up();
    assert!(!net.sides[0].round.is_pending());
}

#[test]
fn wishes_and_failures_at_any_moment_end_in_one_lane() {
    for seed in 0..3000 {
        let mut net = Net::new(seed);
        for _ in 0..60 {
            let i = usize::from(net.random(2) == 1);
            match net.random(14) {
                0 => net.want(i),
                10 | 11 => {
                    // The engine tells only of an end that it has.
                    if net.sides[i].engine.peer_qpn.is_some() {
                        net.sides[i].engine.reset();
                        net.sides[i].round.on_lane_reset();
                        net.drain(i);
                    }
                }
                12 | 13 => net.rest(i),
                1 => {
                    let engine = &mut net.sides[i].engine;
                    (engine.peer_qpn, engine.ready, engine.resumes) = (None, false, None);
                    net.sides[i].round.on_lane_failed(Reason::LaneFailed);
                    net.drain(i);
                }
                n => {
                    net.step(i, n % 2 == 0, true);
                }
            }
        }
        net.settle();
        net.want(0);
        net.want(1);
        net.settle();
        net.assert_up();
    }
}

#[test]
fn a_reset_that_resumes_comes_up_again_with_what_arrived() {
    for seed in 0..500 {
        let mut net = Net::new(seed);
        net.want(0);
        net.settle();
        for i in 0..1 + usize::from(seed % 3 == 0) {
            net.sides[i].engine.reset();
            net.sides[i].round.on_lane_reset();
            net.drain(i);
        }
        net.settle();
        net.assert_up();
        assert!(net.sides.iter().all(|s| s.engine.lost.is_empty() && s.engine.qpn % 1_000_000 == 2));
    }
}

#[test]
fn a_lane_that_rests_comes_up_again_whoever_wakes_first() {
    for seed in 0..2000 {
        let mut net = Net::new(seed);
        net.want(0);
        net.settle();
        // Either end rests, or both at once; either wants it again, or both, before or after the other knows.
        for i in 0..2 {
            if seed % 3 == 2 || seed % 3 == i as u64 {
                net.rest(i);
            }
        }
        for _ in 0..seed % 7 {
            let i = usize::from(net.random(2) == 1);
            net.step(i, true, false);
        }
        if seed % 5 == 0 {
            net.settle();
            let is_up = net.sides.iter().all(|s| s.round.state == State::Up);
            let rests = net.sides.iter().all(|s| s.round.state == State::Resting && !s.round.is_pending());
            assert!(is_up || rests, "{:?} {:?}", net.sides[0].round, net.sides[1].round);
        }
        for i in 0..2 {
            if seed % 4 < 2 || seed % 2 == i as u64 {
                net.want(i);
            }
        }
        net.settle();
        // A wish that came while the lane was up is met by that lane.
        if net.sides.iter().any(|s| s.round.state == State::Resting) {
            net.want(1);
            net.settle();
        }
        net.assert_up();
        assert!(net.sides.iter().all(|s| s.engine.lost.is_empty()));
    }
}

/// A round whose lane is up.
fn up() -> LaneRound {
    let mut round = LaneRound::new(0, 0);
    round.want();
    round.on_offer_made(1, Ok(offer(1)));
    round.handle_offer(offer(2)).unwrap();
    round.on_accepted(1, Ok(()));
    round.handle_ready().unwrap();
    round
}

#[test]
fn an_engine_whose_queue_pair_broke_as_the_peer_went_to_rest_is_told_so_before_the_next_round() {
    // The peer rests, had a fault too, or rests as this end does.
    for (resets, rests, told) in [(true, true, true), (true, false, false), (false, true, false)] {
        let mut round = up();
        if resets {
            round.on_lane_reset();
        } else {
            round.on_lane_rests();
            round.want();
        }
        while round.poll_action().is_some() {}
        round.handle_reset(Reason::LaneFailed, true, rests).unwrap();
        let actions: Vec<_> = std::iter::from_fn(|| round.poll_action()).collect();
        assert_eq!(actions.contains(&RoundAction::Rest), told, "{actions:?}");
        assert_eq!(actions.last(), Some(&RoundAction::MakeOffer { round: 2 }), "{actions:?}");
    }
}

#[test]
fn who_keeps_connections_alone_is_told_that_they_are_lost() {
    let mut round = up();
    round.on_lane_reset();
    round.handle_reset(Reason::LaneFailed, false, false).unwrap();
    let actions: Vec<_> = std::iter::from_fn(|| round.poll_action()).collect();
    assert_eq!(actions.last(), Some(&RoundAction::Lost(Reason::LaneFailed)), "{actions:?}");
    assert!(!round.is_pending());
}

#[test]
fn an_old_answer_of_the_engine_is_not_taken() {
    let mut round = LaneRound::new(0, 5);
    round.want();
    assert_eq!(round.poll_action(), Some(RoundAction::MakeOffer { round: 6 }));
    round.on_offer_made(5, Ok(offer(1)));
    assert_eq!(round.poll_action(), None);
    round.on_offer_made(6, Ok(offer(2)));
    assert_eq!(round.poll_action(), Some(RoundAction::Send(PeerMessage::LaneOffer(offer(2)))));
    assert!(round.is_pending());
}

#[test]
fn a_peer_out_of_order_is_refused() {
    let mut round = LaneRound::new(0, 0);
    assert_eq!(
        round.handle_reset(Reason::LaneFailed, false, false).unwrap_err().to_string(),
        "the peer sent a reset while the lane is idle"
    );
    assert!(round.handle_ready().is_err());
    assert!(round.handle_routes_taken().is_err());
    round.handle_offer(offer(1)).unwrap();
    assert!(round.handle_offer(offer(2)).is_err());
    assert!(round.handle_ready().is_err(), "ready before our own offer was sent");
}

#[test]
fn the_peers_limit_is_called_so() {
    let mut round = LaneRound::new(0, 0);
    round.want();
    round.on_offer_made(1, Ok(offer(1)));
    round.handle_reset(Reason::LocalLimit, false, false).unwrap();
    let actions: Vec<_> = std::iter::from_fn(|| round.poll_action()).collect();
    assert!(actions.contains(&RoundAction::Lost(Reason::PeerLimit)), "{actions:?}");
}

#[test]
fn a_wish_during_a_reset_begins_the_next_round() {
    let mut round = LaneRound::new(0, 0);
    round.want();
    round.on_offer_made(1, Ok(offer(7)));
    round.on_lane_failed(Reason::LaneFailed);
    round.want();
    while round.poll_action().is_some() {}
    round.handle_reset(Reason::LaneFailed, false, false).unwrap();
    assert_eq!(round.poll_action(), Some(RoundAction::MakeOffer { round: 2 }));
}
