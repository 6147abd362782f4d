//! Dials, accepts, deaths and restarts between two daemons, without sockets.

use super::*;
use crate::{LaneAnswer, Refusal};

const SETUP: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(1);

fn ip(n: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, n])
}

fn peers(instance: u64) -> Peers {
    with_engines(instance, 1)
}

fn with_engines(instance: u64, engines: u32) -> Peers {
    Peers::new(PeersConfig {
        instance,
        engines,
        peers_max: 2,
        lane_setup: SETUP,
        heartbeat: BEAT,
        connect_timeout: Duration::from_secs(10),
        sources: [(ip(99), ip(2))].into(),
        paths: BTreeMap::new(),
    })
}

/// But for the word that a link is over, which comes with the loss of its lanes.
fn actions(peers: &mut Peers) -> Vec<PeerAction> {
    let all = std::iter::from_fn(|| peers.poll_action());
    all.filter(|action| !matches!(action, PeerAction::LinkOver { .. })).collect()
}

fn dialed(peers: &mut Peers) -> Vec<LinkId> {
    actions(peers)
        .into_iter()
        .filter_map(|a| if let PeerAction::Link(LinkCommand::Dial { link, .. }) = a { Some(link) } else { None })
        .collect()
}

fn lost(actions: &[PeerAction]) -> Vec<Reason> {
    let of = |a: &PeerAction| match a {
        PeerAction::Engine { command: LaneCommand::Lost { reason, .. }, .. } => Some(*reason),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

fn hello(address: u8, instance: u64) -> Identity {
    Identity::new(instance, ip(address), 1, [0; 32])
}

const IN: LinkId = LinkId(1 << 63);

#[test]
fn a_wish_dials_once_and_a_link_starts_the_round() {
    let mut peers = peers(1);
    peers.handle_wanted(ms(0), ip(2), 0);
    peers.handle_wanted(ms(1), ip(2), 0);
    let dials = dialed(&mut peers);
    assert_eq!(dials.len(), 1);
    peers.handle_up(ms(2), dials[0], hello(2, 7), None);
    let next = actions(&mut peers);
    assert!(matches!(next[..], [PeerAction::Engine { command: LaneCommand::Offer { round: 1, .. }, .. }]), "{next:?}");
}

#[test]
fn failures_of_a_dial_reach_the_engine_with_their_reason() {
    for reason in [Reason::PeerUnreachable, Reason::PeerAuth, Reason::PeerVersion] {
        let mut peers = peers(1);
        peers.handle_wanted(ms(0), ip(2), 0);
        let link = dialed(&mut peers)[0];
        peers.handle_dial_failed(ms(1), link, reason);
        assert_eq!(lost(&actions(&mut peers)), [reason]);
        assert!(peers.peers.is_empty() && peers.links.is_empty());
        peers.handle_wanted(ms(2), ip(2), 0);
        assert_eq!(dialed(&mut peers).len(), 1, "the next connect tries again");
    }
}

/// Two daemons want each other at once; messages between them arrive in any order; exactly one link is left.
#[test]
fn simultaneous_dials_leave_one_link() {
    // Both Hellos arrive while both dials are under way.
    let (mut low, mut high) = (peers(1), peers(2));
    low.handle_wanted(ms(0), ip(2), 0);
    high.handle_wanted(ms(0), ip(1), 0);
    let (low_dial, high_dial) = (dialed(&mut low)[0], dialed(&mut high)[0]);
    // The higher one's Hello at the lower: its own dial wins.
    assert!(matches!(low.handle_hello(ms(1), IN, ip(2), hello(2, 2)), Verdict::Refuse(Reason::Closed, _)));
    // The lower one's Hello at the higher: goes on, the own dial is given up.
    assert_eq!(high.handle_hello(ms(1), IN, ip(1), hello(1, 1)), Verdict::Proceed);
    assert!(
        matches!(actions(&mut high)[..], [PeerAction::Link(LinkCommand::CancelDial { link })] if link == high_dial)
    );
    high.handle_up(ms(2), IN, hello(1, 1), None);
    low.handle_up(ms(2), low_dial, hello(2, 2), None);
    // The refusal that was on its way to the dial that is no more.
    high.handle_dial_failed(ms(3), high_dial, Reason::Closed);
    for peers in [&mut low, &mut high] {
        let next = actions(peers);
        assert!(matches!(next[..], [PeerAction::Engine { command: LaneCommand::Offer { .. }, .. }]), "{next:?}");
    }
}

#[test]
fn a_dial_waits_for_an_incoming_link_but_not_for_ever() {
    let mut peers = peers(1);
    assert_eq!(peers.handle_hello(ms(0), IN, ip(2), hello(2, 2)), Verdict::Proceed);
    peers.handle_wanted(ms(10), ip(2), 0);
    assert!(dialed(&mut peers).is_empty());
    assert_eq!(peers.deadline(), Some(ms(510)));
    peers.handle_timeout(ms(510));
    assert_eq!(dialed(&mut peers).len(), 1, "a stranger that claims to be the peer must not stop us");
    // A second stranger does not stop the dial either.
    assert!(matches!(peers.handle_hello(ms(511), LinkId(IN.0 + 1), ip(2), hello(2, 0)), Verdict::Proceed));
    assert!(actions(&mut peers).is_empty());
}

#[test]
fn an_incoming_link_that_fails_lets_the_own_dial_go_at_once() {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_wanted(ms(10), ip(2), 0);
    peers.handle_down(ms(20), IN, Reason::PeerUnreachable);
    assert_eq!(dialed(&mut peers).len(), 1);
}

#[test]
fn a_dial_that_the_peer_calls_a_duplicate_is_repeated_for_a_while() {
    let mut peers = peers(2);
    peers.handle_wanted(ms(0), ip(1), 0);
    let mut now = 0;
    for _ in 0..REDIALS_MAX {
        let link = dialed(&mut peers)[0];
        peers.handle_dial_failed(ms(now), link, Reason::Closed);
        assert!(actions(&mut peers).is_empty());
        now += 100;
        assert_eq!(peers.deadline(), Some(ms(now)));
        peers.handle_timeout(ms(now));
    }
    let link = dialed(&mut peers)[0];
    peers.handle_dial_failed(ms(now), link, Reason::Closed);
    assert_eq!(lost(&actions(&mut peers)), [Reason::PeerUnreachable]);
}

#[test]
fn the_end_of_a_link_reaches_the_engine_and_a_new_one_may_come() {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_up(ms(1), IN, hello(2, 2), None);
    peers.handle_down(ms(2), IN, Reason::PeerLost);
    assert_eq!(lost(&actions(&mut peers)), [Reason::PeerLost]);
    assert!(peers.peers.is_empty() && peers.links.is_empty() && peers.incoming.is_empty());
    let next = LinkId(IN.0 + 1);
    assert_eq!(peers.handle_hello(ms(3), next, ip(2), hello(2, 2)), Verdict::Proceed);
    peers.handle_up(ms(4), next, hello(2, 2), None);
    peers.handle_wanted(ms(5), ip(2), 0);
    assert!(matches!(actions(&mut peers)[..], [PeerAction::Engine { command: LaneCommand::Offer { .. }, .. }]));
}

#[test]
fn a_second_link_of_one_process_is_refused_and_a_restarted_one_replaces() {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_up(ms(1), IN, hello(2, 2), None);
    let second = LinkId(IN.0 + 1);
    assert!(matches!(peers.handle_hello(ms(2), second, ip(2), hello(2, 2)), Verdict::Refuse(Reason::Closed, _)));
    assert_eq!(peers.handle_hello(ms(3), second, ip(2), hello(2, 3)), Verdict::Proceed);
    assert!(actions(&mut peers).is_empty(), "nothing happens before the proof");
    peers.handle_up(ms(4), second, hello(2, 3), None);
    let next = actions(&mut peers);
    assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { link, .. }) if *link == IN), "{next:?}");
    assert_eq!(lost(&next), [Reason::PeerLost]);
    // The old link's end comes late and changes nothing.
    peers.handle_down(ms(5), IN, Reason::PeerLost);
    assert!(actions(&mut peers).is_empty());
}

#[test]
fn strangers_leave_nothing_behind() {
    let mut peers = peers(5);
    for n in 0..100 {
        let link = LinkId(IN.0 + u64::from(n));
        assert_eq!(peers.handle_hello(ms(0), link, ip(n), hello(n, 1)), Verdict::Proceed);
        peers.handle_down(ms(1), link, Reason::PeerUnreachable);
    }
    assert!(peers.peers.is_empty() && peers.links.is_empty() && peers.incoming.is_empty());
}

#[test]
fn peers_have_a_limit() {
    let mut peers = peers(1);
    for n in 2..=3 {
        peers.handle_wanted(ms(0), ip(n), 0);
    }
    assert_eq!(dialed(&mut peers).len(), 2);
    peers.handle_wanted(ms(0), ip(4), 0);
    assert_eq!(lost(&actions(&mut peers)), [Reason::LocalLimit]);
    assert!(matches!(peers.handle_hello(ms(0), IN, ip(4), hello(4, 9)), Verdict::Refuse(Reason::PeerLimit, _)));
}

/// A peer with a lane under way since 100 ms.
fn half_made() -> Peers {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_up(ms(0), IN, hello(2, 2), None);
    peers.handle_wanted(ms(100), ip(2), 0);
    actions(&mut peers);
    peers
}

#[test]
fn a_peer_that_speaks_and_leaves_a_lane_half_made_is_given_up() {
    let mut peers = half_made();
    for n in 1..=10 {
        peers.handle_message(ms(n * 1000), IN, PeerMessage::Heartbeat);
        assert!(actions(&mut peers).is_empty(), "after {n} s");
    }
    peers.handle_message(ms(11_000), IN, PeerMessage::Heartbeat);
    let next = actions(&mut peers);
    assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { reason: Reason::TimedOut, .. })), "{next:?}");
    assert_eq!(lost(&next), [Reason::TimedOut]);
    assert_eq!(peers.deadline(), None);
}

#[test]
fn a_lane_half_made_waits_for_a_peer_that_stands_still() {
    let mut peers = half_made();
    peers.handle_message(ms(1000), IN, PeerMessage::Heartbeat);
    let told = |peers: &mut Peers| {
        let told: Vec<_> = actions(peers)
            .into_iter()
            .map(|a| match a {
                PeerAction::Engine { command: LaneCommand::PeerSilent { silent, .. }, .. } => silent,
                other => panic!("{other:?}"),
            })
            .collect();
        told
    };
    for n in 3..30 {
        peers.handle_silent(IN, Duration::from_secs(n));
        peers.handle_timeout(ms(1000 * (n + 1)));
        assert_eq!(told(&mut peers), [Some(Duration::from_secs(n))]);
    }
    // Whichever of us stood still: its time begins when it speaks again.
    for n in 0..=10 {
        peers.handle_message(ms(31_000 + n * 1000), IN, PeerMessage::Heartbeat);
        let silences = if n == 0 { vec![None] } else { vec![] };
        if n < 10 {
            assert_eq!(told(&mut peers), silences, "{n} s after");
        }
    }
    assert_eq!(lost(&actions(&mut peers)), [Reason::TimedOut]);
    // Of another link, or none.
    peers.handle_silent(IN, Duration::from_secs(1));
    peers.handle_silent(LinkId(77), Duration::from_secs(1));
    assert!(actions(&mut peers).is_empty());
}

#[test]
fn a_peer_out_of_order_loses_its_link() {
    for message in [
        PeerMessage::LaneReady { lane: 0, incarnation: 0 },
        PeerMessage::LaneReset { lane: 0, incarnation: 0, reason: Reason::LaneFailed, resumes: false, rests: false },
        PeerMessage::Noise { message: vec![0; 49] },
    ] {
        let mut peers = peers(1);
        peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
        peers.handle_up(ms(0), IN, hello(2, 2), None);
        peers.handle_message(ms(1), IN, message);
        let next = actions(&mut peers);
        assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { .. })), "{next:?}");
        assert_eq!(lost(&next), [Reason::PeerLost]);
    }
}

#[test]
fn an_orderly_goodbye_says_so() {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_up(ms(0), IN, hello(2, 2), None);
    peers.handle_message(ms(1), IN, PeerMessage::Bye { reason: Reason::ShuttingDown, detail: "x".into() });
    assert_eq!(lost(&actions(&mut peers)), [Reason::ShuttingDown]);
    assert!(peers.links.is_empty());
}

#[test]
fn messages_of_a_link_that_is_not_the_peers_are_not_heard() {
    let mut peers = peers(1);
    peers.handle_hello(ms(0), IN, ip(2), hello(2, 2));
    peers.handle_up(ms(0), IN, hello(2, 2), None);
    let unproven = LinkId(IN.0 + 1);
    peers.handle_hello(ms(0), unproven, ip(3), hello(3, 3));
    peers.handle_message(ms(1), unproven, PeerMessage::Noise { message: vec![0; 49] });
    peers.handle_message(ms(1), LinkId(77), PeerMessage::Heartbeat);
    assert!(actions(&mut peers).is_empty());
}

#[test]
fn who_may_not_speak_for_a_host_is_refused_before_anything_else() {
    let mut peers = peers(1);
    peers.handle_wanted(ms(0), ip(2), 0);
    actions(&mut peers);
    let verdict = peers.handle_hello(ms(1), IN, ip(77), hello(2, 2));
    assert!(matches!(verdict, Verdict::Refuse(Reason::BadAddress, _)), "{verdict:?}");
    assert!(actions(&mut peers).is_empty() && peers.incoming.is_empty());
    // A source that the configuration gives it.
    assert_eq!(
        peers.handle_hello(ms(2), IN, ip(99), hello(2, 2)),
        Verdict::Refuse(Reason::Closed, "both daemons dialed: the other link is kept".into())
    );
    let mapped = "::ffff:127.0.0.3".parse().unwrap();
    assert_eq!(peers.handle_hello(ms(3), IN, mapped, hello(3, 3)), Verdict::Proceed);
}

/// Two links of one process may both be under way before either has proven the key.
#[test]
fn of_two_links_that_prove_themselves_the_first_stays() {
    let mut peers = peers(1);
    let second = LinkId(IN.0 + 1);
    for link in [IN, second] {
        assert_eq!(peers.handle_hello(ms(0), link, ip(2), hello(2, 2)), Verdict::Proceed);
    }
    peers.handle_up(ms(1), IN, hello(2, 2), None);
    peers.handle_up(ms(2), second, hello(2, 2), None);
    let next = actions(&mut peers);
    assert!(
        matches!(next[..], [PeerAction::Link(LinkCommand::Close { link, reason: Reason::Closed, .. })] if link == second),
        "{next:?}"
    );
    assert_eq!(peers.link_to(ip(2)), Some(IN));
}

/// The engine may answer about a round of a link that is gone.
#[test]
fn rounds_are_counted_over_links() {
    let mut peers = peers(1);
    for (at, number) in [(0, 1), (10, 2)] {
        let link = LinkId(IN.0 + number);
        peers.handle_hello(ms(at), link, ip(2), hello(2, 2));
        peers.handle_up(ms(at), link, hello(2, 2), None);
        peers.handle_wanted(ms(at), ip(2), 0);
        let asked = actions(&mut peers);
        assert!(
            matches!(asked[..], [PeerAction::Engine { command: LaneCommand::Offer { round, .. }, .. }] if round == number),
            "{asked:?}"
        );
        // Of the round before.
        let result = Err(Refusal::new(Reason::LocalLimit, "late"));
        peers.on_answer(ms(at), ip(2), 0, LaneAnswer::Offered { round: number - 1, result });
        assert!(actions(&mut peers).is_empty());
        if number == 1 {
            peers.handle_down(ms(5), link, Reason::PeerLost);
            actions(&mut peers);
        }
    }
}

/// Which engines were asked for an end of their lane.
fn asked(actions: &[PeerAction]) -> Vec<u32> {
    let of = |a: &PeerAction| match a {
        PeerAction::Engine { engine, command: LaneCommand::Offer { .. }, .. } => Some(*engine),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn with_lanes(address: u8, instance: u64, engines: u32) -> Identity {
    Identity { engines, ..hello(address, instance) }
}

#[test]
fn each_engine_has_its_lane_and_hosts_with_other_numbers_use_the_smaller() {
    for (own, theirs, lanes) in [(3, 2, 2), (2, 3, 2), (4, 4, 4), (3, 1, 1), (2, 0, 1), (2, u32::MAX, 2)] {
        let mut peers = with_engines(1, own);
        assert_eq!(peers.lanes_to(ip(2)), None, "unknown before the link");
        peers.handle_wanted(ms(0), ip(2), 0);
        peers.handle_wanted(ms(0), ip(2), own - 1);
        let link = dialed(&mut peers)[0];
        peers.handle_up(ms(1), link, with_lanes(2, 7, theirs), None);
        assert_eq!(peers.lanes_to(ip(2)), Some(lanes));
        let next = actions(&mut peers);
        if own - 1 < lanes {
            assert_eq!((asked(&next), lost(&next)), (vec![0, own - 1], vec![]));
        } else {
            // A wish for a lane that cannot be comes to an end.
            assert_eq!((asked(&next), lost(&next)), (vec![0], vec![Reason::PeerLost]));
        }
        peers.handle_wanted(ms(2), ip(2), lanes);
        assert_eq!(lost(&actions(&mut peers)), [Reason::PeerLost]);
        // The loss of the link is the loss of all lanes.
        peers.handle_down(ms(3), link, Reason::PeerLost);
        assert_eq!(lost(&actions(&mut peers)), vec![Reason::PeerLost; lanes as usize]);
        assert!(peers.peers.is_empty() && peers.links.is_empty());
    }
}

#[test]
fn lanes_of_a_link_go_on_by_themselves() {
    let mut peers = with_engines(1, 2);
    peers.handle_hello(ms(0), IN, ip(2), with_lanes(2, 2, 2));
    peers.handle_up(ms(0), IN, with_lanes(2, 2, 2), None);
    peers.handle_wanted(ms(100), ip(2), 1);
    assert_eq!(asked(&actions(&mut peers)), [1]);
    // The peer begins with the other.
    let offer = |lane| control::LaneOffer {
        lane,
        incarnation: 5,
        endpoint: vec![1],
        capabilities: 0,
        max_msg_bytes: 1 << 20,
        credits: 8,
        send_bytes_max: 1024,
        datagrams: None,
    };
    peers.handle_message(ms(200), IN, PeerMessage::LaneOffer(offer(0)));
    assert_eq!(asked(&actions(&mut peers)), [0]);
    for lane in [0, 1] {
        peers.on_answer(ms(300), ip(2), lane, LaneAnswer::Offered { round: 1, result: Ok(offer(lane)) });
    }
    let sent = |actions: Vec<PeerAction>| -> Vec<u32> {
        let of = |a| {
            if let PeerAction::Link(LinkCommand::Send { message, .. }) = a {
                Some(lanes::lane_of(&message))
            } else {
                None
            }
        };
        actions.into_iter().filter_map(of).collect()
    };
    assert_eq!(sent(actions(&mut peers)), [0, 1]);
    // Lane 1 fails, and lane 0 goes on.
    peers.on_lane_failed(ms(400), ip(2), 1, Reason::LaneFailed);
    peers.on_answer(ms(400), ip(2), 0, LaneAnswer::Accepted { round: 1, result: Ok(()) });
    let next = actions(&mut peers);
    assert!(
        matches!(next[0], PeerAction::Link(LinkCommand::Send { message: PeerMessage::LaneReset { lane: 1, .. }, .. })),
        "{next:?}"
    );
    assert!(
        matches!(next[1], PeerAction::Link(LinkCommand::Send { message: PeerMessage::LaneReady { lane: 0, .. }, .. })),
        "{next:?}"
    );
    // A silence is told to both engines.
    peers.handle_silent(IN, Duration::from_secs(3));
    let silences = |a: &PeerAction| matches!(a, PeerAction::Engine { command: LaneCommand::PeerSilent { .. }, .. });
    assert_eq!(actions(&mut peers).iter().filter(|a| silences(a)).count(), 2);
    // A lane that neither has.
    peers.handle_message(ms(500), IN, PeerMessage::LaneReady { lane: 2, incarnation: 5 });
    let next = actions(&mut peers);
    assert_eq!(lost(&next), [Reason::PeerLost; 2]);
    assert!(next.iter().any(|a| matches!(a, PeerAction::Link(LinkCommand::Close { .. }))), "{next:?}");
}

#[test]
fn peers_whose_links_are_up_are_not_among_those_that_wait() {
    let config = PeersConfig { peers_max: 300, ..peers(1).config };
    let mut peers = Peers::new(config);
    for n in 10..210 {
        let link = LinkId(IN.0 + u64::from(n));
        assert_eq!(peers.handle_hello(ms(0), link, ip(n), hello(n, 2)), Verdict::Proceed);
        peers.handle_up(ms(0), link, hello(n, 2), None);
    }
    assert_eq!((peers.waiting.len(), peers.deadline()), (0, None), "200 links are up");
    for n in [3, 4] {
        peers.handle_hello(ms(1), LinkId(IN.0 + u64::from(n)), ip(n), hello(n, 2));
        peers.handle_wanted(ms(n.into()), ip(n), 0);
    }
    assert_eq!((peers.waiting.len(), peers.deadline()), (2, Some(ms(503))));
    actions(&mut peers);
    peers.handle_timeout(ms(503));
    assert_eq!((peers.waiting.len(), dialed(&mut peers).len()), (1, 1));
    // The other's link comes up: nothing waits for it any more.
    peers.handle_up(ms(504), LinkId(IN.0 + 4), hello(4, 2), None);
    assert_eq!((peers.waiting.len(), peers.deadline()), (0, None));
}

#[test]
fn a_holder_that_offers_a_leased_lane_again_after_its_end_hears_that_it_was_taken_away() {
    let mut peers = peers(1);
    peers.handle_wanted(ms(0), ip(2), 0);
    let link = dialed(&mut peers)[0];
    peers.handle_up(ms(1), link, hello(2, 7), None);
    actions(&mut peers);
    let lane = LEASED_LANE_FIRST + 3;
    assert_eq!(peers.lane_number(ip(2)), Some(LEASED_LANE_FIRST + 1), "the other daemon gives even numbers");
    let offer = control::LaneOffer {
        lane,
        incarnation: 1,
        endpoint: vec![1],
        capabilities: 0,
        max_msg_bytes: 4096,
        credits: 8,
        send_bytes_max: 4096,
        datagrams: None,
    };
    peers.handle_message(ms(2), link, PeerMessage::LaneOffer(offer));
    let asked = actions(&mut peers);
    let [PeerAction::Engine { engine: 0, lane: asked_of, command: LaneCommand::Offer { round, .. } }] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!(asked_of, lane);
    let result = Err(Refusal::new(Reason::LocalLimit, "there is no leased lane"));
    peers.on_answer(ms(3), ip(2), lane, LaneAnswer::Offered { round, result });
    let said = actions(&mut peers);
    let is_told = |a: &PeerAction| {
        matches!(a, PeerAction::Link(LinkCommand::Send { message: PeerMessage::LaneReset { lane: of, reason: Reason::LaneRevoked, .. }, .. })
            if *of == lane)
    };
    assert!(said.iter().any(is_told), "{said:?}");
}
