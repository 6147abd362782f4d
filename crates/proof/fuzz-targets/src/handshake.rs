//! The handshake of a control link against one who has not the key, and the seal of a link that is up.

use std::net::IpAddr;
use std::time::Duration;

use control::{PeerMessage, decode, encode};
use plane::{ClusterKey, ClusterKeys, Identity, Introduction, Opening, OpeningAction, Seal, Verdict};
use verbs::Time;

const LIMIT: Duration = Duration::from_secs(5);

fn own(n: u8) -> Introduction {
    let address = IpAddr::from([127, 0, 0, n]);
    Introduction::of_this_release(Identity::new(n.into(), address, 1, [n; 32]))
}

fn keys() -> ClusterKeys {
    ClusterKeys::new(ClusterKey::new(vec![1; 32]), vec![ClusterKey::new(vec![2; 32])])
}

fn dialer() -> Opening {
    Opening::dial(Time::ZERO, own(1), keys(), [3; 32], IpAddr::from([127, 0, 0, 2]), LIMIT)
}

fn acceptor() -> Opening {
    Opening::accept(Time::ZERO, own(2), keys(), [4; 32], LIMIT)
}

/// The first byte says what the rest is for: messages for the acceptor or the dialer, each behind a byte of length, or a
/// frame for a link that is up.
pub(crate) fn handshake(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    match first % 3 {
        0 => speak(acceptor(), rest),
        1 => speak(dialer(), rest),
        _ => {
            let (mut a, mut b) = linked();
            // The true frame is not known to who has not the key.
            assert!(b.open(rest).is_err(), "a frame of a stranger was opened");
            let next = a.seal(b"true").expect("a short message");
            assert!(b.open(&next).is_err(), "a link went on after a frame that nobody sent");
        }
    }
}

/// Whatever a stranger says, no link comes up.
fn speak(mut opening: Opening, mut bytes: &[u8]) {
    while let Some((&length, rest)) = bytes.split_first() {
        let (message, rest) = rest.split_at(rest.len().min(length.into()));
        bytes = rest;
        let message = decode::<PeerMessage>(message).unwrap_or(PeerMessage::Noise { message: message.to_vec() });
        opening.handle_message(message);
        while let Some(action) = opening.poll_action() {
            match action {
                OpeningAction::Judge(_) => opening.on_verdict(Verdict::Proceed),
                OpeningAction::Up(_) => panic!("a stranger has opened a link"),
                OpeningAction::Send(said) => assert!(encode(&said).is_ok_and(|frame| frame.len() < 4096)),
                OpeningAction::Refuse(_) | OpeningAction::GiveUp(_) => {}
            }
        }
    }
    assert!(opening.deadline().is_none_or(|at| at > Time::ZERO));
}

/// Both ends of a link of two daemons.
fn linked() -> (Seal, Seal) {
    let (mut a, mut b) = (dialer(), acceptor());
    for _ in 0..8 {
        for at_a in [true, false] {
            let (one, other) = if at_a { (&mut a, &mut b) } else { (&mut b, &mut a) };
            while let Some(action) = one.poll_action() {
                match action {
                    OpeningAction::Send(message) => other.handle_message(message),
                    OpeningAction::Judge(_) => one.on_verdict(Verdict::Proceed),
                    _ => {}
                }
            }
        }
    }
    a.take_seal().zip(b.take_seal()).expect("two daemons with one key")
}
