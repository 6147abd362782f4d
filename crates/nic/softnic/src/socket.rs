//! One UDP socket set up for RoCEv2: bound to a specific address, never fragmenting, with segmentation offload where
//! the kernel has it. It moves bytes and counts; it knows no packet format and never blocks.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::guard::{self, Claim, PortGuard};
use crate::sys::{self, Incoming, MESSAGES_PER_CALL, Outgoing, RecvBuffers};
use crate::{OpenError, RCVBUF_BYTES_DEFAULT};

/// Segments of one batch that every kernel with segmentation offload takes (128 since Linux 5.19 or so, 64 before);
/// a batch of packets of 1 KiB ends at 65,507 bytes before it ends at this number.
pub(crate) const GSO_SEGMENTS_MAX: usize = 64;

/// The traffic class of packets that may be marked (RFC 3168, ECT(0)), which those of connections have.
pub(crate) const ECN_CAPABLE: u8 = 0b10;

/// Send buffer that is asked for, in bytes of packet memory.
const SNDBUF_BYTES: usize = 4 << 20;

/// What the socket did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SocketCounters {
    pub(crate) tx_syscalls: u64,
    pub(crate) rx_syscalls: u64,
    pub(crate) tx_would_block: u64,
    pub(crate) tx_socket_errors: u64,
    pub(crate) tx_too_long: u64,
    pub(crate) rx_socket_errors: u64,
    pub(crate) gso_batches: u64,
    pub(crate) gro_batches: u64,
}

/// What became of the datagrams handed to [`Socket::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The first so many are gone: sent, or refused by the kernel and counted, as if the network had lost them.
    Gone(usize),
    /// The send buffer is full; nothing left.
    WouldBlock,
    /// The kernel cannot segment the first one on its way out; nothing left.
    NoOffload,
    /// The first one is longer than the way to its destination takes; nothing left.
    TooLong,
}

/// Whence a socket is.
enum Origin {
    /// It is made. With `may_be_absent` the host need not have its address.
    Own { may_be_absent: bool },
    /// It was made and bound.
    Lent(OwnedFd),
}

/// The socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    guard: Option<PortGuard>,
    local: SocketAddr,
    scope_id: u32,
    rcvbuf_bytes: usize,
    gso: bool,
    gro: bool,
    /// Hop limit of packets that say none.
    hop_limit: i32,
    buffers: RecvBuffers,
    incoming: [Incoming; MESSAGES_PER_CALL],
    pub(crate) counters: SocketCounters,
}

/// Packets of one send and of one receive at most, as the software NIC would have them on this host now: 1 where the
/// kernel, or what confines this process, has no offload for UDP.
pub fn udp_batches() -> Result<(usize, usize), OpenError> {
    let socket = Socket::bind(std::net::Ipv4Addr::LOCALHOST.into(), 0, 0, RCVBUF_BYTES_DEFAULT)?;
    let of = |is_there| if is_there { GSO_SEGMENTS_MAX } else { 1 };
    Ok((of(socket.gso), of(socket.gro)))
}

impl Socket {
    /// Binds `address`:`port` (0: the system chooses). `scope_id` is the interface index, needed for link-local
    /// addresses alone.
    pub(crate) fn bind(address: IpAddr, port: u16, scope_id: u32, rcvbuf_bytes: usize) -> Result<Self, OpenError> {
        Self::set_up(SocketAddr::new(address, port), scope_id, rcvbuf_bytes, Origin::Own { may_be_absent: false })
    }

    /// The same at an address that this host may not have at the moment.
    pub(crate) fn bind_standby(at: SocketAddr, scope_id: u32, rcvbuf_bytes: usize) -> Result<Self, OpenError> {
        Self::set_up(at, scope_id, rcvbuf_bytes, Origin::Own { may_be_absent: true })
    }

    /// One that is bound already, and that others keep too ([`crate::share`]).
    pub(crate) fn adopt(fd: OwnedFd, at: SocketAddr, rcvbuf_bytes: usize) -> Result<Self, OpenError> {
        Self::set_up(at, 0, rcvbuf_bytes, Origin::Lent(fd))
    }

    fn set_up(at: SocketAddr, scope_id: u32, rcvbuf_bytes: usize, origin: Origin) -> Result<Self, OpenError> {
        let (address, port) = (at.ip(), at.port());
        if address.is_unspecified() || address.is_multicast() {
            return Err(OpenError::NotSpecific(address));
        }
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, may_be_absent, is_bound) = match origin {
            Origin::Lent(fd) => (fd, false, true),
            Origin::Own { may_be_absent } => {
                let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None);
                (fd.map_err(|e| OpenError::os("socket(SOCK_DGRAM)", e))?, may_be_absent, false)
            }
        };
        let scope_id = if is_link_local(address) { scope_id } else { 0 };
        let wanted = match address {
            IpAddr::V4(a) => SocketAddr::new(a.into(), port),
            IpAddr::V6(a) => SocketAddrV6::new(a, port, 0, scope_id).into(),
        };
        if address.is_ipv6() && !is_bound {
            sockopt::set_ipv6_v6only(&fd, true).map_err(|e| OpenError::os("setsockopt(IPV6_V6ONLY)", e))?;
        }
        forbid_fragments(&fd, address)?;
        let rcvbuf_bytes = grow_buffers(&fd, rcvbuf_bytes)?;
        // Without merged receives everything still works, only slower, so a kernel before 5.0 is no error.
        let merged = sys::set_option(fd.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        if let Err(error) = &merged {
            tracing::debug!(%error, "UDP_GRO is not available");
        }
        // Setting the size to zero changes nothing but shows whether the option exists.
        let (level, name) = match family {
            AddressFamily::INET => (libc::IPPROTO_IP, libc::IP_TTL),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        };
        ask_for_marks(&fd, address)?;
        let hop_limit = sys::option(fd.as_fd(), level, name).map_err(|e| OpenError::os("getsockopt(IP_TTL)", e))?;
        let gso = sys::set_option(fd.as_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
        // Last, so that no packet arrives at a socket that is not set up.
        // Who lends it holds the port.
        let is_guarded = guard::is_wanted(address) && !is_bound;
        let mut claim = None;
        if is_guarded && port != 0 {
            claim = Some(Claim::of(wanted)?);
            guard::share(&fd)?;
        }
        if may_be_absent {
            let set = if address.is_ipv4() { sockopt::set_ip_freebind } else { sockopt::set_ipv6_freebind };
            set(&fd, true).map_err(|e| OpenError::os("setsockopt(IP_FREEBIND)", e))?;
        }
        if !is_bound {
            rustix::net::bind(&fd, &wanted).map_err(|e| OpenError::binding(e, wanted))?;
        }
        let local = rustix::net::getsockname(&fd)
            .ok()
            .and_then(|a| SocketAddr::try_from(a).ok())
            .ok_or_else(|| OpenError::os("getsockname", io::ErrorKind::InvalidData))?;
        let mut guard = None;
        if is_guarded {
            // A port that the system chose is shared only after it was found free.
            guard::share(&fd)?;
            guard = Some(PortGuard::hold(local, claim.map_or_else(|| Claim::of(local), Ok)?));
        }
        Ok(Self {
            fd,
            guard,
            local,
            scope_id,
            rcvbuf_bytes,
            gso,
            gro: merged.is_ok(),
            hop_limit,
            buffers: RecvBuffers::new(),
            incoming: [Incoming::EMPTY; MESSAGES_PER_CALL],
            counters: SocketCounters::default(),
        })
    }

    /// Bound address and port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether users of this host other than its owner's can send in its name.
    pub(crate) fn is_port_open(&self) -> bool {
        self.guard.as_ref().is_none_or(|guard| !guard.is_held())
    }

    /// Packet memory that the kernel grants for packets not yet received.
    pub(crate) fn rcvbuf_bytes(&self) -> usize {
        self.rcvbuf_bytes
    }

    /// Whether the kernel knows segmentation offload for UDP.
    pub(crate) fn has_gso(&self) -> bool {
        self.gso
    }

    /// Sends the first of `items`, as many as one system call takes.
    pub(crate) fn send(&mut self, items: &mut [Outgoing<'_>]) -> Sent {
        if self.scope_id != 0 {
            items.iter_mut().for_each(|item| set_scope(&mut item.destination, self.scope_id));
        }
        // What the socket does anyhow needs no control message.
        for item in items.iter_mut() {
            if i32::from(item.hop_limit) == self.hop_limit {
                item.hop_limit = 0;
            }
            item.traffic_class = item.traffic_class.filter(|class| *class != ECN_CAPABLE);
        }
        self.counters.tx_syscalls += 1;
        match sys::send(self.fd.as_fd(), items) {
            Ok(sent) => {
                let batches = items.iter().take(sent).filter(|i| i.segment_bytes.is_some()).count();
                self.counters.gso_batches += batches as u64;
                Sent::Gone(sent)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock) || e.raw_os_error() == Some(libc::ENOBUFS) => {
                self.counters.tx_would_block += 1;
                Sent::WouldBlock
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Sent::Gone(0),
            Err(e) => {
                let batch = items.first().is_some_and(|i| i.segment_bytes.is_some());
                // For a batch whose segments do not fit, kernels say either of two.
                let is_too_long = match e.raw_os_error() {
                    Some(libc::EMSGSIZE) => true,
                    Some(libc::EINVAL) => batch && items.first().is_some_and(|i| !self.fits(i)),
                    _ => false,
                };
                if is_too_long {
                    self.counters.tx_too_long += 1;
                    return Sent::TooLong;
                }
                if batch && matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) {
                    return Sent::NoOffload;
                }
                // No route, refused by a filter: as if lost, retransmission or its limit decides.
                self.counters.tx_socket_errors += 1;
                tracing::debug!(error = %e, to = ?items.first().map(|i| i.destination), "send refused");
                Sent::Gone(1)
            }
        }
    }

    /// Whether the segments of a batch fit the way to its destination, as far as the kernel knows.
    fn fits(&self, item: &Outgoing<'_>) -> bool {
        let headers = if self.local.is_ipv4() { 28 } else { 48 };
        let segment = item.segment_bytes.map_or(item.payload.len(), usize::from);
        self.path_mtu_bytes(item.destination).is_none_or(|mtu| segment + headers <= mtu)
    }

    /// Longest IP packet to a destination, as far as the kernel knows: of the interface, or what a router said.
    pub(crate) fn path_mtu_bytes(&self, mut destination: SocketAddr) -> Option<usize> {
        // Only a connected socket can be asked.
        let family = if self.local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
        set_scope(&mut destination, self.scope_id);
        let mut local = SocketAddr::new(self.local.ip(), 0);
        set_scope(&mut local, self.scope_id);
        rustix::net::bind(&fd, &local).ok()?;
        rustix::net::connect(&fd, &destination).ok()?;
        let (level, name) = match family {
            AddressFamily::INET => (libc::IPPROTO_IP, libc::IP_MTU),
            _ => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
        };
        usize::try_from(sys::option(fd.as_fd(), level, name).ok()?).ok()
    }

    /// Receives up to `max` datagrams or merged batches with one system call and hands each to `each`; says how many.
    pub(crate) fn recv(&mut self, max: usize, mut each: impl FnMut(SocketAddr, &[u8], Option<usize>, bool)) -> usize {
        self.counters.rx_syscalls += 1;
        let got = match sys::recv(self.fd.as_fd(), &mut self.buffers, &mut self.incoming, max) {
            Ok(got) => got,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return 0,
            Err(e) => {
                // An ICMP error or the like: it was taken from the socket by this call and says nothing that the
                // retransmission timers will not say.
                self.counters.rx_socket_errors += 1;
                tracing::debug!(error = %e, "receive failed");
                return 0;
            }
        };
        for (i, incoming) in self.incoming.iter().enumerate().take(got) {
            let payload = self.buffers.filled(i, incoming);
            let Some(source) = incoming.source else { continue };
            let stride = incoming.stride.filter(|s| *s < payload.len());
            self.counters.gro_batches += u64::from(stride.is_some());
            each(source, payload, stride, incoming.is_marked);
        }
        got
    }

    /// Datagrams that the kernel dropped at this socket since it was made, mostly because its buffer was full.
    pub(crate) fn drops(&self) -> u64 {
        sys::drops(self.fd.as_fd()).map_or(0, u64::from)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Sets and checks what the ICRC of sent packets rests on: packets are never fragmented, so that IPv4 numbers the
/// segments of a send 0, 1, 2, and the header has DF.
fn forbid_fragments(fd: &OwnedFd, address: IpAddr) -> Result<(), OpenError> {
    use sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
    if address.is_ipv4() {
        sockopt::set_ip_mtu_discover(fd, Ipv4PathMtuDiscovery::DO)
            .map_err(|e| OpenError::os("setsockopt(IP_MTU_DISCOVER)", e))?;
        let found = sockopt::ip_mtu_discover(fd).map_err(|e| OpenError::os("getsockopt(IP_MTU_DISCOVER)", e))?;
        return expect_option("IP_MTU_DISCOVER", Ipv4PathMtuDiscovery::DO.as_raw().into(), found.as_raw().into());
    }
    sockopt::set_ipv6_mtu_discover(fd, Ipv6PathMtuDiscovery::DO)
        .map_err(|e| OpenError::os("setsockopt(IPV6_MTU_DISCOVER)", e))?;
    let found = sockopt::ipv6_mtu_discover(fd).map_err(|e| OpenError::os("getsockopt(IPV6_MTU_DISCOVER)", e))?;
    expect_option("IPV6_MTU_DISCOVER", Ipv6PathMtuDiscovery::DO.as_raw().into(), found.as_raw().into())?;
    set_and_check(fd, "IPV6_DONTFRAG", libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG)?;
    // Linux rxe sends without UDP checksum, which IPv6 sockets drop silently unless told otherwise.
    set_and_check(fd, "UDP_NO_CHECK6_RX", libc::SOL_UDP, libc::UDP_NO_CHECK6_RX)
}

/// Packets that say nothing else may be marked instead of dropped, which connections want, and marks are shown.
fn ask_for_marks(fd: &OwnedFd, address: IpAddr) -> Result<(), OpenError> {
    let (level, class, received, name) = match address {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_RECVTOS, "setsockopt(IP_TOS)"),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_RECVTCLASS, "setsockopt(IPV6_TCLASS)"),
    };
    sys::set_option(fd.as_fd(), level, class, ECN_CAPABLE.into()).map_err(|e| OpenError::os(name, e))?;
    sys::set_option(fd.as_fd(), level, received, 1).map_err(|e| OpenError::os(name, e))
}

fn set_and_check(fd: &OwnedFd, option: &'static str, level: i32, name: i32) -> Result<(), OpenError> {
    sys::set_option(fd.as_fd(), level, name, 1).map_err(|e| OpenError::os(option, e))?;
    let found = sys::option(fd.as_fd(), level, name).map_err(|e| OpenError::os(option, e))?;
    expect_option(option, 1, found.into())
}

fn expect_option(option: &'static str, wanted: i64, found: i64) -> Result<(), OpenError> {
    if wanted == found { Ok(()) } else { Err(OpenError::Option { option, wanted, found }) }
}

/// Makes both buffers as large as asked for or allowed; gives the receive buffer that was granted.
fn grow_buffers(fd: &OwnedFd, rcvbuf_bytes: usize) -> Result<usize, OpenError> {
    // The kernel doubles what is set and counts packet memory against the result, so half of it is asked for.
    let half = (rcvbuf_bytes / 2).max(1);
    if sockopt::set_socket_recv_buffer_size_force(fd, half).is_err() {
        sockopt::set_socket_recv_buffer_size(fd, half).map_err(|e| OpenError::os("setsockopt(SO_RCVBUF)", e))?;
    }
    let granted = sockopt::socket_recv_buffer_size(fd).map_err(|e| OpenError::os("getsockopt(SO_RCVBUF)", e))?;
    if granted < rcvbuf_bytes {
        tracing::info!(
            granted,
            wanted = rcvbuf_bytes,
            "receive buffer is smaller than asked for: raise net.core.rmem_max"
        );
    }
    if sockopt::set_socket_send_buffer_size_force(fd, SNDBUF_BYTES / 2).is_err() {
        sockopt::set_socket_send_buffer_size(fd, SNDBUF_BYTES / 2)
            .map_err(|e| OpenError::os("setsockopt(SO_SNDBUF)", e))?;
    }
    Ok(granted)
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.is_unicast_link_local())
}

/// A GID has no scope, so a link-local destination is meant on the interface of the socket.
fn set_scope(destination: &mut SocketAddr, scope_id: u32) {
    if let SocketAddr::V6(a) = destination
        && a.ip().is_unicast_link_local()
    {
        a.set_scope_id(scope_id);
    }
}

#[cfg(test)]
mod tests;
