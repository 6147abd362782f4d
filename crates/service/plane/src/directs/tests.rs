//! Two hosts whose drivers the tests play. Owns the carrying of messages between them.

use super::*;

/// A host of the two, with the stream as its engine knows it.
struct Host {
    own: IpAddr,
    directs: Directs<&'static str>,
    stream: BulkOf,
    given: Vec<&'static str>,
    asks: Vec<(u64, u32)>,
    dials: Vec<(u64, [u8; 32])>,
}

fn host(n: u8) -> Host {
    let (own, peer) = (IpAddr::from([10, 0, 0, n]), IpAddr::from([10, 0, 0, 3 - n]));
    let stream = BulkOf {
        client: ClientId(n.into()),
        uid: 5,
        connection: 70 + u64::from(n),
        slot: 1,
        peer,
        lane: 0,
        peer_route: 33,
    };
    let directs = Directs::new(own);
    Host { own, directs, stream, given: Vec::new(), asks: Vec::new(), dials: Vec::new() }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

/// Carries messages until nothing moves; what drivers do is left to the test.
fn settle(a: &mut Host, b: &mut Host) {
    for _ in 0..8 {
        pump(a, b);
        pump(b, a);
    }
}

fn pump(from: &mut Host, to: &mut Host) {
    while let Some(action) = from.directs.poll_action(at(0)) {
        match action {
            DirectAction::Send { peer, message } => {
                assert_eq!(peer, to.own);
                to.directs.handle_message(from.own, message);
            }
            DirectAction::AskRoute { number, route, .. } => from.asks.push((number, route)),
            DirectAction::Dial { number, token, connection, .. } => {
                assert_eq!(connection, from.stream.connection);
                from.dials.push((number, token));
            }
            DirectAction::Give { client, connection, slot, socket } => {
                assert_eq!((client, connection, slot), (from.stream.client, from.stream.connection, 1));
                from.given.push(socket);
            }
        }
    }
}

/// The engine knows the stream of each offer.
fn answer_routes(of: &mut Host) {
    for (number, route) in std::mem::take(&mut of.asks) {
        assert_eq!(route, 33);
        let (peer, stream) = (of.stream.peer, of.stream);
        of.directs.on_route(peer, number, Some(stream));
    }
}

/// `from` connects to `to` for its offer.
fn meet(from: &mut Host, to: &mut Host, now: Time) -> bool {
    let Some((number, token)) = from.dials.pop() else { return false };
    let proof = DirectProof { number, token, nonce: [4; 32] };
    let hello = DirectHello { number, nonce: [4; 32], mac: proof.mac(Side::Dialer) };
    let answer = to.directs.judge(now, &hello);
    let is_met = answer.is_some_and(|mac| proof.is_proven(Side::Acceptor, &mac));
    assert!(to.directs.judge(now, &hello).is_none(), "a token is used once");
    let (peer, connection) = (from.stream.peer, from.stream.connection);
    if is_met {
        to.directs.handle_socket(number, Some("accepted"));
        from.directs.on_dialed(peer, number, connection, Ok("dialed"));
    } else {
        from.directs.on_dialed(peer, number, connection, Err(Reason::PeerAuth));
    }
    is_met
}

#[test]
fn a_stream_of_bulk_gets_a_socket_at_both_ends() {
    let (mut a, mut b) = (host(1), host(2));
    a.directs.handle_bulk(a.stream, [7; 32]);
    settle(&mut a, &mut b);
    answer_routes(&mut b);
    settle(&mut a, &mut b);
    assert!(a.given.is_empty() && b.given.is_empty(), "nothing before the proof");
    assert!(meet(&mut b, &mut a, at(10)));
    settle(&mut a, &mut b);
    assert_eq!((a.given.as_slice(), b.given.as_slice()), (&["accepted"][..], &["dialed"][..]));
    assert!(a.directs.is_given(71) && b.directs.is_given(72) && a.directs.deadline().is_none());
    a.directs.handle_bulk(a.stream, [8; 32]);
    assert_eq!(a.directs.poll_action(at(0)), None, "once for a connection");
    a.directs.handle_over(71);
    assert_eq!(a.directs.counters(), DirectCounters { open: 0, made: 1, refused: 0 });
}

#[test]
fn of_two_offers_at_once_that_of_the_lower_address_stands() {
    let (mut a, mut b) = (host(1), host(2));
    a.directs.handle_bulk(a.stream, [7; 32]);
    b.directs.handle_bulk(b.stream, [8; 32]);
    settle(&mut a, &mut b);
    answer_routes(&mut a);
    answer_routes(&mut b);
    settle(&mut a, &mut b);
    assert_eq!((a.dials.len(), b.dials.len()), (0, 1));
    assert!(meet(&mut b, &mut a, at(1)));
    settle(&mut a, &mut b);
    assert_eq!((a.given.len(), b.given.len()), (1, 1));
    assert_eq!((a.directs.counters().open, b.directs.counters().open), (1, 1));
}

#[test]
fn refusals_leave_the_stream_on_the_lane_with_their_reason() {
    // It knows no such stream.
    let (mut a, mut b) = (host(1), host(2));
    a.directs.handle_bulk(a.stream, [7; 32]);
    settle(&mut a, &mut b);
    let (number, _) = b.asks.pop().unwrap();
    b.directs.on_route(a.own, number, None);
    settle(&mut a, &mut b);
    assert_eq!(a.directs.refusal(71), Some(Reason::Closed));
    // It says nothing.
    let mut a = host(1);
    a.directs.handle_bulk(a.stream, [7; 32]);
    assert_eq!(offers(&mut a.directs, at(0)).len(), 1);
    a.directs.handle_timeout(at(4999));
    assert_eq!((a.directs.refusal(71), a.directs.deadline()), (None, Some(at(5000))));
    a.directs.handle_timeout(at(5000));
    assert_eq!((a.directs.refusal(71), a.directs.counters().open), (Some(Reason::TimedOut), 0));
    // Its program has no descriptor.
    let (mut a, mut b) = (host(1), host(2));
    a.directs.handle_bulk(a.stream, [7; 32]);
    settle(&mut a, &mut b);
    answer_routes(&mut b);
    settle(&mut a, &mut b);
    assert!(b.directs.handle_not_taken(b.stream.client, 72).is_err(), "none was given yet");
    assert!(meet(&mut b, &mut a, at(10)));
    settle(&mut a, &mut b);
    assert!(b.directs.handle_not_taken(ClientId(99), 72).is_err(), "another program's");
    b.directs.handle_not_taken(b.stream.client, 72).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(b.directs.refusal(72), Some(Reason::AppDescriptors));
    assert_eq!(a.directs.refusal(71), Some(Reason::PeerAppDescriptors));
    b.directs.handle_not_taken(b.stream.client, 72).unwrap();
    assert_eq!(b.directs.poll_action(at(0)), None, "the peer is told once, however often the program says it");
}

#[test]
fn a_stranger_a_wrong_token_and_a_late_one_get_nothing() {
    let (mut a, mut b) = (host(1), host(2));
    a.directs.handle_bulk(a.stream, [7; 32]);
    settle(&mut a, &mut b);
    let number = b.asks[0].0;
    let hello = |number, token| {
        let proof = DirectProof { number, token, nonce: [4; 32] };
        DirectHello { number, nonce: [4; 32], mac: proof.mac(Side::Dialer) }
    };
    for wrong in
        [hello(number, [8; 32]), hello(number + 1, [7; 32]), DirectHello { mac: [0; 32], ..hello(number, [7; 32]) }]
    {
        assert_eq!(a.directs.judge(at(1), &wrong), None);
    }
    a.directs.handle_socket(number, Some("stranger"));
    assert!(a.directs.poll_action(at(0)).is_none() && !a.directs.is_given(71), "nobody has proven the token");
    assert_eq!(a.directs.judge(at(5000), &hello(number, [7; 32])), None, "late");
    assert!(a.directs.judge(at(1), &hello(number, [7; 32])).is_some());
    a.directs.handle_socket(number, None);
    assert_eq!(a.directs.refusal(71), Some(Reason::PeerLost));
}

#[test]
fn users_and_peers_have_bounds() {
    let mut a = host(1);
    for connection in 0..1000 {
        a.directs.handle_bulk(BulkOf { connection, ..a.stream }, [7; 32]);
    }
    let refused = 1000 - DIRECT_PER_USER_MAX as u64;
    assert_eq!(a.directs.counters(), DirectCounters { open: DIRECT_PER_USER_MAX as u64, made: 0, refused });
    assert_eq!((a.directs.refusal(255), a.directs.refusal(256)), (None, Some(Reason::LocalLimit)));
    let mut b = host(2);
    for number in 0..1000 {
        b.directs.handle_message(a.own, PeerMessage::DirectOffer { number, lane: 0, route: 33, token: [0; 32] });
    }
    let refused = |action| matches!(action, DirectAction::Send { message: PeerMessage::DirectRefused { .. }, .. });
    let all: Vec<_> = std::iter::from_fn(|| b.directs.poll_action(at(0))).collect();
    assert_eq!(all.into_iter().filter_map(|action| refused(action).then_some(())).count(), 1000 - DIRECT_MAKING_MAX);
    // One user of many.
    let mut c = host(1);
    let mut given = 0;
    for connection in 0..600 {
        c.directs.handle_bulk(BulkOf { connection, ..c.stream }, [7; 32]);
        let Some(DirectAction::Send { message: PeerMessage::DirectOffer { number, .. }, .. }) =
            c.directs.poll_action(at(0))
        else {
            continue;
        };
        c.directs.offers.get_mut(&number).unwrap().is_met = true;
        c.directs.handle_socket(number, Some("socket"));
        given += usize::from(matches!(c.directs.poll_action(at(0)), Some(DirectAction::Give { .. })));
    }
    assert_eq!(given, DIRECT_PER_USER_MAX);
    (0..600).for_each(|connection| c.directs.handle_over(connection));
    assert_eq!(c.directs.counters().open, 0);
}

/// The offers that are to be sent: to whom, and their numbers.
fn offers(directs: &mut Directs<&'static str>, now: Time) -> Vec<(IpAddr, u64)> {
    let mut all = Vec::new();
    while let Some(action) = directs.poll_action(now) {
        if let DirectAction::Send { peer, message: PeerMessage::DirectOffer { number, .. } } = action {
            all.push((peer, number));
        }
    }
    all
}

#[test]
fn streams_beyond_what_a_peer_can_take_wait_for_their_turn() {
    let mut a = host(1);
    let (peer, other) = (a.stream.peer, IpAddr::from([10, 0, 0, 9]));
    let streams = 3 * OFFERS_PER_PEER_MAX as u64;
    for connection in 0..streams {
        a.directs.handle_bulk(BulkOf { connection, ..a.stream }, [7; 32]);
    }
    a.directs.handle_bulk(BulkOf { connection: 500, peer: other, ..a.stream }, [7; 32]);
    let first = offers(&mut a.directs, at(0));
    assert_eq!(first.len(), OFFERS_PER_PEER_MAX + 1);
    assert_eq!(first.last().unwrap().0, other, "no peer waits for another");
    assert_eq!(offers(&mut a.directs, at(1)), []);
    // One has its socket, one was refused, one ended, and so did one that waits.
    let numbers: Vec<u64> = first.iter().map(|(_, number)| *number).collect();
    a.directs.offers.get_mut(&numbers[0]).unwrap().is_met = true;
    a.directs.handle_socket(numbers[0], Some("socket"));
    let refused = PeerMessage::DirectRefused { number: numbers[1], is_yours: true, reason: Reason::PeerLimit };
    a.directs.handle_message(peer, refused);
    a.directs.handle_over(2);
    a.directs.handle_over(streams - 1);
    assert_eq!(offers(&mut a.directs, at(2)).len(), 3);
    // What nobody answers makes room too, and in the end all had their turn.
    let mut turns = OFFERS_PER_PEER_MAX + 3;
    for n in 1..3 {
        a.directs.handle_timeout(at(2) + n * OFFER_TIME);
        turns += offers(&mut a.directs, at(2) + n * OFFER_TIME).len();
    }
    assert_eq!(turns as u64, streams - 1);
    a.directs.handle_timeout(at(2) + 3 * OFFER_TIME);
    assert_eq!((a.directs.deadline(), a.directs.counters().open), (None, 1));
}

#[test]
fn the_offer_of_a_peer_takes_the_place_of_one_that_waits() {
    let (mut a, mut b) = (host(1), host(2));
    // Both see the same stream; this host has not come to it.
    a.directs.handle_bulk(a.stream, [7; 32]);
    b.directs.handle_bulk(b.stream, [8; 32]);
    let Some(DirectAction::Send { message, .. }) = b.directs.poll_action(at(0)) else { panic!("no offer") };
    a.directs.handle_message(b.own, message);
    let Some(DirectAction::AskRoute { number, .. }) = a.directs.poll_action(at(0)) else { panic!("no question") };
    a.directs.on_route(b.own, number, Some(a.stream));
    assert_eq!(offers(&mut a.directs, at(0)), []);
    assert_eq!(a.directs.counters().open, 1);
}
