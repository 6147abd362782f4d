//! Take-overs: terms, the order of a fence, and its ends. The test plays the engine and the peers.

use control::{Reason, RegionGrant, RegionMessage};

use super::*;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));

fn single(name: &str) -> RegionSpec {
    RegionSpec { single_writer: true, ..spec(name, 64) }
}

fn by_term(term: u64) -> TakeOver {
    TakeOver { name: "a".into(), key: KEY, term }
}

impl Desk {
    fn far_takes(&mut self, peer: IpAddr, open: u64, term: u64) -> Vec<DirectoryAction> {
        let (name, lane) = ("a".into(), 70_000 + u32::try_from(open).unwrap());
        let message = RegionMessage::TakeOver { open, uid: 5, name, key: KEY, lane, term };
        assert!(self.directory.handle_peer(T0, peer, &message));
        self.settle();
        std::mem::take(&mut self.far)
    }

    /// A program of this host asks, and the engine opens its handle unless it is `refused`.
    fn takes(&mut self, by: Party, term: u64, refused: Option<Reason>) -> Vec<(u64, Reply, Option<Handed>)> {
        self.directory.handle_take_over(by, 1, &by_term(term));
        let before = self.settle();
        let asked = self.far.iter().find_map(|action| match action {
            DirectoryAction::Program { command: ProgramCommand::WriteRegion { open, .. }, .. } => Some(*open),
            _ => None,
        });
        if let Some(open) = asked {
            self.directory.on_writer_opened(open, refused.map_or(Ok(9), Err));
        }
        [before, self.settle()].concat()
    }

    fn granted(&mut self, peer: IpAddr, open: u64, region: u64) -> Option<DirectoryAction> {
        let access = RegionAccess::ALL;
        let grant = RegionGrant { region, epoch: 1, bytes: 64, access, rkey: 9, addr: 0, last_term: 0 };
        self.directory.on_granted(peer, open, Ok(grant));
        self.settle();
        std::mem::take(&mut self.far).pop()
    }
}

fn refused(why: RegionRefusal) -> Reply {
    Reply::RegionOpened { request: 1, result: Err(why) }
}

fn is_fence(action: &DirectoryAction) -> bool {
    matches!(action, DirectoryAction::Engine(RegionCommand::Fence { .. }))
}

#[test]
fn the_older_writer_is_gone_before_the_next_one_is_granted() {
    let mut desk = desk();
    let region = desk.create(party(1, 5), single("a")).unwrap().info.region;
    let first = desk.far_takes(PEER, 1, 3);
    let [DirectoryAction::Engine(RegionCommand::Grant { register, writer, lane, .. })] = first[..] else {
        panic!("{first:?}")
    };
    assert_eq!((register, writer), (Some(RegionAccess::READ), Some(RegionAccess::ALL)), "readers only read");
    assert_eq!(lane, Some(70_001));
    let told = desk.granted(PEER, 1, region);
    let Some(DirectoryAction::Tell { message: RegionMessage::Opened { open: 1, result: Ok((grant, _)) }, .. }) = told
    else {
        panic!("{told:?}")
    };
    assert_eq!((grant.last_term, grant.access), (0, RegionAccess::ALL));
    // A term that is not greater changes nothing.
    for term in [0, 2, 3] {
        let answer = desk.far_takes(OTHER, 1, term);
        let why = RegionRefusal::Superseded { term: 3 };
        assert_eq!(
            answer,
            [DirectoryAction::Tell { peer: OTHER, message: RegionMessage::Opened { open: 1, result: Err(why) } }]
        );
    }
    let next = desk.far_takes(OTHER, 2, 4);
    let place = |which: &dyn Fn(&DirectoryAction) -> bool| next.iter().position(which).expect("it is there");
    let told = place(&|a| {
        let why = RegionRefusal::Superseded { term: 4 };
        *a == DirectoryAction::Tell { peer: PEER, message: RegionMessage::Superseded { open: 1, why } }
    });
    let ends = place(&|a| {
        let (peer, lane, reason) = (PEER, 70_001, Reason::Superseded);
        *a == DirectoryAction::Engine(RegionCommand::EndLane { peer, lane, reason })
    });
    let fence = place(&is_fence);
    let granted = place(&|a| {
        matches!(a, DirectoryAction::Engine(RegionCommand::Grant { peer: OTHER, register: None, writer: Some(_), .. }))
    });
    assert!(told < ends && ends < fence && fence < granted, "{next:?}");
    let told = desk.granted(OTHER, 2, region);
    assert!(
        matches!(
            told,
            Some(DirectoryAction::Tell {
                message: RegionMessage::Opened { result: Ok((RegionGrant { last_term: 3, .. }, _)), .. },
                ..
            })
        ),
        "{told:?}"
    );
    let row = &desk.directory.rows(None, 0, 9).0[0].1;
    assert_eq!((row.term, row.writer.as_deref(), row.remote_opens), (4, Some("10.0.0.3"), 1));
}

#[test]
fn a_writer_that_is_superseded_before_its_grant_hears_that() {
    let mut desk = desk();
    let region = desk.create(party(1, 5), single("a")).unwrap().info.region;
    desk.far_takes(PEER, 1, 3);
    desk.far_takes(OTHER, 1, 4);
    let told = desk.granted(PEER, 1, region);
    let why = RegionRefusal::Superseded { term: 4 };
    assert!(
        matches!(&told, Some(DirectoryAction::Tell { peer: PEER, message: RegionMessage::Opened { open: 1, result: Err(w) } }) if *w == why),
        "{told:?}"
    );
}

#[test]
fn a_writer_of_this_host_is_fenced_too() {
    let mut desk = desk();
    let owner = party(1, 5);
    let made = desk.create(owner, single("a")).unwrap();
    let first = desk.takes(party(2, 5), 1, None);
    let [(2, Reply::RegionOpened { result: Ok(opened), .. }, None)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(opened.path, RegionPath::Writer { handle: 9 }, "nothing is mapped");
    assert_eq!((opened.info.access, opened.info.last_term), (RegionAccess::ALL, 0));
    assert!(!std::mem::take(&mut desk.far).iter().any(is_fence), "there was nobody before it");
    // Its memory cannot be what READs of it put bytes into.
    desk.directory.handle_attach(ClientId(2), 7, opened.open, 1);
    desk.settle();
    assert!(desk.far.iter().any(|a| matches!(
        a,
        DirectoryAction::Program { command: ProgramCommand::AttachRegion { writable: false, .. }, .. }
    )));
    desk.far.clear();
    // The owner writes by a term as others do.
    let next = desk.takes(owner, 2, None);
    let why = RegionRefusal::Superseded { term: 2 };
    assert!(next.contains(&(2, Reply::RegionEnded { open: opened.open, why }, None)), "{next:?}");
    let fence = desk.far.iter().position(is_fence).expect("the first one is fenced");
    let grant = desk
        .far
        .iter()
        .position(|a| matches!(a, DirectoryAction::Program { command: ProgramCommand::WriteRegion { .. }, .. }));
    assert!(Some(fence) < grant, "{:?}", desk.far);
    desk.far.clear();
    // It gives the handle up, and the engine's goes.
    let Some((1, Reply::RegionOpened { result: Ok(by_owner), .. }, _)) = next.last() else { panic!("{next:?}") };
    assert_eq!(by_owner.info.last_term, 1);
    desk.directory.handle_close(ClientId(1), by_owner.open, false);
    desk.settle();
    assert!(desk.far.iter().any(is_fence) && desk.is_live(&made));
    assert_eq!(desk.takes(party(3, 5), 2, None), [(3, refused(RegionRefusal::Superseded { term: 2 }), None)]);
    desk.directory.handle_left(ClientId(1));
    desk.is_empty();
}

#[test]
fn a_handle_that_the_engine_does_not_open_leaves_nothing() {
    let mut desk = desk();
    desk.create(party(1, 5), single("a")).unwrap();
    let full = Reason::LocalLimit;
    let answer = desk.takes(party(2, 5), 1, Some(full));
    assert_eq!(answer, [(2, refused(RegionRefusal::Reason(full)), None)]);
    desk.far.clear();
    // Of two that ask before the engine has answered the first is told, and the second gets it.
    desk.directory.handle_take_over(party(2, 5), 1, &by_term(2));
    desk.directory.handle_take_over(party(3, 5), 1, &by_term(3));
    assert_eq!(desk.settle(), [(2, refused(RegionRefusal::Superseded { term: 3 }), None)]);
    desk.directory.handle_left(ClientId(3));
    desk.directory.handle_left(ClientId(2));
    desk.directory.handle_left(ClientId(1));
    desk.is_empty();
}

#[test]
fn who_opens_such_a_region_only_reads_it() {
    let mut desk = desk();
    desk.create(party(1, 5), single("a")).unwrap();
    assert_eq!(desk.open(party(2, 5), wish("a")), Err(RegionRefusal::SingleWriter));
    let read = RegionWish { access: RegionAccess::READ, ..wish("a") };
    assert!(desk.open(party(2, 5), read).is_ok());
    let never_written = RegionSpec { access: RegionAccess::READ, ..single("b") };
    let (asked, allowed) = (RegionAccess::WRITE, RegionAccess::READ);
    assert_eq!(desk.create(party(1, 5), never_written), Err(RegionRefusal::NoAccess { asked, allowed }));
    desk.create(party(1, 5), spec("many", 64)).unwrap();
    desk.directory.handle_take_over(party(2, 5), 1, &TakeOver { name: "many".into(), ..by_term(1) });
    assert_eq!(desk.settle(), [(2, refused(RegionRefusal::ManyWriters), None)]);
    desk.directory.handle_take_over(party(2, 6), 1, &by_term(1));
    assert_eq!(desk.settle(), [(2, refused(RegionRefusal::OtherUser { uid: 5 }), None)]);
    desk.directory.handle_take_over(party(2, 5), 1, &TakeOver { key: OTHER_KEY, ..by_term(1) });
    assert_eq!(desk.settle(), [(2, refused(RegionRefusal::WrongKey), None)]);
}

#[test]
fn a_writer_whose_link_is_lost_is_fenced_and_its_term_stays() {
    let mut desk = desk();
    let region = desk.create(party(1, 5), single("a")).unwrap().info.region;
    desk.far_takes(PEER, 1, 3);
    desk.granted(PEER, 1, region);
    desk.directory.handle_peer_gone(T0, PEER);
    desk.settle();
    assert!(std::mem::take(&mut desk.far).iter().any(is_fence));
    let row = &desk.directory.rows(None, 0, 9).0[0].1;
    assert_eq!((row.term, row.writer.as_ref(), row.remote_opens), (3, None, 0));
    let answer = desk.far_takes(OTHER, 1, 3);
    assert!(matches!(&answer[..], [DirectoryAction::Tell { .. }]), "{answer:?}");
    assert!(!desk.far_takes(OTHER, 2, 4).iter().any(is_fence));
}

#[test]
fn a_place_among_leased_lanes_is_that_of_the_writer_before() {
    let mut desk = Desk::new(DirectoryConfig { leased_lanes_max: 1, ..DirectoryConfig::default() });
    let region = desk.create(party(1, 5), single("a")).unwrap().info.region;
    desk.far_takes(PEER, 1, 1);
    desk.granted(PEER, 1, region);
    assert!(desk.far_takes(OTHER, 1, 2).iter().any(is_fence), "its own place gets free");
    desk.create(party(1, 5), RegionSpec { name: "b".into(), ..single("b") }).unwrap();
    let (name, lane) = ("b".into(), 70_009);
    let message = RegionMessage::TakeOver { open: 9, uid: 5, name, key: KEY, lane, term: 1 };
    assert!(desk.directory.handle_peer(T0, PEER, &message));
    desk.settle();
    let told = desk.far.pop();
    assert!(
        matches!(
            told,
            Some(DirectoryAction::Tell {
                message: RegionMessage::Opened { result: Err(RegionRefusal::TooMany { .. }), .. },
                ..
            })
        ),
        "{told:?}"
    );
}

#[test]
fn a_revoke_ends_the_writer_too() {
    let mut desk = desk();
    let owner = party(1, 5);
    desk.create(owner, single("a")).unwrap();
    let taken = desk.takes(party(2, 5), 1, None);
    let [(2, Reply::RegionOpened { result: Ok(opened), .. }, None)] = &taken[..] else { panic!("{taken:?}") };
    desk.far.clear();
    desk.directory.handle_revoke(T0, owner, 1, ("a", KEY), None);
    let told = desk.settle();
    let why = RegionRefusal::Revoked { held: 1, current: 2 };
    assert!(told.contains(&(2, Reply::RegionEnded { open: opened.open, why }, None)), "{told:?}");
    assert!(desk.far.iter().any(is_fence));
}

#[test]
fn a_lane_of_several_writers_outlives_the_fence_of_one() {
    let mut desk = Desk::new(DirectoryConfig { leased_lanes_max: 1, ..DirectoryConfig::default() });
    let regions = ["a", "b", "c"].map(|name| desk.create(party(1, 5), single(name)).unwrap().info.region);
    let take = |desk: &mut Desk, peer: IpAddr, open: u64, name: &str, (lane, term): (u32, u64)| {
        let message = RegionMessage::TakeOver { open, uid: 5, name: name.into(), key: KEY, lane, term };
        assert!(desk.directory.handle_peer(T0, peer, &message));
        desk.settle();
        std::mem::take(&mut desk.far)
    };
    let ends = |actions: &[DirectoryAction], reason: Reason| {
        let end = DirectoryAction::Engine(RegionCommand::EndLane { peer: PEER, lane: 70_000, reason });
        actions.contains(&end)
    };
    for (open, name) in (1..).zip(["a", "b", "c"]) {
        let granted = take(&mut desk, PEER, open, name, (70_000, 1));
        assert!(matches!(granted[..], [DirectoryAction::Engine(RegionCommand::Grant { lane: Some(70_000), .. })]));
    }
    let full = take(&mut desk, OTHER, 1, "a", (70_000, 2));
    assert!(!full.iter().any(is_fence), "one lane is there, for three regions: {full:?}");
    // Revoked: its registration goes although its lane does not.
    desk.directory.handle_revoke(T0, party(1, 5), 2, ("c", KEY), None);
    let revoked = desk.far_beside_replies();
    assert!(revoked.contains(&DirectoryAction::Engine(RegionCommand::Fence { region: regions[2] })), "{revoked:?}");
    assert!(!ends(&revoked, Reason::LaneRevoked), "{revoked:?}");
    // Taken over by the same program again, on the same lane.
    let again = take(&mut desk, PEER, 4, "a", (70_000, 2));
    assert!(again.contains(&DirectoryAction::Engine(RegionCommand::Fence { region: regions[0] })), "{again:?}");
    assert!(!ends(&again, Reason::Superseded), "{again:?}");
    desk.directory.handle_peer(T0, PEER, &RegionMessage::Closed { open: 4 });
    assert!(!ends(&desk.far_beside_replies(), Reason::Closed));
    let itself = take(&mut desk, PEER, 5, "b", (70_000, 2));
    assert!(itself.iter().any(is_fence) && !ends(&itself, Reason::Superseded), "it is alone on its lane: {itself:?}");
    // The last one's place is free for the lane of who takes it over.
    let last = take(&mut desk, OTHER, 2, "b", (70_000, 3));
    assert!(ends(&last, Reason::Superseded) && last.iter().any(is_fence), "{last:?}");
    assert!(matches!(last.last(), Some(DirectoryAction::Engine(RegionCommand::Grant { peer: OTHER, .. }))));
}
