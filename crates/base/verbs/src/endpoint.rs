//! What two ends send to each other before a connection: bytes whose meaning only the devices know.
//!
//! A consumer carries an [`Endpoint`] from one device to the other over some channel of its own, and looks at none of
//! it. So devices without queue pair numbers, PSNs or UDP ports fit: their endpoints say what they need.

use std::net::{IpAddr, SocketAddr};

use crate::{Access, Capabilities, Encrypt, Gid, PathMtu, UdDest, VerbsError, Wire, WirePolicy};

/// Longest [`Endpoint`] in bytes.
pub const ENDPOINT_BYTES_MAX: usize = 128;

/// One end of a connection, or a datagram port, as its device describes it to the other end's device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(Vec<u8>);

impl Endpoint {
    /// Takes bytes that came from a peer, or that a device made. Refused if there are none, or more than
    /// [`ENDPOINT_BYTES_MAX`]; what they say is judged by the device.
    pub fn new(bytes: Vec<u8>) -> Result<Self, VerbsError> {
        if (1..=ENDPOINT_BYTES_MAX).contains(&bytes.len()) {
            return Ok(Self(bytes));
        }
        let (value, max) = (bytes.len() as u64, ENDPOINT_BYTES_MAX as u64);
        Err(VerbsError::OutOfRange { what: "length of an endpoint", value, min: 1, max })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same, to be sent.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// What a consumer wants of its end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct OfferAttr {
    /// What peers may do through the QP.
    pub access: Access,
    /// Largest path MTU.
    pub mtu_max: PathMtu,
    /// A random number, from which the device takes what an outsider must not guess (over RoCE the first PSN).
    pub entropy: u32,
    /// Which wires may carry the connection, of those that the device has. Hardware has one, and ignores it.
    pub wire: WirePolicy,
    /// The host at the other end, if the consumer knows it: a device may have learnt which wires lead there.
    pub peer: Option<IpAddr>,
    /// Whether the connection is to be encrypted. A device that cannot refuses [`Encrypt::Required`].
    pub encrypt: Encrypt,
    /// The address of this host at which the connection is to be; none: the device's own. A device that has no other
    /// address refuses.
    pub local: Option<IpAddr>,
}

/// How datagrams go to a host and come from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramAttr {
    /// Whether they are to be encrypted.
    pub encrypt: Encrypt,
    /// The address of this host that they leave from and come to; none: the device's own. A device that has no other
    /// address refuses.
    pub local: Option<IpAddr>,
}

impl DatagramAttr {
    /// At the device's own address.
    pub const fn new(encrypt: Encrypt) -> Self {
        Self { encrypt, local: None }
    }

    /// The address, as an [`crate::AddressVector`] has it.
    pub fn source(&self) -> Option<Gid> {
        self.local.map(Gid::from)
    }
}

/// How a consumer wants a connection to run.
#[derive(Debug, Clone, Copy)]
pub struct AcceptAttr {
    /// What the peer's device does beyond the least, as far as both sides know: [`Capabilities`] of both that its
    /// consumer said.
    pub peer: Capabilities,
    /// Local ACK timeout: 4.096 us x 2^timeout, 0 means never (IBTA 9.7.6.1.3).
    pub timeout: u8,
    /// Transport retries, 0..=7.
    pub retry_cnt: u8,
    /// RNR retries, 7 means for ever.
    pub rnr_retry: u8,
    /// Code of the RNR timer that peers get (IBTA table 45).
    pub min_rnr_timer: u8,
}

/// A connection that was set up, for its consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Where the peer's packets come from.
    pub peer: SocketAddr,
    /// Number of the peer's QP, for people.
    pub peer_qpn: u32,
    /// Path MTU of both directions.
    pub mtu: PathMtu,
    /// READs that may be outstanding at a time.
    pub reads_max: u8,
    /// What carries it.
    pub wire: Wire,
    /// Why this wire, in a clause for people.
    pub wire_reason: &'static str,
    /// What keeps those between the two ends from reading and forging it; none: it is in the clear.
    pub cipher: Option<&'static str>,
    /// Why it is, or is not, in a clause for people.
    pub encryption_reason: &'static str,
}

/// Another host's datagram port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramLink {
    /// Where datagrams to it go; its address handle is the caller's to destroy.
    pub dest: UdDest,
    /// The address that its datagrams come from.
    pub address: IpAddr,
    /// What keeps those on the way from reading and forging datagrams, in both directions; none: they are in the clear.
    pub cipher: Option<&'static str>,
}
