//! The system calls that no safe crate offers: many datagrams a call with segmentation offload, and integer socket
//! options. It owns no socket and keeps no state.
//!
//! Why not `quinn-udp`: it sends one batch a call, while the First, Middles and Last of a message are three; it asks
//! for a time stamp, a class and a destination address with every datagram; and it answers an error by retrying with
//! other control data, while the ICRC needs to know exactly what left. Measured on loopback, two messages of 64 KiB
//! take 18.7 us to send here and 22.9 us there, 7.3 and 8.3 us to receive; a packet of 96 bytes 1.16 and 1.49 us to
//! receive.
//!
//! It must never hand a pointer to the kernel that outlives the call.

pub(crate) mod kernel_tls;
pub(crate) mod path_state;
pub(crate) mod pieces;

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Datagrams or batches of one `sendmmsg` or `recvmmsg`.
pub(crate) const MESSAGES_PER_CALL: usize = 16;

/// Bytes of one receive buffer: the longest UDP payload, merged or not, fits.
pub(crate) const RECV_BUFFER_BYTES: usize = 65_536;

/// Room for the control messages of one datagram: sent are a segment size, a traffic class and a hop limit, received a
/// segment size and a traffic class. Each takes 24 bytes at most.
const CONTROL_BYTES: usize = 72;

/// One datagram to send, or a batch of equal segments that may end with a shorter one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outgoing<'a> {
    /// UDP payload.
    pub(crate) payload: &'a [u8],
    /// Whither.
    pub(crate) destination: SocketAddr,
    /// Bytes of each segment, if it is a batch.
    pub(crate) segment_bytes: Option<u16>,
    /// IPv4 TOS or IPv6 traffic class; `None` for that of the socket.
    pub(crate) traffic_class: Option<u8>,
    /// IPv4 TTL or IPv6 hop limit; 0 for that of the socket.
    pub(crate) hop_limit: u8,
}

impl Outgoing<'_> {
    /// Fills places of an array that are not sent.
    pub(crate) const EMPTY: Self = Self {
        payload: &[],
        destination: SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)),
        segment_bytes: None,
        traffic_class: None,
        hop_limit: 0,
    };
}

/// What one receive buffer was filled with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming {
    /// Whence; `None` if the kernel gave no IP address.
    pub(crate) source: Option<SocketAddr>,
    /// Bytes in the buffer.
    pub(crate) len: usize,
    /// Bytes of each segment except the last, if the kernel merged several.
    pub(crate) stride: Option<usize>,
    /// A queue on the way marked it with Congestion Experienced.
    pub(crate) is_marked: bool,
}

impl Incoming {
    /// Nothing received.
    pub(crate) const EMPTY: Self = Self { source: None, len: 0, stride: None, is_marked: false };
}

/// Receive buffers of one call, side by side.
#[derive(Debug)]
pub(crate) struct RecvBuffers {
    bytes: Box<[u8]>,
}

impl RecvBuffers {
    /// Zeroed buffers.
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; MESSAGES_PER_CALL * RECV_BUFFER_BYTES].into_boxed_slice() }
    }

    /// What buffer `i` was filled with according to `got`.
    pub(crate) fn filled(&self, i: usize, got: &Incoming) -> &[u8] {
        let start = i * RECV_BUFFER_BYTES;
        self.bytes.get(start..start + got.len).unwrap_or(&[])
    }
}

/// The control buffer of one message, aligned as the kernel wants it.
#[repr(C)]
union Control {
    bytes: [u8; CONTROL_BYTES],
    _align: libc::cmsghdr,
}

/// Socket address of either family.
#[repr(C)]
#[derive(Clone, Copy)]
union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    family: libc::sa_family_t,
}

fn name_of(address: &SocketAddr) -> (Name, u32) {
    match address {
        SocketAddr::V4(a) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            (Name { v4 }, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(a) => {
            let v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: a.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            (Name { v6 }, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

fn address_of(name: &Name, len: u32) -> Option<SocketAddr> {
    if len as usize >= size_of::<libc::sockaddr_in>() {
        // SAFETY: every caller starts from a zeroed or fully written `Name`, so all of its bytes are initialized, and
        // the family lies at the start of each variant.
        let family = unsafe { name.family };
        if i32::from(family) == libc::AF_INET {
            // SAFETY: the family just read says that this variant was written; any bytes are valid for it.
            let a = unsafe { name.v4 };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            return Some(SocketAddrV4::new(ip, u16::from_be(a.sin_port)).into());
        }
        if i32::from(family) == libc::AF_INET6 && len as usize >= size_of::<libc::sockaddr_in6>() {
            // SAFETY: the family just read says that this variant was written; any bytes are valid for it.
            let a = unsafe { name.v6 };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            return Some(SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into());
        }
    }
    None
}

/// Appends a control message with the bytes of `value` at `at`; says where the next one goes.
fn push_control(control: &mut Control, at: usize, level: i32, kind: i32, value: &[u8]) -> usize {
    let header = size_of::<libc::cmsghdr>();
    // SAFETY: the union has no padding between its start and `CONTROL_BYTES`, and every caller passes zeroed bytes.
    let bytes = unsafe { &mut control.bytes };
    let next = at + header + value.len().next_multiple_of(align_of::<libc::cmsghdr>());
    let Some(slot) = bytes.get_mut(at..next) else { return at };
    let len = header + value.len();
    // struct cmsghdr { size_t cmsg_len; int cmsg_level; int cmsg_type; }, then the data.
    slot[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
    slot[size_of::<usize>()..size_of::<usize>() + 4].copy_from_slice(&level.to_ne_bytes());
    slot[size_of::<usize>() + 4..header].copy_from_slice(&kind.to_ne_bytes());
    slot[header..len].copy_from_slice(value);
    next
}

fn fill_control(control: &mut Control, item: &Outgoing<'_>) -> usize {
    let mut at = 0;
    if let Some(segment) = item.segment_bytes {
        at = push_control(control, at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
    }
    if let Some(traffic_class) = item.traffic_class {
        let (level, kind) = match item.destination {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        at = push_control(control, at, level, kind, &i32::from(traffic_class).to_ne_bytes());
    }
    if item.hop_limit != 0 {
        let (level, kind) = match item.destination {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT),
        };
        at = push_control(control, at, level, kind, &i32::from(item.hop_limit).to_ne_bytes());
    }
    at
}

/// Sends up to [`MESSAGES_PER_CALL`] of `items` with one system call, without blocking. Says how many left, at least
/// one; an error is that of the first.
pub(crate) fn send(fd: BorrowedFd<'_>, items: &[Outgoing<'_>]) -> io::Result<usize> {
    if items.len() <= 1 { send_up_to::<1>(fd, items) } else { send_up_to::<MESSAGES_PER_CALL>(fd, items) }
}

fn send_up_to<const N: usize>(fd: BorrowedFd<'_>, items: &[Outgoing<'_>]) -> io::Result<usize> {
    const ZERO: Control = Control { bytes: [0; CONTROL_BYTES] };
    let count = items.len().min(N);
    let mut names = [const { MaybeUninit::<Name>::uninit() }; N];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; N];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; N];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; N];
    for (i, item) in items.iter().take(count).enumerate() {
        let (name, name_len) = name_of(&item.destination);
        let control = controls[i].write(ZERO);
        let control_len = fill_control(control, item);
        // The kernel only reads through the pointer of a sent vector.
        vectors[i]
            .write(libc::iovec { iov_base: item.payload.as_ptr().cast_mut().cast(), iov_len: item.payload.len() });
        // SAFETY: `msghdr` is a plain C structure for which zero bytes are valid; its padding must be zero.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = names[i].write(name) as *mut Name as *mut libc::c_void;
        header.msg_namelen = name_len;
        header.msg_iov = vectors[i].as_mut_ptr();
        header.msg_iovlen = 1;
        if control_len > 0 {
            header.msg_control = control as *mut Control as *mut libc::c_void;
            header.msg_controllen = control_len as _;
        }
        headers[i].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    // SAFETY: the first `count` headers were written above; their pointers lead into `names`, `vectors`, `controls` and
    // `items`, which all live until the call returns and of which the kernel only reads the given lengths.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `max` (at most [`MESSAGES_PER_CALL`]) datagrams or merged batches with one system call, without
/// blocking, into the first of `buffers`; `out` says what they hold.
pub(crate) fn recv(
    fd: BorrowedFd<'_>,
    buffers: &mut RecvBuffers,
    out: &mut [Incoming; MESSAGES_PER_CALL],
    max: usize,
) -> io::Result<usize> {
    const N: usize = MESSAGES_PER_CALL;
    let count = max.min(N);
    let mut names = [const { MaybeUninit::<Name>::uninit() }; N];
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; N];
    let mut controls = [const { MaybeUninit::<Control>::uninit() }; N];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; N];
    for (i, buffer) in buffers.bytes.chunks_exact_mut(RECV_BUFFER_BYTES).take(count).enumerate() {
        vectors[i].write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() });
        // SAFETY: `msghdr` is a plain C structure for which zero bytes are valid; its padding must be zero.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = names[i].as_mut_ptr().cast();
        header.msg_namelen = size_of::<Name>() as u32;
        header.msg_iov = vectors[i].as_mut_ptr();
        header.msg_iovlen = 1;
        header.msg_control = controls[i].as_mut_ptr().cast();
        header.msg_controllen = CONTROL_BYTES as _;
        headers[i].write(libc::mmsghdr { msg_hdr: header, msg_len: 0 });
    }
    // SAFETY: the first `count` headers were written above; their pointers lead into `names`, `vectors`, `controls` and
    // `buffers`, which all live until the call returns, and each length is that of what it belongs to.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?.min(count);
    for (i, slot) in out.iter_mut().enumerate().take(received) {
        // SAFETY: `received` is at most `count`, whose headers were all written.
        let header = unsafe { headers[i].assume_init_ref() };
        let name_len = header.msg_hdr.msg_namelen;
        let source =
            if name_len as usize >= size_of::<libc::sockaddr_in>() { written_name(&names[i], name_len) } else { None };
        let (stride, is_marked) = told_of(&header.msg_hdr);
        *slot = Incoming { source, len: (header.msg_len as usize).min(RECV_BUFFER_BYTES), stride, is_marked };
    }
    Ok(received)
}

/// The address that the kernel wrote `len` bytes of.
fn written_name(name: &MaybeUninit<Name>, len: u32) -> Option<SocketAddr> {
    let mut whole = MaybeUninit::<Name>::zeroed();
    let len = (len as usize).min(size_of::<Name>());
    // SAFETY: the kernel wrote `len` bytes, which is at most the size of both; the rest of `whole` is zero, so all of
    // it is initialized.
    let whole = unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr().cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), len);
        whole.assume_init()
    };
    address_of(&whole, len as u32)
}

/// The segment size in the control messages that the kernel wrote, and whether the traffic class has the mark.
fn told_of(header: &libc::msghdr) -> (Option<usize>, bool) {
    const CONGESTION_EXPERIENCED: u8 = 0b11;
    let (mut stride, mut is_marked) = (None, false);
    // SAFETY: the kernel set `msg_controllen` to the bytes that it wrote at `msg_control`, which still lives.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR give only pointers to whole headers inside of the control buffer.
        let control = unsafe { next.read_unaligned() };
        let holds = |bytes: usize| control.cmsg_len >= (size_of::<libc::cmsghdr>() + bytes) as _;
        match (control.cmsg_level, control.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) if holds(size_of::<i32>()) => {
                // SAFETY: `cmsg_len`, which the kernel keeps inside of the buffer, covers an int of data.
                let bytes = unsafe { libc::CMSG_DATA(next).cast::<i32>().read_unaligned() };
                stride = usize::try_from(bytes).ok().filter(|b| *b > 0);
            }
            (libc::IPPROTO_IP, libc::IP_TOS) if holds(1) => {
                // SAFETY: `cmsg_len`, which the kernel keeps inside of the buffer, covers a byte of data.
                let class = unsafe { libc::CMSG_DATA(next).read() };
                is_marked = class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED;
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if holds(size_of::<i32>()) => {
                // SAFETY: `cmsg_len`, which the kernel keeps inside of the buffer, covers an int of data.
                let class = unsafe { libc::CMSG_DATA(next).cast::<i32>().read_unaligned() };
                is_marked = class as u8 & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED;
            }
            _ => {}
        }
        // SAFETY: as for CMSG_FIRSTHDR; `next` came from it.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    (stride, is_marked)
}

/// Sets an integer socket option.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer leads to an `i32` that lives during the call, and the length is its size.
    let rc = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as libc::socklen_t)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has the kernel give each packet to the socket of a group (`SO_REUSEPORT`) whose place is in the byte at that offset of the
/// UDP payload, without its lowest `shift` bits. Where the group has no such place the kernel takes any.
pub(crate) fn steer_by_byte(fd: BorrowedFd<'_>, offset: u32, shift: u8) -> io::Result<()> {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset),
        op(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, shift.into()),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let len = size_of_val(&filter) as libc::socklen_t;
    // SAFETY: the pointer leads to a program that lives during the call, and the lengths are theirs; the kernel copies it.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            len,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an integer socket option.
pub(crate) fn option(fd: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer leads to an `i32` that lives during the call, and the kernel writes at most its size.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Datagrams that the kernel dropped at this socket, mostly because its buffer was full (SK_MEMINFO_DROPS of
/// SO_MEMINFO).
pub(crate) fn drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    const SK_MEMINFO_DROPS: usize = 8;
    let mut words = [0_u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the pointer leads to an array that lives during the call, and the kernel writes at most its size.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, words.as_mut_ptr().cast(), &raw mut len)
    };
    if rc == 0 { Ok(words[SK_MEMINFO_DROPS]) } else { Err(io::Error::last_os_error()) }
}

/// Blocks all signals in the calling thread.
pub(crate) fn block_signals() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset writes the whole set before pthread_sigmask reads it, and the old set is not asked for.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}
