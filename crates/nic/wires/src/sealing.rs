//! Connections over RoCEv2 whose packets are sealed, and datagrams beside connections of either wire: the secrets of
//! endpoints, and the keys that two of them give.
//!
//! No I/O. Owns the secrets that were offered and not used. It must never let one be used for two connections, or twice
//! for datagrams: numbers and keys of their packets would be the same.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use records::{CIPHER, PacketKeys, Purpose, SECRET_BYTES, Secret};
use roce::{DatagramSeal, Nic};
use verbs::{
    AcceptAttr, DatagramAttr, DatagramLink, Encrypt, Endpoint, Link, Provider as _, Psn, QpState, Qpn, RocePort,
    UdDest, VerbsError,
};

use crate::{Encryption, Wires};

/// Secrets of queue pairs that were offered, and are not connected.
#[derive(Debug)]
pub struct Secrets {
    entropy: StdRng,
    offered: BTreeMap<Qpn, Secret>,
    /// Of connections that were made, for the datagrams beside them.
    met: BTreeMap<Qpn, Met>,
}

/// Two ends that both seal datagrams.
#[derive(Debug)]
struct Met {
    own: Secret,
    peer: Secret,
    /// The peer's queue pair of the connection, whose number names the keys there.
    peer_qpn: Qpn,
    /// The UDP port of the peer's device.
    peer_port: u16,
}

impl Secrets {
    /// `entropy` decides the secrets: randomness that nobody else knows, or a seed in a simulation.
    pub fn new(entropy: [u8; 32]) -> Self {
        Self { entropy: StdRng::from_seed(entropy), offered: BTreeMap::new(), met: BTreeMap::new() }
    }

    /// What the endpoint of a queue pair says of its encryption.
    pub fn offer(&mut self, qpn: Qpn, encrypt: Encrypt) -> Option<Encryption> {
        self.forget(qpn);
        if encrypt == Encrypt::Off {
            return None;
        }
        let mut secret = [0; SECRET_BYTES];
        self.entropy.fill_bytes(&mut secret);
        self.offered.insert(qpn, Secret(secret));
        Some(Encryption { secret: Secret(secret), is_required: encrypt == Encrypt::Required })
    }

    /// Refuses an own endpoint whose secret is not that of the queue pair's last offer, or was used.
    pub fn check(&self, qpn: Qpn, own: &Wires) -> Result<(), VerbsError> {
        match own.encryption() {
            Some(own) if self.offered.get(&qpn) != Some(&own.secret) => Err(VerbsError::NotEncrypted(
                "this end's offer was used already, or is not this queue pair's last one: make another one",
            )),
            _ => Ok(()),
        }
    }

    /// A queue pair was connected over either wire: its secret is used, but for datagrams.
    pub fn on_connected(&mut self, qpn: Qpn, own: &Wires, peer: &Wires) {
        self.offered.remove(&qpn);
        let (Some(own), Some(peer_sealing)) = (own.sealing(), peer.sealing()) else { return };
        let over_tcp = peer.tcp.map(|tcp| (tcp.qpn, tcp.port));
        let Some((peer_qpn, peer_port)) = peer.roce.map(|roce| (roce.qpn, roce.udp_port)).or(over_tcp) else { return };
        self.met.insert(qpn, Met { own: own.secret, peer: peer_sealing.secret, peer_qpn, peer_port });
    }

    /// The secret of a queue pair will not be used any more.
    pub fn forget(&mut self, qpn: Qpn) {
        self.offered.remove(&qpn);
        self.met.remove(&qpn);
    }
}

/// The keys of a connection over RoCEv2, and why it is encrypted or not; an error if one of the two ends wants no
/// connection in the clear and the other one does not encrypt over this wire.
fn packet_keys(own: &Wires, peer: &Wires) -> Result<(Option<PacketKeys>, &'static str), VerbsError> {
    let requires = |wires: &Wires| wires.encryption().is_some_and(|encryption| encryption.is_required);
    match (own.sealing(), peer.sealing()) {
        (Some(own), Some(peer)) => match PacketKeys::new(&own.secret, &peer.secret, Purpose::Connection) {
            Some(keys) => Ok((Some(keys), "both ends encrypt each packet, with keys of this queue pair alone")),
            None => Err(VerbsError::NotEncrypted("the peer's end sent this end's own secret back")),
        },
        (_, None) if requires(own) => Err(VerbsError::NotEncrypted(
            "the peer's end does not encrypt RoCEv2: it needs a software NIC of this release, with `encrypt` set to \
             \"preferred\" or \"required\"",
        )),
        (None, _) if requires(peer) => Err(VerbsError::NotEncrypted(
            "only the peer's end has it so: set `encrypt` here to \"preferred\" or \"required\"",
        )),
        (Some(_), None) => {
            Ok((None, "the peer's end does not encrypt RoCEv2 (`encrypt` there, its device or release)"))
        }
        (None, _) => Ok((None, "`encrypt` is \"off\"")),
    }
}

/// [`verbs::Provider::accept`] for two ends that chose RoCEv2.
pub fn accept_roce(
    nic: &mut Nic,
    secrets: &mut Secrets,
    qpn: Qpn,
    (own, peer): (&Endpoint, &Endpoint),
    attr: &AcceptAttr,
) -> Result<Link, VerbsError> {
    let (own_wires, peer_wires) = (Wires::parse(own)?, Wires::parse(peer)?);
    secrets.check(qpn, &own_wires)?;
    let (keys, encryption_reason) = packet_keys(&own_wires, &peer_wires)?;
    let cipher = keys.as_ref().map(|_| CIPHER);
    if let (Some(keys), Some(to)) = (keys, peer_wires.roce) {
        nic.seal_qp(qpn, keys, to.qpn)?;
    }
    match nic.accept(qpn, own, peer, attr) {
        Ok(link) => {
            secrets.on_connected(qpn, &own_wires, &peer_wires);
            Ok(Link { cipher, encryption_reason, ..link })
        }
        Err(error) => {
            nic.unseal_qp(qpn);
            // One that is still in Init sealed nothing, and may be connected to another offer.
            if !matches!(nic.query_qp(qpn), Ok(status) if status.state == QpState::Init) {
                secrets.forget(qpn);
            }
            Err(error)
        }
    }
}

/// [`verbs::Provider::accept_datagrams`]: sealed, if the two ends of the connection beside them said that both seal.
pub fn accept_datagrams(
    nic: &mut Nic,
    secrets: &mut Secrets,
    peer: &Endpoint,
    beside: Qpn,
    attr: &DatagramAttr,
) -> Result<Option<DatagramLink>, VerbsError> {
    let mut port = RocePort::parse(peer)?;
    let Some(met) = secrets.met.remove(&beside) else { return nic.accept_datagrams(peer, beside, attr) };
    if port.udp_port == 0 {
        port.udp_port = met.peer_port;
    }
    let reflected = VerbsError::NotEncrypted("the peer's end sent this end's own secret back");
    let keys = PacketKeys::new(&met.own, &met.peer, Purpose::Datagrams).ok_or(reflected)?;
    let (own_key, peer_key) = (Psn::new(beside.0), Psn::new(met.peer_qpn.0));
    let seal = DatagramSeal { keys, own_key, peer_key, peer_qpn: port.qpn };
    let to = nic.path_marks().on(port.address_vector()).from_source(attr.source());
    let ah = nic.create_sealed_ah(&to, seal)?;
    let dest = UdDest { ah, qpn: port.qpn, qkey: port.qkey };
    Ok(Some(DatagramLink { dest, address: port.gid.ip(), cipher: Some(CIPHER) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wires(sealed: Option<Encryption>) -> Wires {
        Wires { roce: None, tcp: None, sealed }
    }

    #[test]
    fn a_secret_is_that_of_the_last_offer_and_used_once() {
        let mut secrets = Secrets::new([7; 32]);
        assert!(secrets.offer(Qpn(5), Encrypt::Off).is_none());
        let first = secrets.offer(Qpn(5), Encrypt::Preferred);
        let last = secrets.offer(Qpn(5), Encrypt::Required);
        assert!(first != last && last.is_some_and(|e| e.is_required));
        assert!(secrets.check(Qpn(5), &wires(first)).is_err() && secrets.check(Qpn(6), &wires(last)).is_err());
        assert_eq!(secrets.check(Qpn(5), &wires(last)), Ok(()));
        assert_eq!(secrets.check(Qpn(5), &wires(None)), Ok(()), "an end in the clear");
        secrets.forget(Qpn(5));
        assert!(matches!(secrets.check(Qpn(5), &wires(last)), Err(VerbsError::NotEncrypted(_))));
    }

    #[test]
    fn who_requires_refuses_whom_it_cannot_encrypt_with_at_both_ends() {
        let of = |last: u8, is_required| Some(Encryption { secret: Secret([last; 32]), is_required });
        let is_sealed = |own, peer| packet_keys(&wires(own), &wires(peer)).map(|(keys, _)| keys.is_some());
        for required in [false, true] {
            assert_eq!(is_sealed(of(1, required), of(2, false)), Ok(true));
            assert_eq!(is_sealed(of(1, required), None).is_err(), required);
            assert_eq!(is_sealed(None, of(2, required)).is_err(), required);
        }
        assert_eq!(is_sealed(None, None), Ok(false));
        assert!(is_sealed(of(1, false), of(1, false)).is_err(), "reflected");
    }
}
