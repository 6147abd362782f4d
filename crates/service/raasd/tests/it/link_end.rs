//! One end of a control link that is up, of a test that has the cluster key.

use std::net::{IpAddr, TcpStream};
use std::sync::{Arc, Mutex};

use control::{PeerMessage, decode, encode, with_length};
use plane::{ClusterKey, ClusterKeys, Identity, Introduction, Opening, OpeningAction, Seal, Verdict};
use verbs::Time;

use crate::frames::{read_frame, read_message, write_frame, write_message};
use crate::hosts::PATIENCE;

/// The key of all hosts of these tests.
const KEY: [u8; 32] = [42; 32];

/// An end.
#[derive(Debug)]
pub(crate) struct LinkEnd {
    pub(crate) stream: TcpStream,
    seal: Arc<Mutex<Seal>>,
}

impl LinkEnd {
    /// Opens a link on a connection as the side that dialed, as a daemon with that number and address. None: the
    /// daemon refuses.
    pub(crate) fn dial(stream: TcpStream, instance: u64, address: IpAddr, engines: u32) -> Option<(Self, Identity)> {
        let dialed = stream.peer_addr().unwrap().ip();
        let own = introduction(instance, address, engines);
        let opening = Opening::dial(Time::ZERO, own, keys(), fresh(), dialed, PATIENCE);
        Self::open(stream, opening, None)
    }

    /// The same as the side that accepted, after the other's Hello was read.
    pub(crate) fn accept(stream: TcpStream, hello: PeerMessage, as_daemon: Identity) -> Option<(Self, Identity)> {
        let own = introduction(as_daemon.instance, as_daemon.address, as_daemon.engines);
        let opening = Opening::accept(Time::ZERO, own, keys(), fresh(), PATIENCE);
        Self::open(stream, opening, Some(hello))
    }

    fn open(mut stream: TcpStream, mut opening: Opening, first: Option<PeerMessage>) -> Option<(Self, Identity)> {
        if let Some(first) = first {
            opening.handle_message(first);
        }
        loop {
            while let Some(action) = opening.poll_action() {
                match action {
                    OpeningAction::Send(message) => write_message(&mut stream, &message),
                    OpeningAction::Judge(_) => opening.on_verdict(Verdict::Proceed),
                    OpeningAction::Up(peer) => {
                        let seal = Arc::new(Mutex::new(opening.take_seal().unwrap()));
                        return Some((Self { stream, seal }, peer));
                    }
                    OpeningAction::Refuse(_) | OpeningAction::GiveUp(_) => return None,
                }
            }
            opening.handle_message(read_message(&mut stream)?);
        }
    }

    /// Says something to the daemon.
    pub(crate) fn say(&mut self, message: &PeerMessage) -> bool {
        let mut seal = self.seal.lock().unwrap();
        let frame = seal.seal(&encode(message).unwrap()).unwrap();
        write_frame(&mut self.stream, &frame)
    }

    /// What the daemon says; none at the end.
    pub(crate) fn hear(&mut self) -> Option<PeerMessage> {
        let frame = read_frame(&mut self.stream)?;
        let message = self.seal.lock().unwrap().open(&frame).expect("the daemon seals its frames");
        Some(decode(&message).unwrap())
    }

    /// The daemon's last message before it closes.
    pub(crate) fn last(&mut self) -> PeerMessage {
        let mut last = None;
        while let Some(message) = self.hear() {
            last = Some(message);
        }
        last.expect("a daemon that closes says why")
    }

    /// The same end once more.
    pub(crate) fn again(&self) -> Self {
        Self { stream: self.stream.try_clone().unwrap(), seal: Arc::clone(&self.seal) }
    }
}

fn keys() -> ClusterKeys {
    ClusterKeys::one(ClusterKey::new(KEY.to_vec()))
}

fn introduction(instance: u64, address: IpAddr, engines: u32) -> Introduction {
    Introduction::of_this_release(Identity::new(instance, address, engines, fresh()))
}

fn fresh() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

/// A frame that no seal made, as if it were one of a link that is up.
pub(crate) fn write_unsealed(stream: &mut TcpStream, message: &PeerMessage) {
    use std::io::Write as _;
    let _ = stream.write_all(&with_length(&encode(message).unwrap()));
}
