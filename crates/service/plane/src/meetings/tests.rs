//! Both ends of connections meet, in every order, or learn why not. The test plays the daemons between them.

use control::MeetStep;

use super::*;

fn party(client: u64) -> Party {
    Party { client: ClientId(client), pid: 1, uid: 1000 }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn here() -> Meetings {
    Meetings::new(vec!["10.0.0.1".parse().unwrap()], "10.0.0.1".parse().unwrap())
}

fn own(end: TcpEnd, local: SocketAddr, peer: SocketAddr) -> MeetingEnd {
    MeetingEnd { end, local, peer, foreign: None }
}

/// The words are counted: which of two is meant, the test says by them.
fn word() -> u64 {
    thread_local!(static LAST: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
    LAST.set(LAST.get() + 1);
    LAST.get()
}

const NOW: Time = Time::ZERO;
const AT: Rendezvous = Rendezvous { port: 40_000, token: 77 };

fn replies(meetings: &mut Meetings) -> Vec<(u64, u64, Result<MeetingPlace, Reason>)> {
    let mut all = Vec::new();
    while let Some(action) = meetings.poll_action() {
        if let MeetingAction::Send { client, reply: Reply::Met { request, result } } = action {
            all.push((client.0, request, result));
        }
    }
    all
}

fn told(meetings: &mut Meetings) -> Vec<MeetMessage> {
    std::iter::from_fn(|| meetings.poll_action())
        .filter_map(|action| match action {
            MeetingAction::Tell { message, .. } => Some(message),
            _ => None,
        })
        .collect()
}

#[test]
fn two_ends_of_one_host_meet_in_either_order() {
    let (server, client) = (address("10.0.0.1:80"), address("10.0.0.1:5555"));
    for accepted_first in [true, false] {
        let mut meetings = here();
        let accept =
            |m: &mut Meetings| m.handle_meet(NOW, party(1), (7, own(TcpEnd::Accepted(AT), server, client)), &mut word);
        let connect =
            |m: &mut Meetings| m.handle_meet(NOW, party(2), (9, own(TcpEnd::Connected, client, server)), &mut word);
        if accepted_first { accept(&mut meetings) } else { connect(&mut meetings) }.unwrap();
        assert_eq!(replies(&mut meetings), [], "one end waits");
        if accepted_first { connect(&mut meetings) } else { accept(&mut meetings) }.unwrap();
        let place = MeetingPlace { at: address("10.0.0.1:40000"), token: 77 };
        assert_eq!(replies(&mut meetings), [(1, 7, Ok(place)), (2, 9, Ok(place))]);
        assert_eq!(meetings.count(), 0);
    }
}

#[test]
fn two_ends_at_the_loopback_address_of_ipv6_meet_at_every_daemon() {
    for at in ["10.0.0.1", "127.0.0.1", "127.0.0.60"].map(|at| at.parse().unwrap()) {
        let mut meetings = Meetings::new(vec![at], at);
        let (server, client) = (address("[::1]:80"), address("[::1]:5555"));
        meetings.handle_meet(NOW, party(1), (7, own(TcpEnd::Accepted(AT), server, client)), &mut word).unwrap();
        meetings.handle_meet(NOW, party(2), (9, own(TcpEnd::Connected, client, server)), &mut word).unwrap();
        let place = MeetingPlace { at: SocketAddr::new(at, 40_000), token: 77 };
        assert_eq!(replies(&mut meetings), [(1, 7, Ok(place)), (2, 9, Ok(place))], "{at}");
    }
}

#[test]
fn an_end_that_stays_waits_for_nobody_and_says_why() {
    let mut meetings = here();
    let (server, client) = (address("10.0.0.1:80"), address("10.0.0.1:5555"));
    let stays = TcpEnd::Stays(Reason::KernelOption);
    meetings.handle_meet(NOW, party(1), (7, own(stays, server, client)), &mut word).unwrap();
    let row = MeetingAction::Stays { client: ClientId(1), request: 7, reason: Reason::KernelOption };
    assert_eq!(meetings.poll_action(), Some(row));
    assert_eq!(replies(&mut meetings), [(1, 7, Err(Reason::KernelOption))]);
    meetings.handle_meet(NOW, party(2), (9, own(TcpEnd::Connected, client, server)), &mut word).unwrap();
    assert_eq!((replies(&mut meetings), meetings.count()), (vec![], 1), "the other end waits");
}

#[test]
fn ends_of_different_connections_do_not_meet() {
    let mut meetings = here();
    let server = address("10.0.0.1:80");
    let meet = |m: &mut Meetings, end, request, local, peer| {
        m.handle_meet(NOW, party(1), (request, own(end, local, peer)), &mut word)
    };
    meet(&mut meetings, TcpEnd::Accepted(AT), 1, server, address("10.0.0.1:5555")).unwrap();
    meet(&mut meetings, TcpEnd::Connected, 2, address("10.0.0.1:5556"), server).unwrap();
    assert_eq!(replies(&mut meetings), []);
    meet(&mut meetings, TcpEnd::Connected, 2, address("10.0.0.1:5557"), server).unwrap_err();
    meetings.handle_unmeet(ClientId(1), 1);
    meet(&mut meetings, TcpEnd::Connected, 3, address("10.0.0.1:5555"), server).unwrap();
    assert_eq!(replies(&mut meetings), [], "the other end was withdrawn");
    meetings.handle_gone(ClientId(1));
    assert_eq!(meetings.count(), 0);
}

#[test]
fn two_hosts_meet_through_their_daemons() {
    let (mut a, mut b) = (here(), Meetings::new(vec!["10.0.0.2".parse().unwrap()], "10.0.0.2".parse().unwrap()));
    let (client, server) = (address("10.0.0.1:5555"), address("[::ffff:10.0.0.2]:80"));
    let (on_a, on_b): (IpAddr, IpAddr) = (client.ip(), "10.0.0.2".parse().unwrap());
    a.handle_meet(NOW, party(1), (5, own(TcpEnd::Connected, client, server)), &mut word).unwrap();
    assert_eq!(a.poll_action(), Some(MeetingAction::Path { client: ClientId(1), request: 5, host: on_b }));
    assert!(a.on_path(NOW, ClientId(1), 5, Ok(())));
    let ask = told(&mut a);
    b.handle_peer(on_a, ask[0], false);
    b.handle_meet(NOW, party(2), (6, own(TcpEnd::Accepted(AT), server, client)), &mut word).unwrap();
    let mut answer = Vec::new();
    while let Some(action) = b.poll_action() {
        if let MeetingAction::Tell { message, .. } = action {
            answer.push(message);
        }
    }
    assert_eq!(answer, [MeetMessage::Answer { number: 1, result: Ok(AT) }]);
    // Not the host that was asked.
    a.handle_peer("10.0.0.9".parse().unwrap(), answer[0], false);
    assert_eq!(replies(&mut a), []);
    a.handle_peer(on_b, answer[0], false);
    let place = MeetingPlace { at: address("10.0.0.2:40000"), token: 77 };
    assert_eq!(replies(&mut a), [(1, 5, Ok(place))]);
    assert_eq!((a.count(), b.count()), (0, 0));
}

#[test]
fn two_that_stay_on_tcp_both_learn_so_in_either_order() {
    let (client, server) = (address("10.0.0.5:5555"), address("10.0.0.1:80"));
    for asked_first in [true, false] {
        let mut b = here();
        let accept = |m: &mut Meetings| {
            m.handle_meet(NOW, party(2), (6, own(TcpEnd::Accepted(AT), server, client)), &mut word).unwrap();
        };
        let ask = |m: &mut Meetings| {
            m.handle_peer(client.ip(), MeetMessage::Ask { number: 3, from: client, to: server }, true);
        };
        if asked_first {
            ask(&mut b);
            accept(&mut b);
        } else {
            accept(&mut b);
            ask(&mut b);
        }
        let (mut answers, mut replied) = (Vec::new(), Vec::new());
        while let Some(action) = b.poll_action() {
            match action {
                MeetingAction::Tell { message, .. } => answers.push(message),
                MeetingAction::Send { reply, .. } => replied.push(reply),
                _ => {}
            }
        }
        assert_eq!(answers, [MeetMessage::Answer { number: 3, result: Err(Reason::PolledTcp) }]);
        assert_eq!(replied, [Reply::Met { request: 6, result: Err(Reason::PolledTcp) }]);
        assert_eq!(b.count(), 0);
    }
}

#[test]
fn a_daemon_speaks_for_its_own_host_alone() {
    let mut b = here();
    let (server, client) = (address("10.0.0.1:80"), address("10.0.0.5:5555"));
    b.handle_meet(NOW, party(1), (1, own(TcpEnd::Accepted(AT), server, client)), &mut word).unwrap();
    let ask = MeetMessage::Ask { number: 3, from: client, to: server };
    b.handle_peer("10.0.0.6".parse().unwrap(), ask, false);
    assert_eq!(told(&mut b), [MeetMessage::Answer { number: 3, result: Err(Reason::Policy) }]);
    b.handle_peer("10.0.0.5".parse().unwrap(), ask, false);
    assert_eq!(told(&mut b), [MeetMessage::Answer { number: 3, result: Ok(AT) }]);
}

#[test]
fn a_host_without_a_daemon_is_remembered_for_a_while() {
    let mut a = here();
    let (client, server) = (address("192.0.2.1:5555"), address("192.0.2.2:80"));
    let meet = |m: &mut Meetings, now, request| {
        m.handle_meet(now, party(1), (request, own(TcpEnd::Connected, client, server)), &mut word)
    };
    meet(&mut a, NOW, 1).unwrap();
    assert!(a.on_path(NOW, ClientId(1), 1, Err(Reason::PeerUnreachable)));
    assert_eq!(replies(&mut a), [(1, 1, Err(Reason::PeerUnreachable))]);
    meet(&mut a, NOW + ABSENT / 2, 2).unwrap();
    assert_eq!(replies(&mut a), [(1, 2, Err(Reason::PeerUnreachable))], "without a dial");
    meet(&mut a, NOW + ABSENT, 3).unwrap();
    assert!(matches!(a.poll_action(), Some(MeetingAction::Path { .. })));
}

#[test]
fn what_is_lost_is_answered_and_forgotten() {
    let mut a = here();
    let (client, server) = (address("10.0.0.1:5555"), address("10.0.0.2:80"));
    a.handle_meet(NOW, party(1), (1, own(TcpEnd::Connected, client, server)), &mut word).unwrap();
    a.on_path(NOW, ClientId(1), 1, Ok(()));
    let (from, to) = (address("10.0.0.2:1"), address("10.0.0.1:2"));
    a.handle_peer(server.ip(), MeetMessage::Ask { number: 1, from, to }, false);
    assert_eq!(a.count(), 2);
    a.handle_peer_gone(server.ip(), Reason::PeerLost);
    assert_eq!(replies(&mut a), [(1, 1, Err(Reason::PeerLost))]);
    assert_eq!(a.count(), 0);
}

#[test]
fn one_program_cannot_fill_the_tables() {
    let mut a = here();
    let local = address("10.0.0.1:80");
    let peer = |n: u64| SocketAddr::new("10.0.0.3".parse().unwrap(), u16::try_from(n + 1).unwrap());
    for n in 0..MEETINGS_PER_PROGRAM_MAX as u64 {
        a.handle_meet(NOW, party(1), (n, own(TcpEnd::Accepted(AT), local, peer(n))), &mut word).unwrap();
    }
    assert_eq!(replies(&mut a), []);
    let next = MEETINGS_PER_PROGRAM_MAX as u64;
    a.handle_meet(NOW, party(1), (next, own(TcpEnd::Accepted(AT), local, peer(next))), &mut word).unwrap();
    assert_eq!(replies(&mut a), [(1, next, Err(Reason::LocalLimit))]);
}

#[test]
fn one_daemon_cannot_fill_the_tables_and_gets_its_places_back() {
    let mut a = here();
    let peer: IpAddr = "10.0.0.3".parse().unwrap();
    let max = MEETINGS_PER_ASKER_MAX as u64;
    let ask = |number: u64| {
        let from = SocketAddr::new(peer, u16::try_from(number % 60_000 + 1).unwrap());
        let to = address(if number < 60_000 { "10.0.0.1:80" } else { "10.0.0.1:81" });
        MeetMessage::Ask { number, from, to }
    };
    (0..max).for_each(|n| a.handle_peer(peer, ask(n), false));
    assert_eq!((told(&mut a), a.count()), (vec![], MEETINGS_PER_ASKER_MAX));
    a.handle_peer(peer, ask(max), false);
    assert_eq!(told(&mut a), [MeetMessage::Answer { number: max, result: Err(Reason::PeerLimit) }]);
    // By withdrawing, by meeting, and by a link that is gone.
    a.handle_peer(peer, MeetMessage::Withdraw { number: 0 }, false);
    a.handle_meet(
        NOW,
        party(1),
        (1, own(TcpEnd::Accepted(AT), address("10.0.0.1:80"), SocketAddr::new(peer, 2))),
        &mut word,
    )
    .unwrap();
    assert_eq!(told(&mut a), [MeetMessage::Answer { number: 1, result: Ok(AT) }]);
    (max..max + 3).for_each(|n| a.handle_peer(peer, ask(n), false));
    assert_eq!(told(&mut a), [MeetMessage::Answer { number: max + 2, result: Err(Reason::PeerLimit) }]);
    a.handle_peer_gone(peer, Reason::PeerLost);
    (0..max).for_each(|n| a.handle_peer(peer, ask(n), false));
    assert_eq!((told(&mut a), a.count()), (vec![], MEETINGS_PER_ASKER_MAX));
}

/// Two ends in namespaces of their own; each end's program plays what it is told by `routes`: where a word to the other
/// end's address comes out.
fn container(end: TcpEnd, local: &str, peer: &str, foreign: u64) -> MeetingEnd {
    MeetingEnd { end, local: address(local), peer: address(peer), foreign: Some(foreign) }
}

fn steps(meetings: &mut Meetings) -> Vec<(u64, MeetStep)> {
    std::iter::from_fn(|| meetings.poll_action())
        .filter_map(|action| match action {
            MeetingAction::Send { client, reply: Reply::MeetStep { step, .. } } => Some((client.0, step)),
            _ => None,
        })
        .collect()
}

const CLIENT: &str = "10.1.0.2:5555";
const SERVER: &str = "10.1.0.3:80";

fn meet(meetings: &mut Meetings, party: Party, end: MeetingEnd) {
    meetings.handle_meet(NOW, party, (1, end), &mut word).unwrap();
}

/// Both say their ports; the words that the end that connected and the one that accepted are to send.
fn open(meetings: &mut Meetings, connected: u64, accepted: u64) -> [u64; 2] {
    let mut asked = steps(meetings);
    asked.sort_by_key(|(client, _)| *client);
    let mut both = [connected, accepted].map(|client| (client, MeetStep::Open));
    both.sort_by_key(|(client, _)| *client);
    assert_eq!(asked, both);
    meetings.handle_proof(ClientId(connected), 1, MeetProof::Port(1001), &mut word);
    assert_eq!(steps(meetings), [], "the other end cannot hear yet");
    meetings.handle_proof(ClientId(accepted), 1, MeetProof::Port(1002), &mut word);
    let [(a, MeetStep::Send { port: 1002, word: to_accepted }), (b, MeetStep::Send { port: 1001, word: to_connected })] =
        steps(meetings)[..]
    else {
        panic!("each sends to the other's port")
    };
    assert_eq!([a, b], [connected, accepted]);
    [to_accepted, to_connected]
}

fn hears(meetings: &mut Meetings, client: u64, word_heard: u64) {
    meetings.handle_proof(ClientId(client), 1, MeetProof::Heard(word_heard), &mut word);
}

#[test]
fn ends_in_two_namespaces_meet_when_each_has_heard_the_other() {
    for (accepted_first, foreign) in [(true, [Some(7), Some(8)]), (false, [Some(7), None]), (true, [None, Some(8)])] {
        let mut meetings = here();
        let mut client = container(TcpEnd::Connected, CLIENT, SERVER, 0);
        let mut server = container(TcpEnd::Accepted(AT), SERVER, CLIENT, 0);
        [client.foreign, server.foreign] = foreign;
        let (first, second) = if accepted_first { ((2, server), (1, client)) } else { ((1, client), (2, server)) };
        meet(&mut meetings, party(first.0), first.1);
        let made: Vec<_> = std::iter::from_fn(|| meetings.poll_action()).collect();
        assert!(!made.iter().any(|action| matches!(action, MeetingAction::Send { .. })), "{made:?}");
        meet(&mut meetings, party(second.0), second.1);
        let [to_accepted, to_connected] = open(&mut meetings, 1, 2);
        hears(&mut meetings, 2, to_accepted);
        assert_eq!(replies(&mut meetings), [], "one of them alone proves nothing to the other");
        hears(&mut meetings, 1, to_connected);
        let place = MeetingPlace { at: address("10.0.0.1:40000"), token: 77 };
        assert_eq!(replies(&mut meetings), [(2, 1, Ok(place)), (1, 1, Ok(place))]);
        assert_eq!(meetings.count(), 0);
    }
}

#[test]
fn ends_of_one_foreign_namespace_meet_at_once_and_no_others() {
    let mut meetings = here();
    meet(&mut meetings, Party { uid: 1, ..party(1) }, container(TcpEnd::Connected, CLIENT, SERVER, 7));
    meet(&mut meetings, Party { uid: 2, ..party(2) }, container(TcpEnd::Accepted(AT), SERVER, CLIENT, 7));
    let place = MeetingPlace { at: address("10.0.0.1:40000"), token: 77 };
    assert_eq!(replies(&mut meetings), [(2, 1, Ok(place)), (1, 1, Ok(place))]);
}

/// Who makes a namespace gives it the addresses of others, and a connection between them.
#[test]
fn a_namespace_with_the_addresses_of_another_gets_nothing_and_is_in_nobodys_way() {
    let mut meetings = here();
    let server = container(TcpEnd::Accepted(AT), SERVER, CLIENT, 8);
    meet(&mut meetings, party(9), MeetingEnd { foreign: Some(9), ..server });
    meet(&mut meetings, party(1), container(TcpEnd::Connected, CLIENT, SERVER, 7));
    let [to_liar, to_client] = open(&mut meetings, 1, 9);
    // It knows the word that it is to send, and which it should have heard it does not.
    hears(&mut meetings, 9, to_client);
    hears(&mut meetings, 1, to_client);
    assert_eq!(replies(&mut meetings), []);
    // The true end comes.
    meet(&mut meetings, party(2), server);
    assert_eq!(steps(&mut meetings), [(2, MeetStep::Open)]);
    meetings.handle_proof(ClientId(2), 1, MeetProof::Port(1002), &mut word);
    let [(1, MeetStep::Send { word: first, .. }), (2, MeetStep::Send { word: second, .. })] = steps(&mut meetings)[..]
    else {
        panic!("each sends")
    };
    assert!(first != to_liar && second != to_client);
    hears(&mut meetings, 1, second);
    hears(&mut meetings, 2, first);
    assert_eq!(replies(&mut meetings).len(), 2);
    // Who guesses is heard no more.
    (0..9).for_each(|guess| hears(&mut meetings, 9, guess));
    assert_eq!(replies(&mut meetings), [(9, 1, Err(Reason::ForeignSocket))]);
    assert_eq!(meetings.count(), 0);
}

#[test]
fn ends_of_two_users_in_two_namespaces_do_not_meet_and_say_why() {
    let mut meetings = here();
    meet(&mut meetings, Party { uid: 1, ..party(1) }, container(TcpEnd::Connected, CLIENT, SERVER, 7));
    let server = MeetingEnd { foreign: None, ..container(TcpEnd::Accepted(AT), SERVER, CLIENT, 0) };
    meet(&mut meetings, Party { uid: 2, ..party(2) }, server);
    let mut said = BTreeMap::new();
    while let Some(action) = meetings.poll_action() {
        match action {
            MeetingAction::Stays { client, reason, .. } => said.insert(client.0, reason),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(said, BTreeMap::from([(1, Reason::ForeignSocket), (2, Reason::ForeignSocket)]));
}

#[test]
fn an_end_that_goes_takes_its_proofs_along() {
    let mut meetings = here();
    meet(&mut meetings, party(1), container(TcpEnd::Connected, CLIENT, SERVER, 7));
    let server = container(TcpEnd::Accepted(AT), SERVER, CLIENT, 8);
    meet(&mut meetings, party(2), server);
    let [to_accepted, to_connected] = open(&mut meetings, 1, 2);
    meetings.handle_gone(ClientId(2));
    hears(&mut meetings, 2, to_accepted);
    hears(&mut meetings, 1, to_connected);
    assert_eq!((replies(&mut meetings), meetings.count()), (vec![], 1));
    // A process that got the connection by fork, say.
    meet(&mut meetings, party(3), server);
    assert_eq!(steps(&mut meetings), [(3, MeetStep::Open)]);
    meetings.handle_proof(ClientId(3), 1, MeetProof::Port(1003), &mut word);
    assert_eq!(steps(&mut meetings).len(), 2);
}

#[test]
fn a_connection_to_a_private_address_without_a_daemon_waits_for_a_namespace() {
    let mut meetings = here();
    let client = MeetingEnd { foreign: None, ..container(TcpEnd::Connected, "10.1.0.1:5555", SERVER, 0) };
    meet(&mut meetings, party(1), client);
    assert!(meetings.on_path(NOW, ClientId(1), 1, Err(Reason::PeerUnreachable)));
    assert_eq!(replies(&mut meetings), []);
    // And while it is known that there is none.
    meet(&mut meetings, party(2), MeetingEnd { local: address("10.1.0.1:5556"), ..client });
    assert_eq!(replies(&mut meetings), []);
    meet(&mut meetings, party(3), container(TcpEnd::Accepted(AT), SERVER, "10.1.0.1:5555", 8));
    assert_eq!(steps(&mut meetings).len(), 2);
    meetings.handle_gone(ClientId(1));
    meetings.handle_gone(ClientId(2));
    meetings.handle_gone(ClientId(3));
    assert_eq!(meetings.count(), 0);
}
