//! Handles of other hosts' programs. The test plays their daemons and the engine.

use control::{RegionGrant, RegionLine, RegionMessage};

use super::*;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

impl Desk {
    /// A program of the peer asks for a handle.
    fn peer_opens(&mut self, open: u64, access: RegionAccess) {
        self.peer_opens_by(open, access, None);
    }

    /// The same, with a leased lane.
    fn peer_opens_by(&mut self, open: u64, access: RegionAccess, lane: Option<u32>) {
        let message = RegionMessage::Open { open, uid: 5, name: "a".into(), key: KEY, access, lease: None, lane };
        assert!(self.directory.handle_peer(T0, PEER, &message));
    }

    /// What is for the engine and the peer by now.
    fn far(&mut self) -> Vec<DirectoryAction> {
        assert!(self.settle().is_empty());
        std::mem::take(&mut self.far)
    }

    /// The same, while programs here are answered too.
    pub(super) fn far_beside_replies(&mut self) -> Vec<DirectoryAction> {
        self.settle();
        std::mem::take(&mut self.far)
    }
}

fn grant_of(opened: &OpenedRegion) -> RegionGrant {
    let RegionInfo { region, epoch, bytes, .. } = opened.info;
    RegionGrant { region, epoch, bytes, access: RegionAccess::ALL, rkey: 9, addr: 0, last_term: 0 }
}

fn grant(region: u64, register: Option<RegionAccess>, open: u64) -> DirectoryAction {
    DirectoryAction::Engine(RegionCommand::Grant {
        region,
        epoch: 1,
        register,
        writer: None,
        peer: PEER,
        open,
        lane: None,
    })
}

fn opened(open: u64, result: Result<(RegionGrant, RegionLine), RegionRefusal>) -> DirectoryAction {
    DirectoryAction::Tell { peer: PEER, message: RegionMessage::Opened { open, result } }
}

#[test]
fn a_region_is_registered_once_and_for_no_more_than_its_owner_allows() {
    let mut desk = desk();
    let read_only = RegionSpec { access: RegionAccess::READ, ..spec("a", 64) };
    let made = desk.create(party(1, 5), read_only).unwrap();
    let region = made.info.region;
    desk.peer_opens(1, RegionAccess::READ);
    desk.peer_opens(2, RegionAccess::READ);
    assert_eq!(desk.far(), [grant(region, Some(RegionAccess::READ), 1), grant(region, None, 2)]);
}

#[test]
fn a_region_that_could_not_be_registered_is_tried_again() {
    let mut desk = desk();
    let made = desk.create(party(1, 5), spec("a", 64)).unwrap();
    let region = made.info.region;
    let full = || RegionRefusal::Reason(control::Reason::LocalLimit);
    desk.peer_opens(1, RegionAccess::READ);
    // The second came before the engine said that the first has failed.
    desk.peer_opens(2, RegionAccess::READ);
    assert_eq!(desk.far(), [grant(region, Some(RegionAccess::ALL), 1), grant(region, None, 2)]);
    desk.directory.on_not_registered(region);
    desk.directory.on_granted(PEER, 1, Err(full()));
    desk.directory.on_granted(PEER, 2, Err(full()));
    let ungrant = || DirectoryAction::Engine(RegionCommand::Ungrant { region, peer: PEER });
    let far = desk.far();
    assert!(far.contains(&opened(1, Err(full()))) && far.contains(&opened(2, Err(full()))), "{far:?}");
    assert!(far.contains(&ungrant()));
    desk.peer_opens(3, RegionAccess::READ);
    assert_eq!(desk.far(), [grant(region, Some(RegionAccess::ALL), 3)]);
    let granted = RegionGrant { access: RegionAccess::READ, ..grant_of(&made) };
    desk.directory.on_granted(PEER, 3, Ok(grant_of(&made)));
    assert_eq!(desk.far(), [opened(3, Ok((granted, made.info.line)))]);
}

#[test]
fn a_wish_that_a_revoke_met_is_answered_whatever_the_engine_says() {
    for result in [true, false] {
        let mut desk = desk();
        let made = desk.create(party(1, 5), spec("a", 64)).unwrap();
        desk.peer_opens(1, RegionAccess::READ);
        desk.far();
        desk.directory.handle_revoke(T0, party(1, 5), 2, ("a", KEY), None);
        let full = RegionRefusal::Reason(control::Reason::LocalLimit);
        desk.directory.on_granted(PEER, 1, if result { Ok(grant_of(&made)) } else { Err(full) });
        let is_answer = |action: &DirectoryAction| {
            let DirectoryAction::Tell { message, .. } = action else { return false };
            matches!(message, RegionMessage::Opened { open: 1, result: Err(_) })
        };
        assert_eq!(desk.far().iter().filter(|action| is_answer(action)).count(), 1, "granted: {result}");
    }
}

#[test]
fn a_revoke_ends_leased_lanes_and_waits_only_for_peers_on_the_shared_one() {
    let end_lane = |reason| DirectoryAction::Engine(RegionCommand::EndLane { peer: PEER, lane: 70_000, reason });
    for is_shared in [false, true] {
        let mut desk = desk();
        let made = desk.create(party(1, 5), spec("a", 64)).unwrap();
        let region = made.info.region;
        desk.peer_opens_by(1, RegionAccess::ALL, Some(70_000));
        if is_shared {
            desk.peer_opens(2, RegionAccess::ALL);
        }
        desk.far();
        desk.directory.handle_revoke(T0, party(1, 5), 2, ("a", KEY), None);
        let far = desk.far_beside_replies();
        let place = |wanted: &dyn Fn(&DirectoryAction) -> bool| far.iter().position(wanted);
        let told = place(&|a| matches!(a, DirectoryAction::Tell { message: RegionMessage::Stop { .. }, .. }));
        let ended = place(&|a| *a == end_lane(control::Reason::LaneRevoked));
        let given_up = place(&|a| *a == DirectoryAction::Engine(RegionCommand::Deregister { region, epoch: 1 }));
        assert!(told.is_some() && told < ended, "{far:?}");
        assert_eq!(given_up.is_some_and(|at| Some(at) > ended), !is_shared, "{far:?}");
        if is_shared {
            desk.directory.handle_peer(T0, PEER, &RegionMessage::Stopped { region, epoch: 1 });
            assert!(
                desk.far_beside_replies()
                    .contains(&DirectoryAction::Engine(RegionCommand::Deregister { region, epoch: 1 }))
            );
        }
    }
    let mut desk = desk();
    desk.create(party(1, 5), spec("a", 64)).unwrap();
    desk.peer_opens_by(1, RegionAccess::ALL, Some(70_000));
    desk.far();
    desk.directory.handle_peer(T0, PEER, &RegionMessage::Closed { open: 1 });
    assert!(desk.far().contains(&end_lane(control::Reason::Closed)), "it ends with its handle");
}

#[test]
fn leased_lanes_to_regions_of_a_host_are_bounded() {
    let mut desk = Desk::new(DirectoryConfig { leased_lanes_max: 1, ..DirectoryConfig::default() });
    desk.create(party(1, 5), spec("a", 64)).unwrap();
    desk.peer_opens_by(1, RegionAccess::ALL, Some(70_000));
    desk.far();
    desk.peer_opens_by(2, RegionAccess::ALL, Some(70_002));
    let why = too_many("leased lanes to regions of that host", 1);
    assert_eq!(desk.far(), [opened(2, Err(why))]);
    desk.directory.handle_peer(T0, PEER, &RegionMessage::Closed { open: 1 });
    desk.far();
    desk.peer_opens_by(3, RegionAccess::ALL, Some(70_004));
    assert!(matches!(desk.far()[..], [DirectoryAction::Engine(RegionCommand::Grant { lane: Some(70_004), .. })]));
}
