//! A peer that has the cluster key and says whatever it likes, beside one that keeps to the rules. Owns the liar.

use std::collections::BTreeSet;

use super::*;

const HONEST: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const LIAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 3));
/// Streams to the liar have the numbers below this one.
const LIARS: u64 = 1000;
const STEPS: u32 = 400;

/// Marsaglia's xorshift: the same words for each seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn stream(connection: u64) -> BulkOf {
    let (peer, uid) = if connection < LIARS { (LIAR, 5) } else { (HONEST, 6) };
    BulkOf { client: ClientId(uid.into()), uid, connection, slot: 1, peer, lane: 0, peer_route: connection as u32 }
}

/// Anything that a daemon may say of these connections: about numbers that are, were, or never were.
fn lie(dice: &mut Dice) -> PeerMessage {
    let number = dice.below(80);
    match dice.below(3) {
        0 => PeerMessage::DirectOffer { number, lane: 0, route: dice.below(2 * LIARS) as u32, token: [9; 32] },
        1 => PeerMessage::DirectRefused { number, is_yours: true, reason: Reason::PeerLimit },
        _ => PeerMessage::DirectRefused { number, is_yours: false, reason: Reason::PeerAppDescriptors },
    }
}

/// The host, and offers of its that the honest peer has not come for.
struct Host {
    directs: Directs<&'static str>,
    pending: VecDeque<(u64, [u8; CHALLENGE_BYTES])>,
}

/// The honest peer comes for the oldest offer to it.
fn come(host: &mut Host) {
    let Some((number, token)) = host.pending.pop_front() else { return };
    let proof = DirectProof { number, token, nonce: [4; 32] };
    let hello = DirectHello { number, nonce: [4; 32], mac: proof.mac(Side::Dialer) };
    assert!(host.directs.judge(Time::ZERO, &hello).is_some(), "offer {number} to the honest peer was spoiled");
    host.directs.handle_socket(number, Some("honest"));
}

/// What the driver does with an action. The engine finds a peer's own streams alone, and the liar keeps no socket that
/// it is dialed for, but half of the time says that it does.
fn drive(host: &mut Host, action: DirectAction<&'static str>, dice: &mut Dice) -> Option<u64> {
    let directs = &mut host.directs;
    match action {
        DirectAction::Send { peer, message: PeerMessage::DirectOffer { number, token, .. } } if peer == HONEST => {
            host.pending.push_back((number, token));
        }
        DirectAction::Send { .. } => {}
        DirectAction::AskRoute { peer, number, route, .. } => {
            assert_eq!(peer, LIAR, "the honest one offers nothing");
            directs.on_route(peer, number, Some(stream(route.into())).filter(|of| of.peer == peer && route < 40));
        }
        DirectAction::Dial { peer, number, token, connection } => {
            assert_eq!((peer, token), (LIAR, [9; 32]));
            let result = if dice.below(2) == 0 { Ok("liar") } else { Err(Reason::PeerAuth) };
            directs.on_dialed(peer, number, connection, result);
        }
        DirectAction::Give { connection, socket, client, .. } => {
            assert_eq!(client, stream(connection).client);
            assert_eq!(socket, if connection < LIARS { "liar" } else { "honest" });
            return Some(connection);
        }
    }
    None
}

/// Does what is to be done, and notes the honest peer's streams that have their sockets.
fn settle(host: &mut Host, dice: &mut Dice, given: &mut BTreeSet<u64>) {
    let mut actions = 0;
    while let Some(action) = host.directs.poll_action(Time::ZERO) {
        given.extend(drive(host, action, dice).filter(|connection| *connection >= LIARS));
        actions += 1;
        assert!(actions < 64, "one word of a peer costs few actions");
    }
}

fn run(seed: u64) {
    let mut dice = Dice(seed * 2 + 1);
    let directs = Directs::new(IpAddr::from([10, 0, 0, 1]));
    let mut host = Host { directs, pending: VecDeque::new() };
    let (mut honest, mut given) = (LIARS, BTreeSet::new());
    for step in 0..STEPS {
        let now = Time::ZERO + Duration::from_millis(u64::from(step));
        match dice.below(9) {
            0 => {
                host.directs.handle_bulk(stream(honest), [7; 32]);
                honest += 1;
            }
            1 => host.directs.handle_bulk(stream(dice.below(60)), [8; 32]),
            2 => host.directs.handle_over(dice.below(60)),
            3 => host.directs.handle_timeout(now),
            4 => {
                // It knows the tokens of offers to it alone, and guesses others wrong.
                let hello = DirectHello { number: dice.below(80), nonce: [4; 32], mac: [3; 32] };
                assert_eq!(host.directs.judge(now, &hello), None);
            }
            5 => come(&mut host),
            _ => host.directs.handle_message(LIAR, lie(&mut dice)),
        }
        settle(&mut host, &mut dice, &mut given);
        assert!(host.directs.asked.is_empty() && host.directs.offers.len() <= 2 * OFFERS_PER_PEER_MAX);
        assert!(host.directs.users.get(&5).copied().unwrap_or(0) <= 60, "no place is counted twice");
    }
    while !host.pending.is_empty() {
        come(&mut host);
        settle(&mut host, &mut dice, &mut given);
    }
    assert_eq!(given, (LIARS..honest).collect(), "each stream of the honest peer has its socket");
    (0..honest).for_each(|connection| host.directs.handle_over(connection));
    let left = (host.directs.counters().open, host.directs.offers.len(), host.directs.streams.len());
    assert_eq!(left, (0, 0, 0), "nothing of the liar stays");
}

#[test]
fn a_peer_that_lies_costs_its_own_streams_alone() {
    for seed in 1..=500 {
        run(seed);
    }
}
