//! Pairs of processes, with real segments and without sockets.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use control::{ConnectionRow, ConnectionState, PathKind};
use shm::{Segment, Sharing, app_flag};

use super::*;

const RING: u32 = 4096;
const T0: Time = Time(1_000_000);

/// Clients from 100 on are of other users than the daemon's.
fn party(n: u64) -> Party {
    let client = u32::try_from(n).unwrap();
    Party { client: ClientId(n), pid: 100 + client, uid: client / 100 }
}

fn everybody(_: u32) -> bool {
    true
}

struct World {
    pairs: Pairs<OwnedFd>,
    /// What each client was sent, oldest first.
    sent: Vec<(ClientId, Reply, usize)>,
    returned: Vec<u64>,
    next: u64,
    /// The owners' own views of their segments, by end and index.
    owned: BTreeMap<(u64, u32), shm::Pair>,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut PairLimits)) -> Self {
        let mut limits = PairLimits {
            pairs_max: 3,
            pairs_per_user_max: 2,
            segments_max: 8,
            segments_per_user_max: 2,
            segments_per_pair_max: 2,
            owner_uid: 77,
            answer: Duration::from_secs(5),
        };
        change(&mut limits);
        Self {
            pairs: Pairs::new(limits, "127.0.0.1".parse().unwrap()),
            sent: Vec::new(),
            returned: Vec::new(),
            next: 1,
            owned: BTreeMap::new(),
        }
    }

    /// All rows, by pages of one connection.
    fn rows(&self, sees: impl Fn(u32) -> bool) -> Vec<ConnectionRow> {
        let (mut rows, mut at) = (Vec::new(), Some(0));
        while let Some(from) = at {
            let (page, next) = self.pairs.rows(&sees, from, 1);
            assert!(page.len() <= 2);
            rows.extend(page.into_iter().map(|(_, row)| row));
            at = next;
        }
        rows
    }

    /// Connects; says the connection's number.
    fn connect(&mut self, from: u64, to: u64) -> u64 {
        self.connect_with(from, to, RING)
    }

    fn connect_with(&mut self, from: u64, to: u64, ring_bytes: u32) -> u64 {
        let connection = self.next;
        self.next += 1;
        let connect = LocalConnect {
            from: party(from),
            to: party(to),
            request: 1000 + connection,
            port: 7,
            ring_bytes,
            connection,
        };
        let wake = || shm::WakeSocket::pair().ok().map(|(a, b)| (a.into_fd(), b.into_fd()));
        self.pairs.handle_connect(T0, connect, wake);
        self.drain();
        connection
    }

    fn drain(&mut self) {
        while let Some(action) = self.pairs.poll_action() {
            match action {
                PairAction::Send { client, reply, fds } => self.sent.push((client, reply, fds.len())),
                PairAction::Started { to, incoming, from, connected } => {
                    self.sent.extend([(to, incoming, 0), (from, connected, 0)]);
                }
                PairAction::Return { connection, .. } => self.returned.push(connection),
            }
        }
    }

    fn take(&mut self, client: u64) -> Vec<Reply> {
        let (mine, rest) = std::mem::take(&mut self.sent).into_iter().partition(|s| s.0 == ClientId(client));
        self.sent = rest;
        mine.into_iter().map(|s: (ClientId, Reply, usize)| s.1).collect()
    }

    /// Every segment that was asked for comes, as clients make them.
    fn answer(&mut self) -> usize {
        let wanted: Vec<_> = self
            .sent
            .iter()
            .filter_map(|(client, reply, _)| match reply {
                Reply::PairSegmentWanted { pair, index, slots, ring_bytes } => {
                    Some((*client, *pair, *index, *slots, *ring_bytes))
                }
                _ => None,
            })
            .collect();
        self.sent.retain(|s| !matches!(s.1, Reply::PairSegmentWanted { .. }));
        for &(client, pair, index, slots, ring_bytes) in &wanted {
            assert_eq!(self.pairs.expects(client, pair, index, (slots, ring_bytes)), Ok(true));
            let bytes = shm::Pair::bytes(slots, ring_bytes);
            let made = Segment::create("test", bytes, Sharing::PeerReadOnly).unwrap();
            let own = shm::Pair::format(made.region().clone(), slots, ring_bytes).unwrap();
            self.owned.insert((pair, index), own);
            let fd = made.fd().try_clone_to_owned().unwrap();
            let theirs = Segment::accept(fd, bytes, Sharing::PeerReadOnly).unwrap();
            let fd = theirs.fd().try_clone_to_owned().unwrap();
            let view = shm::Pair::open(theirs.into_region(), slots, ring_bytes).unwrap();
            self.pairs.handle_segment(pair, index, fd, view);
            self.drain();
        }
        wanted.len()
    }

    fn connected(&mut self, client: u64) -> Vec<Result<Connection, Reason>> {
        let replies = self.take(client);
        replies
            .into_iter()
            .filter_map(|r| if let Reply::Connected { result, .. } = r { Some(result) } else { None })
            .collect()
    }
}

fn slot(connection: &Connection) -> (u64, u32, u32) {
    let Path::Shm { pair, slot, generation } = connection.path else { panic!("not shm") };
    (pair, slot, generation)
}

#[test]
fn a_pair_is_opened_once_and_the_listener_hears_first() {
    let mut world = World::new();
    world.connect(1, 2);
    let kinds: Vec<_> = world.sent.iter().map(|(c, r, fds)| (c.0, format!("{r:?}")[..8].to_string(), *fds)).collect();
    assert_eq!(kinds[..2], [(1, "PairOpen".into(), 1), (2, "PairOpen".into(), 1)]);
    assert_eq!(kinds[2..], [(1, "PairSegm".into(), 0), (2, "PairSegm".into(), 0)]);
    world.sent.retain(|s| !matches!(s.1, Reply::PairOpened { .. }));
    assert_eq!(world.answer(), 2);
    let order: Vec<_> = world.sent.iter().map(|(c, r, fds)| (c.0, format!("{r:?}")[..8].to_string(), *fds)).collect();
    let expected = [(1, "PairSegm", 1), (2, "PairSegm", 1), (2, "Incoming", 0), (1, "Connecte", 0)];
    assert_eq!(order, expected.map(|(c, k, f)| (c, k.to_string(), f)));
    let Reply::Incoming { port: 7, connection: incoming } = &world.sent[2].1 else { panic!("{:?}", world.sent) };
    let Reply::Connected { request: 1001, result: Ok(connected) } = &world.sent[3].1 else {
        panic!("{:?}", world.sent)
    };
    assert_eq!((incoming.id, connected.id), (1, 1 + CONNECTING_END));
    assert_eq!((incoming.local, incoming.peer), (connected.peer, connected.local));
    let ((a, s, g), (b, t, h)) = (slot(incoming), slot(connected));
    assert!(a != b && (s, g) == (t, h) && (s, g) == (0, 1));
    world.sent.clear();
    // The other direction uses the same pair.
    world.connect(2, 1);
    let again: Vec<_> = world.sent.iter().map(|s| s.0.0).collect();
    assert_eq!(again, [1, 2]);
    assert_eq!(world.answer(), 0);
    assert_eq!(world.returned, []);
}

#[test]
fn slots_come_back_when_both_sides_gave_them_up_and_not_before() {
    let mut world = World::new();
    let first = world.connect(1, 2);
    world.answer();
    for _ in 1..PAIR_SLOTS {
        world.connect(1, 2);
    }
    assert_eq!(world.connected(1).len(), 64);
    world.take(2);
    world.pairs.handle_closed(ClientId(2), first);
    world.pairs.handle_closed(ClientId(2), first);
    // Someone else's number, and numbers of nothing.
    world.pairs.handle_closed(ClientId(1), first);
    world.pairs.handle_closed(ClientId(3), first + CONNECTING_END);
    world.pairs.handle_closed(ClientId(1), 999);
    world.connect(1, 2);
    assert!(world.connected(1).is_empty(), "a slot was used while one side had it");
    world.pairs.handle_closed(ClientId(1), first + CONNECTING_END);
    world.drain();
    let connected = world.connected(1);
    assert_eq!(connected.iter().map(|c| slot(c.as_ref().unwrap())).map(|s| (s.1, s.2)).collect::<Vec<_>>(), [(0, 2)]);
}

#[test]
fn more_connections_bring_more_segments_up_to_the_limit() {
    let mut world = World::new();
    let all: Vec<u64> = (0..130).map(|_| world.connect(1, 2)).collect();
    assert_eq!(world.answer(), 2);
    assert_eq!(world.answer(), 2);
    assert_eq!(world.answer(), 0);
    let results = world.connected(1);
    let slots: BTreeSet<u32> = results.iter().flatten().map(|c| slot(c).1).collect();
    assert_eq!(slots, (0..128).collect());
    assert_eq!(results.iter().filter(|r| **r == Err(Reason::LocalLimit)).count(), 2);
    assert_eq!(world.returned, all[128..]);
    assert_eq!(world.rows(everybody).len(), 256);
}

#[test]
fn a_process_with_itself_has_two_ends() {
    let mut world = World::new();
    let connection = world.connect(1, 1);
    assert_eq!(world.answer(), 2);
    let replies = world.take(1);
    let opened: Vec<u64> = replies
        .iter()
        .filter_map(|r| if let Reply::PairOpened { pair, .. } = r { Some(*pair) } else { None })
        .collect();
    assert_eq!(opened, [1, 2]);
    assert_eq!(world.pairs.connections_of(ClientId(1)), 2);
    world.pairs.handle_closed(ClientId(1), connection);
    assert_eq!(world.pairs.connections_of(ClientId(1)), 1);
    world.pairs.handle_closed(ClientId(1), connection + CONNECTING_END);
    assert_eq!(world.rows(everybody), []);
}

#[test]
fn a_process_that_does_not_answer_costs_the_connect_alone() {
    let mut world = World::new();
    let connection = world.connect(1, 2);
    assert_eq!(world.pairs.deadline(), Some(T0 + Duration::from_secs(5)));
    world.pairs.handle_timeout(T0 + Duration::from_secs(4));
    world.drain();
    assert_eq!(world.returned, []);
    world.pairs.handle_timeout(T0 + Duration::from_secs(5));
    world.drain();
    assert_eq!(world.returned, [connection]);
    assert_eq!(world.pairs.deadline(), None);
    // Late is not never.
    assert_eq!(world.answer(), 2);
    world.connect(1, 2);
    let results = world.connected(1);
    assert_eq!(results[0], Err(Reason::TimedOut));
    assert!(results[1].is_ok());
}

#[test]
fn cancelling_gives_the_backlog_place_back() {
    let mut world = World::new();
    let connection = world.connect(1, 2);
    assert!(!world.pairs.handle_cancel(ClientId(2), 1000 + connection));
    assert!(world.pairs.handle_cancel(ClientId(1), 1000 + connection));
    assert!(!world.pairs.handle_cancel(ClientId(1), 1000 + connection));
    world.drain();
    assert_eq!(world.returned, [connection]);
    world.answer();
    assert!(world.connected(1).is_empty());
}

#[test]
fn a_death_ends_its_pairs_and_what_waits_for_them() {
    let mut world = World::new();
    let (one, two) = (world.connect(1, 2), world.connect(2, 1));
    world.pairs.handle_gone(ClientId(2));
    world.drain();
    assert_eq!(world.connected(1), [Err(Reason::PeerAppDied)]);
    assert_eq!(world.returned, [one, two]);
    let late = world.pairs.expects(ClientId(1), 1, 0, (PAIR_SLOTS, RING));
    assert_eq!(late, Ok(false), "an answer to a question of before is no fault");
    world.sent.clear();
    world.connect(1, 3);
    world.answer();
    assert_eq!(world.connected(1).len(), 1);
    assert_eq!(world.pairs.count(), 1);
    world.pairs.handle_gone(ClientId(1));
    assert_eq!((world.pairs.count(), world.rows(everybody).len()), (0, 0));
    assert!(world.pairs.of_client.values().all(BTreeSet::is_empty) && world.pairs.ends.is_empty());
    assert!(world.pairs.by_clients.is_empty() && world.pairs.uses.is_empty());
    assert!(world.pairs.open_ends.is_empty() && world.pairs.shares.is_empty());
}

#[test]
fn pairs_have_a_limit() {
    let mut world = World::new();
    for to in 2..=4 {
        world.connect(1, to);
    }
    let refused = world.connect(1, 5);
    assert_eq!(world.connected(1), [Err(Reason::LocalLimit)]);
    assert_eq!(world.returned, [refused]);
    world.pairs.handle_gone(ClientId(4));
    world.drain();
    world.connect(1, 5);
    assert_eq!(world.pairs.count(), 3);
}

#[test]
fn a_user_has_a_share_of_the_pairs_and_it_comes_back() {
    let mut world = World::with(|limits| limits.pairs_max = 8);
    world.connect(100, 1);
    world.connect(101, 1);
    let refused = world.connect(102, 1);
    assert_eq!(world.connected(102), [Err(Reason::UserPairs)]);
    assert_eq!(world.returned, [refused]);
    // Through a pair that is there, to the same process, and of another user.
    world.connect(100, 1);
    world.connect(1, 100);
    world.connect(200, 100);
    world.connect(201, 101);
    world.answer();
    assert_eq!([100, 1, 200, 201].map(|n| world.connected(n).iter().flatten().count()), [2, 1, 1, 1]);
    world.pairs.handle_gone(ClientId(100));
    world.drain();
    world.connect(102, 1);
    world.answer();
    assert!(world.connected(102)[0].is_ok());
    (0..5).for_each(|n| _ = world.connect(7700 + n, 1));
    world.answer();
    assert!((0..5).all(|n| world.connected(7700 + n)[0].is_ok()), "the daemon's user has no share");
    world.connect(202, 1);
    assert_eq!(world.connected(202), [Err(Reason::LocalLimit)], "the host's pairs are used up");
}

#[test]
fn a_segment_is_of_the_share_of_who_needed_it() {
    let mut world = World::with(|limits| limits.segments_per_pair_max = 8);
    world.connect(100, 200);
    world.connect_with(200, 100, 8192);
    world.connect_with(200, 100, 16384);
    world.connect_with(200, 100, 32768);
    world.connect_with(100, 200, 65536);
    world.connect_with(100, 200, 1 << 17);
    world.answer();
    for client in [100, 200] {
        let results = world.connected(client);
        assert_eq!(results.iter().filter(|r| **r == Err(Reason::UserPairs)).count(), 1);
        assert_eq!(results.iter().flatten().count(), 2);
    }
    world.pairs.handle_gone(ClientId(100));
    assert!(world.pairs.shares.is_empty());
}

#[test]
fn a_user_sees_its_own_ends() {
    let mut world = World::new();
    world.connect(100, 200);
    world.connect(100, 101);
    world.connect(1, 200);
    world.answer();
    let seen = |uid| world.rows(|u| u == uid).iter().map(|r| r.app_pid).collect::<Vec<_>>();
    assert_eq!(world.rows(everybody).len(), 6);
    assert_eq!([seen(1), seen(2), seen(3)], [vec![200, 201, 200], vec![300, 300], vec![]]);
    // A page that ended between the two ends of a connection goes on with the second.
    let (page, _) = world.pairs.rows(everybody, 1 << 1 | 1, 1);
    assert!(matches!(&page[..], [(3, row)] if row.id == 1 + CONNECTING_END), "{page:?}");
}

#[test]
fn segments_that_nobody_asked_for_are_faults() {
    let mut world = World::new();
    world.connect(1, 2);
    let shape = (PAIR_SLOTS, RING);
    for (client, pair, index, shape) in
        [(1, 9, 0, shape), (1, 2, 0, shape), (1, 1, 1, shape), (1, 1, 0, (32, RING)), (1, 1, 0, (PAIR_SLOTS, 8192))]
    {
        assert!(world.pairs.expects(ClientId(client), pair, index, shape).is_err(), "{client} {pair} {index}");
    }
    world.answer();
    assert!(world.pairs.expects(ClientId(1), 1, 0, shape).is_err(), "a second time");
}

#[test]
fn rows_show_both_ends_and_believe_no_lie() {
    let mut world = World::new();
    let id = world.connect(1, 2);
    world.answer();
    let words = |world: &World, end: u64| world.owned[&(end, 0)].slot(0);
    let row = |world: &World, which: usize| world.rows(everybody).swap_remove(which);
    assert_eq!(row(&world, 0).state, ConnectionState::Backlog);
    world.pairs.on_accepted(ClientId(1), id);
    assert_eq!(row(&world, 0).state, ConnectionState::Backlog, "the word of another than the listener");
    world.pairs.on_accepted(ClientId(2), id);
    for end in [1, 2] {
        words(&world, end).generation.store(1, Ordering::Release);
    }
    words(&world, 1).tail.store(300, Ordering::Release);
    words(&world, 2).head.store(100, Ordering::Release);
    let (listening, connecting) = (row(&world, 0), row(&world, 1));
    assert_eq!((listening.id, connecting.id), (id, id + CONNECTING_END));
    assert_eq!((listening.app_pid, connecting.app_pid), (102, 101));
    assert_eq!((listening.path, listening.reason), (PathKind::Shm, Reason::SameHost));
    assert_eq!((connecting.tx_bytes, connecting.tx_queued_bytes), (300, 200));
    assert_eq!((listening.rx_bytes, listening.rx_queued_bytes), (300, 200));
    words(&world, 1).flags.store(app_flag::FIN, Ordering::Release);
    let states = |world: &World| (row(world, 0).state, row(world, 1).state);
    assert_eq!(states(&world), (ConnectionState::FinReceived, ConnectionState::FinSent));
    words(&world, 2).flags.store(app_flag::CLOSED, Ordering::Release);
    assert_eq!(row(&world, 0).state, ConnectionState::Closing);
    words(&world, 1).tail.store(u64::MAX, Ordering::Release);
    words(&world, 2).head.store(0, Ordering::Release);
    assert_eq!(row(&world, 1).tx_queued_bytes, u64::from(RING));
    // Words of an older connection say nothing about this one.
    words(&world, 1).generation.store(9, Ordering::Release);
    assert_eq!(row(&world, 1).tx_bytes, 0);
}

/// The number by which a client knows the pair whose segment it was asked for.
fn end_of(world: &World, client: u64) -> u64 {
    let wanted = world.sent.iter().find_map(|(to, reply, _)| match reply {
        Reply::PairSegmentWanted { pair, .. } if *to == ClientId(client) => Some(*pair),
        _ => None,
    });
    wanted.expect("a segment was asked for")
}

#[test]
fn a_segment_that_was_not_taken_refuses_who_waits_and_is_asked_for_again() {
    let mut world = World::new();
    let whose = [
        (2, SegmentLost::ByProgram, Reason::PeerAppDescriptors),
        (1, SegmentLost::ByProgram, Reason::AppDescriptors),
        (1, SegmentLost::ByDaemon, Reason::LocalLimit),
    ];
    for (loser, by, reason) in whose {
        let connection = world.connect(1, 2);
        let end = end_of(&world, loser);
        assert!(world.pairs.handle_segment_not_taken(ClientId(9), end, 0, by).is_err(), "another's");
        assert!(world.pairs.handle_segment_not_taken(ClientId(loser), end, 1, by).is_err(), "not asked for");
        world.pairs.handle_segment_not_taken(ClientId(loser), end, 0, by).unwrap();
        world.drain();
        // The other side's half was on its way; it is taken and not used, in the very place that is asked for again.
        world.sent.retain(|s| s.0 != ClientId(loser) || !matches!(s.1, Reply::PairSegmentWanted { .. }));
        assert_eq!(world.answer(), 1);
        assert_eq!(world.connected(1), [Err(reason)]);
        assert_eq!(world.returned.pop(), Some(connection));
        world.take(2);
    }
    world.connect(1, 2);
    assert_eq!(world.answer(), 2);
    let connected = world.connected(1);
    let (_, first, _) = slot(connected[0].as_ref().unwrap());
    assert!(first < PAIR_SLOTS, "the lost ones took no place");
    assert!(matches!(world.take(2)[..], [Reply::PairSegment { index: 0, .. }, Reply::Incoming { .. }]));
}

#[test]
fn a_pair_that_was_not_taken_is_none_and_the_next_connect_opens_another() {
    let mut world = World::new();
    let connection = world.connect(1, 2);
    let end = end_of(&world, 2);
    assert!(world.pairs.handle_pair_not_taken(ClientId(1), end).is_err(), "another's");
    world.pairs.handle_pair_not_taken(ClientId(2), end).unwrap();
    world.drain();
    assert_eq!(world.connected(1), [Err(Reason::PeerAppDescriptors)]);
    assert_eq!((world.returned.pop(), world.pairs.count()), (Some(connection), 0));
    // A segment for it is still on its way.
    assert_eq!(world.pairs.expects(ClientId(2), end, 0, (PAIR_SLOTS, RING)), Ok(false));
    world.take(2);
    world.connect(1, 2);
    world.sent.retain(|s| !matches!(s.1, Reply::PairOpened { .. }));
    assert_eq!(world.answer(), 2);
    assert!(world.connected(1)[0].is_ok());
    let end =
        world.pairs.ends.iter().find(|(_, (key, _))| world.pairs.pairs.contains_key(key)).map(|(end, _)| *end).unwrap();
    let client = if world.pairs.end_of(ClientId(1), end).is_ok() { ClientId(1) } else { ClientId(2) };
    assert!(world.pairs.handle_pair_not_taken(client, end).is_err(), "it has a connection");
}

#[test]
fn bytes_of_a_client_are_those_of_its_connections_and_of_those_that_are_over() {
    let mut world = World::new();
    let id = world.connect(1, 2);
    world.answer();
    world.pairs.on_accepted(ClientId(2), id);
    for (end, tail) in [(1, 300), (2, 20)] {
        let words = world.owned[&(end, 0)].slot(0);
        words.generation.store(1, Ordering::Release);
        words.tail.store(tail, Ordering::Release);
    }
    let both = |world: &World| [1, 2].map(|client| world.pairs.bytes_of(ClientId(client)));
    assert_eq!(both(&world), [(300, 20), (20, 300)]);
    world.pairs.handle_closed(ClientId(1), id + CONNECTING_END);
    assert_eq!(both(&world), [(300, 20), (20, 300)], "one side has closed");
    for (end, tail) in [(1, 300), (2, 20)] {
        let words = world.owned[&(end, 0)].slot(0);
        words.carried.store(tail, Ordering::Release);
        words.tail.store(0, Ordering::Release);
        assert_eq!(both(&world), [(300, 20), (20, 300)], "{end} has put its slot back");
    }
    world.pairs.handle_closed(ClientId(2), id);
    assert_eq!(both(&world), [(300, 20), (20, 300)], "both have");
    world.pairs.handle_gone(ClientId(1));
    assert_eq!(both(&world), [(0, 0), (20, 300)]);
}
