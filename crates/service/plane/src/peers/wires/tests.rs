//! Lanes whose wire is silent, on links that answer, soon or late or not at all; without sockets.

use super::super::PeersConfig;
use super::*;
use crate::{Identity, LinkId};

const LINK: LinkId = LinkId(1 << 63);

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

/// A daemon with a link to host 2, and two lanes.
fn peers() -> Peers {
    let mut peers = Peers::new(PeersConfig {
        instance: 1,
        engines: 2,
        peers_max: 4,
        lane_setup: Duration::from_secs(10),
        heartbeat: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(10),
        sources: std::collections::BTreeSet::new(),
        paths: std::collections::BTreeMap::new(),
    });
    let other = Identity::new(2, ip(2), 2, [0; 32]);
    assert_eq!(peers.handle_hello(ms(0), LINK, ip(2), other), crate::Verdict::Proceed);
    peers.handle_up(ms(0), LINK, other);
    while peers.poll_action().is_some() {}
    peers
}

fn asked(peers: &mut Peers) -> Vec<u64> {
    let of = |action| match action {
        PeerAction::Send { link: LINK, message: PeerMessage::LinkAsk { number } } => number,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| peers.poll_action()).map(of).collect()
}

fn left(peers: &mut Peers) -> Vec<u32> {
    let of = |action| match action {
        PeerAction::Engine { engine, lane, command: LaneCommand::LeaveWire { peer } } => {
            assert_eq!((engine, peer), (lane, ip(2)));
            lane
        }
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| peers.poll_action()).map(of).collect()
}

#[test]
fn a_wire_is_left_if_the_link_answers() {
    let mut peers = peers();
    peers.on_wire_silent(ms(400), ip(2), 0);
    peers.on_wire_silent(ms(400), ip(2), 1);
    assert_eq!(asked(&mut peers), [0], "one question for all lanes");
    peers.handle_message(ms(401), LINK, PeerMessage::LinkAnswer { number: 7 });
    peers.handle_message(ms(401), LINK, PeerMessage::Heartbeat);
    assert_eq!(left(&mut peers), [0; 0], "that is no answer");
    peers.handle_message(ms(402), LINK, PeerMessage::LinkAnswer { number: 0 });
    assert_eq!(left(&mut peers), [0, 1]);
    peers.handle_message(ms(403), LINK, PeerMessage::LinkAnswer { number: 0 });
    assert_eq!(left(&mut peers), [0; 0], "a question has one answer");
}

#[test]
fn a_link_that_is_down_as_well_is_waited_for() {
    let mut peers = peers();
    let late = ANSWER_WITHIN.as_millis() as u64 + 1;
    peers.on_wire_silent(ms(400), ip(2), 0);
    assert_eq!(asked(&mut peers), [0]);
    peers.on_wire_silent(ms(500), ip(2), 0);
    assert_eq!(asked(&mut peers), [0; 0], "it is asked already");
    // The answer comes when the network is there again: the wire may be so, too.
    peers.handle_message(ms(400 + late), LINK, PeerMessage::LinkAnswer { number: 0 });
    assert_eq!(left(&mut peers), [0; 0]);
    peers.on_wire_silent(ms(401 + late), ip(2), 0);
    assert_eq!(asked(&mut peers), [1]);
    peers.handle_message(ms(402 + late), LINK, PeerMessage::LinkAnswer { number: 0 });
    assert_eq!(left(&mut peers), [0; 0], "an older question's");
    peers.handle_message(ms(403 + late), LINK, PeerMessage::LinkAnswer { number: 1 });
    assert_eq!(left(&mut peers), [0]);
}

#[test]
fn what_is_not_there_is_not_asked_for() {
    let mut peers = peers();
    peers.on_wire_silent(ms(1), ip(3), 0);
    peers.on_wire_silent(ms(1), ip(2), 2);
    assert_eq!(asked(&mut peers), [0; 0]);
    peers.handle_message(ms(2), LINK, PeerMessage::LinkAsk { number: 9 });
    let answer = peers.poll_action();
    assert!(
        matches!(answer, Some(PeerAction::Send { link: LINK, message: PeerMessage::LinkAnswer { number: 9 } })),
        "{answer:?}"
    );
}
