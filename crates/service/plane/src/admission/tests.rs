//! Ports, backlogs, numbers and shares as programs, other hosts and the engine meet them.

use super::*;
use crate::policy::{Rights, Selector, Tenant};

const ROOT: u32 = 0;
const USER: u32 = 1000;
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);
const C: ClientId = ClientId(3);

fn host(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

fn of(uid: u32) -> ProgramFacts {
    ProgramFacts { uid, ..ProgramFacts::default() }
}

/// A host 10.0.0.1 with programs A of a user and B of root.
fn admission(change: impl FnOnce(&mut AdmissionConfig)) -> Admission {
    let mut config = AdmissionConfig::new(vec![host(1)]);
    config.owner_uid = 77;
    change(&mut config);
    let mut admission = Admission::new(config, 9).unwrap();
    admission.attach(A, of(USER)).unwrap();
    admission.attach(B, of(ROOT)).unwrap();
    admission
}

fn at(port: u16, backlog: u32) -> Listen {
    Listen { port, backlog, ring_bytes: 0, kind: Kind::Stream }
}

fn to(n: u8, port: u16) -> Connect {
    Connect { to: SocketAddr::new(host(n), port), ring_bytes: 4096, kind: Kind::Stream }
}

fn asked(to_port: u16) -> ConnectRequest {
    ConnectRequest { engine: 0, from: host(2), to_port, kind: Kind::Stream.code(), ring_bytes: 4096 }
}

fn number(connecting: Result<Connecting, Reason>) -> u64 {
    match connecting.unwrap() {
        Connecting::Here { connection, .. } | Connecting::ThroughLane { connection, .. } => connection,
    }
}

fn over(connection: u64, peer: u8, port: Option<u16>) -> ConnectionOver {
    ConnectionOver { engine: 0, connection, peer: host(peer), port }
}

#[test]
fn a_port_is_one_programs_until_it_stops_or_leaves() {
    let mut a = admission(|_| {});
    assert_eq!(a.listen(A, at(7, 1)), Ok(SocketAddr::new(host(1), 7)));
    assert_eq!(a.listen(B, at(7, 1)), Err(Reason::PortInUse));
    assert!(!a.unlisten(B, 7), "it is not its port");
    assert_eq!(a.handle_connect_request(&asked(8)), Err(Reason::NoListener));
    let any = a.listen(B, at(0, 1)).unwrap().port();
    assert!(any >= control::EPHEMERAL_PORT_FIRST);
    assert!(!a.unlisten(A, 7), "nothing waits there");
    a.listen(B, at(7, 1)).unwrap();
    a.handle_left(B);
    for port in [7, any] {
        a.listen(A, at(port, 1)).unwrap();
    }
    assert_eq!(a.listen(B, at(9, 1)), Err(Reason::AppFault), "it has left");
}

#[test]
fn a_backlog_is_full_until_a_place_is_given_up() {
    let mut a = admission(|_| {});
    a.listen(A, at(7, 2)).unwrap();
    let far = a.handle_connect_request(&asked(7)).unwrap();
    let near = number(a.connect(B, to(1, 7), |_| None));
    assert_eq!((far.client, far.ring_bytes), (A, 4096));
    assert_ne!(far.connection, near);
    assert_eq!(a.handle_connect_request(&asked(7)), Err(Reason::BacklogFull));
    assert_eq!(a.connect(B, to(1, 7), |_| None), Err(Reason::BacklogFull));
    assert_eq!((a.accepted(B, 7, near), a.accepted(A, 7, 99)), (None, None), "not its listener, no such connection");
    assert_eq!(a.accepted(A, 7, near), None, "the engine knows nothing of connections within the host");
    assert_eq!([(); 2].map(|()| a.accepted(A, 7, far.connection)), [Some(0), None]);
    let again = a.handle_connect_request(&asked(7)).unwrap();
    number(a.connect(B, to(1, 7), |_| None));
    // One that ends before the program took it leaves its place too.
    a.on_connection_over(A, over(again.connection, 2, Some(7)));
    a.handle_connect_request(&asked(7)).unwrap();
    assert!(a.unlisten(A, 7), "the engine has one that waits");
    assert_eq!(a.handle_connect_request(&asked(7)), Err(Reason::NoListener));
}

#[test]
fn the_backlog_of_a_port_is_not_that_of_its_listener_before() {
    let mut a = admission(|_| {});
    a.listen(A, at(7, 1)).unwrap();
    let old = a.handle_connect_request(&asked(7)).unwrap();
    assert!(a.unlisten(A, 7));
    a.listen(A, at(7, 1)).unwrap();
    let new = a.handle_connect_request(&asked(7)).unwrap();
    a.on_connection_over(A, over(old.connection, 2, Some(7)));
    assert_eq!(a.handle_connect_request(&asked(7)), Err(Reason::BacklogFull));
    assert_eq!(a.accepted(A, 7, new.connection), Some(0));
}

#[test]
fn kinds_and_addresses_that_do_not_fit_are_refused() {
    let mut a = admission(|_| {});
    a.listen(A, at(7, 4)).unwrap();
    let messages = Kind::Message;
    assert_eq!(a.handle_connect_request(&ConnectRequest { kind: messages.code(), ..asked(7) }), Err(Reason::WrongKind));
    assert_eq!(a.handle_connect_request(&ConnectRequest { kind: u32::MAX, ..asked(7) }), Err(Reason::WrongKind));
    assert_eq!(a.connect(B, Connect { kind: messages, ..to(1, 7) }, |_| None), Err(Reason::WrongKind));
    for bad in ["10.0.0.2:0", "0.0.0.0:7", "224.0.0.1:7", "255.255.255.255:7", "[ff02::1]:7"] {
        let bad = Connect { to: bad.parse().unwrap(), ..to(2, 7) };
        assert_eq!(a.connect(B, bad, |_| None), Err(Reason::BadAddress), "{bad:?}");
    }
    let mapped = Connect { to: "[::ffff:10.0.0.1]:7".parse().unwrap(), ..to(1, 7) };
    assert!(matches!(a.connect(B, mapped, |_| None), Ok(Connecting::Here { to: A, port: 7, .. })));
    assert_eq!(a.counters(), AdmissionCounters { connects_local: 1, connects_refused: 6 });
}

#[test]
fn connections_count_until_the_engine_says_that_they_are_over() {
    let mut a =
        admission(|c| (c.connections_max, c.connections_per_app_max, c.user_share) = (4, 2, control::UserShare::ALL));
    a.listen(A, at(7, 9)).unwrap();
    let out = number(a.connect(A, to(2, 7), |_| None));
    let came = a.handle_connect_request(&asked(7)).unwrap().connection;
    assert_eq!(a.handle_connect_request(&asked(7)), Err(Reason::LocalLimit), "the program has as many as it may");
    assert_eq!(a.bind(A, 0), Err(Reason::LocalLimit));
    (0..2).for_each(|_| _ = number(a.connect(B, to(2, 7), |_| None)));
    assert_eq!((a.connections(), a.connections_with(USER, host(2), 0)), (4, 2));
    a.attach(ClientId(3), of(ROOT)).unwrap();
    assert_eq!(a.connect(ClientId(3), to(2, 7), |_| None), Err(Reason::LocalLimit), "the host is full");
    a.on_connection_over(A, over(out, 2, None));
    a.on_connection_over(A, over(came, 2, Some(7)));
    assert_eq!((a.connections(), a.connections_with(USER, host(2), 0)), (2, 0));
    number(a.connect(ClientId(3), to(2, 7), |_| None));
}

#[test]
fn users_have_shares_of_hosts_connections_listeners_and_programs() {
    let mut a = admission(|c| {
        c.user_share = control::UserShare::percent(1);
        (c.apps_max, c.listeners_max) = (100, 200);
        (c.connections_max, c.lanes_max) = (300, 100);
    });
    assert_eq!(a.attach(ClientId(3), of(USER)), Err(Reason::UserPrograms));
    a.attach(ClientId(4), of(77)).unwrap();
    let first = number(a.connect(A, to(2, 7), |_| None));
    assert_eq!(a.connect(A, to(3, 7), |_| None), Err(Reason::UserLanes));
    (0..2).for_each(|_| _ = number(a.connect(A, to(2, 7), |_| None)));
    assert_eq!(a.connect(A, to(2, 7), |_| None), Err(Reason::UserConnections));
    for n in 2..9 {
        number(a.connect(B, to(n, 7), |_| None));
        number(a.connect(ClientId(4), to(n, 7), |_| None));
    }
    a.on_connection_over(A, over(first, 2, None));
    number(a.connect(A, to(2, 7), |_| None));
    // A datagram socket counts as a listener.
    a.listen(A, at(7, 1)).unwrap();
    a.bind(A, 0).unwrap();
    assert_eq!(a.bind(A, 0), Err(Reason::UserListeners));
    assert_eq!(a.listen(A, at(8, 1)), Err(Reason::UserListeners));
    a.on_socket_over(A);
    a.listen(A, at(8, 1)).unwrap();
}

#[test]
fn a_program_holds_its_place_until_nothing_of_it_is_in_use() {
    let mut a = admission(|c| c.apps_max = 2);
    a.listen(A, at(7, 4)).unwrap();
    let came = a.handle_connect_request(&asked(7)).unwrap().connection;
    a.handle_left(A);
    assert_eq!(a.attach(ClientId(3), of(ROOT)), Err(Reason::LocalLimit), "its memory is in quarantine");
    // The engine forgot the program before it got what had been admitted.
    a.on_program_gone(A, 0);
    assert!(a.knows(A));
    a.on_connection_over(A, over(came, 2, Some(7)));
    assert!(!a.knows(A) && a.connections() == 0);
    a.attach(ClientId(3), of(ROOT)).unwrap();
    // One that no engine took in.
    a.on_program_gone(ClientId(3), 0);
    assert!(!a.knows(ClientId(3)));
}

/// An admission with these engines and programs A, B and C, of which B and C are a tenant's.
fn by(spread: SpreadBy, engines: u32) -> Admission {
    let mut a = admission(|c| (c.engines, c.spread) = (engines, spread));
    a.attach(C, of(ROOT)).unwrap();
    let takes = Selector { users: Some([ROOT].into()), ..Selector::default() };
    let root = Tenant { name: "root".into(), takes, rights: Rights::default() };
    a.set_policy(Policy::new(vec![root], Rights::default()).unwrap());
    a
}

/// Through which engine a connection goes, and its number.
fn through(a: &mut Admission, client: ClientId, n: u8, lanes: u32) -> (u32, u64) {
    match a.connect(client, to(n, 7), |_| Some(lanes)).unwrap() {
        Connecting::ThroughLane { engine, connection, .. } => (engine, connection),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_beside_one_that_has_a_thousand_connections_has_another_engine() {
    let mut a = by(SpreadBy::Programs, 2);
    let flood: Vec<_> = (0..1000).map(|_| through(&mut a, A, 2, 2).0).collect();
    assert!(flood.iter().all(|engine| *engine == 0), "one program has one engine");
    assert_eq!((through(&mut a, B, 2, 2).0, through(&mut a, B, 3, 2).0), (1, 1), "to any host");
    assert_eq!(through(&mut a, B, 4, 1).0, 0, "to a host that has no other");
    // B is at both engines by now, A at one: the third goes where the fewer programs are.
    assert_eq!(through(&mut a, C, 2, 2).0, 1);
    assert_eq!(through(&mut a, A, 2, 2).0, 0);
}

#[test]
fn programs_that_met_before_the_engines_of_a_host_were_known_part() {
    let mut a = by(SpreadBy::Programs, 3);
    for client in [A, B] {
        assert!(matches!(a.connect(client, to(2, 7), |_| None), Ok(Connecting::ThroughLane { engine: 0, .. })));
    }
    let (engine, connection) = through(&mut a, A, 2, 3);
    assert_eq!((engine, through(&mut a, B, 2, 3).0), (1, 2), "each has one without others");
    // An engine is free again when nothing of a program is left there.
    a.on_connection_over(A, ConnectionOver { engine: 1, ..over(connection, 2, None) });
    assert_eq!(through(&mut a, C, 2, 3).0, 1);
}

#[test]
fn the_programs_of_a_tenant_share_an_engine() {
    let mut a = by(SpreadBy::Tenants, 2);
    assert_eq!([B, C, A, C, A, B].map(|client| through(&mut a, client, 2, 2).0), [0, 0, 1, 0, 1, 0]);
    // With another policy they are one tenant: what is there goes on, and the next go where the most are.
    a.set_policy(Policy::default());
    assert_eq!([A, B].map(|client| through(&mut a, client, 2, 2).0), [0, 0]);
}

#[test]
fn only_known_words_say_what_is_spread() {
    assert_eq!("programs".parse(), Ok(SpreadBy::Programs));
    assert_eq!("tenants".parse(), Ok(SpreadBy::Tenants));
    assert_eq!("connections".parse(), Ok(SpreadBy::default()));
    assert!("users".parse::<SpreadBy>().unwrap_err().contains("use \"connections\", \"programs\" or \"tenants\""));
}

#[test]
fn connections_are_spread_over_engines_and_a_program_is_gone_when_all_say_so() {
    let mut a = admission(|c| c.engines = 3);
    let mut engine_of = |client, n: u8, lanes| match a.connect(client, to(n, 7), |_| lanes).unwrap() {
        Connecting::ThroughLane { engine, connection, .. } => (engine, connection),
        other => panic!("{other:?}"),
    };
    let first: Vec<_> = (0..4).map(|_| engine_of(A, 2, Some(3))).collect();
    assert_eq!(first.iter().map(|(engine, _)| *engine).collect::<Vec<_>>(), [0, 1, 2, 0]);
    assert_eq!(engine_of(A, 3, None).0, 0, "unknown: every host has engine 0");
    assert_eq!(engine_of(A, 4, Some(9)).0, 1, "no more engines than there are");
    // What comes is counted where it came.
    a.listen(A, at(7, 9)).unwrap();
    let came = a.handle_connect_request(&ConnectRequest { engine: 2, ..asked(7) }).unwrap();
    assert_eq!(a.load(), [3, 2, 2]);
    assert_eq!([0, 1, 2].map(|engine| a.connections_with(USER, host(2), engine)), [2, 1, 2]);
    assert_eq!(a.accepted(A, 7, came.connection), Some(2));
    a.on_connection_over(A, ConnectionOver { engine: 2, ..over(came.connection, 2, Some(7)) });
    for (engine, connection) in &first {
        a.on_connection_over(A, ConnectionOver { engine: *engine, ..over(*connection, 2, None) });
    }
    assert_eq!(a.load(), [1, 1, 0]);
    a.handle_left(B);
    for engine in [2, 0, 0, 7] {
        a.on_program_gone(B, engine);
        assert!(a.knows(B), "engine 1 still has something of it");
    }
    a.on_program_gone(B, 1);
    assert!(!a.knows(B));
    a.attach(ClientId(3), of(ROOT)).unwrap();
    a.on_not_attached(ClientId(3));
    assert!(!a.knows(ClientId(3)));
}

/// Users 1000 and 1001 are the tenant `web`, which has these rights.
fn web(rights: Rights) -> Policy {
    let takes = Selector { users: Some([USER, USER + 1].into()), ..Selector::default() };
    Policy::new(vec![Tenant { name: "web".into(), takes, rights }], Rights::default()).unwrap()
}

#[test]
fn a_tenant_listens_at_its_ports_alone() {
    let mut a = admission(|_| {});
    a.set_policy(web(Rights { listen: Some(vec![80..=81, 40_000..=40_001]), ..Rights::default() }));
    a.listen(A, at(80, 1)).unwrap();
    assert_eq!(a.listen(A, at(79, 1)), Err(Reason::Policy));
    a.listen(B, at(79, 1)).unwrap();
    let any = [0, 0].map(|port| a.listen(A, at(port, 1)).unwrap().port());
    assert_eq!(any.into_iter().collect::<BTreeSet<_>>(), [40_000, 40_001].into());
    assert_eq!(a.listen(A, at(0, 1)), Err(Reason::Policy), "its ports are taken");
    assert_eq!(a.bind(A, 79), Err(Reason::Policy));
    a.bind(A, 81).unwrap();
    a.bind(A, 0).unwrap();
    a.set_policy(web(Rights { listen: Some(Vec::new()), ..Rights::default() }));
    assert_eq!([at(81, 1), at(0, 1)].map(|listen| a.listen(A, listen)), [Err(Reason::Policy); 2]);
    assert!(a.handle_connect_request(&asked(80)).is_ok(), "listeners of before go on");
}

#[test]
fn a_tenant_connects_to_its_hosts_alone_and_this_host_is_one_if_it_is_named() {
    let mut a = admission(|_| {});
    a.listen(B, at(7, 8)).unwrap();
    let near = |a: &mut Admission| a.connect(A, to(1, 7), |_| None).map(drop);
    near(&mut a).unwrap();
    a.set_policy(web(Rights { connect: Some([ipnet::IpNet::from(host(2))].into()), ..Rights::default() }));
    assert_eq!(near(&mut a), Err(Reason::Policy));
    a.connect(A, to(2, 7), |_| None).unwrap();
    assert_eq!(a.connect(A, to(3, 7), |_| None), Err(Reason::Policy));
    a.connect(B, to(3, 7), |_| None).unwrap();
}

#[test]
fn the_programs_of_a_tenant_share_its_bounds_whatever_their_users_and_get_back_what_they_give_up() {
    let mut a = admission(|_| {});
    let bounds =
        |n| Rights { programs_max: Some(n), listeners_max: Some(n), connections_max: Some(n), ..Rights::default() };
    a.set_policy(web(bounds(2)));
    let c = ClientId(3);
    a.attach(c, of(USER + 1)).unwrap();
    assert_eq!(a.attach(ClientId(4), of(USER)), Err(Reason::TenantLimit));
    a.attach(ClientId(5), of(USER + 2)).unwrap();
    a.listen(A, at(7, 1)).unwrap();
    a.bind(c, 0).unwrap();
    for program in [A, c] {
        assert_eq!(a.listen(program, at(8, 1)), Err(Reason::TenantLimit));
        assert_eq!(a.bind(program, 0), Err(Reason::TenantLimit));
    }
    a.unlisten(A, 7);
    a.listen(c, at(8, 8)).unwrap();
    let first = number(a.connect(A, to(2, 7), |_| None));
    a.handle_connect_request(&asked(8)).unwrap();
    assert_eq!(a.connect(c, to(2, 7), |_| None), Err(Reason::TenantLimit));
    assert_eq!(a.handle_connect_request(&asked(8)), Err(Reason::TenantLimit));
    a.on_connection_over(A, over(first, 2, None));
    a.connect(c, to(2, 7), |_| None).unwrap();
    let used = |a: &Admission| a.tenants().map(|t| (t.programs, t.listeners, t.connections)).collect::<Vec<_>>();
    assert_eq!(used(&a), [(2, 2, 2), (2, 0, 0)]);
    a.set_policy(web(bounds(1)));
    assert_eq!(used(&a), [(2, 2, 2), (2, 0, 0)], "what is there stays");
    assert_eq!(a.connect(A, to(2, 7), |_| None), Err(Reason::TenantLimit));
    a.set_policy(Policy::default());
    assert_eq!(used(&a), [(4, 2, 2)]);
    a.connect(A, to(2, 7), |_| None).unwrap();
}
