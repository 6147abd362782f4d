//! Which interface holds an address, and its MTU, asked over rtnetlink of the network namespace that the process is in
//! (`/sys` may show another one). Reads only; it never changes the network.

use std::net::IpAddr;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes of one reply: rtnetlink fills at most 32 KiB.
const REPLY_BYTES: usize = 32_768;
/// Replies read before a dump is given up: far more than any host has addresses.
const REPLIES_MAX: usize = 4_096;
/// How long the kernel may take for one reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFLA_MTU: u16 = 4;
/// Bytes of `nlmsghdr`.
const NL_HEADER: usize = 16;
/// Bytes of `ifaddrmsg`.
const ADDR_HEADER: usize = 8;
/// Bytes of `ifinfomsg`.
const LINK_HEADER: usize = 16;
/// Of an address that the kernel is still looking for on the link.
const IFA_F_TENTATIVE: u8 = 0x40;
/// The loopback interface has this index in every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// The interface of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interface {
    /// Interface index.
    pub(crate) index: u32,
    /// MTU in bytes of IP packet.
    pub(crate) mtu_bytes: usize,
}

/// The interface that holds `address`; `None` if none does.
pub(crate) fn link_of(address: IpAddr) -> Result<Option<Interface>, rustix::io::Errno> {
    let Some(index) = index_of(address)? else { return Ok(None) };
    let mut mtu = None;
    dump(RTM_GETLINK, |kind, body| {
        if kind == RTM_NEWLINK && u32_at(body, 4) == Some(index) {
            mtu = attribute(body, LINK_HEADER, IFLA_MTU).and_then(|v| u32_at(v, 0));
        }
    })?;
    Ok(mtu.map(|mtu| Interface { index, mtu_bytes: mtu as usize }))
}

/// MTU, in bytes of IP packet, of the interface that holds `address` in this network namespace; `None` if none does.
pub fn link_mtu_bytes(address: IpAddr) -> std::io::Result<Option<usize>> {
    Ok(link_of(address)?.map(|link| link.mtu_bytes))
}

/// The addresses of this network namespace at which a NIC can be, those of loopback last and IPv4 before IPv6; none that
/// is valid on its link alone, and none that is not usable yet.
pub fn host_addresses() -> std::io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    dump(RTM_GETADDR, |kind, body| {
        let is_usable = body.get(2).is_some_and(|flags| flags & IFA_F_TENTATIVE == 0);
        if kind != RTM_NEWADDR || !is_usable {
            return;
        }
        let own = attribute(body, ADDR_HEADER, IFA_LOCAL).or_else(|| attribute(body, ADDR_HEADER, IFA_ADDRESS));
        let address = own.and_then(|own| match own.len() {
            4 => own.try_into().ok().map(|own: [u8; 4]| IpAddr::from(own)),
            _ => own.try_into().ok().map(|own: [u8; 16]| IpAddr::from(own)),
        });
        found.extend(address.filter(|a| !matches!(a, IpAddr::V6(a) if a.is_unicast_link_local())));
    })?;
    found.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    found.dedup();
    Ok(found)
}

fn index_of(address: IpAddr) -> Result<Option<u32>, rustix::io::Errno> {
    let wanted: Vec<u8> = match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    };
    let mut found = None;
    dump(RTM_GETADDR, |kind, body| {
        if kind != RTM_NEWADDR || found.is_some() {
            return;
        }
        // On point-to-point links IFA_ADDRESS is the peer's and IFA_LOCAL ours; IPv6 mostly has the former alone.
        let own = attribute(body, ADDR_HEADER, IFA_LOCAL).or_else(|| attribute(body, ADDR_HEADER, IFA_ADDRESS));
        if own == Some(&wanted[..]) {
            found = u32_at(body, 4);
        }
    })?;
    // All of 127.0.0.0/8 is local though only 127.0.0.1 is listed.
    let loopback = matches!(address, IpAddr::V4(a) if a.is_loopback());
    Ok(found.or(loopback.then_some(LOOPBACK_INDEX)))
}

/// Asks for a dump and gives each message's type and body to `each`.
fn dump(request: u16, mut each: impl FnMut(u16, &[u8])) -> Result<(), rustix::io::Errno> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        // NETLINK_ROUTE is protocol 0, the default of the family.
        None,
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT))?;
    let mut message = [0_u8; NL_HEADER + LINK_HEADER];
    message[0..4].copy_from_slice(&((NL_HEADER + LINK_HEADER) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&request.to_ne_bytes());
    message[6..8].copy_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    rustix::net::sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    read_replies(&socket, &mut each)
}

fn read_replies(socket: &OwnedFd, each: &mut impl FnMut(u16, &[u8])) -> Result<(), rustix::io::Errno> {
    let mut reply = vec![0_u8; REPLY_BYTES];
    for _ in 0..REPLIES_MAX {
        let (got, _) = rustix::net::recv(socket, &mut reply[..], RecvFlags::empty())?;
        let mut rest = reply.get(..got).unwrap_or(&[]);
        while let Some((kind, body, next)) = split_message(rest) {
            match kind {
                NLMSG_DONE => return Ok(()),
                NLMSG_ERROR => {
                    let code = u32_at(body, 0).map_or(0, |c| (c as i32).wrapping_neg());
                    return Err(rustix::io::Errno::from_raw_os_error(code));
                }
                _ => each(kind, body),
            }
            rest = next;
        }
    }
    Err(rustix::io::Errno::OVERFLOW)
}

/// The first message of `bytes`: its type, its body, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32_at(bytes, 0)? as usize;
    let body = bytes.get(NL_HEADER..len)?;
    let next = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    Some((u16_at(bytes, 4)?, body, next))
}

/// The value of the first attribute of type `kind` after the fixed header of a message's body.
fn attribute(body: &[u8], header: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = body.get(header..)?;
    loop {
        let len = usize::from(u16_at(rest, 0)?);
        let value = rest.get(4..len)?;
        if u16_at(rest, 2)? == kind {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loopback_address_has_the_mtu_of_lo() {
        let lo = link_of("127.0.0.1".parse().unwrap()).unwrap().expect("lo is there");
        assert_eq!(lo.index, 1);
        assert_eq!(link_of("127.9.8.7".parse().unwrap()).unwrap(), Some(lo));
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(lo.mtu_bytes.to_string(), mtu.trim());
    }

    #[test]
    fn an_address_of_nobody_has_no_interface() {
        assert_eq!(link_of("192.0.2.77".parse().unwrap()).unwrap(), None);
        assert_eq!(link_of("2001:db8::77".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn truncated_messages_end_the_parse() {
        assert!(split_message(&[]).is_none());
        assert!(split_message(&[200, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert!(split_message(&[8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).is_none());
        assert_eq!(attribute(&[0, 0, 0, 0], 0, 7), None);
        assert_eq!(attribute(&[3, 0, 7, 0], 0, 7), None);
        assert_eq!(attribute(&[5, 0, 7, 0, 9], 0, 7), Some(&[9][..]));
    }
}
