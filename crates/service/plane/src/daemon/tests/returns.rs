//! Programs that come, with and without a session of a daemon before this one: what is counted for them is given back
//! whatever becomes of them.

use control::{LaneTicket, RETURNED_MAX, SocketTicket, Ticket, TicketRing};

use super::*;
use crate::{Brought, ConnectionOver, Holder};

const RING: TicketRing = TicketRing { chunk: 1, offset: 0 };

fn lane(slot: u32) -> LaneTicket {
    LaneTicket {
        id: 100 + u64::from(slot),
        local: at(OWN, 80),
        peer: at(PEER, 4000),
        kind: Kind::Stream,
        is_outgoing: slot.is_multiple_of(2),
        own_route: 5,
        peer_route: 6,
        slot,
        generation: 1,
        tx: TicketRing { chunk: 2 + slot, offset: 0 },
        rx: RING,
        size: (4096, 4096),
        allocated: (4096, 4096),
    }
}

fn socket(slot: u32) -> SocketTicket {
    SocketTicket { id: 7, local: at(OWN, 53), slot, generation: 1, tx: RING, rx: RING, ring_bytes: 4096 }
}

fn sealed(daemon: &Machine, uid: u32, ticket: Ticket) -> Vec<u8> {
    daemon.tickets.seal(Holder { uid, process: None }, control::encode(&ticket).unwrap())
}

fn session(slots: u32, engines: u32) -> Request {
    Request::Return { slots, engines, session_bytes: 0, next_chunk: 0, used: Vec::new() }
}

fn chunk(chunk: u32) -> Request {
    Request::ReturnChunk { chunk, kind: control::ChunkKind::Tx, bytes: 4096 }
}

/// Brings what two engines had: connections in slots 0, 1 and 33, and a datagram socket.
fn brings(daemon: &mut Machine, n: u64) -> Vec<Brought> {
    daemon.handle_attach(newcomer(n, true)).unwrap();
    let memory = [session(SHAPE.slots, SHAPE.engines), chunk(3), chunk(35), chunk(9)];
    memory.into_iter().for_each(|memory| assert!(matches!(asks(daemon, n, memory), Ok(Some(_))), "the driver has it"));
    let all = [Ticket::Lane(lane(0)), Ticket::Lane(lane(1)), Ticket::Lane(lane(33)), Ticket::Socket(socket(2))];
    let mut tickets: Vec<_> = all.into_iter().map(|ticket| sealed(daemon, 1000, ticket)).collect();
    // Another user's, one a second time, and a socket at an engine that has no datagrams.
    tickets.push(sealed(daemon, 1001, Ticket::Lane(lane(4))));
    tickets.push(sealed(daemon, 1000, Ticket::Lane(LaneTicket { id: 1, ..lane(0) })));
    tickets.push(sealed(daemon, 1000, Ticket::Socket(socket(34))));
    asks(daemon, n, Request::ReturnConnections { tickets }).unwrap();
    assert_eq!((daemon.admission().connections(), warnings(daemon)), (3, 1));
    asks(daemon, n, Request::ReturnEnd).unwrap();
    let Some(Action::Attach { brought: Some(brought), .. }) = actions(daemon).pop() else { panic!("nobody is asked") };
    brought
}

fn warnings(daemon: &mut Machine) -> usize {
    actions(daemon).iter().filter(|action| matches!(action, Action::Warn { .. })).count()
}

fn has_nothing(daemon: &Machine, n: u64) -> bool {
    !daemon.knows(client(n)) && daemon.admission().connections() == 0 && daemon.adopted.is_empty()
}

#[test]
fn each_engine_gets_what_is_its() {
    let mut daemon = daemon(Encrypt::Off);
    let brought = brings(&mut daemon, 1);
    assert_eq!(brought[0].chunks, [3, 9], "those without connections are the first engine's");
    assert_eq!(brought[0].connections, [lane(0), lane(1)]);
    assert_eq!((&brought[0].sockets[..], &brought[0].refused[..]), (&[socket(2)][..], &[][..]));
    assert_eq!((&brought[1].connections[..], &brought[1].chunks[..]), (&[lane(33)][..], &[35][..]));
    assert_eq!(brought[1].refused, [Ticket::Socket(socket(34))]);
    taken(&mut daemon, 1);
    daemon.on_taken_back(client(1));
    assert!(actions(&mut daemon).is_empty(), "an engine has not taken all of it back");
    daemon.on_taken_back(client(1));
    assert!(matches!(actions(&mut daemon)[..], [Action::Welcome { .. }]));
    assert_eq!(daemon.admission().connections(), 3);
    assert!(asks(&mut daemon, 1, session(SHAPE.slots, SHAPE.engines)).is_err(), "it has one");
}

#[test]
fn what_an_engine_refuses_is_not_counted_any_more_also_when_its_program_has_left() {
    for leaves_before in [false, true] {
        let mut daemon = daemon(Encrypt::Off);
        brings(&mut daemon, 1);
        assert!(daemon.on_taken(client(1), 0, Ok(())));
        if leaves_before {
            daemon.handle_gone(client(1));
        }
        assert_eq!(daemon.on_taken(client(1), 1, Err(Reason::LocalLimit)), !leaves_before);
        assert_eq!(daemon.admission().connections(), 2, "the other engine says what becomes of its own");
        if !leaves_before {
            assert!(actions(&mut daemon).is_empty(), "the other one takes its part back still");
            daemon.on_taken_back(client(1));
            let refused = actions(&mut daemon);
            assert!(matches!(refused[..], [Action::Refused { reason: Reason::LocalLimit, .. }]), "{refused:?}");
            daemon.handle_gone(client(1));
        }
        for ticket in [lane(0), lane(1)] {
            let port = (!ticket.is_outgoing).then_some(80);
            let over = ConnectionOver { engine: 0, connection: ticket.id, peer: ip(PEER), port };
            daemon.on_connection_over(Some(client(1)), over);
        }
        daemon.on_socket_over(client(1));
        daemon.on_program_gone(client(1), 0);
        assert!(has_nothing(&daemon, 1), "{daemon:?}");
    }
}

#[test]
fn a_session_that_no_engine_is_asked_about_leaves_nothing() {
    let end = |how: &dyn Fn(&mut Machine)| {
        let mut daemon = daemon(Encrypt::Off);
        brings(&mut daemon, 1);
        how(&mut daemon);
        let said = actions(&mut daemon);
        daemon.handle_gone(client(1));
        assert!(has_nothing(&daemon, 1), "{daemon:?}");
        said
    };
    let said = end(&|daemon| daemon.on_not_asked(client(1), "no descriptors".into()));
    assert!(matches!(said[..], [Action::Refused { reason: Reason::DaemonLost, .. }]), "{said:?}");
    // It leaves in the middle of its words.
    let mut daemon = daemon(Encrypt::Off);
    daemon.handle_attach(newcomer(1, true)).unwrap();
    asks(&mut daemon, 1, session(SHAPE.slots, SHAPE.engines)).unwrap();
    let tickets = vec![sealed(&daemon, 1000, Ticket::Lane(lane(0)))];
    asks(&mut daemon, 1, Request::ReturnConnections { tickets }).unwrap();
    assert_eq!(daemon.admission().connections(), 1);
    daemon.handle_gone(client(1));
    assert!(has_nothing(&daemon, 1), "{daemon:?}");
    // One of another shape, and one whose memory has no descriptor here.
    for (slots, engines) in [(128, 2), (64, 1), (64, 0), (SHAPE.slots, SHAPE.engines)] {
        daemon.handle_attach(newcomer(1, true)).unwrap();
        asks(&mut daemon, 1, session(slots, engines)).unwrap();
        daemon.refuse_return(client(1), "no descriptors".into());
        let said = actions(&mut daemon);
        assert!(matches!(said[..], [Action::Refused { reason: Reason::DaemonLost, .. }]), "{said:?}");
        daemon.handle_gone(client(1));
        assert!(has_nothing(&daemon, 1), "{daemon:?}");
    }
}

#[test]
fn who_says_its_session_in_another_order_is_at_fault() {
    let mut daemon = daemon(Encrypt::Off);
    daemon.handle_attach(newcomer(1, true)).unwrap();
    let connections = |count| Request::ReturnConnections { tickets: vec![Vec::new(); count] };
    let before = [chunk(1), connections(1), Request::ReturnPairs { ends: Vec::new() }, Request::ReturnEnd];
    for early in before {
        assert!(asks(&mut daemon, 1, early.clone()).is_err(), "{early:?}");
    }
    asks(&mut daemon, 1, session(SHAPE.slots, SHAPE.engines)).unwrap();
    asks(&mut daemon, 1, chunk(1)).unwrap();
    asks(&mut daemon, 1, connections(RETURNED_MAX)).unwrap();
    let path = Request::DatagramPath { request: 3, to: ip(PEER) };
    for wrong in [session(SHAPE.slots, SHAPE.engines), chunk(1), connections(RETURNED_MAX + 1), path] {
        assert!(asks(&mut daemon, 1, wrong.clone()).is_err(), "{wrong:?}");
    }
}

#[test]
fn engines_hear_of_a_policy_that_came_while_they_were_asked() {
    let mut daemon = daemon(Encrypt::Off);
    let policy = || {
        let tenant = |name: &str, user| crate::Tenant {
            name: name.into(),
            takes: crate::Selector { users: Some([user].into()), ..crate::Selector::default() },
            rights: Rights::default(),
        };
        Policy::new(vec![tenant("a", 5), tenant("b", 1000)], Rights::default()).unwrap()
    };
    comes(&mut daemon, 1).unwrap();
    let asked = actions(&mut daemon);
    let [Action::Attach { rights, .. }] = &asked[..] else { panic!("{asked:?}") };
    daemon.set_policy(policy());
    assert!(actions(&mut daemon).is_empty(), "no engine has it");
    taken(&mut daemon, 1);
    let said = actions(&mut daemon);
    let [Action::Rights { rights: now, .. }, Action::Welcome { .. }] = &said[..] else { panic!("{said:?}") };
    assert_ne!(now.tenant, rights.tenant);
    daemon.set_policy(policy());
    assert!(matches!(actions(&mut daemon)[..], [Action::Rights { .. }]));
}
