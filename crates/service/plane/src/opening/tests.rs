//! Both sides of a handshake against each other, message by message.

use control::{CHALLENGE_BYTES, WIRE_VERSION};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

fn own(n: u8, version: u32) -> Introduction {
    let (instance, address) = (n.into(), IpAddr::from([127, 0, 0, n]));
    let identity = Identity::new(instance, address, 1, [n; CHALLENGE_BYTES]);
    Introduction { version, ..Introduction::of_this_release(identity) }
}

fn key(n: u8) -> ClusterKeys {
    ClusterKeys::one(crate::ClusterKey::new(vec![n; 32]))
}

fn ip(n: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, n])
}

fn sides(versions: [u32; 2], keys: [u8; 2]) -> (Opening, Opening) {
    let dialer = Opening::dial(Time(1), own(1, versions[0]), key(keys[0]), [1; 32], ip(2), LIMIT);
    (dialer, Opening::accept(Time(1), own(2, versions[1]), key(keys[1]), [2; 32], LIMIT))
}

/// Carries messages both ways until nothing moves; how the two ends ended, the farewells being heard too.
fn run(dialer: &mut Opening, acceptor: &mut Opening, verdict: &Verdict) -> [Vec<OpeningAction>; 2] {
    let mut ends = [Vec::new(), Vec::new()];
    loop {
        let mut moved = false;
        for (side, end) in ends.iter_mut().enumerate() {
            let (one, other) = if side == 0 { (&mut *dialer, &mut *acceptor) } else { (&mut *acceptor, &mut *dialer) };
            while let Some(action) = one.poll_action() {
                moved = true;
                match action {
                    OpeningAction::Send(message) => other.handle_message(message),
                    OpeningAction::Judge(_) => one.on_verdict(verdict.clone()),
                    OpeningAction::Refuse(refusal) => {
                        let Refusal { reason, detail } = refusal.clone();
                        other.handle_message(PeerMessage::Bye { reason, detail });
                        end.push(OpeningAction::Refuse(refusal));
                    }
                    last => end.push(last),
                }
            }
        }
        if !moved {
            return ends;
        }
    }
}

fn reason(ends: &[OpeningAction]) -> Reason {
    match ends {
        [OpeningAction::Refuse(refusal) | OpeningAction::GiveUp(refusal)] => refusal.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_key_and_one_version_come_up_and_each_knows_the_other() {
    let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9; 2]);
    let [a, b] = run(&mut dialer, &mut acceptor, &Verdict::Proceed);
    assert!(matches!(a[..], [OpeningAction::Up(peer)] if peer.address == ip(2) && peer.instance == 2));
    assert!(matches!(b[..], [OpeningAction::Up(peer)] if peer.address == ip(1) && peer.instance == 1));
    assert_eq!((dialer.deadline(), acceptor.deadline()), (None, None));
    let (mut a, mut b) = (dialer.take_seal().unwrap(), acceptor.take_seal().unwrap());
    assert_eq!(b.open(&a.seal(b"x").unwrap()).unwrap(), b"x");
    assert!(dialer.take_seal().is_none(), "there is one");
}

#[test]
fn another_key_or_version_ends_at_both_sides_with_the_reason() {
    let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9, 8]);
    let ends = run(&mut dialer, &mut acceptor, &Verdict::Proceed);
    assert_eq!(ends.each_ref().map(|e| reason(e)), [Reason::PeerAuth; 2]);
    for versions in [[WIRE_VERSION, WIRE_VERSION + 1], [WIRE_VERSION + 1, WIRE_VERSION]] {
        let (mut dialer, mut acceptor) = sides(versions, [9; 2]);
        let ends = run(&mut dialer, &mut acceptor, &Verdict::Proceed);
        assert_eq!(ends.each_ref().map(|e| reason(e)), [Reason::PeerVersion; 2]);
    }
}

#[test]
fn a_verdict_against_it_reaches_the_dialer_and_no_noise_is_read_before() {
    let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9; 2]);
    let verdict = Verdict::Refuse(Reason::Closed, "there is a link already".into());
    let ends = run(&mut dialer, &mut acceptor, &verdict);
    assert_eq!(ends.each_ref().map(|e| reason(e)), [Reason::Closed; 2]);
    // A Noise message ahead of the verdict.
    let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9; 2]);
    let Some(OpeningAction::Send(hello)) = dialer.poll_action() else { panic!() };
    acceptor.handle_message(hello);
    assert!(acceptor.awaits_verdict());
    acceptor.handle_message(PeerMessage::Noise { message: vec![0; 49] });
    let actions: Vec<_> = std::iter::from_fn(|| acceptor.poll_action()).collect();
    assert!(matches!(&actions[..], [OpeningAction::Send(_), OpeningAction::Judge(_), OpeningAction::Refuse(r)]
        if r.reason == Reason::Unspecified));
    acceptor.on_verdict(Verdict::Proceed);
    assert!(acceptor.poll_action().is_none(), "it is over");
}

#[test]
fn the_acceptor_proves_nothing_to_one_without_the_key() {
    let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9, 8]);
    let mut said = Vec::new();
    let Some(OpeningAction::Send(hello)) = dialer.poll_action() else { panic!() };
    acceptor.handle_message(hello);
    acceptor.on_verdict(Verdict::Proceed);
    acceptor.handle_message(PeerMessage::Noise { message: vec![1; 49] });
    while let Some(action) = acceptor.poll_action() {
        if let OpeningAction::Send(message) = action {
            said.push(message);
        }
    }
    assert!(matches!(said[..], [PeerMessage::Hello { .. }]), "{said:?}");
}

#[test]
fn who_answers_for_another_address_is_refused() {
    let mut dialer = Opening::dial(Time(1), own(1, WIRE_VERSION), key(9), [1; 32], ip(3), LIMIT);
    let mut acceptor = Opening::accept(Time(1), own(2, WIRE_VERSION), key(9), [2; 32], LIMIT);
    let ends = run(&mut dialer, &mut acceptor, &Verdict::Proceed);
    assert_eq!(reason(&ends[0]), Reason::BadAddress);
}

#[test]
fn each_step_ends_in_time_and_a_lost_connection_at_once() {
    for steps in 0..3 {
        let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9; 2]);
        for step in 0..steps {
            let (one, other) = if step % 2 == 0 { (&mut dialer, &mut acceptor) } else { (&mut acceptor, &mut dialer) };
            while let Some(action) = one.poll_action() {
                match action {
                    OpeningAction::Send(message) => other.handle_message(message),
                    _ => one.on_verdict(Verdict::Proceed),
                }
            }
        }
        for (opening, late) in [(&mut dialer, Reason::PeerBusy), (&mut acceptor, Reason::TimedOut)] {
            opening.handle_timeout(Time::ZERO + LIMIT);
            while let Some(action) = opening.poll_action() {
                assert!(matches!(action, OpeningAction::Send(_) | OpeningAction::Judge(_)), "{action:?}");
            }
            opening.handle_timeout(Time(1) + LIMIT);
            assert_eq!(reason(&[opening.poll_action().unwrap()]), late);
            opening.handle_lost(Refusal::new(Reason::PeerLost, "gone"));
            assert!(opening.poll_action().is_none());
        }
        let (mut dialer, mut acceptor) = sides([WIRE_VERSION; 2], [9; 2]);
        dialer.poll_action();
        dialer.handle_lost(Refusal::new(Reason::PeerLost, "gone"));
        assert_eq!(reason(&[dialer.poll_action().unwrap()]), Reason::PeerBusy);
        acceptor.handle_lost(Refusal::new(Reason::Unspecified, "no frame"));
        assert!(matches!(acceptor.poll_action(), Some(OpeningAction::Refuse(_))), "it learns what was wrong");
    }
}
