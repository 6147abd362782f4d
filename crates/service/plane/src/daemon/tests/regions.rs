//! What lanes, peers and rights mean for regions.

use control::{RegionGrant, RegionLine, RegionMessage};

use super::*;

fn make(daemon: &mut Machine, n: u64) -> u64 {
    asks(daemon, n, Request::RegionCreate { request: 1, spec: spec("a") }).unwrap();
    let made = actions(daemon);
    let region = made
        .iter()
        .find_map(|a| if let Action::Memory(MemoryCommand::Make { region, .. }) = a { Some(*region) } else { None });
    daemon.on_made(Time(1), region.unwrap(), Ok(()));
    actions(daemon);
    region.unwrap()
}

fn grant(region: u64) -> RegionGrant {
    RegionGrant { region, epoch: 1, bytes: 4096, access: RegionAccess::READ, rkey: 9, addr: 0, last_term: 0 }
}

/// A program of the peer has a handle to the region, maybe with a lane of its own.
fn open_by_peer(daemon: &mut Machine, link: LinkId, region: u64, (open, lane): (u64, Option<u32>)) {
    let (name, key, access) = ("a".into(), KEY, RegionAccess::READ);
    let message = RegionMessage::Open { open, uid: 1000, name, key, access, lease: None, lane };
    daemon.handle_message(Time(1), link, PeerMessage::Region(message));
    assert!(actions(daemon).iter().any(|a| matches!(a, Action::Region(RegionCommand::Grant { .. }))));
    daemon.on_granted((ip(PEER), open), Ok(grant(region)), None);
    actions(daemon);
}

fn regions(actions: &[Action<(), ()>]) -> Vec<RegionCommand> {
    actions.iter().filter_map(|a| if let Action::Region(command) = a { Some(*command) } else { None }).collect()
}

fn said(actions: &[Action<(), ()>]) -> Vec<RegionMessage> {
    let of = |action: &Action<(), ()>| match action {
        Action::Link(LinkCommand::Send { message: PeerMessage::Region(message), .. }) => Some(message.clone()),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

/// The owner takes its region back, which waits for the peer.
fn revoke(daemon: &mut Machine) {
    asks(daemon, 1, Request::RegionRevoke { request: 2, name: "a".into(), key: KEY, new_key: None }).unwrap();
    assert!(said(&actions(daemon)).iter().any(|m| matches!(m, RegionMessage::Stop { .. })));
}

#[test]
fn handles_of_other_hosts_end_with_the_lane_of_regions_alone() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let region = make(&mut daemon, 1);
    let link = linked(&mut daemon, 8);
    open_by_peer(&mut daemon, link, region, (5, None));
    revoke(&mut daemon);
    daemon.on_lane_failed(Time(1), ip(PEER), 1, Reason::LaneFailed);
    assert_eq!(regions(&actions(&mut daemon)), [], "the lane of another engine");
    daemon.on_lane_failed(Time(1), ip(PEER), DATAGRAM_ENGINE, Reason::LaneFailed);
    assert_eq!(regions(&actions(&mut daemon)), [RegionCommand::Deregister { region, epoch: 1 }]);
}

#[test]
fn an_engine_hears_that_a_lane_is_lost_before_what_follows_for_regions() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let region = make(&mut daemon, 1);
    let link = linked(&mut daemon, 8);
    open_by_peer(&mut daemon, link, region, (5, None));
    revoke(&mut daemon);
    daemon.handle_down(Time(1), link, Reason::PeerLost);
    let after = actions(&mut daemon);
    let lost = after.iter().position(|a| matches!(a, Action::Lane { lane: DATAGRAM_ENGINE, .. }));
    let then = after.iter().position(|a| matches!(a, Action::Region(RegionCommand::Deregister { .. })));
    assert!(lost.is_some() && lost < then, "{after:?}");
}

#[test]
fn a_leased_lane_that_fails_ends_its_own_handle() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let link = linked(&mut daemon, 8);
    let mut lanes = Vec::new();
    for (request, leased_lane) in [(1, false), (2, true)] {
        let (host, name, key, access) = (ip(PEER), "far".into(), KEY, RegionAccess::READ);
        let open = Request::RegionOpen { request, host, name, key, access, lease: None, leased_lane };
        asks(&mut daemon, 1, open).unwrap();
        actions(&mut daemon);
        daemon.on_path(Time(1), client(1), request, Ok(1));
        let asked = said(&actions(&mut daemon));
        let [RegionMessage::Open { open, lane, .. }] = asked[..] else { panic!("{asked:?}") };
        lanes.push(lane);
        let line = RegionLine { id: 1, uid: 1000, revokes: 0 };
        let opened = RegionMessage::Opened { open, result: Ok((grant(1), line)) };
        daemon.handle_message(Time(1), link, PeerMessage::Region(opened));
        actions(&mut daemon);
        daemon.on_region_opened(open, Ok(request as u32));
        actions(&mut daemon);
    }
    let closed = |daemon: &mut Machine| {
        let of = |action: &Action<(), ()>| match action {
            Action::Program { command: ProgramCommand::CloseRegion { handle, .. }, .. } => Some(*handle),
            _ => None,
        };
        actions(daemon).iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(lanes[0], None);
    daemon.on_lane_failed(Time(1), ip(PEER), lanes[1].expect("a lane of its own"), Reason::LaneFailed);
    assert_eq!(closed(&mut daemon), [2]);
    daemon.on_region_closed(ip(PEER), 2);
    actions(&mut daemon);
    daemon.on_lane_failed(Time(1), ip(PEER), DATAGRAM_ENGINE, Reason::LaneFailed);
    assert_eq!(closed(&mut daemon), [1]);
}

#[test]
fn what_is_told_to_a_peer_without_a_link_ends_handles_there() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let (host, name, key, access) = (ip(PEER), "far".into(), KEY, RegionAccess::READ);
    let open = Request::RegionOpen { request: 1, host, name, key, access, lease: None, leased_lane: false };
    asks(&mut daemon, 1, open).unwrap();
    actions(&mut daemon);
    // The engine has a lane, and by the time that its word comes there is no link any more.
    daemon.on_path(Time(1), client(1), 1, Ok(1));
    let answers = actions(&mut daemon);
    let lost = |a: &Action<(), ()>| {
        let reason = RegionRefusal::Reason(Reason::PeerLost);
        matches!(a, Action::Reply { reply: Reply::RegionOpened { request: 1, result: Err(why) }, .. } if *why == reason)
    };
    assert!(answers.iter().any(lost), "{answers:?}");
    assert_eq!(daemon.foreign_handles(), 0);
}

#[test]
fn kernels_end_before_a_peer_is_told_to_stop_and_with_the_region() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let region = make(&mut daemon, 1);
    let link = linked(&mut daemon, 8);
    open_by_peer(&mut daemon, link, region, (5, None));
    asks(&mut daemon, 1, Request::RegionRevoke { request: 2, name: "a".into(), key: KEY, new_key: None }).unwrap();
    let stops = actions(&mut daemon);
    let halt = stops.iter().position(|a| matches!(a, Action::Region(RegionCommand::Halt { .. })));
    let told =
        stops.iter().position(|a| matches!(a, Action::Link(LinkCommand::Send { message: PeerMessage::Region(_), .. })));
    assert!(halt.is_some() && halt < told, "{stops:?}");
    daemon.handle_gone(client(1));
    let mut ends = actions(&mut daemon);
    // What the engine has of it goes first.
    daemon.on_deregistered(region);
    ends.extend(actions(&mut daemon));
    daemon.handle_down(Time(1), link, Reason::PeerLost);
    ends.extend(actions(&mut daemon));
    assert!(regions(&ends).contains(&RegionCommand::Forget { region }), "{ends:?}");
    assert!(ends.iter().any(|a| matches!(a, Action::Memory(MemoryCommand::Drop { .. }))));
}

#[test]
fn the_policy_has_a_word_of_its_own_for_leased_lanes() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let policy = Policy::new(Vec::new(), Rights { leased_lanes: false, ..Rights::default() }).unwrap();
    daemon.set_policy(policy);
    actions(&mut daemon);
    for (request, leased_lane) in [(1, true), (2, false)] {
        let (host, name, key, access) = (ip(PEER), "far".into(), KEY, RegionAccess::READ);
        let open = Request::RegionOpen { request, host, name, key, access, lease: None, leased_lane };
        asks(&mut daemon, 1, open).unwrap();
        let answers = actions(&mut daemon);
        let is_refused = answers.iter().any(|a| matches!(a, Action::Reply { .. }));
        assert_eq!(is_refused, leased_lane, "{answers:?}");
    }
}

#[test]
fn an_owner_that_gets_no_descriptor_of_its_new_memory_has_no_region() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    asks(&mut daemon, 1, Request::RegionCreate { request: 1, spec: spec("a") }).unwrap();
    let made = actions(&mut daemon);
    let region = made
        .iter()
        .find_map(|a| if let Action::Memory(MemoryCommand::Make { region, .. }) = a { Some(*region) } else { None });
    daemon.on_made(Time(1), region.unwrap(), Ok(()));
    let shared = actions(&mut daemon);
    let reply = shared.into_iter().find_map(|a| if let Action::Share { reply, .. } = a { Some(reply) } else { None });
    daemon.on_not_shared(client(1), reply.unwrap(), "none left".into());
    let refused = actions(&mut daemon);
    let is_refused = |a: &Action<(), ()>| {
        let Action::Reply { reply: Reply::RegionOpened { result: Err(why), .. }, .. } = a else { return false };
        matches!(why, RegionRefusal::NoMemory { bytes: 4096, cause } if cause == "none left")
    };
    assert!(
        refused.iter().any(is_refused)
            && refused.iter().any(|a| matches!(a, Action::Memory(MemoryCommand::Drop { .. }))),
        "{refused:?}"
    );
    // The same while it moves.
    let region = make(&mut daemon, 1);
    asks(&mut daemon, 1, Request::RegionRevoke { request: 2, name: "a".into(), key: KEY, new_key: None }).unwrap();
    actions(&mut daemon);
    daemon.on_made(Time(1), region, Ok(()));
    let moved = actions(&mut daemon);
    let reply = moved.into_iter().find_map(|a| match a {
        Action::Share { reply: reply @ Reply::RegionMove { .. }, .. } => Some(reply),
        _ => None,
    });
    daemon.on_not_shared(client(1), reply.unwrap(), "none left".into());
    let ended = actions(&mut daemon);
    assert!(ended.iter().any(|a| matches!(a, Action::Reply { reply: Reply::RegionEnded { .. }, .. })), "{ended:?}");
    assert!(ended.iter().any(|a| matches!(a, Action::Memory(MemoryCommand::Drop { .. }))), "{ended:?}");
}
