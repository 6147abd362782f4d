//! What programs set on a TCP socket, by `setsockopt`, `fcntl` and `ioctl`, and what of it a stream has too.
//!
//! Owns the table. What is not in it is kernel TCP's alone: a connection for which the kernel takes it stays there.

use std::ffi::{c_int, c_ulong};

/// What a setting means for a connection that may leave kernel TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The library does it on the stream as the kernel does on TCP.
    Honoured,
    /// The program sees no difference: it is about packets, about a socket that is not connected yet, about the kernel's
    /// connection, which is there all the time, or the kernel refuses it for TCP.
    NoMatter,
    /// The stream has nothing like it: the connection is on kernel TCP before the kernel is asked.
    Before,
    /// The same once the kernel has taken it: it may refuse it, and bytes flow as before until then.
    After,
    /// The same, unless the value is this one, which asks for nothing.
    Unless(c_int),
    /// The same where it is read.
    BeforeGet,
}

use Fate::{After, Before, BeforeGet, Honoured, NoMatter, Unless};

/// One row of the table of socket options: from this number of a level to that one.
type Row = (c_int, c_int, c_int, Fate);

const SOCKET: c_int = libc::SOL_SOCKET;
const TCP: c_int = libc::IPPROTO_TCP;
const IP: c_int = libc::IPPROTO_IP;
const IPV6: c_int = libc::IPPROTO_IPV6;

/// The socket options that Linux has for TCP sockets (asm-generic/socket.h, linux/tcp.h, linux/in.h, linux/in6.h).
#[rustfmt::skip]
const OPTIONS: &[Row] = &[
    // SO_DEBUG to SO_BROADCAST; buffers, SO_KEEPALIVE, SO_OOBINLINE (urgent bytes go over TCP), SO_NO_CHECK, SO_PRIORITY,
    // SO_LINGER, SO_BSDCOMPAT, SO_REUSEPORT, SO_PASSCRED, SO_PEERCRED
    (SOCKET, 1, 17, NoMatter),
    // SO_RCVLOWAT, SO_SNDLOWAT, SO_RCVTIMEO, SO_SNDTIMEO
    (SOCKET, libc::SO_RCVLOWAT, libc::SO_RCVLOWAT, Honoured),
    (SOCKET, 19, 19, NoMatter),
    (SOCKET, libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, Honoured),
    // SO_SECURITY_*, SO_BINDTODEVICE
    (SOCKET, 22, 25, NoMatter),
    // SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_PEERNAME
    (SOCKET, libc::SO_ATTACH_FILTER, libc::SO_ATTACH_FILTER, Before),
    (SOCKET, 27, 28, NoMatter),
    // Times beside the bytes: SO_TIMESTAMP
    (SOCKET, 29, 29, Unless(0)),
    // SO_ACCEPTCONN, SO_PEERSEC, SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_PASSSEC
    (SOCKET, 30, 34, NoMatter),
    // SO_TIMESTAMPNS
    (SOCKET, 35, 35, Unless(0)),
    // SO_MARK
    (SOCKET, 36, 36, NoMatter),
    // SO_TIMESTAMPING
    (SOCKET, 37, 37, Unless(0)),
    // SO_PROTOCOL, SO_DOMAIN, SO_RXQ_OVFL, SO_WIFI_STATUS
    (SOCKET, 38, 41, NoMatter),
    // SO_PEEK_OFF
    (SOCKET, 42, 42, Unless(-1)),
    // SO_NOFCS to SO_BPF_EXTENSIONS, SO_INCOMING_CPU behind SO_ATTACH_BPF
    (SOCKET, 43, 46, NoMatter),
    (SOCKET, libc::SO_MAX_PACING_RATE, libc::SO_MAX_PACING_RATE, Unless(-1)),
    (SOCKET, 48, 49, NoMatter),
    (SOCKET, 50, 50, Before),
    // SO_ATTACH_REUSEPORT_*, SO_CNX_ADVICE, SO_MEMINFO, SO_INCOMING_NAPI_ID, SO_COOKIE, SO_PEERGROUPS
    // and SO_ZEROCOPY, of which the flag of a send counts
    (SOCKET, 51, 60, NoMatter),
    // SO_TXTIME
    (SOCKET, 61, 61, Before),
    // SO_BINDTOIFINDEX
    (SOCKET, 62, 62, NoMatter),
    // SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW
    (SOCKET, 63, 65, Unless(0)),
    // SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW
    (SOCKET, SO_RCVTIMEO_NEW, SO_SNDTIMEO_NEW, Honoured),
    // SO_DETACH_REUSEPORT_BPF to SO_PASSPIDFD, SO_PEERPIDFD
    (SOCKET, 68, 77, NoMatter),
    // SO_DEVMEM_DONTNEED: bytes that are not in the program's memory
    (SOCKET, 80, 80, Before),
    // SO_RCVPRIORITY, SO_PASSRIGHTS, SO_INQ (of Unix sockets)
    (SOCKET, 82, 84, NoMatter),
    // TCP_NODELAY to TCP_QUICKACK, TCP_CONGESTION
    (TCP, 1, 13, NoMatter),
    (TCP, libc::TCP_MD5SIG, libc::TCP_MD5SIG, Before),
    // 15, TCP_THIN_LINEAR_TIMEOUTS, TCP_THIN_DUPACK, TCP_USER_TIMEOUT
    (TCP, 15, 18, NoMatter),
    // TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, TCP_REPAIR_OPTIONS
    (TCP, 19, 22, Before),
    // TCP_FASTOPEN
    (TCP, 23, 23, NoMatter),
    // TCP_TIMESTAMP, of a connection in repair
    (TCP, 24, 24, Before),
    // TCP_NOTSENT_LOWAT to TCP_SAVED_SYN
    (TCP, 25, 28, NoMatter),
    // TCP_REPAIR_WINDOW
    (TCP, 29, 29, Before),
    // TCP_FASTOPEN_CONNECT
    (TCP, 30, 30, NoMatter),
    (TCP, TCP_ULP, TCP_ULP, After),
    // TCP_MD5SIG_EXT
    (TCP, 32, 32, Before),
    // TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE
    (TCP, 33, 34, NoMatter),
    (TCP, TCP_ZEROCOPY_RECEIVE, TCP_ZEROCOPY_RECEIVE, BeforeGet),
    // What is left to be read, beside the bytes
    (TCP, TCP_INQ, TCP_INQ, Honoured),
    // TCP_TX_DELAY
    (TCP, 37, 37, Unless(0)),
    // TCP_AO_*
    (TCP, 38, 42, Before),
    // TCP_IS_MPTCP, TCP_RTO_MAX_MS, TCP_RTO_MIN_US, TCP_DELACK_MAX_US
    (TCP, 43, 46, NoMatter),
    // IP_TOS to IP_RETOPTS, IP_PKTINFO, IP_PKTOPTIONS, IP_MTU_DISCOVER, IP_RECVERR, IP_RECVTTL, IP_RECVTOS, IP_MTU
    (IP, 1, 15, NoMatter),
    // IP_IPSEC_POLICY, IP_XFRM_POLICY: the program wants its packets encrypted
    (IP, 16, 17, Before),
    // IP_PASSSEC to IP_RECVERR_RFC4884; multicast; IP_MULTICAST_ALL, IP_UNICAST_IF, IP_LOCAL_PORT_RANGE, IP_PROTOCOL
    (IP, 18, 26, NoMatter),
    (IP, 32, 52, NoMatter),
    // Filters of the host, for administrators: IPT_SO_*, EBT_SO_*, ARPT_SO_*, IP_VS_SO_*
    (IP, 64, 2047, NoMatter),
    // IPV6_ADDRFORM to IPV6_HDRINCL
    (IPV6, 1, 33, NoMatter),
    // IPV6_IPSEC_POLICY, IPV6_XFRM_POLICY
    (IPV6, 34, 35, Before),
    (IPV6, 36, 2047, NoMatter),
];

pub(crate) const SO_RCVTIMEO_NEW: c_int = 66;
pub(crate) const SO_SNDTIMEO_NEW: c_int = 67;
const TCP_ULP: c_int = 31;
pub(crate) const TCP_INQ: c_int = 36;
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

/// Commands of `fcntl` that change a descriptor, or what it names.
#[rustfmt::skip]
const COMMANDS: &[(c_int, c_int, Fate)] = &[
    // F_DUPFD, the flags of a descriptor, F_GETFL; F_SETFL is looked at by its bits
    (libc::F_DUPFD, libc::F_DUPFD, Honoured),
    (1, 3, NoMatter),
    (libc::F_SETFL, libc::F_SETFL, Honoured),
    // Locks, which sockets do not have; F_SETOWN, F_GETOWN, F_SETSIG, F_GETSIG: whom a signal goes to, if one does
    (5, 17, NoMatter),
    // F_OFD_*
    (36, 38, NoMatter),
    // Leases, F_NOTIFY, F_DUPFD_QUERY, F_CREATED_QUERY
    (1024, 1028, NoMatter),
    (libc::F_DUPFD_CLOEXEC, libc::F_DUPFD_CLOEXEC, Honoured),
    // Pipes, seals, hints, F_GETDELEG
    (1031, 1040, NoMatter),
];

/// Requests of `ioctl` that the kernel answers for TCP sockets.
#[rustfmt::skip]
const REQUESTS: &[(c_ulong, c_ulong, Fate)] = &[
    // FIONREAD, FIONBIO
    (libc::FIONREAD, libc::FIONREAD, Honoured),
    (libc::FIONBIO, libc::FIONBIO, Honoured),
    // TIOCOUTQ: what the kernel's connection has unsent; a stream's bytes are with the other end once they are written
    (libc::TIOCOUTQ, libc::TIOCOUTQ, NoMatter),
    // FIONCLEX, FIOCLEX
    (0x5450, 0x5451, NoMatter),
    (libc::FIOASYNC, libc::FIOASYNC, Before),
    // FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP, SIOCATMARK, and times
    (0x8901, 0x8907, NoMatter),
    // Routes, interfaces, ARP, bridges, the socket's namespace; SIOCOUTQNSD
    (0x890b, 0x89ff, NoMatter),
    // Wireless interfaces
    (0x8b00, 0x8bff, NoMatter),
];

/// What a socket option means. One that nobody knows keeps a connection on TCP if the kernel takes it.
pub(crate) fn of_option(level: c_int, name: c_int) -> Fate {
    option(level, name).unwrap_or(After)
}

/// What a command of `fcntl` means; an unknown one as an unknown option.
pub(crate) fn of_command(command: c_int) -> Fate {
    within(COMMANDS, command).unwrap_or(After)
}

/// What a request of `ioctl` means; an unknown one as an unknown option.
pub(crate) fn of_request(request: c_ulong) -> Fate {
    within(REQUESTS, request).unwrap_or(After)
}

fn option(level: c_int, name: c_int) -> Option<Fate> {
    let row = OPTIONS.iter().find(|(of, first, last, _)| *of == level && (*first..=*last).contains(&name));
    row.map(|(.., fate)| *fate)
}

fn within<N: PartialOrd>(table: &[(N, N, Fate)], number: N) -> Option<Fate> {
    let row = table.iter().find(|(first, last, _)| (first..=last).contains(&&number));
    row.map(|(.., fate)| *fate)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::errno;

    /// Two ends of a connection over IPv6, which has the options of IPv4 too.
    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [connected, listener.accept().unwrap().0]
    }

    #[test]
    fn the_kernel_has_no_option_for_tcp_that_is_not_in_the_table() {
        for level in [SOCKET, TCP, IP, IPV6] {
            for name in (1..=400).filter(|name| option(level, *name).is_none()) {
                let [end, _other] = connection();
                let (mut value, mut len) = ([0u64; 32], 4);
                let at = value.as_mut_ptr().cast();
                // SAFETY: there is room for more than any option takes, and all of it lives through the call.
                let set = unsafe { libc::setsockopt(end.as_raw_fd(), level, name, at, len) };
                let after_set = errno::get();
                // SAFETY: as above.
                let got = unsafe { libc::getsockopt(end.as_raw_fd(), level, name, at, &raw mut len) };
                let unknown = [libc::ENOPROTOOPT, libc::EOPNOTSUPP];
                let is_known = set == 0 || !unknown.contains(&after_set);
                let is_known = is_known || got == 0 || !unknown.contains(&errno::get());
                assert!(!is_known, "option {name} of level {level} has no row: set {set}, got {got}");
            }
        }
    }

    #[test]
    fn the_kernel_has_no_command_and_no_request_that_is_not_in_the_table() {
        let [end, _other] = connection();
        for command in (0..2000).filter(|command| within(COMMANDS, *command).is_none()) {
            // SAFETY: a command that is not known takes no pointers.
            let result = unsafe { libc::fcntl(end.as_raw_fd(), command, 0) };
            assert!(result < 0 && errno::get() == libc::EINVAL, "command {command} has no row");
        }
        let mut room = [0u64; 512];
        for request in (0x5400..0x5500).chain(0x8900..0x8c00).filter(|request| within(REQUESTS, *request).is_none()) {
            // SAFETY: there is room for what any request has in its structure.
            let result = unsafe { libc::ioctl(end.as_raw_fd(), request, room.as_mut_ptr()) };
            assert!(result < 0, "request {request:#x} has no row");
        }
    }

    #[test]
    fn each_setting_has_one_row_and_what_is_unknown_stays_on_tcp() {
        let count = |level: c_int, name: c_int| {
            OPTIONS.iter().filter(|(of, first, last, _)| *of == level && (*first..=*last).contains(&name)).count()
        };
        for level in [SOCKET, TCP, IP, IPV6] {
            assert!((0..3000).all(|name| count(level, name) <= 1), "level {level}");
        }
        const SOL_TLS: c_int = 282;
        assert_eq!([of_option(SOCKET, 9999), of_option(SOL_TLS, 1)], [After; 2]);
        assert_eq!((of_command(9999), of_request(9999)), (After, After));
        assert_eq!(of_option(SOCKET, libc::SO_MAX_PACING_RATE), Unless(-1));
        assert_eq!(of_option(TCP, libc::TCP_NODELAY), NoMatter);
        assert_eq!(of_option(SOCKET, libc::SO_RCVTIMEO), Honoured);
    }
}
