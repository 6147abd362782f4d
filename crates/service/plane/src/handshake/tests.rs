//! Both sides against each other, and against who listens, repeats, reflects and changes.

use super::*;

fn key(n: u8) -> ClusterKeys {
    ClusterKeys::one(ClusterKey::new(vec![n; 32]))
}

fn sides() -> (Handshake, Handshake) {
    let identity = |n: u8| {
        let (instance, address) = (n.into(), IpAddr::from([127, 0, 0, n]));
        let identity = Identity::new(instance, address, n.into(), [n; CHALLENGE_BYTES]);
        Introduction::of_this_release(identity)
    };
    let side = |side, n| Handshake::new(side, identity(n), [n; 32]);
    (side(Side::Dialer, 1), side(Side::Acceptor, 2))
}

fn met() -> (Handshake, Handshake) {
    let (mut dialer, mut acceptor) = sides();
    assert_eq!(acceptor.handle_hello(dialer.hello()).unwrap().address, dialer.own.identity.address);
    dialer.handle_hello(acceptor.hello()).unwrap();
    (dialer, acceptor)
}

#[test]
fn both_sides_with_one_key_believe_each_other_and_seal() {
    let (mut dialer, mut acceptor) = met();
    let first = dialer.begin(&key(9)).unwrap();
    let second = acceptor.answer(&first, &key(9)).unwrap();
    dialer.finish(&second).unwrap();
    let (mut a, mut b) = (dialer.take_seal().unwrap(), acceptor.take_seal().unwrap());
    assert_eq!(b.open(&a.seal(b"to the acceptor").unwrap()).unwrap(), b"to the acceptor");
    assert_eq!(a.open(&b.seal(b"to the dialer").unwrap()).unwrap(), b"to the dialer");
    assert_eq!([dialer, acceptor].map(|side| side.peer().unwrap().engines), [2, 1]);
}

/// Noise by the crate alone, with what docs/inside/control-link.md says.
#[test]
fn the_handshake_is_the_documented_one() {
    let (mut dialer, _) = met();
    let mut prologue = b"raas control link 2\0".to_vec();
    prologue.extend(control::WIRE_VERSION.to_be_bytes());
    for n in [1u8, 2] {
        prologue.extend([0, 0, 0, 0, 0, 0, 0, n]);
        prologue.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, n]);
        prologue.extend([n; 32]);
    }
    assert_eq!(dialer.prologue().unwrap(), prologue);
    let PeerMessage::Noise { message } = dialer.begin(&key(9)).unwrap() else { panic!() };
    let cluster_key = ClusterKey::new(vec![9; 32]);
    let mut acceptor = Noise::new(Side::Acceptor, &cluster_key, &prologue, [5; 32]).unwrap();
    // The terms: three varints.
    assert_eq!(acceptor.read(&message).unwrap(), [1, 0, 0]);
    assert_eq!(message.len(), 32 + 3 + 16);
}

#[test]
fn each_key_that_is_accepted_is_tried_and_the_first_one_dials() {
    let (old, new) = (ClusterKey::new(vec![1; 32]), ClusterKey::new(vec![2; 32]));
    let only = |k: &ClusterKey| ClusterKeys::one(k.clone());
    let both = |a: &ClusterKey, b: &ClusterKey| ClusterKeys::new(a.clone(), vec![b.clone()]);
    let table = [
        (only(&old), both(&new, &old), true),
        (only(&old), both(&old, &new), true),
        (both(&new, &old), only(&new), true),
        (both(&new, &old), both(&old, &new), true),
        // It dials with the new one alone.
        (both(&new, &old), only(&old), false),
        (only(&old), only(&new), false),
    ];
    for (dials, accepts, works) in table {
        let (mut dialer, mut acceptor) = met();
        let answer = acceptor.answer(&dialer.begin(&dials).unwrap(), &accepts);
        assert_eq!(answer.is_ok(), works, "{answer:?}");
        match answer {
            Ok(answer) => dialer.finish(&answer).unwrap(),
            Err(refusal) => assert_eq!(refusal.reason, Reason::PeerAuth),
        }
    }
}

#[test]
fn a_wrong_key_a_reflected_and_a_replayed_message_fail() {
    let (mut dialer, mut acceptor) = met();
    let wrong = acceptor.answer(&dialer.begin(&key(8)).unwrap(), &key(9)).unwrap_err();
    assert_eq!(wrong.reason, Reason::PeerAuth);
    assert!(wrong.detail.contains("127.0.0.2") && wrong.detail.contains("127.0.0.1"), "{wrong}");
    assert!(acceptor.take_seal().is_none());

    // The dialer's own message sent back to it.
    let (mut dialer, _) = met();
    let own = dialer.begin(&key(9)).unwrap();
    assert_eq!(dialer.finish(&own).unwrap_err().reason, Reason::PeerAuth);

    // A message heard once, against a fresh challenge.
    let (mut dialer, mut acceptor) = met();
    let heard = dialer.begin(&key(9)).unwrap();
    let answer = acceptor.answer(&heard, &key(9)).unwrap();
    let mut fresh = sides().1;
    fresh.own.identity.challenge = [78; CHALLENGE_BYTES];
    fresh.handle_hello(dialer.hello()).unwrap();
    assert_eq!(fresh.answer(&heard, &key(9)).unwrap_err().reason, Reason::PeerAuth);
    // And the acceptor's answer against another dialer.
    let mut again = sides().0;
    again.own.identity.challenge = [77; CHALLENGE_BYTES];
    again.handle_hello(acceptor.hello()).unwrap();
    again.begin(&key(9)).unwrap();
    assert_eq!(again.finish(&answer).unwrap_err().reason, Reason::PeerAuth);
}

/// Somebody in the middle who changes what the two say in the clear, or in their Noise messages.
#[test]
fn whatever_is_changed_or_cut_on_the_way_fails() {
    type Change = fn(&mut PeerMessage);
    let changes: [Change; 3] = [
        |m| {
            if let PeerMessage::Hello { instance, .. } = m {
                *instance += 10
            }
        },
        |m| {
            if let PeerMessage::Hello { address, .. } = m {
                *address = IpAddr::from([127, 0, 0, 9])
            }
        },
        |m| {
            if let PeerMessage::Hello { challenge, .. } = m {
                challenge[31] ^= 1
            }
        },
    ];
    for change in changes {
        for at_dialer in [false, true] {
            let (mut dialer, mut acceptor) = sides();
            let mut hellos = [dialer.hello(), acceptor.hello()];
            change(&mut hellos[usize::from(at_dialer)]);
            let [to_acceptor, to_dialer] = hellos;
            acceptor.handle_hello(to_acceptor).unwrap();
            dialer.handle_hello(to_dialer).unwrap();
            let refused = acceptor.answer(&dialer.begin(&key(9)).unwrap(), &key(9)).unwrap_err();
            assert_eq!(refused.reason, Reason::PeerAuth);
        }
    }
    let (mut dialer, _) = met();
    let PeerMessage::Noise { message } = dialer.begin(&key(9)).unwrap() else { panic!() };
    for at in 0..message.len() {
        let (mut flipped, cut) = (message.clone(), message[..at].to_vec());
        flipped[at] ^= 0x10;
        for message in [flipped, cut] {
            let (_, mut acceptor) = met();
            let refused = acceptor.answer(&PeerMessage::Noise { message }, &key(9)).unwrap_err();
            assert_eq!(refused.reason, Reason::PeerAuth, "byte {at}");
        }
    }
}

#[test]
fn another_version_names_both_and_oneself_is_no_peer() {
    let (mut dialer, acceptor) = sides();
    let mut hello = acceptor.hello();
    if let PeerMessage::Hello { version, release, .. } = &mut hello {
        *version += 1;
        *release = "9.9.9".into();
    }
    let refusal = dialer.handle_hello(hello).unwrap_err();
    assert_eq!(refusal.reason, Reason::PeerVersion);
    let (own, other) = (format!("version {WIRE_VERSION}"), format!("speaks {} (release 9.9.9)", WIRE_VERSION + 1));
    assert!(refusal.detail.contains(&own) && refusal.detail.contains(&other), "{refusal}");
    let myself = dialer.hello();
    assert_eq!(dialer.handle_hello(myself).unwrap_err().reason, Reason::BadAddress);
    assert!(dialer.begin(&key(9)).is_err(), "nothing under the key before the peer's challenge");
}

#[test]
fn a_farewell_and_a_wrong_message_are_told_apart() {
    let (mut dialer, _) = sides();
    let bye = PeerMessage::Bye { reason: Reason::PeerAuth, detail: "no".into() };
    assert_eq!(dialer.handle_hello(bye).unwrap_err(), Refusal::new(Reason::PeerAuth, "no"));
    let wrong = dialer.handle_hello(PeerMessage::Heartbeat).unwrap_err();
    assert_eq!((wrong.reason, wrong.detail.as_str()), (Reason::Unspecified, "sent Heartbeat where Hello was due"));
}
