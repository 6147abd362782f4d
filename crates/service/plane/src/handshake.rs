//! Identifies the other end of a control link: Hello, then proof of the cluster key. docs/wire.md has the bytes.
//!
//! Owns what is proven and how it is compared, no I/O. It must never send the key, and must never send a proof before
//! the other side has sent its challenge. The accepting side proves nothing to a peer that has not proven itself.

use std::net::IpAddr;

use control::{CHALLENGE_BYTES, PeerMessage, Reason, WIRE_VERSION};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::ClusterKey;

/// First bytes of what is proven: this protocol and nothing else that may use the same key.
const DOMAIN: &[u8] = b"raas control link 1\0";

/// Which side of the TCP connection one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the link.
    Dialer,
    /// The side that accepted the link.
    Acceptor,
}

/// Who a side is, by its own word; proven by what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// A random number of the daemon's process.
    pub instance: u64,
    /// The address that it listens at.
    pub address: IpAddr,
    /// Its engines; 1 until its proof, which says it.
    pub engines: u32,
    /// Fresh random bytes.
    pub challenge: [u8; CHALLENGE_BYTES],
}

/// What a side says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduction {
    /// The version of the wire protocol that it speaks.
    pub version: u32,
    /// Its release, for messages to people.
    pub release: String,
    /// Who it is.
    pub identity: Identity,
}

impl Introduction {
    /// Of a daemon of this release.
    pub fn of_this_release(identity: Identity) -> Self {
        Self { version: WIRE_VERSION, release: env!("CARGO_PKG_VERSION").into(), identity }
    }
}

/// The other side is refused: what it is told, and what is logged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Refusal {
    /// What the other side acts on.
    pub reason: Reason,
    /// What a person reads.
    pub detail: String,
}

impl Refusal {
    /// A reason with words.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// One side's view of the exchange.
#[derive(Debug)]
pub(crate) struct Handshake {
    side: Side,
    own: Introduction,
    peer: Option<Identity>,
}

impl Handshake {
    pub(crate) fn new(side: Side, own: Introduction) -> Self {
        Self { side, own, peer: None }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Who the other side says it is, once it said so.
    pub(crate) fn peer(&self) -> Option<Identity> {
        self.peer
    }

    /// This side's first message.
    pub(crate) fn hello(&self) -> PeerMessage {
        let Introduction { version, release, identity } = &self.own;
        PeerMessage::Hello {
            version: *version,
            release: release.clone(),
            instance: identity.instance,
            address: identity.address,
            challenge: identity.challenge,
        }
    }

    /// The peer's first message.
    pub(crate) fn handle_hello(&mut self, message: PeerMessage) -> Result<Identity, Refusal> {
        let PeerMessage::Hello { version, release, instance, address, challenge } = message else {
            return Err(unexpected(&message, "Hello"));
        };
        let Introduction { version: own_version, release: own_release, identity: own } = &self.own;
        if version != *own_version {
            let release: String = release.chars().take(32).collect();
            let detail = format!(
                "{} speaks protocol version {own_version} (release {own_release}), {address} speaks {version} (release {release}): \
                 install the same release on both",
                own.address
            );
            return Err(Refusal::new(Reason::PeerVersion, detail));
        }
        if instance == own.instance {
            return Err(Refusal::new(Reason::BadAddress, format!("{address} leads back to this daemon itself")));
        }
        let peer = Identity { instance, address: address.to_canonical(), engines: 1, challenge };
        self.peer = Some(peer);
        Ok(peer)
    }

    /// This side's proof.
    pub(crate) fn proof(&self, key: &ClusterKey) -> Option<PeerMessage> {
        let mac = self.mac(self.side, key)?.finalize().into_bytes().into();
        Some(PeerMessage::Proof { mac, engines: self.own.identity.engines })
    }

    /// The peer's proof.
    pub(crate) fn handle_proof(&mut self, message: &PeerMessage, key: &ClusterKey) -> Result<(), Refusal> {
        let PeerMessage::Proof { mac, engines } = message else { return Err(unexpected(message, "Proof")) };
        let peer_side = match self.side {
            Side::Dialer => Side::Acceptor,
            Side::Acceptor => Side::Dialer,
        };
        let expected = self.mac(peer_side, key).map(|m| m.finalize().into_bytes());
        if expected.is_some_and(|e| bool::from(e.as_slice().ct_eq(mac))) {
            if let Some(peer) = &mut self.peer {
                peer.engines = *engines;
            }
            return Ok(());
        }
        let detail = format!("{} and {} have different cluster keys", self.own.identity.address, self.peer_name());
        Err(Refusal::new(Reason::PeerAuth, detail))
    }

    fn peer_name(&self) -> String {
        self.peer.map_or_else(|| "the peer".into(), |p| p.address.to_string())
    }

    /// The MAC over everything that both sides said, and over which side proves it.
    fn mac(&self, prover: Side, key: &ClusterKey) -> Option<Hmac<Sha256>> {
        let peer = self.peer?;
        let (dialer, acceptor) = match self.side {
            Side::Dialer => (self.own.identity, peer),
            Side::Acceptor => (peer, self.own.identity),
        };
        let mut mac = Hmac::<Sha256>::new_from_slice(key.bytes()).ok()?;
        mac.update(DOMAIN);
        mac.update(match prover {
            Side::Dialer => b"D",
            Side::Acceptor => b"A",
        });
        mac.update(&self.own.version.to_be_bytes());
        for identity in [dialer, acceptor] {
            mac.update(&identity.instance.to_be_bytes());
            mac.update(&address_bytes(identity.address));
            mac.update(&identity.challenge);
        }
        Some(mac)
    }
}

/// Why the other side ended the exchange, or what it said instead of what it should.
pub(crate) fn unexpected(message: &PeerMessage, wanted: &str) -> Refusal {
    match message {
        PeerMessage::Bye { reason, detail } => {
            // Its words go into the log: cut to a line of text.
            let detail: String = detail.chars().filter(|c| !c.is_control()).take(256).collect();
            Refusal::new(*reason, detail)
        }
        other => {
            let name = match other {
                PeerMessage::Hello { .. } => "Hello",
                PeerMessage::Proof { .. } => "Proof",
                PeerMessage::Heartbeat => "Heartbeat",
                PeerMessage::DirectOffer { .. }
                | PeerMessage::DirectRefused { .. }
                | PeerMessage::DirectHello { .. }
                | PeerMessage::DirectProof { .. } => "a message about a stream of bulk",
                _ => "a message about lanes",
            };
            Refusal::new(Reason::Unspecified, format!("sent {name} where {wanted} was due"))
        }
    }
}

/// 16 bytes: IPv6, or IPv4 mapped into it.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sides() -> (Handshake, Handshake) {
        let identity = |n: u8| {
            let (instance, address) = (n.into(), IpAddr::from([127, 0, 0, n]));
            Introduction::of_this_release(Identity {
                instance,
                address,
                engines: n.into(),
                challenge: [n; CHALLENGE_BYTES],
            })
        };
        (Handshake::new(Side::Dialer, identity(1)), Handshake::new(Side::Acceptor, identity(2)))
    }

    fn met() -> (Handshake, Handshake) {
        let (mut dialer, mut acceptor) = sides();
        assert_eq!(acceptor.handle_hello(dialer.hello()).unwrap().address, dialer.own.identity.address);
        dialer.handle_hello(acceptor.hello()).unwrap();
        (dialer, acceptor)
    }

    #[test]
    fn both_sides_with_one_key_believe_each_other() {
        let (mut dialer, mut acceptor) = met();
        let key = ClusterKey::new(vec![9; 32]);
        acceptor.handle_proof(&dialer.proof(&key).unwrap(), &key).unwrap();
        dialer.handle_proof(&acceptor.proof(&key).unwrap(), &key).unwrap();
        assert_eq!([dialer, acceptor].map(|side| side.peer().unwrap().engines), [2, 1]);
    }

    #[test]
    fn the_proof_covers_the_documented_bytes() {
        let (dialer, _) = met();
        let mut bytes = b"raas control link 1\0D\0\0\0\x03".to_vec();
        for n in [1u8, 2] {
            bytes.extend([0, 0, 0, 0, 0, 0, 0, n]);
            bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, n]);
            bytes.extend([n; 32]);
        }
        let mut mac = Hmac::<Sha256>::new_from_slice(&[9; 32]).unwrap();
        mac.update(&bytes);
        let expected = PeerMessage::Proof { mac: mac.finalize().into_bytes().into(), engines: 1 };
        assert_eq!(dialer.proof(&ClusterKey::new(vec![9; 32])).unwrap(), expected);
    }

    #[test]
    fn a_wrong_key_a_reflected_and_a_replayed_proof_fail() {
        let (mut dialer, mut acceptor) = met();
        let (key, other) = (ClusterKey::new(vec![9; 32]), ClusterKey::new(vec![8; 32]));
        let wrong = acceptor.handle_proof(&dialer.proof(&other).unwrap(), &key).unwrap_err();
        assert_eq!(wrong.reason, Reason::PeerAuth);
        assert!(wrong.detail.contains("127.0.0.2") && wrong.detail.contains("127.0.0.1"), "{wrong}");
        // The dialer's own proof sent back to it.
        let own = dialer.proof(&key).unwrap();
        assert_eq!(dialer.handle_proof(&own, &key).unwrap_err().reason, Reason::PeerAuth);
        // A proof heard once, against a fresh challenge.
        let (mut again, _) = sides();
        again.own.identity.challenge = [77; CHALLENGE_BYTES];
        again.handle_hello(acceptor.hello()).unwrap();
        assert!(again.handle_proof(&acceptor.proof(&key).unwrap(), &key).is_err());
        let mut fresh = sides().1;
        fresh.own.identity.challenge = [78; CHALLENGE_BYTES];
        fresh.handle_hello(dialer.hello()).unwrap();
        assert!(fresh.handle_proof(&own, &key).is_err());
    }

    #[test]
    fn another_version_names_both_and_oneself_is_no_peer() {
        let (mut dialer, acceptor) = sides();
        let mut hello = acceptor.hello();
        if let PeerMessage::Hello { version, release, .. } = &mut hello {
            *version = 7;
            *release = "9.9.9".into();
        }
        let refusal = dialer.handle_hello(hello).unwrap_err();
        assert_eq!(refusal.reason, Reason::PeerVersion);
        assert!(
            refusal.detail.contains("version 3") && refusal.detail.contains("speaks 7 (release 9.9.9)"),
            "{refusal}"
        );
        let myself = dialer.hello();
        assert_eq!(dialer.handle_hello(myself).unwrap_err().reason, Reason::BadAddress);
        assert!(dialer.proof(&ClusterKey::new(vec![9; 32])).is_none(), "no proof before the peer's challenge");
    }

    #[test]
    fn a_farewell_and_a_wrong_message_are_told_apart() {
        let (mut dialer, _) = sides();
        let bye = PeerMessage::Bye { reason: Reason::PeerAuth, detail: "no\u{7}\n".into() };
        assert_eq!(dialer.handle_hello(bye).unwrap_err(), Refusal::new(Reason::PeerAuth, "no"));
        let wrong = dialer.handle_hello(PeerMessage::Heartbeat).unwrap_err();
        assert_eq!((wrong.reason, wrong.detail.as_str()), (Reason::Unspecified, "sent Heartbeat where Hello was due"));
    }
}
