//! Identifies the other end of a control link: Hello, then a Noise handshake with the cluster key.
//! docs/inside/control-link.md has the bytes.
//!
//! Owns what is bound and what the two sides tell each other under the key, no I/O. It must never send the key, and must
//! never prove anything before the other side has sent its challenge. The accepting side answers nothing that needs the
//! key to a peer that does not have it.

use std::net::IpAddr;
use std::time::Duration;

use control::{CHALLENGE_BYTES, LinkTerms, PeerMessage, Reason, WIRE_VERSION, decode, encode};
use verbs::VerbsError;

use crate::noise::{Noise, NoiseError};
use crate::seal::Seal;
use crate::side::Side;
use crate::{ClusterKey, ClusterKeys};

/// First bytes of what both sides bind: this protocol and nothing else that may use the same key.
const DOMAIN: &[u8] = b"raas control link 2\0";

/// Who a side is, by its own word; proven by what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// A random number of the daemon's process.
    pub instance: u64,
    /// The address that it listens at.
    pub address: IpAddr,
    /// Its engines; 1 until its Noise message, which says it.
    pub engines: u32,
    /// Fresh random bytes.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// What it says of this link.
    pub link: LinkNames,
    /// It says something at least so often; zero until its Noise message.
    pub heartbeat: Duration,
}

impl Identity {
    /// Of a daemon that says nothing of the link.
    pub fn new(instance: u64, address: IpAddr, engines: u32, challenge: [u8; CHALLENGE_BYTES]) -> Self {
        Self { instance, address, engines, challenge, link: LinkNames::default(), heartbeat: Duration::ZERO }
    }
}

/// How a link and its predecessor are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkNames {
    /// The number that both ends give this link; 0 before both Hellos were said.
    pub own: u64,
    /// The link whose place this one takes; 0: none. Of a peer, nothing before its Noise message.
    pub replaces: u64,
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

    /// Of a lane, for what the device said; with `otherwise`, unless the device's word has a reason of its own.
    pub fn of_lane(error: &VerbsError, otherwise: Reason) -> Self {
        let reason = if let VerbsError::NotEncrypted(_) = error { Reason::NotEncrypted } else { otherwise };
        Self::new(reason, error.to_string())
    }
}

/// One side's view of the exchange.
#[derive(Debug)]
pub(crate) struct Handshake {
    side: Side,
    own: Introduction,
    peer: Option<Identity>,
    /// What the fresh key is made of; used once.
    secret: Option<[u8; 32]>,
    noise: Option<Noise>,
}

impl Handshake {
    /// `secret`: 32 fresh random bytes.
    pub(crate) fn new(side: Side, own: Introduction, secret: [u8; 32]) -> Self {
        Self { side, own, peer: None, secret: Some(secret), noise: None }
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
        let link = LinkNames { own: link_name(&own.challenge, &challenge), replaces: 0 };
        let peer = Identity { link, ..Identity::new(instance, address.to_canonical(), 1, challenge) };
        self.peer = Some(peer);
        Ok(peer)
    }

    /// The dialer's Noise message, under the key that it dials with.
    pub(crate) fn begin(&mut self, keys: &ClusterKeys) -> Result<PeerMessage, Refusal> {
        let secret = self.secret.take().ok_or_else(|| broken("a second Noise message"))?;
        let mut noise = self.noise(keys.dialing(), secret)?;
        let message = self.terms(&mut noise)?;
        self.noise = Some(noise);
        Ok(message)
    }

    /// The dialer's Noise message at the acceptor, which tries each of its keys; what it answers.
    pub(crate) fn answer(&mut self, message: &PeerMessage, keys: &ClusterKeys) -> Result<PeerMessage, Refusal> {
        let PeerMessage::Noise { message } = message else { return Err(unexpected(message, "Noise")) };
        let secret = self.secret.take().ok_or_else(|| broken("a second Noise message"))?;
        for key in keys.accepted() {
            // Of the machines that are tried one goes on, so the secret makes one key.
            let mut noise = self.noise(key, secret)?;
            if let Ok(payload) = noise.read(message) {
                self.take_terms(&payload)?;
                let answer = self.terms(&mut noise)?;
                self.noise = Some(noise);
                return Ok(answer);
            }
        }
        Err(self.no_common_key())
    }

    /// The acceptor's answer at the dialer.
    pub(crate) fn finish(&mut self, message: &PeerMessage) -> Result<(), Refusal> {
        let PeerMessage::Noise { message } = message else { return Err(unexpected(message, "Noise")) };
        let Some(noise) = &mut self.noise else { return Err(broken("a Noise message too early")) };
        match noise.read(message) {
            Ok(payload) => self.take_terms(&payload),
            Err(_) => Err(self.no_common_key()),
        }
    }

    /// What seals the frames that follow, once both Noise messages have passed.
    pub(crate) fn take_seal(&mut self) -> Option<Seal> {
        self.noise.take()?.into_seal().ok()
    }

    fn noise(&self, key: &ClusterKey, secret: [u8; 32]) -> Result<Noise, Refusal> {
        let prologue = self.prologue().ok_or_else(|| broken("Noise before Hello"))?;
        Noise::new(self.side, key, &prologue, secret).map_err(refusal)
    }

    /// This side's terms as its Noise message.
    fn terms(&self, noise: &mut Noise) -> Result<PeerMessage, Refusal> {
        let Identity { engines, link, heartbeat, .. } = self.own.identity;
        let heartbeat_ms = u32::try_from(heartbeat.as_millis()).unwrap_or(u32::MAX);
        let terms = LinkTerms { engines, replaces: link.replaces, heartbeat_ms };
        let payload = encode(&terms).map_err(|e| broken(&e.to_string()))?;
        Ok(PeerMessage::Noise { message: noise.write(&payload).map_err(refusal)? })
    }

    fn take_terms(&mut self, payload: &[u8]) -> Result<(), Refusal> {
        let LinkTerms { engines, replaces, heartbeat_ms } = decode(payload).map_err(|e| broken(&e.to_string()))?;
        if let Some(peer) = &mut self.peer {
            (peer.engines, peer.link.replaces) = (engines, replaces);
            peer.heartbeat = Duration::from_millis(heartbeat_ms.into());
        }
        Ok(())
    }

    fn no_common_key(&self) -> Refusal {
        let detail = format!(
            "{} and {} have different cluster keys, or somebody between them changed what they said",
            self.own.identity.address,
            self.peer_name()
        );
        Refusal::new(Reason::PeerAuth, detail)
    }

    fn peer_name(&self) -> String {
        self.peer.map_or_else(|| "the peer".into(), |p| p.address.to_string())
    }

    /// Everything that both sides said in the clear: who changes a byte of it makes the Noise messages unreadable.
    fn prologue(&self) -> Option<Vec<u8>> {
        let peer = self.peer?;
        let (dialer, acceptor) = match self.side {
            Side::Dialer => (self.own.identity, peer),
            Side::Acceptor => (peer, self.own.identity),
        };
        let mut bytes = DOMAIN.to_vec();
        bytes.extend(self.own.version.to_be_bytes());
        for identity in [dialer, acceptor] {
            bytes.extend(identity.instance.to_be_bytes());
            bytes.extend(address_bytes(identity.address));
            bytes.extend(identity.challenge);
        }
        Some(bytes)
    }
}

fn refusal(error: NoiseError) -> Refusal {
    broken(&error.to_string())
}

fn broken(what: &str) -> Refusal {
    Refusal::new(Reason::Unspecified, format!("the handshake cannot go on: {what}"))
}

/// Why the other side ended the exchange, or what it said instead of what it should.
pub(crate) fn unexpected(message: &PeerMessage, wanted: &str) -> Refusal {
    match message {
        PeerMessage::Bye { reason, detail } => Refusal::new(*reason, detail.clone()),
        other => {
            let name = match other {
                PeerMessage::Hello { .. } => "Hello",
                PeerMessage::Noise { .. } => "Noise",
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

/// The number that both ends give a link. Random, as each challenge is.
fn link_name(one: &[u8; CHALLENGE_BYTES], other: &[u8; CHALLENGE_BYTES]) -> u64 {
    let head = |bytes: &[u8; CHALLENGE_BYTES]| bytes.first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    (head(one) ^ head(other)).max(1)
}

/// 16 bytes: IPv6, or IPv4 mapped into it.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests;
