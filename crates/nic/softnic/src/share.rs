//! Several software NICs of one host at one address and UDP port: an agent makes the sockets, and lends one of each
//! address to each process.
//!
//! The sockets of an address share its port (`SO_REUSEPORT`), and a filter of the kernel (`SO_ATTACH_REUSEPORT_CBPF`)
//! gives each packet to the one whose place is in the highest bits of the destination's queue pair number. A place of the
//! group is lost when a socket closes, and the last one takes it: so one process, the agent, makes all of them, keeps them
//! open, and only appends. Members get duplicates (`SCM_RIGHTS`), and say by their open connection that they live.
//!
//! A number of a queue pair is: the slot of its process, the generation of that slot, then what the NIC draws. Who gets a
//! slot that was another's has another generation, so what was sent to the predecessor reaches none of its queue pairs;
//! what waits in the socket is dropped before.
//!
//! Owns the agreement between agent and members. It must never lend a slot to two processes at once, or to another user:
//! sockets that share a port are of one user.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::OwnedFd;

use roce::QpnRange;
use rustix::net::SocketAddrUnix;

mod agent;
mod group;
mod member;

pub use agent::serve;
pub use member::{ShareError, join};

/// Bits of a queue pair number that name the slot. Slot 0 is the agent's, to which what has no slot falls: numbers 0 and 1.
const SLOT_BITS: u8 = 7;
const SLOTS: usize = 1 << SLOT_BITS;
/// Bits behind them that name the generation of the slot.
const GENERATION_BITS: u8 = 3;
const GENERATIONS: u32 = 1 << GENERATION_BITS;
/// Addresses of one member at most: as many descriptors are passed at once.
const ADDRESSES_MAX: usize = 64;
/// What a member's words begin with; the number is that of this form of them.
const HELLO: [u8; 8] = *b"raasnic\x01";
/// Bytes of an address, of IPv4 as mapped into IPv6.
const ADDRESS_BYTES: usize = 16;
/// What the agent's answer begins with: code, slot, generation.
const HEAD_BYTES: usize = 12;

/// A place among the NICs of a port.
#[derive(Debug)]
pub struct Share {
    /// A socket for each address, the first one's at the front.
    pub sockets: Vec<(IpAddr, OwnedFd)>,
    /// The numbers of its queue pairs.
    pub qpns: QpnRange,
    /// The place is free for others as soon as this is closed in all processes that have it.
    _lease: OwnedFd,
}

/// The agent's name. Names without a file belong to the network namespace, as ports do.
fn name(port: u16) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(format!("raas nic agent {port}").as_bytes())?)
}

fn octets(address: IpAddr) -> [u8; ADDRESS_BYTES] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn address(octets: [u8; ADDRESS_BYTES]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

/// The addresses that bytes name, one behind the other.
fn addresses(bytes: &[u8]) -> Option<Vec<IpAddr>> {
    let (whole, rest) = bytes.as_chunks::<ADDRESS_BYTES>();
    (rest.is_empty() && whole.len() <= ADDRESSES_MAX).then(|| whole.iter().map(|octets| address(*octets)).collect())
}

/// Queue pair numbers of a slot in a generation.
fn qpns(slot: u32, generation: u32) -> QpnRange {
    QpnRange { prefix: (slot << GENERATION_BITS) | (generation % GENERATIONS), bits: SLOT_BITS + GENERATION_BITS }
}

#[cfg(test)]
mod tests;
