//! Wishes, revokes and ends of programs as a directory meets them. The test plays the daemon that makes the memory.

use control::{RegionKey, RegionSpec};

use super::*;
use crate::{KeptRegion, ProgramCommand};

mod adopt;
mod kept;
mod leases;
mod remote;
mod returns;
mod runs;
mod writer;

const KEY: RegionKey = RegionKey::new([7; 16]);
const OTHER_KEY: RegionKey = RegionKey::new([8; 16]);
const T0: Time = Time::ZERO;

fn party(client: u64, uid: u32) -> Party {
    Party { client: ClientId(client), pid: 100 + u32::try_from(client).unwrap(), uid }
}

fn spec(name: &str, bytes: u64) -> RegionSpec {
    RegionSpec {
        name: name.into(),
        bytes,
        access: RegionAccess::ALL,
        key: KEY,
        huge_pages: false,
        outlives: false,
        other_users: false,
        single_writer: false,
    }
}

fn wish(name: &str) -> RegionWish {
    RegionWish { name: name.into(), key: KEY, access: RegionAccess::ALL, lease: None }
}

/// A directory, and a driver that makes all memory and keeps the stamp page.
struct Desk {
    directory: Directory,
    replies: Vec<(u64, Reply, Option<Handed>)>,
    words: BTreeMap<u32, u64>,
    dropped: Vec<u64>,
    used: Vec<u64>,
    /// What is for the engine and for peers.
    far: Vec<DirectoryAction>,
    /// What is kept for the next daemon.
    kept: Vec<KeptRegion>,
    fails: bool,
    tenant: TenantShare,
}

impl Desk {
    fn new(config: DirectoryConfig) -> Self {
        Self {
            directory: Directory::new(config),
            replies: Vec::new(),
            words: BTreeMap::new(),
            dropped: Vec::new(),
            used: Vec::new(),
            far: Vec::new(),
            kept: Vec::new(),
            fails: false,
            tenant: TenantShare { name: crate::OTHERS.into(), bytes_max: None },
        }
    }

    fn settle(&mut self) -> Vec<(u64, Reply, Option<Handed>)> {
        while let Some(action) = self.directory.poll_action() {
            match action {
                DirectoryAction::Memory(MemoryCommand::Make { region, bytes, .. }) => {
                    let refused = RegionRefusal::NoMemory { bytes, cause: "test".into() };
                    self.directory.on_made(T0, region, if self.fails { Err(refused) } else { Ok(()) });
                }
                DirectoryAction::Memory(MemoryCommand::Use { region }) => self.used.push(region),
                DirectoryAction::Memory(MemoryCommand::Drop { region }) => self.dropped.push(region),
                DirectoryAction::Memory(MemoryCommand::Keep { kept, .. }) => self.kept.push(kept),
                DirectoryAction::Memory(MemoryCommand::ForgetKept { .. }) => drop(self.kept.pop()),
                DirectoryAction::Memory(MemoryCommand::Stamp { word, value }) => drop(self.words.insert(word, value)),
                DirectoryAction::Send { client, reply, memory } => self.replies.push((client.0, reply, memory)),
                DirectoryAction::Engine(RegionCommand::Deregister { region, .. }) => {
                    self.far.push(action);
                    self.directory.on_deregistered(region);
                }
                other => self.far.push(other),
            }
        }
        std::mem::take(&mut self.replies)
    }

    fn create(&mut self, by: Party, spec: RegionSpec) -> Result<OpenedRegion, RegionRefusal> {
        self.directory.handle_create(by, 1, spec, self.tenant.clone());
        self.answer(by)
    }

    fn open(&mut self, by: Party, wish: RegionWish) -> Result<OpenedRegion, RegionRefusal> {
        self.directory.handle_open(by, 1, wish);
        self.answer(by)
    }

    fn answer(&mut self, by: Party) -> Result<OpenedRegion, RegionRefusal> {
        let mut replies = self.settle();
        let (client, reply, memory) = replies.pop().unwrap();
        assert!(client == by.client.0 && replies.is_empty());
        let Reply::RegionOpened { request: 1, result } = reply else { panic!("{reply:?}") };
        assert_eq!(memory.is_some(), result.is_ok());
        result
    }

    fn is_live(&self, opened: &OpenedRegion) -> bool {
        let RegionPath::Local { stamp, word, .. } = opened.path else { panic!() };
        self.words.get(&word) == Some(&region_stamp::of(stamp, region_stamp::LIVE))
    }

    #[track_caller]
    fn is_empty(&mut self) {
        assert!(self.settle().is_empty());
        assert_eq!(self.directory.in_use(), (0, 0, 0));
        assert!(self.directory.shares.is_empty() && self.directory.names.is_empty());
        assert_eq!(self.directory.deadline(), None);
    }
}

fn desk() -> Desk {
    Desk::new(DirectoryConfig { owner_uid: 77, ..DirectoryConfig::default() })
}

#[test]
fn each_bad_wish_has_its_own_answer_and_changes_nothing() {
    let mut desk = desk();
    let owner = party(1, 5);
    let long = "x".repeat(REGION_NAME_BYTES_MAX + 1);
    for name in ["", "a\nb", &long] {
        let refused = desk.create(owner, spec(name, 8)).unwrap_err();
        assert_eq!(refused, RegionRefusal::BadName { bytes: name.len() as u64 });
    }
    for bytes in [0, REGION_BYTES_MAX + 1, u64::MAX] {
        let refused = desk.create(owner, spec("a", bytes)).unwrap_err();
        assert_eq!(refused, RegionRefusal::BadSize { bytes, max: REGION_BYTES_MAX });
    }
    desk.is_empty();
    let read_only = RegionSpec { access: RegionAccess::READ, ..spec("a", 100) };
    let made = desk.create(owner, read_only).unwrap();
    assert_eq!((made.info.epoch, made.info.bytes), (1, 100));
    assert_eq!(desk.create(party(2, 6), spec("a", 8)), Err(RegionRefusal::NameTaken { uid: None }));
    assert_eq!(desk.create(party(2, 0), spec("a", 8)), Err(RegionRefusal::NameTaken { uid: Some(5) }));
    let other = party(2, 5);
    assert_eq!(desk.open(other, wish("b")), Err(RegionRefusal::Unknown));
    let wrong = RegionWish { key: OTHER_KEY, ..wish("a") };
    assert_eq!(desk.open(other, wrong), Err(RegionRefusal::WrongKey));
    let refused = RegionRefusal::NoAccess { asked: RegionAccess::ALL, allowed: RegionAccess::READ };
    assert_eq!(desk.open(other, wish("a")), Err(refused));
    let nothing = RegionWish { access: RegionAccess::NONE, ..wish("a") };
    assert!(matches!(desk.open(other, nothing), Err(RegionRefusal::NoAccess { .. })));
    // A stranger who has the key learns whose it is, one without it not even that there is one.
    assert_eq!(desk.open(party(3, 6), wish("a")), Err(RegionRefusal::OtherUser { uid: 5 }));
    for name in ["a", "b"] {
        let guess = RegionWish { key: OTHER_KEY, ..wish(name) };
        assert_eq!(desk.open(party(3, 6), guess), Err(RegionRefusal::Unknown), "{name}");
        desk.directory.handle_revoke(Time::ZERO, party(3, 6), 9, (name, OTHER_KEY), None);
        let told = Reply::RegionRevoked { request: 9, result: Err(RegionRefusal::Unknown) };
        assert_eq!(desk.settle(), [(3, told, None)], "{name}");
    }
    for uid in [5, 0, 77] {
        let read = RegionWish { access: RegionAccess::READ, ..wish("a") };
        let opened = desk.open(party(4, uid), read).unwrap();
        assert!(desk.is_live(&opened));
        desk.directory.handle_close(ClientId(4), opened.open, false);
    }
    desk.directory.handle_left(owner.client);
    desk.settle();
    desk.is_empty();
}

#[test]
fn shares_bound_users_and_come_back() {
    let mut desk = Desk::new(DirectoryConfig {
        regions_max: 4,
        regions_per_user_max: 2,
        bytes_max: 1000,
        bytes_per_user_max: 500,
        handles_per_app_max: 2,
        handles_per_user_max: 3,
        owner_uid: 77,
        ..DirectoryConfig::default()
    });
    let user = party(1, 5);
    desk.create(user, spec("a", 300)).unwrap();
    let refused = desk.create(user, spec("b", 201)).unwrap_err();
    assert_eq!(refused, RegionRefusal::Quota { asked: 201, used: 300, max: 500 });
    desk.create(user, spec("b", 200)).unwrap();
    assert!(matches!(desk.create(user, spec("c", 1)), Err(RegionRefusal::TooMany { max: 2, .. })), "handles");
    assert!(matches!(desk.create(party(2, 5), spec("c", 1)), Err(RegionRefusal::TooMany { max: 2, .. })), "regions");
    desk.open(party(2, 5), wish("a")).unwrap();
    let of_user = RegionRefusal::TooMany { what: "handles of this user".into(), used: 3, max: 3 };
    assert_eq!(desk.open(party(4, 5), wish("a")), Err(of_user), "whichever of its programs has them");
    desk.directory.handle_left(ClientId(2));
    desk.settle();
    let again = desk.open(party(4, 5), wish("a")).unwrap();
    desk.directory.handle_close(ClientId(4), again.open, false);
    desk.settle();
    let root = party(3, 0);
    let refused = desk.create(root, spec("d", 501)).unwrap_err();
    assert_eq!(refused, RegionRefusal::Quota { asked: 501, used: 500, max: 1000 }, "the host bounds root too");
    desk.create(root, spec("d", 400)).unwrap();
    desk.create(root, spec("e", 100)).unwrap();
    assert!(matches!(desk.create(party(4, 77), spec("f", 1)), Err(RegionRefusal::TooMany { max: 4, .. })));
    for client in [1, 3] {
        desk.directory.handle_left(ClientId(client));
    }
    desk.settle();
    assert_eq!(desk.dropped.len(), 4);
    desk.is_empty();
    desk.fails = true;
    assert!(matches!(desk.create(user, spec("a", 300)), Err(RegionRefusal::NoMemory { bytes: 300, .. })));
    desk.is_empty();
}

#[test]
fn a_revoke_ends_all_handles_and_is_answered_when_the_owner_has_moved() {
    let mut desk = desk();
    let (owner, reader) = (party(1, 5), party(2, 5));
    let made = desk.create(owner, spec("a", 100)).unwrap();
    let opened = desk.open(reader, wish("a")).unwrap();
    desk.directory.handle_revoke(T0, owner, 9, ("a", KEY), Some(OTHER_KEY));
    let replies = desk.settle();
    let why = RegionRefusal::Revoked { held: 1, current: 2 };
    assert_eq!(replies[0], (2, Reply::RegionEnded { open: opened.open, why }, None));
    let (1, Reply::RegionMove { open, epoch: 2, stamp, key: OTHER_KEY }, Some(handed)) = replies[1].clone() else {
        panic!()
    };
    assert!(open == made.open && handed.writable && !handed.with_stamps && replies.len() == 2);
    assert!(!desk.is_live(&opened), "the stamp changed before the owner copies");
    // Nobody gets the memory meanwhile, and no second revoke begins.
    desk.directory.handle_open(reader, 1, wish("a"));
    desk.directory.handle_revoke(T0, owner, 10, ("a", KEY), None);
    let busy = Reply::RegionRevoked { request: 10, result: Err(RegionRefusal::Busy) };
    assert_eq!(desk.settle(), [(1, busy, None)]);
    // What others say of it, or of another epoch, means nothing.
    desk.directory.handle_moved(reader.client, made.open, 2);
    desk.directory.handle_moved(owner.client, made.open, 1);
    assert!(desk.settle().is_empty() && desk.directory.deadline().is_some());
    desk.directory.handle_moved(owner.client, made.open, 2);
    let replies = desk.settle();
    assert_eq!(replies[0], (1, Reply::RegionRevoked { request: 9, result: Ok(2) }, None));
    let refused = Reply::RegionOpened { request: 1, result: Err(RegionRefusal::WrongKey) };
    assert_eq!(replies[1], (2, refused, None), "the open that waited has the old key");
    assert_eq!(desk.used, [1, 1]);
    let again = desk.open(reader, RegionWish { key: OTHER_KEY, ..wish("a") }).unwrap();
    assert!(again.info.epoch == 2 && desk.is_live(&again));
    let RegionPath::Local { stamp: found, .. } = again.path else { panic!() };
    assert_eq!(found, stamp);
    desk.directory.handle_left(owner.client);
    assert_eq!(desk.settle(), [(2, Reply::RegionEnded { open: again.open, why: RegionRefusal::OwnerGone }, None)]);
    desk.directory.handle_left(reader.client);
    desk.is_empty();
}

#[test]
fn an_owner_that_does_not_move_or_ends_meanwhile_loses_the_region_and_everybody_is_told() {
    for dies in [false, true] {
        let mut desk = desk();
        let (owner, other) = (party(1, 5), party(2, 5));
        desk.create(owner, spec("a", 100)).unwrap();
        desk.directory.handle_revoke(T0, other, 9, ("a", KEY), None);
        desk.settle();
        desk.directory.handle_open(other, 10, wish("a"));
        if dies {
            desk.directory.handle_left(owner.client);
        } else {
            desk.directory.handle_timeout(T0);
            assert!(desk.settle().is_empty(), "it has time");
            desk.directory.handle_timeout(T0 + Duration::from_secs(11));
        }
        let mut replies = desk.settle();
        replies.retain(|(client, ..)| *client == 2);
        let gone = RegionRefusal::OwnerGone;
        assert_eq!(replies[0].1, Reply::RegionOpened { request: 10, result: Err(gone.clone()) });
        assert_eq!(replies[1].1, Reply::RegionRevoked { request: 9, result: Err(gone) });
        desk.is_empty();
    }
}

#[test]
fn without_memory_to_move_to_nothing_is_revoked() {
    let mut desk = desk();
    let owner = party(1, 5);
    desk.create(owner, spec("a", 100)).unwrap();
    let opened = desk.open(party(2, 5), wish("a")).unwrap();
    desk.fails = true;
    desk.directory.handle_revoke(T0, owner, 9, ("a", KEY), Some(OTHER_KEY));
    let replies = desk.settle();
    assert!(matches!(&replies[..], [(1, Reply::RegionRevoked { request: 9, result: Err(_) }, None)]), "{replies:?}");
    assert!(desk.is_live(&opened));
    desk.fails = false;
    desk.open(party(2, 5), wish("a")).unwrap();
}

#[test]
fn a_region_outlives_its_maker_only_if_it_says_so_and_ends_with_its_revoke() {
    let mut desk = desk();
    let owner = party(1, 5);
    desk.create(owner, RegionSpec { outlives: true, ..spec("stays", 100) }).unwrap();
    let deleted = desk.create(owner, RegionSpec { outlives: true, ..spec("deleted", 100) }).unwrap();
    desk.create(owner, spec("goes", 100)).unwrap();
    desk.directory.handle_close(owner.client, deleted.open, true);
    desk.directory.handle_left(owner.client);
    desk.settle();
    let (rows, next) = desk.directory.rows(Some(5), 0, 10);
    assert_eq!((rows.len(), rows[0].1.name.as_str(), rows[0].1.owner_pid, next), (1, "stays", None, None));
    assert!(desk.directory.rows(Some(6), 0, 10).0.is_empty(), "another user's");
    let opened = desk.open(party(2, 5), wish("stays")).unwrap();
    desk.directory.handle_notifier(ClientId(2), 3, opened.open);
    let untold = Reply::RegionNotifier { request: 3, result: Err(RegionRefusal::OwnerGone) };
    assert_eq!(desk.settle(), [(2, untold, None)]);
    desk.directory.handle_revoke(T0, party(3, 6), 4, ("stays", KEY), None);
    let refused = Reply::RegionRevoked { request: 4, result: Err(RegionRefusal::OtherUser { uid: 5 }) };
    assert_eq!(desk.settle(), [(3, refused, None)]);
    desk.directory.handle_revoke(T0, party(3, 5), 4, ("stays", KEY), None);
    let replies = desk.settle();
    let why = RegionRefusal::Revoked { held: 1, current: 2 };
    assert_eq!(replies[0].1, Reply::RegionEnded { open: opened.open, why });
    assert_eq!(replies[1].1, Reply::RegionRevoked { request: 4, result: Ok(2) });
    desk.is_empty();
}

#[test]
fn who_may_write_has_the_owner_told_and_only_the_owner_says_where() {
    let mut desk = desk();
    let (owner, writer) = (party(1, 5), party(2, 5));
    let made = desk.create(owner, spec("a", 8)).unwrap();
    let region = made.info.region;
    let opened = desk.open(writer, wish("a")).unwrap();
    let reading = desk.open(writer, RegionWish { access: RegionAccess::READ, ..wish("a") }).unwrap();
    let refused = |desk: &mut Desk, open| {
        desk.directory.handle_notifier(writer.client, 1, open);
        match desk.settle().pop() {
            Some((_, Reply::RegionNotifier { result: Err(why), .. }, _)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused(&mut desk, reading.open), RegionRefusal::NoAccess { .. }));
    for open in [99, made.open] {
        assert_eq!(refused(&mut desk, open), RegionRefusal::Unknown, "it is none of its");
    }
    for (client, open) in [(writer.client, opened.open), (owner.client, made.open)] {
        desk.directory.handle_notifier(client, 4, open);
        assert!(desk.settle().is_empty(), "the engine answers");
        let command = ProgramCommand::OpenNotifier { open, region, bytes: 8 };
        assert_eq!(std::mem::take(&mut desk.far), [DirectoryAction::Program { client, command }]);
    }
    assert_eq!(refused(&mut desk, opened.open), RegionRefusal::Busy);
    desk.directory.on_writer_opened(opened.open, Ok(77));
    let known = |request| (2, Reply::RegionNotifier { request, result: Ok(77) }, None);
    assert_eq!(desk.settle(), [known(4)]);
    desk.directory.handle_notifier(writer.client, 5, opened.open);
    assert_eq!(desk.settle(), [known(5)], "it is asked once");
    for (client, open) in [(writer.client, opened.open), (writer.client, made.open), (owner.client, 99)] {
        desk.directory.handle_notices(client, open, 7);
        desk.settle();
        assert!(desk.far.is_empty(), "only the owner");
    }
    desk.directory.handle_notices(owner.client, made.open, 7);
    desk.settle();
    let command = ProgramCommand::NoticesInto { region, queue: 7 };
    assert_eq!(std::mem::take(&mut desk.far), [DirectoryAction::Program { client: owner.client, command }]);
    // The engine's handle goes with the program's, and where that ended while the engine opened it.
    let closes = |desk: &mut Desk, client, handle| {
        desk.settle();
        let command = ProgramCommand::CloseRegion { handle, is_fenced: true };
        assert_eq!(std::mem::take(&mut desk.far), [DirectoryAction::Program { client, command }]);
    };
    desk.directory.handle_close(writer.client, opened.open, false);
    closes(&mut desk, writer.client, 77);
    desk.directory.handle_close(owner.client, made.open, false);
    desk.settle();
    desk.far.clear();
    desk.directory.on_writer_opened(made.open, Ok(78));
    closes(&mut desk, owner.client, 78);
    desk.directory.handle_left(owner.client);
    desk.directory.handle_left(writer.client);
    desk.settle();
    desk.is_empty();
}

#[test]
fn a_place_that_is_used_again_does_not_make_an_old_handle_live() {
    let mut desk = Desk::new(DirectoryConfig { regions_max: 1, ..DirectoryConfig::default() });
    let owner = party(1, 5);
    let first = desk.create(owner, spec("a", 8)).unwrap();
    desk.directory.handle_close(owner.client, first.open, false);
    desk.settle();
    let second = desk.create(owner, spec("b", 8)).unwrap();
    assert!(desk.is_live(&second) && !desk.is_live(&first));
}

#[test]
fn a_program_has_memory_as_local_memory_as_long_as_its_handle() {
    let mut desk = Desk::new(DirectoryConfig::default());
    let (owner, user) = (party(1, 7), party(2, 7));
    let own = desk.create(owner, spec("r", 4096)).unwrap();
    let read = RegionWish { access: RegionAccess::READ, ..wish("r") };
    let other = desk.open(user, read).unwrap();
    let attach = |desk: &mut Desk, by: Party, open: u64, epoch: u64| -> Result<(u32, bool, bool), RegionRefusal> {
        desk.directory.handle_attach(by.client, 5, open, epoch);
        let mut replies = desk.settle();
        if let Some((client, Reply::RegionAttached { request: 5, result: Err(why) }, None)) = replies.pop() {
            assert_eq!(client, by.client.0);
            return Err(why);
        }
        let Some(&DirectoryAction::Program {
            client,
            command: ProgramCommand::AttachRegion { number, older, writable, .. },
        }) = desk.far.last()
        else {
            panic!("{:?}", desk.far)
        };
        desk.directory.on_attached(client, number, Ok(()));
        let said = (by.client.0, Reply::RegionAttached { request: 5, result: Ok(number) }, None);
        assert_eq!(desk.settle(), [said]);
        Ok((number, older, writable))
    };
    let detached = |desk: &mut Desk| -> Vec<u32> {
        desk.settle();
        let numbers = desk.far.iter().filter_map(|action| match action {
            DirectoryAction::Program { command: ProgramCommand::DetachRegion { number }, .. } => Some(*number),
            _ => None,
        });
        let numbers = numbers.collect();
        desk.far.clear();
        numbers
    };
    assert_eq!(attach(&mut desk, user, own.open, 1), Err(RegionRefusal::Unknown), "another program's handle");
    assert_eq!(attach(&mut desk, owner, own.open, 2), Err(RegionRefusal::Revoked { held: 2, current: 1 }));
    let (first, older, writable) = attach(&mut desk, owner, own.open, 1).unwrap();
    assert_eq!((older, writable), (false, true));
    let (theirs, _, writable) = attach(&mut desk, user, other.open, 1).unwrap();
    assert!(!writable, "its handle is for reading");
    // While the region moves the owner may name either memory; the other program has none any more.
    desk.directory.handle_revoke(T0, owner, 9, ("r", KEY), None);
    assert_eq!(detached(&mut desk), [theirs]);
    let (old, older, _) = attach(&mut desk, owner, own.open, 1).unwrap();
    assert!(older);
    let (_new, older, _) = attach(&mut desk, owner, own.open, 2).unwrap();
    assert!(!older);
    assert_eq!(detached(&mut desk), [first], "a handle has two at most");
    desk.directory.handle_moved(owner.client, own.open, 2);
    assert!(matches!(attach(&mut desk, owner, own.open, 1), Err(RegionRefusal::Revoked { held: 1, current: 2 })));
    desk.directory.handle_detach(owner.client, old);
    desk.directory.handle_detach(owner.client, old);
    assert_eq!(detached(&mut desk), [old]);
    // A device that does not take it, and the end of the handle.
    desk.directory.handle_attach(owner.client, 6, own.open, 2);
    desk.settle();
    let Some(&DirectoryAction::Program { command: ProgramCommand::AttachRegion { number, .. }, .. }) = desk.far.last()
    else {
        panic!("{:?}", desk.far)
    };
    let why = RegionRefusal::Reason(control::Reason::LocalLimit);
    desk.directory.on_attached(owner.client, number, Err(why.clone()));
    assert_eq!(desk.settle(), [(owner.client.0, Reply::RegionAttached { request: 6, result: Err(why) }, None)]);
    desk.directory.handle_close(owner.client, own.open, true);
    assert_eq!(detached(&mut desk).len(), 1);
    assert_eq!(desk.directory.in_use(), (0, 0, 0));
}

/// What a program says of numbers of a daemon before this one is of none, whatever this daemon has given out.
#[test]
fn no_number_is_one_that_a_daemon_before_gave_out() {
    let numbers = |daemon: u64| {
        let mut desk = Desk::new(DirectoryConfig::default());
        desk.directory.begin_after(daemon << 30);
        let owner = party(1, 7);
        let own = desk.create(owner, spec("r", 4096)).unwrap();
        desk.directory.handle_attach(owner.client, 5, own.open, 1);
        desk.directory.handle_lend(owner.client, 6, own.open, (1, Some(Lessee::Program(ClientId(2)))), KEY);
        let lent = desk.settle();
        let Some(&DirectoryAction::Program { command: ProgramCommand::AttachRegion { number, .. }, .. }) =
            desk.far.last()
        else {
            panic!("{:?}", desk.far)
        };
        let Some((1, Reply::RegionLent { request: 6, result: Ok(lease) }, None)) = lent.last() else {
            panic!("{lent:?}")
        };
        [own.open, number.into(), *lease]
    };
    let [first, second] = [1, 2].map(numbers);
    for (what, (before, after)) in ["handle", "local memory", "lease"].iter().zip(first.into_iter().zip(second)) {
        assert!(after > before, "{what} {after} of the next daemon, {before} before");
    }
}
