//! Leases as a directory meets them.

use control::RegionMessage;

use super::*;

/// What a lender is told of its leases.
fn told(desk: &mut Desk, lender: Party) -> Vec<Reply> {
    desk.settle().into_iter().inspect(|(client, ..)| assert_eq!(*client, lender.client.0)).map(|(_, r, _)| r).collect()
}

fn lend(desk: &mut Desk, by: Party, open: u64, to: Lessee, key: RegionKey) -> Result<u64, RegionRefusal> {
    desk.directory.handle_lend(by.client, 9, open, (0, Some(to)), key);
    let reply = told(desk, by).pop().unwrap();
    let Reply::RegionLent { request: 9, result } = reply else { panic!("{reply:?}") };
    result
}

fn by_lease(lease: u64, key: RegionKey) -> RegionWish {
    RegionWish { name: String::new(), key, access: RegionAccess::READ, lease: Some(lease) }
}

#[test]
fn a_lease_opens_its_region_for_one_program_alone_and_is_told_when_it_is_over() {
    let mut desk = desk();
    let (owner, lessee, thief) = (party(1, 5), party(2, 5), party(3, 5));
    let made = desk.create(owner, spec("a", 100)).unwrap();
    let to = Lessee::Program(lessee.client);
    let lease = lend(&mut desk, owner, made.open, to, OTHER_KEY).unwrap();
    let over = RegionRefusal::LeaseOver { lease };
    assert_eq!(desk.open(thief, by_lease(lease, OTHER_KEY)).unwrap_err(), over, "another program, with the key");
    assert_eq!(desk.open(lessee, by_lease(lease, KEY)).unwrap_err(), over, "with the region's own key");
    assert!(desk.open(lessee, by_lease(lease + 1, OTHER_KEY)).is_err());
    let more = RegionWish { access: RegionAccess::ALL, ..by_lease(lease, OTHER_KEY) };
    let no_access = RegionRefusal::NoAccess { asked: RegionAccess::ALL, allowed: RegionAccess::READ };
    assert_eq!(desk.open(lessee, more).unwrap_err(), no_access);
    let (one, two) =
        (desk.open(lessee, by_lease(lease, OTHER_KEY)).unwrap(), desk.open(lessee, by_lease(lease, OTHER_KEY)));
    assert_eq!((one.info.region, one.info.access), (made.info.region, RegionAccess::READ));
    // Only the lender ends it, and it is over when nobody has anything open by it.
    desk.directory.handle_unlend(thief.client, lease);
    assert!(desk.open(lessee, by_lease(lease, OTHER_KEY)).is_ok());
    desk.directory.handle_unlend(owner.client, lease);
    assert_eq!(desk.open(lessee, by_lease(lease, OTHER_KEY)).unwrap_err(), over);
    desk.directory.handle_close(lessee.client, one.open, false);
    desk.directory.handle_close(lessee.client, two.unwrap().open, false);
    assert_eq!(told(&mut desk, owner), []);
    desk.directory.handle_left(lessee.client);
    assert_eq!(told(&mut desk, owner), [Reply::RegionLeaseOver { open: made.open, lease }]);
    assert_eq!(desk.directory.leases_in_use(), (0, 0));
    // One that nobody opened is over at once; a lender that is gone is told nothing.
    let lease = lend(&mut desk, owner, made.open, to, OTHER_KEY).unwrap();
    desk.directory.handle_unlend(owner.client, lease);
    assert_eq!(told(&mut desk, owner), [Reply::RegionLeaseOver { open: made.open, lease }]);
    let lease = lend(&mut desk, owner, made.open, to, OTHER_KEY).unwrap();
    let opened = desk.open(lessee, by_lease(lease, OTHER_KEY)).unwrap();
    desk.directory.handle_left(owner.client);
    let why = RegionRefusal::OwnerGone;
    assert_eq!(told(&mut desk, lessee), [Reply::RegionEnded { open: opened.open, why }]);
    assert_eq!(desk.directory.leases_in_use(), (0, 0));
    desk.is_empty();
}

#[test]
fn who_may_lend_what_and_how_often() {
    let mut desk = Desk::new(DirectoryConfig { handles_per_app_max: 3, ..DirectoryConfig::default() });
    let (owner, other) = (party(1, 5), party(2, 5));
    let to = Lessee::Program(other.client);
    let made = desk.create(owner, spec("a", 100)).unwrap();
    let write = RegionWish { access: RegionAccess::WRITE, ..wish("a") };
    let writer = desk.open(other, write).unwrap();
    let refused = lend(&mut desk, other, writer.open, to, KEY).unwrap_err();
    assert_eq!(refused, RegionRefusal::NoAccess { asked: RegionAccess::READ, allowed: RegionAccess::WRITE });
    assert_eq!(lend(&mut desk, other, made.open, to, KEY), Err(RegionRefusal::Unknown), "another's handle");
    desk.directory.handle_lend(owner.client, 9, made.open, (77, None), KEY);
    let result = Err(RegionRefusal::NoConnection { connection: 77 });
    assert_eq!(told(&mut desk, owner), [Reply::RegionLent { request: 9, result }]);
    let leases: Vec<u64> = (0..3).map(|_| lend(&mut desk, owner, made.open, to, KEY).unwrap()).collect();
    assert_eq!(lend(&mut desk, owner, made.open, to, KEY), Err(too_many("leases of this program", 3)));
    // A region of one user is lent to programs of that user, whoever has the key.
    let foreign = lend(&mut desk, owner, made.open, to, KEY);
    assert!(foreign.is_err());
    let stranger = Party { uid: 6, ..other };
    assert_eq!(desk.open(stranger, by_lease(leases[0], KEY)).unwrap_err(), RegionRefusal::OtherUser { uid: 5 });
    // A revoke ends all of them.
    desk.directory.handle_revoke(T0, owner, 4, ("a", KEY), None);
    let replies: Vec<Reply> = desk.settle().into_iter().map(|(_, reply, _)| reply).collect();
    for lease in leases {
        assert!(replies.contains(&Reply::RegionLeaseOver { open: made.open, lease }), "{replies:?}");
    }
    assert_eq!(desk.directory.leases_in_use(), (0, 0));
}

#[test]
fn a_lender_is_told_of_what_another_host_gave_back_one_message_at_a_time() {
    let mut desk = desk();
    let owner = party(1, 5);
    let (host, stranger): (IpAddr, IpAddr) = ("10.0.0.2".parse().unwrap(), "10.0.0.3".parse().unwrap());
    let made = desk.create(owner, spec("a", 100)).unwrap();
    let lease = lend(&mut desk, owner, made.open, Lessee::Host(host), OTHER_KEY).unwrap();
    let open = RegionMessage::Open {
        open: 1,
        uid: 5,
        name: String::new(),
        key: OTHER_KEY,
        access: RegionAccess::READ,
        lease: Some(lease),
        lane: None,
    };
    desk.directory.handle_peer(T0, stranger, &open);
    desk.settle();
    let refused = RegionMessage::Opened { open: 1, result: Err(RegionRefusal::LeaseOver { lease }) };
    assert_eq!(desk.far.pop(), Some(DirectoryAction::Tell { peer: stranger, message: refused }));
    desk.directory.handle_peer(T0, host, &open);
    desk.settle();
    assert!(
        matches!(desk.far.pop(), Some(DirectoryAction::Engine(RegionCommand::Grant { open: 1, .. }))),
        "{:?}",
        desk.far
    );
    let back = |key, loans| RegionMessage::LoansBack { lease, key, loans };
    let says = |loans| Reply::RegionLoansBack { open: made.open, lease, loans };
    for (peer, key) in [(stranger, OTHER_KEY), (host, KEY)] {
        desk.directory.handle_peer(T0, peer, &back(key, 1));
    }
    assert_eq!(told(&mut desk, owner), [], "who has not the key, or is not it, gives nothing back");
    for loan in 0..5 {
        desk.directory.handle_peer(T0, host, &back(OTHER_KEY, 1 << loan));
    }
    assert_eq!(told(&mut desk, owner), [says(1)]);
    desk.directory.handle_loans_taken(owner.client, lease);
    assert_eq!(told(&mut desk, owner), [says(0b11110)]);
    desk.directory.handle_loans_taken(owner.client, lease);
    assert_eq!(told(&mut desk, owner), []);
    // A host that is gone has nothing open.
    desk.directory.handle_peer_gone(T0, host);
    assert_eq!(told(&mut desk, owner), [Reply::RegionLeaseOver { open: made.open, lease }]);
    assert_eq!(desk.directory.leases_in_use(), (0, 0));
}

#[test]
fn a_region_that_others_may_not_read_is_lent_on_one_host_alone() {
    let mut desk = desk();
    let (owner, lessee) = (party(1, 5), party(2, 5));
    let host = Lessee::Host("10.0.0.2".parse().unwrap());
    let made = desk.create(owner, RegionSpec { access: RegionAccess::NONE, ..spec("a", 100) }).unwrap();
    let lease = lend(&mut desk, owner, made.open, Lessee::Program(lessee.client), OTHER_KEY).unwrap();
    assert!(desk.open(lessee, by_lease(lease, OTHER_KEY)).is_ok());
    // Between hosts a device would have it registered for all peers.
    let refused = RegionRefusal::NoAccess { asked: RegionAccess::READ, allowed: RegionAccess::NONE };
    assert_eq!(lend(&mut desk, owner, made.open, host, OTHER_KEY), Err(refused));
}

#[test]
fn all_programs_of_a_user_share_its_leases() {
    let limits =
        DirectoryConfig { handles_per_user_max: 3, handles_max: 5, owner_uid: 77, ..DirectoryConfig::default() };
    let mut desk = Desk::new(limits);
    let to = Lessee::Host([10, 0, 0, 9].into());
    let [one, two] = [party(1, 5), party(2, 5)];
    let [of_one, of_two] = [(one, "a"), (two, "b")].map(|(by, name)| desk.create(by, spec(name, 100)).unwrap().open);
    let lent =
        [(one, of_one), (one, of_one), (two, of_two)].map(|(by, open)| lend(&mut desk, by, open, to, KEY).unwrap());
    let full = |whose: &str, max| RegionRefusal::TooMany { what: format!("leases of this {whose}"), used: max, max };
    assert_eq!(lend(&mut desk, two, of_two, to, KEY), Err(full("user", 3)));
    let owner = party(3, 77);
    let of_owner = desk.create(owner, spec("c", 100)).unwrap().open;
    assert!((0..2).all(|_| lend(&mut desk, owner, of_owner, to, KEY).is_ok()), "the daemon's user has what is there");
    assert_eq!(lend(&mut desk, owner, of_owner, to, KEY), Err(full("host", 5)));
    // Each way in which a lease ends gives its place back.
    desk.directory.handle_unlend(one.client, lent[0]);
    desk.settle();
    lend(&mut desk, two, of_two, to, KEY).unwrap();
    desk.directory.handle_left(two.client);
    desk.settle();
    assert_eq!(desk.directory.leases_in_use().0, 3);
    assert!((0..2).all(|_| lend(&mut desk, one, of_one, to, KEY).is_ok()));
    assert_eq!(lend(&mut desk, one, of_one, to, KEY), Err(full("user", 3)));
    [one, owner].into_iter().for_each(|by| desk.directory.handle_left(by.client));
    desk.settle();
    assert_eq!(desk.directory.leases_in_use(), (0, 0));
    desk.is_empty();
}
