//! Keys of sealed packets: of a connected QP, and of the datagrams to and from each peer that seals them.
//!
//! Owns which packets may come in the clear. It must never let one in that came by another way than its keys'.

use std::collections::HashMap;
use std::net::IpAddr;

use records::PacketKeys;
use verbs::{Psn, Qpn};

use crate::path::Source;

/// The keys of a connection.
#[derive(Debug)]
pub(crate) struct QpSeal {
    pub(crate) keys: PacketKeys,
    /// The QP that opens what this end sends.
    pub(crate) to: Qpn,
}

/// The datagrams between this NIC and a peer ([`crate::Nic::create_sealed_ah`]).
#[derive(Debug)]
pub struct DatagramSeal {
    /// Their keys.
    pub keys: PacketKeys,
    /// What names them in datagrams that this NIC receives: no other that it has.
    pub own_key: Psn,
    /// What names them at the peer.
    pub peer_key: Psn,
    /// The peer's UD QP, from which all of its datagrams come.
    pub peer_qpn: Qpn,
}

/// A [`DatagramSeal`] in use.
#[derive(Debug)]
pub(crate) struct PeerSeal {
    pub(crate) seal: DatagramSeal,
    ip: IpAddr,
    /// Where they arrive.
    at: Source,
}

impl PeerSeal {
    /// Whether datagrams under these keys come from there.
    pub(crate) fn is_of(&self, ip: IpAddr, qpn: Qpn) -> bool {
        (self.ip, self.seal.peer_qpn) == (ip.to_canonical(), qpn)
    }

    /// Whether they arrive there.
    pub(crate) fn is_at(&self, at: Source) -> bool {
        self.at.index == at.index
    }
}

/// Those of all address handles that have one.
#[derive(Debug, Default)]
pub(crate) struct DatagramSeals {
    by_key: HashMap<u32, PeerSeal>,
    /// How many of them are of a peer.
    sources: HashMap<(IpAddr, Qpn), u32>,
}

impl DatagramSeals {
    /// Of datagrams from `ip` to `at`. False: another one has its name.
    pub(crate) fn insert(&mut self, seal: DatagramSeal, ip: IpAddr, at: Source) -> bool {
        let (key, source) = (seal.own_key.get(), (ip.to_canonical(), seal.peer_qpn));
        if self.by_key.contains_key(&key) {
            return false;
        }
        *self.sources.entry(source).or_default() += 1;
        self.by_key.insert(key, PeerSeal { seal, ip: source.0, at });
        true
    }

    pub(crate) fn remove(&mut self, key: Psn) {
        let Some(gone) = self.by_key.remove(&key.get()) else { return };
        let source = (gone.ip, gone.seal.peer_qpn);
        if let Some(count) = self.sources.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.sources.remove(&source);
            }
        }
    }

    pub(crate) fn get_mut(&mut self, key: Psn) -> Option<&mut PeerSeal> {
        self.by_key.get_mut(&key.get())
    }

    /// Whether that peer's datagrams are sealed: one in the clear is somebody else's.
    pub(crate) fn has_source(&self, ip: IpAddr, qpn: Qpn) -> bool {
        !self.sources.is_empty() && self.sources.contains_key(&(ip.to_canonical(), qpn))
    }
}
