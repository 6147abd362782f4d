//! Why a software NIC could not be opened.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Why [`crate::SoftNic::open`] failed; nothing is left open.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another socket holds the port.
    #[error(
        "UDP port {} of {} is taken (EADDRINUSE). If the kernel module rdma_rxe is loaded and has a link in this network \
         namespace it holds port 4791 of every address (`rdma link`; remove it with `rdma link delete NAME` or use \
         another namespace); else another daemon or software NIC of this host holds it (`ss -lunp sport = :{}`), perhaps at \
         another address: a software NIC holds its port on all of them against other users. Stop it, or choose another \
         address or, between software NICs alone, another UDP port",
        .0.port(), .0.ip(), .0.port()
    )]
    AddressInUse(SocketAddr),
    /// The UDP ports after the first one end before that of this context.
    #[error("UDP port {first} leaves no port for context {context} of the device: choose {} or less", u16::MAX - .context)]
    NoPort {
        /// Port of context 0.
        first: u16,
        /// Number of the context.
        context: u16,
    },
    /// As many contexts as there are ports were opened.
    #[error("65536 contexts of the device were opened already: make the device anew")]
    TooManyContexts,
    /// Another socket listens there.
    #[error(
        "TCP port {} of {} is taken (EADDRINUSE), so the wire over TCP cannot listen (`ss -ltnp sport = :{}`): stop that \
         program, choose another UDP port, whose number it takes, or set wire = \"roce\"",
        .0.port(), .0.ip(), .0.port()
    )]
    TcpPortInUse(SocketAddr),
    /// The address is not one of this host.
    #[error(
        "{0} is no address of this host or network namespace (EADDRNOTAVAIL): choose one that `ip address` lists, or \
         add it there first"
    )]
    AddressNotAvailable(IpAddr),
    /// A software NIC needs one address, since that is its GID.
    #[error(
        "{0} is no specific unicast address: a software NIC answers from the one address that is its GID; choose one"
    )]
    NotSpecific(IpAddr),
    /// No interface holds the address, so the MTU is unknown.
    #[error(
        "no interface of this network namespace holds {0}, so its MTU is unknown: set the path MTU in the configuration"
    )]
    NoInterface(IpAddr),
    /// The interface's MTU fits not even the smallest path MTU.
    #[error("the interface of {address} has MTU {mtu_bytes}, the smallest path MTU needs 336: raise it")]
    MtuTooSmall {
        /// The address.
        address: IpAddr,
        /// What the interface has.
        mtu_bytes: usize,
    },
    /// The path MTU asked for does not fit the interface.
    #[error("path MTU {wanted} needs an interface MTU of {}, that of {address} has {mtu_bytes}: choose a smaller path MTU", wanted + 80)]
    MtuTooLarge {
        /// The address.
        address: IpAddr,
        /// Path MTU asked for.
        wanted: usize,
        /// What the interface has.
        mtu_bytes: usize,
    },
    /// A socket option did not become what the wire format needs.
    #[error(
        "socket option {option} is {found} after it was set to {wanted}: this kernel cannot carry RoCEv2 over UDP sockets"
    )]
    Option {
        /// Its name.
        option: &'static str,
        /// What was set.
        wanted: i64,
        /// What was read back.
        found: i64,
    },
    /// The capture file cannot be written.
    #[error("capture file {} cannot be written: {source}", path.display())]
    Capture {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system gave no random bytes.
    #[error("the system gave no random bytes: {0}")]
    Entropy(String),
    /// A system call failed.
    #[error("{call} failed: {source}")]
    Os {
        /// Which.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os { call, source: source.into() }
    }

    /// Why an address and port could not be had.
    pub(crate) fn binding(error: rustix::io::Errno, wanted: SocketAddr) -> Self {
        match error {
            rustix::io::Errno::ADDRINUSE => Self::AddressInUse(wanted),
            rustix::io::Errno::ADDRNOTAVAIL => Self::AddressNotAvailable(wanted.ip()),
            other => Self::os("bind", other),
        }
    }
}
