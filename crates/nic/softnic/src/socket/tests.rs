//! Tests of the socket: what one call sends and receives, what is refused, what is counted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use super::*;

const LO: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LO6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const PATIENCE: Duration = Duration::from_secs(20);

fn open(address: IpAddr) -> Socket {
    Socket::bind(address, 0, 0, 1 << 20).unwrap()
}

fn out(payload: &[u8], destination: SocketAddr, segment_bytes: Option<u16>) -> Outgoing<'_> {
    Outgoing { payload, destination, segment_bytes, traffic_class: None, hop_limit: 0 }
}

/// Receives until `bytes` came; each datagram or merged batch with its source and stride.
fn receive(socket: &mut Socket, bytes: usize) -> Vec<(SocketAddr, Vec<u8>, Option<usize>)> {
    let begin = Instant::now();
    let mut all: Vec<(SocketAddr, Vec<u8>, Option<usize>)> = Vec::new();
    while all.iter().map(|(_, p, _)| p.len()).sum::<usize>() < bytes {
        assert!(begin.elapsed() < PATIENCE, "only {} datagrams came", all.len());
        socket.recv(MESSAGES_PER_CALL, |from, payload, stride, _| all.push((from, payload.to_vec(), stride)));
    }
    all
}

#[test]
fn messages_of_one_call_keep_their_bounds_and_source() {
    for address in [LO, LO6] {
        let (mut a, mut b) = (open(address), open(address));
        let (to, from) = (b.local(), a.local());
        let big = vec![3; 4096 + 20];
        let sent =
            a.send(&mut [out(b"one", to, None), out(&big, to, None), out(b"", to, None), out(b"four", to, None)]);
        assert_eq!(sent, Sent::Gone(4));
        assert_eq!(a.counters.tx_syscalls, 1);
        let got = receive(&mut b, 3 + big.len() + 4);
        let expected: [&[u8]; 4] = [b"one", &big, b"", b"four"];
        assert_eq!(got.len(), 4);
        for ((source, payload, stride), expected) in got.iter().zip(expected) {
            assert_eq!((*source, &payload[..], *stride), (from, expected, None));
        }
    }
}

#[test]
fn batches_arrive_segment_by_segment() {
    for address in [LO, LO6] {
        let (mut a, mut b) = (open(address), open(address));
        assert!(a.has_gso(), "this kernel has no UDP segmentation offload");
        let payload: Vec<u8> = (0..1040 * 40 + 99).map(|i| (i % 251) as u8).collect();
        let to = b.local();
        assert_eq!(a.send(&mut [out(&payload, to, Some(1040))]), Sent::Gone(1));
        assert_eq!(a.counters.gso_batches, 1);
        let mut bytes = Vec::new();
        for (_, piece, stride) in receive(&mut b, payload.len()) {
            assert_eq!(stride.unwrap_or(1040), 1040);
            bytes.extend(piece);
        }
        assert_eq!(bytes, payload);
        assert!(b.counters.gro_batches > 0);
    }
}

#[test]
fn a_single_segment_is_no_batch() {
    let (mut a, mut b) = (open(LO), open(LO));
    let to = b.local();
    assert_eq!(a.send(&mut [out(&[1; 900], to, Some(1040)), out(&[2; 1040], to, Some(1040))]), Sent::Gone(2));
    for (_, payload, stride) in receive(&mut b, 1940) {
        assert!(stride.is_none(), "{} bytes, {stride:?}", payload.len());
    }
}

#[test]
fn a_taken_port_says_who_may_hold_it() {
    let first = open(LO);
    let error = Socket::bind(LO, first.local().port(), 0, 1 << 20).unwrap_err();
    let OpenError::AddressInUse(at) = &error else { panic!("{error}") };
    assert_eq!(*at, first.local());
    let text = error.to_string();
    for word in ["rdma_rxe", "daemon", "another"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn addresses_that_cannot_be_a_gid_are_refused() {
    let foreign = Socket::bind("192.0.2.1".parse().unwrap(), 0, 0, 1 << 20).unwrap_err();
    assert!(matches!(foreign, OpenError::AddressNotAvailable(_)), "{foreign}");
    for wildcard in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
        let error = Socket::bind(wildcard.parse().unwrap(), 0, 0, 1 << 20).unwrap_err();
        assert!(matches!(error, OpenError::NotSpecific(_)), "{error}");
    }
}

#[test]
fn fragmentation_is_off() {
    use rustix::net::sockopt;
    assert_eq!(sockopt::ip_mtu_discover(open(LO)).unwrap(), sockopt::Ipv4PathMtuDiscovery::DO);
    let six = open(LO6);
    assert_eq!(sockopt::ipv6_mtu_discover(&six).unwrap(), sockopt::Ipv6PathMtuDiscovery::DO);
    assert_eq!(sys::option(six.as_fd(), libc::SOL_UDP, libc::UDP_NO_CHECK6_RX).unwrap(), 1);
}

#[test]
fn a_gone_peer_does_not_hurt() {
    let mut a = open(LO);
    let gone = open(LO).local();
    for _ in 0..50 {
        assert_eq!(a.send(&mut [out(b"anyone?", gone, None)]), Sent::Gone(1));
        assert_eq!(a.recv(1, |_, _, _, _| ()), 0);
    }
    let mut b = open(LO);
    let to = b.local();
    assert_eq!(a.send(&mut [out(b"still here", to, None)]), Sent::Gone(1));
    assert_eq!(receive(&mut b, 10)[0].1, b"still here");
}

#[test]
fn a_refused_message_does_not_stop_those_behind_it() {
    let (mut a, mut b) = (open(LO), open(LO));
    let to = b.local();
    // Longer than any UDP payload: the kernel refuses it with EMSGSIZE.
    let too_long = vec![0; 65_508];
    let mut items = [out(b"first", to, None), out(&too_long, to, None), out(b"last", to, None)];
    assert_eq!(a.send(&mut items), Sent::Gone(1));
    // Whoever called throws it away, and finds out what fits.
    assert_eq!(a.send(&mut items[1..]), Sent::TooLong);
    assert_eq!((a.counters.tx_too_long, a.counters.tx_socket_errors), (1, 0));
    assert!(a.path_mtu_bytes(to).is_some_and(|bytes| bytes >= 65_535), "that of the loopback interface");
    assert_eq!(a.send(&mut items[2..]), Sent::Gone(1));
    assert_eq!(receive(&mut b, 9).len(), 2);
}

#[test]
fn overflow_is_counted() {
    let mut b = Socket::bind(LO, 0, 0, 64 << 10).unwrap();
    let sender = UdpSocket::bind((LO, 0)).unwrap();
    let total = 400;
    for _ in 0..total {
        sender.send_to(&[0; 1040], b.local()).unwrap();
    }
    let mut received = 0;
    while b.recv(MESSAGES_PER_CALL, |_, _, _, _| received += 1) > 0 {}
    assert!(received > 0 && received < total);
    assert_eq!(b.drops(), total - received);
}

#[test]
fn the_announced_budget_fits_the_buffer() {
    use crate::budget::rx_budget_bytes;
    for mtu in verbs::PathMtu::ALL {
        let mut b = Socket::bind(LO, 0, 0, 1 << 20).unwrap();
        let sender = UdpSocket::bind((LO, 0)).unwrap();
        // First packets are the longest: BTH, RETH, payload, ICRC.
        let packet = vec![0; 12 + 16 + mtu.bytes() + 4];
        let count = rx_budget_bytes(b.rcvbuf_bytes(), mtu) as usize / mtu.bytes();
        for _ in 0..count {
            sender.send_to(&packet, b.local()).unwrap();
        }
        let mut received = 0;
        while b.recv(MESSAGES_PER_CALL, |_, _, _, _| received += 1) > 0 {}
        assert_eq!((received, b.drops()), (count, 0), "{mtu:?}");
    }
}

#[test]
fn traffic_class_reaches_the_header() {
    let families = [(LO, libc::IPPROTO_IP, libc::IP_RECVTOS), (LO6, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)];
    for (address, level, option) in families {
        let (mut a, b) = (open(address), open(address));
        sys::set_option(b.as_fd(), level, option, 1).unwrap();
        let (to, payload) = (b.local(), [9; 3000]);
        let item = Outgoing { traffic_class: Some(0xb8), ..out(&payload, to, Some(1000)) };
        assert_eq!(a.send(&mut [item]), Sent::Gone(1));
        let kinds = [(libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)];
        assert_eq!(received_control(&b, kinds), Some(0xb8), "{address}");
    }
}

#[test]
fn marks_of_congestion_are_told_and_packets_may_be_marked() {
    for address in [LO, LO6] {
        let (mut a, mut b) = (open(address), open(address));
        let (to, payload) = (b.local(), [9; 3000]);
        for (class, expected) in
            [(None, false), (Some(0), false), (Some(2), false), (Some(0xb9), false), (Some(3), true)]
        {
            for segment in [None, Some(1000)] {
                let item = Outgoing { traffic_class: class, ..out(&payload, to, segment) };
                assert_eq!(a.send(&mut [item]), Sent::Gone(1));
                let mut told = Vec::new();
                while b.recv(MESSAGES_PER_CALL, |_, _, _, is_marked| told.push(is_marked)) > 0 {}
                assert!(!told.is_empty() && told.iter().all(|is| *is == expected), "{address} {class:?}: {told:?}");
            }
        }
        let kinds = [(libc::IPPROTO_IP, libc::IP_TOS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)];
        for (class, expected) in [(None, 2), (Some(2), 2), (Some(0), 0)] {
            let item = Outgoing { traffic_class: class, ..out(&payload, to, None) };
            assert_eq!(a.send(&mut [item]), Sent::Gone(1));
            assert_eq!(received_control(&b, kinds), Some(expected), "{address}");
        }
    }
}

#[test]
fn hop_limit_reaches_the_header() {
    let families = [(LO, libc::IPPROTO_IP, libc::IP_RECVTTL), (LO6, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)];
    for (address, level, option) in families {
        let (mut a, b) = (open(address), open(address));
        sys::set_option(b.as_fd(), level, option, 1).unwrap();
        let default = u8::try_from(a.hop_limit).unwrap();
        let (to, payload) = (b.local(), [9; 3000]);
        for (hop_limit, expected) in [(7, 7), (0, default), (default, default), (255, 255)] {
            let item = Outgoing { traffic_class: Some(0xb8), hop_limit, ..out(&payload, to, Some(1000)) };
            assert_eq!(a.send(&mut [item]), Sent::Gone(1));
            let kinds = [(libc::IPPROTO_IP, libc::IP_TTL), (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT)];
            assert_eq!(received_control(&b, kinds), Some(expected), "{address}");
        }
    }
}

#[test]
fn segment_size_is_found_among_other_control_messages() {
    let (mut a, mut b) = (open(LO), open(LO));
    sys::set_option(b.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTOS, 1).unwrap();
    sys::set_option(b.as_fd(), libc::IPPROTO_IP, libc::IP_RECVTTL, 1).unwrap();
    let to = b.local();
    assert_eq!(a.send(&mut [out(&[9; 3000], to, Some(1000))]), Sent::Gone(1));
    assert_eq!(receive(&mut b, 3000)[0].2, Some(1000));
}

/// The first byte of the control message of one of these kinds that came with the next datagram.
fn received_control(socket: &Socket, kinds: [(i32, i32); 2]) -> Option<u8> {
    use std::os::fd::AsRawFd;
    let mut payload = [0_u8; 65_536];
    let mut control = [0_u64; 16];
    let mut vector = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: `msghdr` is a plain C structure for which zero bytes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the pointers lead to buffers that live during the call, with their lengths.
    let got = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, 0) };
    assert!(got > 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel set `msg_controllen` to what it wrote into `control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give whole headers inside of `control`.
        let kind = unsafe { ((*next).cmsg_level, (*next).cmsg_type) };
        if kinds.contains(&kind) {
            // SAFETY: the control messages asked for hold at least a byte; on a little-endian machine it is the lowest.
            return Some(unsafe { *libc::CMSG_DATA(next) });
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, next) };
    }
    None
}
