//! How a software NIC is opened.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Share;
use records::RecordLimit;
use verbs::{AsyncEvent, CqId, PathMarks, PathMtu, ROCE_UDP_PORT, Wire, WirePolicy};

/// Receive buffer that is asked for by default, in bytes of packet memory; the system's `net.core.rmem_max` caps it for
/// processes without CAP_NET_ADMIN.
pub const RCVBUF_BYTES_DEFAULT: usize = 8 << 20;

/// Size at which a capture file stops growing by default.
pub const PCAP_BYTES_DEFAULT: u64 = 256 << 20;

/// Who makes progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Progress {
    /// Only the caller of [`verbs::Provider::poll_cq`] or [`verbs::Provider::progress`]. This is for owners that always
    /// poll or wait on [`verbs::Provider::wait_fds`].
    #[default]
    Inline,
    /// The same, and a thread of the NIC's own while nobody calls: for owners that look at memory instead of
    /// completions, as targets of one-sided operations do.
    Helper,
}

/// Whether several packets may leave in one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gso {
    /// Batches where the kernel can. Where it segments in software, which Linux does, each packet carries the IPv4
    /// identification that its ICRC covers.
    #[default]
    Auto,
    /// One packet a send, for peers behind devices that number the segments of a batch in their own way.
    Off,
}

/// Whether the kernel encrypts connections over TCP, where it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelTls {
    /// Where the kernel has TLS (`CONFIG_TLS`, module `tls`); else the NIC does it. The bytes on the wire are the same.
    #[default]
    Auto,
    /// The NIC does it.
    Off,
}

/// Who is told of what a software NIC with a thread of its own did, in the place of [`verbs::Provider::wait_fds`].
///
/// The NIC calls from any thread, with its lock held: a listener must not call the NIC, and not wait for anybody who does.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// An armed CQ got its completion, as [`verbs::Provider::poll_cq_event`] has it.
    fn on_completion(&self, cq: CqId);
    /// As [`verbs::Provider::poll_event`].
    fn on_event(&self, event: AsyncEvent);
}

/// How a software NIC is opened.
#[derive(Debug, Clone)]
pub struct SoftNicConfig {
    /// The address of this host that is the port's GID; never a wildcard.
    pub address: IpAddr,
    /// Further addresses of this host at which connections and datagrams may be ([`verbs::OfferAttr::local`],
    /// [`verbs::DatagramAttr::local`]), at the same ports. One that the host does not have at the moment is no error.
    pub standby: Vec<IpAddr>,
    /// A place among NICs that share address and port; its sockets are those of `address` and `standby`, which it names in
    /// this order. None: the NIC has the port for itself.
    pub share: Option<Arc<Share>>,
    /// UDP port, 4791 towards foreign stacks; 0 lets the system choose (see [`crate::SoftNic::local_address`]).
    pub udp_port: u16,
    /// Largest path MTU; `None` takes what the interface allows.
    pub mtu: Option<PathMtu>,
    /// Which wires connections may use that are set up by [`verbs::Provider::offer`] and `accept`: UDP (RoCEv2, the
    /// default), TCP (iWARP), or both, and then each connection the one that both ends' devices choose.
    pub wire: WirePolicy,
    /// Whether the kernel encrypts connections over TCP.
    pub kernel_tls: KernelTls,
    /// How many records one key of a connection over TCP protects: the default's, or fewer for a test.
    pub record_limit: RecordLimit,
    /// How packets, of both wires and of datagrams, are marked for the network.
    pub marks: PathMarks,
    /// Who is told of completions and events at once, with [`Progress::Helper`]; none: who waits on
    /// [`verbs::Provider::wait_fds`].
    pub listener: Option<Arc<dyn Listener>>,
    /// Who makes progress.
    pub progress: Progress,
    /// Whether several packets may leave in one send.
    pub gso: Gso,
    /// File that all sent and received packets are captured into (pcap), truncated if there.
    pub pcap: Option<PathBuf>,
    /// Packets that would make the capture larger than this are not captured but counted.
    pub pcap_limit_bytes: u64,
    /// Receive buffer to ask for, in bytes of packet memory; less may be granted.
    pub rcvbuf_bytes: usize,
    /// Seed of keys, QP and packet sequence numbers; `None` takes the system's randomness. A fixed seed makes them
    /// predictable: for tests only.
    pub entropy: Option<[u8; 32]>,
    /// Limits of the device.
    pub limits: roce::NicLimits,
}

impl SoftNicConfig {
    /// The NIC of `address` at port 4791 with everything else at its default.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            standby: Vec::new(),
            share: None,
            udp_port: ROCE_UDP_PORT,
            mtu: None,
            wire: WirePolicy::Only(Wire::Roce),
            kernel_tls: KernelTls::default(),
            record_limit: RecordLimit::default(),
            marks: PathMarks::default(),
            listener: None,
            progress: Progress::default(),
            gso: Gso::default(),
            pcap: None,
            pcap_limit_bytes: PCAP_BYTES_DEFAULT,
            rcvbuf_bytes: RCVBUF_BYTES_DEFAULT,
            entropy: None,
            limits: roce::NicLimits::default(),
        }
    }
}
