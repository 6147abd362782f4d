//! Links that fail and come back over one of two paths, without sockets.

use std::collections::BTreeMap;

use super::super::PeersConfig;
use super::*;
use crate::{LinkNames, Verdict};

const BEAT: Duration = Duration::from_millis(100);
const SILENT: Duration = Duration::from_millis(300);

fn ip(net: u8, n: u8) -> IpAddr {
    IpAddr::from([10, 0, net, n])
}

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

/// The daemon of host 1, which has two paths to host 2.
fn peers() -> Peers {
    let path = |net| LinkPath { own: ip(net, 1), peer: ip(net, 2) };
    Peers::new(PeersConfig {
        instance: 1,
        engines: 1,
        peers_max: 4,
        lane_setup: Duration::from_secs(10),
        heartbeat: BEAT,
        connect_timeout: Duration::from_secs(10),
        sources: [(ip(1, 2), ip(0, 2))].into(),
        paths: BTreeMap::from([(ip(0, 2), vec![path(0), path(1)])]),
    })
}

fn over(net: u8) -> Option<LinkPath> {
    Some(LinkPath { own: ip(net, 1), peer: ip(net, 2) })
}

/// Host 2 as a link shows it.
fn peer(link: u64, replaces: u64) -> Identity {
    let names = LinkNames { own: link, replaces };
    Identity { link: names, heartbeat: BEAT, ..Identity::new(2, ip(0, 2), 1, [0; 32]) }
}

/// But for the word that a link is over, which comes with the loss of its lanes.
fn actions(peers: &mut Peers) -> Vec<PeerAction> {
    let all = std::iter::from_fn(|| peers.poll_action());
    all.filter(|action| !matches!(action, PeerAction::LinkOver { .. })).collect()
}

/// The only dial among these, over which networks, and what it replaces.
fn dial(actions: &[PeerAction]) -> Option<(LinkId, Vec<IpAddr>, u64)> {
    let of = |a: &PeerAction| match a {
        PeerAction::Link(LinkCommand::Dial { link, ways, .. }) => {
            Some((*link, ways.paths.iter().map(|path| path.own).collect(), ways.replaces))
        }
        _ => None,
    };
    let mut dials = actions.iter().filter_map(of);
    let first = dials.next();
    assert!(dials.next().is_none(), "{actions:?}");
    first
}

fn offers(actions: &[PeerAction]) -> Vec<Option<LinkPath>> {
    let of = |a: &PeerAction| match a {
        PeerAction::Engine { command: crate::LaneCommand::Offer { path, .. }, .. } => Some(*path),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn lost(actions: &[PeerAction]) -> usize {
    let is_lost = |a: &&PeerAction| matches!(a, PeerAction::Engine { command: crate::LaneCommand::Lost { .. }, .. });
    actions.iter().filter(is_lost).count()
}

/// A link over the first path, with a lane that is being made; its number is 77.
fn linked() -> (Peers, LinkId) {
    let mut peers = peers();
    peers.handle_wanted(ms(0), ip(0, 2), 0);
    let (link, paths, replaces) = dial(&actions(&mut peers)).unwrap();
    assert_eq!((paths, replaces), (vec![ip(0, 1), ip(1, 1)], 0));
    peers.handle_up(ms(1), link, peer(77, 0), over(0));
    assert_eq!(offers(&actions(&mut peers)), [None], "lanes of the first path are at the device's own address");
    (peers, link)
}

#[test]
fn a_silent_link_stays_until_one_over_the_other_path_is_there() {
    let (mut peers, first) = linked();
    peers.seek_path(ms(290), first, Duration::from_millis(290));
    assert!(actions(&mut peers).is_empty(), "not yet");
    peers.handle_silent(first, SILENT);
    peers.seek_path(ms(301), first, SILENT);
    let (second, paths, replaces) = dial(&actions(&mut peers)).unwrap();
    assert_eq!((paths, replaces), (vec![ip(1, 1)], 77));
    peers.seek_path(ms(401), first, SILENT);
    assert!(actions(&mut peers).is_empty(), "one dial at a time");
    assert_eq!(peers.link_to(ip(0, 2)), Some(first));
    peers.handle_up(ms(410), second, peer(78, 0), over(1));
    let next = actions(&mut peers);
    assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { link, .. }) if *link == first), "{next:?}");
    assert_eq!((lost(&next), offers(&next)), (1, vec![over(1)]));
    let (path, why) = peers.path_to(ip(0, 2)).unwrap();
    assert_eq!((Some(path), peers.path_changes()), (over(1), 1));
    assert_eq!(why, "number 2 of 2: nothing was heard over 10.0.0.1 to 10.0.0.2");
    // The end of the first link comes late.
    peers.handle_down(ms(500), first, control::Reason::PeerLost);
    assert!(actions(&mut peers).is_empty());
}

#[test]
fn a_peer_that_speaks_again_keeps_its_link_and_tries_that_fail_come_slower() {
    let (mut peers, first) = linked();
    peers.handle_silent(first, SILENT);
    peers.seek_path(ms(300), first, SILENT);
    let (second, ..) = dial(&actions(&mut peers)).unwrap();
    peers.handle_message(ms(320), first, control::PeerMessage::Heartbeat);
    let next = actions(&mut peers);
    assert!(
        next.iter().any(|a| matches!(a, PeerAction::Link(LinkCommand::CancelDial { link }) if *link == second)),
        "{next:?}"
    );
    assert_eq!((lost(&next), peers.link_to(ip(0, 2))), (0, Some(first)));
    // The link that came up in the moment of the word is not wanted any more.
    peers.handle_up(ms(321), second, peer(78, 0), over(1));
    assert!(matches!(actions(&mut peers)[..], [PeerAction::Link(LinkCommand::Close { link, .. })] if link == second));

    let mut dials = 0;
    for at in (1000..21_000).step_by(100) {
        peers.seek_path(ms(at), first, SILENT);
        if let Some((link, ..)) = dial(&actions(&mut peers)) {
            dials += 1;
            peers.handle_dial_failed(ms(at), link, control::Reason::PeerUnreachable);
            assert_eq!(lost(&actions(&mut peers)), 0, "the link is still there");
        }
    }
    assert!((8..=16).contains(&dials), "{dials} in 20 s");
}

#[test]
fn a_peer_that_lost_its_end_replaces_the_link_and_no_other_does() {
    for (replaces, moves) in [(77, true), (0, false), (78, false)] {
        let (mut peers, first) = linked();
        let second = LinkId(LinkId::FIRST_ACCEPTED.0 + 1);
        let verdict = peers.handle_hello(ms(5), second, ip(1, 2), peer(79, 0));
        assert_eq!(verdict, Verdict::Proceed, "its terms are not known yet");
        assert!(actions(&mut peers).is_empty(), "nothing happens before the proof");
        peers.handle_up(ms(6), second, peer(79, replaces), over(1));
        let next = actions(&mut peers);
        let closed = if moves { first } else { second };
        assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { link, .. }) if *link == closed), "{next:?}");
        assert_eq!((lost(&next), offers(&next).len()), (usize::from(moves), usize::from(moves)));
        assert_eq!(peers.link_to(ip(0, 2)), Some(if moves { second } else { first }));
    }
}

#[test]
fn a_link_that_ends_is_followed_by_a_dial_at_once() {
    let (mut peers, first) = linked();
    peers.handle_down(ms(50), first, control::Reason::PeerLost);
    let next = actions(&mut peers);
    assert_eq!(lost(&next), 1);
    let (second, paths, replaces) = dial(&next).unwrap();
    assert_eq!((paths, replaces), (vec![ip(0, 1), ip(1, 1)], 77), "the path may be well: its daemon may have ended");
    peers.handle_up(ms(60), second, peer(80, 0), over(1));
    assert_eq!(offers(&actions(&mut peers)), [over(1)]);
    // One that said nothing is tried last.
    peers.handle_silent(second, SILENT);
    peers.handle_down(ms(90), second, control::Reason::PeerLost);
    assert_eq!(dial(&actions(&mut peers)).unwrap().1, [ip(0, 1), ip(1, 1)]);
}

#[test]
fn the_first_path_is_tried_again_with_growing_pauses_and_taken_when_it_is_there() {
    let (mut peers, first) = linked();
    peers.handle_down(ms(50), first, control::Reason::PeerLost);
    let (second, ..) = dial(&actions(&mut peers)).unwrap();
    peers.handle_up(ms(60), second, peer(80, 0), over(1));
    actions(&mut peers);
    let (mut before, mut pauses, mut last) = (ms(60), Vec::new(), None);
    for _ in 0..8 {
        let at = peers.deadline().unwrap();
        pauses.push(at.saturating_since(before));
        peers.handle_timeout(at);
        let (link, paths, replaces) = dial(&actions(&mut peers)).expect("it is tried");
        assert_eq!((paths, replaces), (vec![ip(0, 1)], 80));
        peers.handle_dial_failed(at, link, control::Reason::PeerUnreachable);
        assert!(actions(&mut peers).is_empty());
        (before, last) = (at, Some(at));
    }
    assert!(pauses.windows(2).all(|p| p[1] > p[0] / 2) && pauses[0] >= PROBE_MIN, "{pauses:?}");
    assert!(pauses[7] >= PROBE_MAX / 2 && pauses.iter().all(|p| *p <= PROBE_MAX), "{pauses:?}");
    let at = peers.deadline().unwrap();
    assert!(Some(at) > last);
    peers.handle_timeout(at);
    let (third, ..) = dial(&actions(&mut peers)).unwrap();
    peers.handle_up(at, third, peer(81, 0), over(0));
    let next = actions(&mut peers);
    assert!(matches!(&next[0], PeerAction::Link(LinkCommand::Close { link, .. }) if *link == second), "{next:?}");
    assert_eq!((peers.path_to(ip(0, 2)).map(|p| p.0), peers.deadline()), (over(0), None));
}
