//! What one machine sets another to, and that it ends.

mod driver;
mod operators;
mod regions;
mod returns;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use control::{
    Kind, MeetMessage, MeetProof, PeerMessage, Reason, RegionAccess, RegionKey, RegionRefusal, RegionSpec, Rendezvous,
    Reply, Request, TcpEnd, UserShare,
};

use driver::settle;

use super::*;
use crate::{
    AdmissionConfig, BulkOf, Identity, LinkCommand, LinkId, MemoryCommand, Policy, ProgramCommand, ProgramFacts,
    RegionCommand, RegionRight, Rights,
};

const OWN: u8 = 1;
const PEER: u8 = 2;
const SHAPE: SessionShape = SessionShape { slots: 64, engines: 2 };
const IN: LinkId = LinkId::FIRST_ACCEPTED;

fn ip(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(ip(host), port)
}

/// Numbers in order, and no wake sockets.
struct Numbers(u64);

impl Supply<()> for Numbers {
    fn word(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }

    fn wake(&mut self) -> Option<((), ())> {
        Some(((), ()))
    }
}

type Machine = Daemon<(), ()>;

fn daemon(encrypt: Encrypt) -> Machine {
    daemon_with(encrypt, &[])
}

/// `paths`: between which addresses of both hosts the peer may be reached, if there are several.
fn daemon_with(encrypt: Encrypt, paths: &[u8]) -> Machine {
    let path = |n: &u8| crate::LinkPath { own: ip(*n), peer: ip(*n + 1) };
    let paths: Vec<_> = paths.iter().map(path).collect();
    let config = DaemonConfig {
        peers: PeersConfig {
            instance: 7,
            engines: 2,
            peers_max: 8,
            lane_setup: Duration::from_secs(10),
            heartbeat: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(10),
            sources: BTreeSet::new(),
            paths: if paths.is_empty() { BTreeMap::new() } else { [(ip(PEER), paths)].into() },
        },
        pairs: PairLimits {
            pairs_max: 4,
            pairs_per_user_max: 4,
            segments_max: 8,
            segments_per_user_max: 8,
            segments_per_pair_max: 2,
            owner_uid: 0,
            answer: Duration::from_secs(1),
        },
        directory: DirectoryConfig::default(),
        listen: ip(OWN),
        addresses: vec![ip(OWN)],
        encrypt,
        encrypts: BTreeMap::new(),
        makes_directs: true,
        tcp_is_faster: false,
        namespace: Some(1),
        shape: SHAPE,
        tickets: Tickets::new([7; crate::TICKET_SECRET_BYTES]),
        nobody: None,
        place: OwnPlace { peer_address: (ip(OWN), 1).into(), is_managers: false },
    };
    let admission = AdmissionConfig { engines: 2, user_share: UserShare::ALL, ..AdmissionConfig::new(vec![ip(OWN)]) };
    Daemon::new(config, Admission::new(admission, 5).unwrap())
}

fn client(n: u64) -> ClientId {
    ClientId(n)
}

fn newcomer(n: u64, returns: bool) -> Newcomer {
    let party = Party { client: client(n), pid: n as u32, uid: 1000 };
    let facts = ProgramFacts { uid: 1000, ..ProgramFacts::default() };
    Newcomer { party, facts, process: None, returns }
}

fn comes(daemon: &mut Machine, n: u64) -> Result<(), Reason> {
    daemon.handle_attach(newcomer(n, false))
}

fn attached(daemon: &mut Machine, n: u64) {
    comes(daemon, n).unwrap();
    taken(daemon, n);
    assert!(matches!(actions(daemon)[..], [Action::Attach { .. }, Action::Welcome { .. }]));
}

fn taken(daemon: &mut Machine, n: u64) {
    (0..2).for_each(|engine| assert!(daemon.on_taken(client(n), engine, Ok(()))));
}

fn leaves(daemon: &mut Machine, n: u64) {
    daemon.handle_gone(client(n));
    (0..2).for_each(|engine| daemon.on_program_gone(client(n), engine));
}

fn asks(daemon: &mut Machine, n: u64, request: Request) -> Result<Option<Request>, String> {
    daemon.handle_request(Time(1), client(n), request, &mut Numbers(0))
}

fn actions(daemon: &mut Machine) -> Vec<Action<(), ()>> {
    std::iter::from_fn(|| daemon.poll_action(Time(1))).collect()
}

fn linked(daemon: &mut Machine, instance: u64) -> LinkId {
    let link = LinkId(IN.0 + instance);
    linked_noting(daemon, instance);
    link
}

fn meets(daemon: &mut Machine, n: u64, end: TcpEnd, (local, peer): (SocketAddr, SocketAddr)) {
    let facts = Ok(SocketFacts { local, peer, namespace: Some(1) });
    daemon.handle_meet(Time(1), client(n), (1, end), facts, &mut Numbers(0)).unwrap();
}

fn told(actions: &[Action<(), ()>]) -> Vec<MeetMessage> {
    let of = |action: &Action<(), ()>| match action {
        Action::Link(LinkCommand::Send { message: PeerMessage::Meet(message), .. }) => Some(*message),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

fn met(actions: &[Action<(), ()>]) -> Vec<(ClientId, Result<(), Reason>)> {
    let of = |action: &Action<(), ()>| match action {
        Action::Reply { client, reply: Reply::Met { result, .. }, .. } => Some((*client, result.map(drop))),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn the_end_of_a_link_ends_meetings_and_that_of_a_lane_does_not() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let link = linked(&mut daemon, 8);
    meets(&mut daemon, 1, TcpEnd::Connected, (at(OWN, 4000), at(PEER, 80)));
    assert!(matches!(told(&actions(&mut daemon))[..], [MeetMessage::Ask { .. }]));
    daemon.on_lane_failed(Time(1), ip(PEER), DATAGRAM_ENGINE, Reason::Closed);
    assert_eq!((met(&actions(&mut daemon)), daemon.meetings()), (vec![], 1));
    // The peer's daemon comes again, before its link of before is seen to be over.
    let next = linked_noting(&mut daemon, 9);
    assert_eq!((met(&next), daemon.meetings()), (vec![(client(1), Err(Reason::PeerLost))], 0));
    daemon.handle_down(Time(1), link, Reason::PeerLost);
    assert_eq!(met(&actions(&mut daemon)), []);
}

/// As [`linked`], with what came of it.
fn linked_noting(daemon: &mut Machine, instance: u64) -> Vec<Action<(), ()>> {
    let link = LinkId(IN.0 + instance);
    let hello = Identity::new(instance, ip(PEER), 2, [0; 32]);
    daemon.handle_hello(Time(1), link, ip(PEER), hello);
    daemon.handle_up(Time(1), link, hello, None);
    actions(daemon)
}

#[test]
fn an_engine_is_asked_nothing_of_a_program_that_it_does_not_have() {
    let mut daemon = daemon(Encrypt::Off);
    comes(&mut daemon, 1).unwrap();
    let path = || Request::DatagramPath { request: 3, to: ip(PEER) };
    assert!(asks(&mut daemon, 1, path()).is_err(), "not all engines have it");
    taken(&mut daemon, 1);
    assert!(matches!(asks(&mut daemon, 1, path()), Ok(None)));
    assert!(matches!(asks(&mut daemon, 1, Request::CancelConnect { request: 4 }), Ok(None)));
    let engines: Vec<u32> = actions(&mut daemon)
        .iter()
        .filter_map(|action| if let Action::Program { engine, .. } = action { Some(*engine) } else { None })
        .collect();
    assert_eq!(engines, [DATAGRAM_ENGINE, 0, 1], "the path, and the connect at each");
    daemon.handle_gone(client(1));
    assert!(asks(&mut daemon, 1, path()).is_err());
    assert!(actions(&mut daemon).is_empty());
    // What is for a driver comes back.
    attached(&mut daemon, 2);
    let meet = Request::Meet { request: 5, end: TcpEnd::Connected };
    assert!(matches!(asks(&mut daemon, 2, meet), Ok(Some(Request::Meet { .. }))));
}

#[test]
fn a_connect_of_another_host_finds_no_program_that_is_on_its_way_out() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let port = Request::Listen { request: 4, port: 80, backlog: 9, ring_bytes: 0, kind: Kind::Stream };
    asks(&mut daemon, 1, port).unwrap();
    let asked =
        crate::ConnectRequest { engine: 1, from: ip(PEER), to_port: 80, kind: Kind::Stream.code(), ring_bytes: 4096 };
    assert!(daemon.on_connect_request(&asked).is_ok());
    assert_eq!(daemon.admission().connections(), 1);
    // A daemon forgets that the engines have it before its ports are free.
    let stage = daemon.attaching(client(1), false);
    daemon.programs.get_mut(&client(1)).unwrap().stage = stage;
    assert_eq!(daemon.on_connect_request(&asked).err(), Some(Reason::NoListener));
    assert_eq!(daemon.admission().connections(), 1, "its number is given back");
}

#[test]
fn another_host_hears_of_no_share_that_is_not_its_own() {
    let mut daemon = daemon(Encrypt::Off);
    let rights = Rights { connections_max: Some(0), ..Rights::default() };
    daemon.set_policy(Policy::new(Vec::new(), rights).unwrap());
    attached(&mut daemon, 1);
    let port = Request::Listen { request: 4, port: 80, backlog: 9, ring_bytes: 0, kind: Kind::Stream };
    asks(&mut daemon, 1, port).unwrap();
    let kind = Kind::Stream.code();
    let asked = crate::ConnectRequest { engine: 1, from: ip(PEER), to_port: 80, kind, ring_bytes: 4096 };
    assert_eq!(daemon.on_connect_request(&asked).err(), Some(Reason::PeerLimit));
    let unheard = crate::ConnectRequest { to_port: 81, ..asked };
    assert_eq!(daemon.on_connect_request(&unheard).err(), Some(Reason::NoListener));
}

#[test]
fn no_stream_gets_a_connection_in_the_clear_that_it_may_not_have() {
    use Encrypt::{Off, Preferred, Required};
    let kept = [(Preferred, true, false), (Required, true, false), (Off, false, false), (Off, true, true)];
    let kept = kept.map(|(encrypt, makes, several_paths)| (encrypt, makes, several_paths, false));
    for (encrypt, makes, several_paths, is_offered) in kept.into_iter().chain([(Off, true, false, true)]) {
        let mut daemon = daemon(encrypt);
        daemon.hosts.makes_directs = makes;
        daemon.hosts.several_paths.extend(several_paths.then(|| ip(PEER)));
        attached(&mut daemon, 1);
        let link = linked(&mut daemon, 8);
        let of =
            BulkOf { client: client(1), uid: 1000, connection: 5, slot: 0, peer: ip(PEER), lane: 0, peer_route: 3 };
        // The lower address offers.
        daemon.on_bulk(of, &mut Numbers(0));
        let offers = actions(&mut daemon);
        let asked =
            offers.iter().any(|a| matches!(a, Action::Link(LinkCommand::Send { .. }) | Action::AskRoute { .. }));
        assert_eq!(asked, is_offered, "{encrypt:?}: {offers:?}");
        let offer = PeerMessage::DirectOffer { number: 1, token: [1; CHALLENGE], lane: 0, route: 3 };
        daemon.handle_message(Time(1), link, offer);
        let refused = |a: &Action<(), ()>| {
            matches!(
                a,
                Action::Link(LinkCommand::Send {
                    message: PeerMessage::DirectRefused { reason: Reason::DirectOff, .. },
                    ..
                })
            )
        };
        assert_eq!(actions(&mut daemon).iter().any(refused), !is_offered, "{encrypt:?}");
    }
}

#[test]
fn a_connection_of_one_host_that_comes_to_nothing_gives_its_place_in_the_backlog_back() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    attached(&mut daemon, 2);
    let port = Request::Listen { request: 1, port: 80, backlog: 1, ring_bytes: 0, kind: Kind::Stream };
    asks(&mut daemon, 1, port).unwrap();
    actions(&mut daemon);
    let mut tries = |request| {
        asks(&mut daemon, 2, Request::Connect { request, to: at(OWN, 80), ring_bytes: 0, kind: Kind::Stream }).unwrap();
        let asked = actions(&mut daemon);
        // Neither has a descriptor for its segment.
        for action in asked {
            let Action::Reply { client, reply: Reply::PairSegmentWanted { pair, index, .. }, .. } = action else {
                continue;
            };
            daemon.on_segment_lost(client, pair, index);
        }
        let refusal = actions(&mut daemon).into_iter().find_map(|action| match action {
            Action::Reply { reply: Reply::Connected { result: Err(reason), .. }, .. } => Some(reason),
            _ => None,
        });
        refusal.expect("it is refused")
    };
    let first = tries(1);
    assert_ne!(first, Reason::BacklogFull);
    assert_eq!(tries(2), first, "the place is free again");
}

#[test]
fn a_connect_that_is_given_up_frees_its_place_and_is_no_engines() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    attached(&mut daemon, 2);
    let port = Request::Listen { request: 1, port: 80, backlog: 1, ring_bytes: 0, kind: Kind::Stream };
    asks(&mut daemon, 1, port).unwrap();
    for request in [1, 2] {
        asks(&mut daemon, 2, Request::Connect { request, to: at(OWN, 80), ring_bytes: 0, kind: Kind::Stream }).unwrap();
        asks(&mut daemon, 2, Request::CancelConnect { request }).unwrap();
        let after = actions(&mut daemon);
        let is_wrong = |a: &Action<(), ()>| {
            let is_refusal = matches!(a, Action::Reply { reply: Reply::Connected { .. }, .. });
            is_refusal || matches!(a, Action::Program { .. })
        };
        assert!(!after.iter().any(is_wrong), "{after:?}");
    }
}

fn pair_row(daemon: &Machine) -> control::ConnectionRow {
    let (mut rows, _) = daemon.pairs().rows(|_| true, 0, 9);
    let (_, mut row) = rows.remove(0);
    daemon.own_ends().put_into([&mut row]);
    row
}

#[test]
fn a_row_says_whether_its_connection_was_taken_and_what_the_program_calls_its_ends() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    attached(&mut daemon, 2);
    let port = Request::Listen { request: 1, port: 80, backlog: 1, ring_bytes: 0, kind: Kind::Stream };
    asks(&mut daemon, 1, port).unwrap();
    let connect = Request::Connect { request: 2, to: at(OWN, 80), ring_bytes: 4096, kind: Kind::Stream };
    asks(&mut daemon, 2, connect).unwrap();
    let mut taken = None;
    for action in actions(&mut daemon) {
        let Action::Reply { client, reply: Reply::PairSegmentWanted { pair, index, slots, ring_bytes }, .. } = action
        else {
            continue;
        };
        assert_eq!(daemon.expects_segment(client, pair, index, (slots, ring_bytes)), Ok(true));
        let bytes = usize::try_from(shm::Pair::bytes(slots, ring_bytes)).unwrap();
        let view = shm::Pair::format(shm::Region::anonymous(bytes).unwrap(), slots, ring_bytes).unwrap();
        daemon.handle_segment(pair, index, (), view);
    }
    for action in actions(&mut daemon) {
        if let Action::Started { incoming: Reply::Incoming { connection, .. }, .. } = action {
            taken = Some(connection.id);
        }
    }
    let taken = taken.expect("both have made their segments");
    assert_eq!(pair_row(&daemon).state, control::ConnectionState::Backlog);
    asks(&mut daemon, 1, Request::Accepted { port: 80, connection: taken }).unwrap();
    let row = pair_row(&daemon);
    assert_eq!(row.state, control::ConnectionState::Established);
    let proof = MeetProof::Stream { connection: row.id, local: at(OWN, 4000), peer: at(OWN, 443) };
    asks(&mut daemon, row.app_pid.into(), Request::MeetProof { request: 9, proof }).unwrap();
    let named = pair_row(&daemon);
    assert_eq!((named.local, named.peer), (at(OWN, 4000), at(OWN, 443)));
    asks(&mut daemon, row.app_pid.into(), Request::Unmeet { request: 9 }).unwrap();
    assert_eq!((pair_row(&daemon).local, pair_row(&daemon).peer), (row.local, row.peer));
}

fn rows(daemon: &Machine) -> Vec<Reason> {
    daemon.fallbacks().rows(|_| true, 0, 9).0.iter().map(|(_, row)| row.reason).collect()
}

#[test]
fn a_connection_has_a_row_until_it_is_a_stream() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    attached(&mut daemon, 2);
    meets(&mut daemon, 1, TcpEnd::Connected, (at(OWN, 4000), at(OWN, 80)));
    assert_eq!(met(&actions(&mut daemon)), []);
    assert_eq!(rows(&daemon), [Reason::NotMet]);
    meets(&mut daemon, 2, TcpEnd::Accepted(Rendezvous { port: 1, token: 2 }), (at(OWN, 80), at(OWN, 4000)));
    assert_eq!(met(&actions(&mut daemon)).len(), 2);
    assert_eq!(rows(&daemon), []);
}

#[test]
fn an_end_that_asks_a_host_whose_link_is_gone_stays_on_tcp() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    meets(&mut daemon, 1, TcpEnd::Connected, (at(OWN, 4000), at(PEER, 80)));
    actions(&mut daemon);
    // The engine has a lane, and by the time that its word comes there is no link any more.
    daemon.on_path(Time(1), client(1), 1, Ok(1));
    assert_eq!(met(&actions(&mut daemon)), [(client(1), Err(Reason::PeerLost))]);
    assert_eq!((daemon.meetings(), rows(&daemon)), (0, vec![Reason::PeerLost]));
}

#[test]
fn programs_stay_on_tcp_where_it_is_faster_and_the_only_path() {
    for (encrypt, paths, stays) in
        [(Encrypt::Off, &[][..], true), (Encrypt::Off, &[1, 101], false), (Encrypt::Required, &[], false)]
    {
        let mut daemon = daemon_with(encrypt, paths);
        daemon.tcp_is_faster = true;
        attached(&mut daemon, 1);
        let link = linked(&mut daemon, 8);
        meets(&mut daemon, 1, TcpEnd::Accepted(Rendezvous { port: 1, token: 2 }), (at(OWN, 80), at(PEER, 4000)));
        actions(&mut daemon);
        let ask = MeetMessage::Ask { number: 1, from: at(PEER, 4000), to: at(OWN, 80) };
        daemon.handle_message(Time(1), link, PeerMessage::Meet(ask));
        let expected = if stays { Err(Reason::PolledTcp) } else { Ok(()) };
        assert_eq!(met(&actions(&mut daemon)), [(client(1), expected)], "{encrypt:?}, {paths:?}");
    }
}

#[test]
fn another_path_is_sought_where_a_peer_falls_silent() {
    let mut daemon = daemon_with(Encrypt::Off, &[1, 101]);
    let link = linked(&mut daemon, 8);
    daemon.handle_silent(Time(1), link, Duration::from_secs(1));
    assert!(actions(&mut daemon).iter().any(|a| matches!(a, Action::Link(LinkCommand::Dial { .. }))));
}

const CHALLENGE: usize = control::CHALLENGE_BYTES;
const KEY: RegionKey = RegionKey::new([3; 16]);

fn spec(name: &str) -> RegionSpec {
    let (bytes, access) = (4096, RegionAccess::READ);
    let (huge_pages, outlives, other_users, single_writer) = (false, false, false, false);
    RegionSpec { name: name.into(), bytes, access, key: KEY, huge_pages, outlives, other_users, single_writer }
}

#[test]
fn a_policy_takes_regions_away_from_what_is_asked_then() {
    let mut daemon = daemon(Encrypt::Off);
    attached(&mut daemon, 1);
    let create = |request, name: &str| Request::RegionCreate { request, spec: spec(name) };
    asks(&mut daemon, 1, create(1, "a")).unwrap();
    assert!(actions(&mut daemon).iter().any(|a| matches!(a, Action::Memory(MemoryCommand::Make { .. }))));
    for regions in [RegionRight::None, RegionRight::Open] {
        let policy = Policy::new(Vec::new(), Rights { regions, ..Rights::default() }).unwrap();
        daemon.set_policy(policy);
        actions(&mut daemon);
        asks(&mut daemon, 1, create(2, "b")).unwrap();
        let refused = actions(&mut daemon);
        let is_refused = matches!(
            &refused[..],
            [Action::Reply {
                reply: Reply::RegionOpened { request: 2, result: Err(RegionRefusal::Reason(Reason::Policy)) },
                ..
            }]
        );
        assert!(is_refused, "{refused:?}");
    }
}

/// Random inputs of everybody, as often as somebody likes: after each the machine comes to rest, and when all programs
/// and links are gone nothing is left.
#[test]
fn whatever_comes_in_whatever_order_it_settles() {
    for seed in 0..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut daemon = daemon(Encrypt::Off);
        let mut links = BTreeSet::new();
        for step in 0..300 {
            let n = draw(4);
            let program = daemon.party(client(n)).is_some();
            match draw(14) {
                0 if !program && comes(&mut daemon, n).is_ok() => {
                    for engine in 0..2 {
                        let result = if draw(20) == 0 { Err(Reason::LocalLimit) } else { Ok(()) };
                        daemon.on_taken(client(n), engine, result);
                    }
                }
                1 if program => {
                    leaves(&mut daemon, n);
                }
                2 => {
                    let instance = 8 + draw(3);
                    let link = LinkId(IN.0 + step * 16 + instance);
                    let hello = Identity::new(instance, ip(PEER + draw(3) as u8), 2, [0; 32]);
                    if daemon.handle_hello(Time(1), link, hello.address, hello) == crate::Verdict::Proceed {
                        daemon.handle_up(Time(1), link, hello, None);
                        links.insert(link);
                    }
                }
                3 => {
                    if let Some(link) = links.pop_first() {
                        daemon.handle_down(Time(1), link, Reason::PeerLost);
                    }
                }
                4 => {
                    let reasons = [Reason::Closed, Reason::LocalLimit, Reason::LaneFailed];
                    let lane = [0, 1, control::LEASED_LANE_FIRST][draw(3) as usize];
                    daemon.on_lane_failed(Time(1), ip(PEER + draw(3) as u8), lane, reasons[draw(3) as usize]);
                }
                5..=7 if program => {
                    let peer = at(PEER + draw(3) as u8, 80 + draw(3) as u16);
                    let own = at(OWN, 4000 + draw(3) as u16);
                    let (end, ends) = match draw(3) {
                        0 => (TcpEnd::Connected, (own, peer)),
                        1 => (TcpEnd::Connected, (own, at(OWN, peer.port()))),
                        _ => (TcpEnd::Accepted(Rendezvous { port: 1, token: step }), (at(OWN, peer.port()), own)),
                    };
                    let namespace = Some(1 + draw(3));
                    let facts = Ok(SocketFacts { local: ends.0, peer: ends.1, namespace });
                    let met = (draw(50), end);
                    // One of the same number twice is a fault of the program.
                    let _ = daemon.handle_meet(Time(1), client(n), met, facts, &mut Numbers(step << 8));
                }
                8 if program => {
                    let proof = match draw(3) {
                        0 => MeetProof::Port(5),
                        1 => MeetProof::Heard(draw(400) << 8 | 1),
                        _ => MeetProof::Stream { connection: 1, local: at(OWN, 1), peer: at(OWN, 2) },
                    };
                    let _ = asks(&mut daemon, n, Request::MeetProof { request: draw(50), proof });
                }
                9 if program => {
                    let _ = asks(&mut daemon, n, Request::Unmeet { request: draw(50) });
                }
                10 => {
                    let message = match draw(3) {
                        0 => {
                            let (from, to) = (at(PEER, 4000 + draw(3) as u16), at(OWN, 80 + draw(3) as u16));
                            MeetMessage::Ask { number: draw(9), from, to }
                        }
                        1 => MeetMessage::Withdraw { number: draw(9) },
                        _ => MeetMessage::Answer { number: draw(9), result: Ok(Rendezvous { port: 2, token: 3 }) },
                    };
                    if let Some(link) = links.last() {
                        daemon.handle_message(Time(1), *link, PeerMessage::Meet(message));
                    }
                }
                11 if program => {
                    let (key, name) = (KEY, format!("r{}", draw(2)));
                    let request = match draw(3) {
                        0 => {
                            let spec = spec(&name);
                            Request::RegionCreate { request: step, spec }
                        }
                        1 => Request::RegionOpen {
                            request: step,
                            host: ip(OWN + draw(3) as u8),
                            name,
                            key,
                            access: RegionAccess::READ,
                            lease: None,
                            leased_lane: draw(2) == 0,
                        },
                        _ => Request::RegionRevoke { request: step, name, key, new_key: None },
                    };
                    let _ = asks(&mut daemon, n, request);
                }
                12 if program => {
                    let result = if draw(2) == 0 { Ok(1) } else { Err(Reason::PeerUnreachable) };
                    daemon.on_path(Time(1), client(n), draw(50), result);
                }
                _ => daemon.handle_timeout(Time(step)),
            }
            let settled = settle(&mut daemon, &mut draw);
            assert!(settled.is_ok(), "seed {seed}, step {step}: {settled:?}");
        }
        for n in 0..4 {
            leaves(&mut daemon, n);
        }
        links.into_iter().for_each(|link| daemon.handle_down(Time(1), link, Reason::PeerLost));
        settle(&mut daemon, &mut draw).unwrap();
        assert_eq!(daemon.meetings(), 0, "seed {seed}");
        assert_eq!(daemon.foreign_handles(), 0, "seed {seed}");
        assert_eq!(daemon.fallbacks().rows(|_| true, 0, 9).0.len(), 0, "seed {seed}");
        assert_eq!(daemon.admission().connections(), 0, "seed {seed}");
    }
}
