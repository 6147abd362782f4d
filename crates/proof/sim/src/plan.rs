//! What a run is made of: hosts, their limits, the network, the applications, the faults.
//!
//! Types and quiet defaults only; `swarm` draws a plan from a seed, a scenario writes its own. It must never hold
//! state.

mod meeting;
mod socket;
mod user;

use std::time::Duration;

use control::{Kind, UserShare};
use engine::{TenantTerms, Thresholds};
use netmodel::QueueShape;
use plane::SpreadBy;
use records::RecordLimit;
use verbs::{Encrypt, PathMtu, Status, Time, Wire, WirePolicy};

pub use meeting::MeetingPlan;
pub use socket::SocketPlan;
pub use user::{LocalPlan, UserPlan};

/// Ports at which processes listen for messages that may be lost.
pub(crate) const UNRELIABLE_PORTS: std::ops::Range<u16> = 2000..2100;

/// What the connections of a listener's port carry.
pub(crate) fn kind_of(port: u16) -> Kind {
    if UNRELIABLE_PORTS.contains(&port) { Kind::Unreliable } else { Kind::Stream }
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed: of network, applications and devices.
    pub seed: u64,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// The network at the start.
    pub conditions: LinkConditions,
    /// The TCP connections of lanes.
    pub streams: StreamPlan,
    /// What joins the hosts, if it has limits of its own: then many that send to one host share its port.
    pub switch: Option<Switch>,
    /// Each host has a second address, and each two of them a second path between these. Its lanes are over TCP.
    pub has_standby: bool,
    /// Silence after which an end of a control link gives it up.
    pub link_timeout: Duration,
    /// Longest time that a message between application and daemon takes.
    pub daemon_delay_max: Duration,
    /// Ring chunks that a daemon refuses to make, of 1000.
    pub chunk_refusals: u32,
    /// The applications.
    pub apps: Vec<AppPlan>,
    /// Programs that use regions of other hosts.
    pub users: Vec<UserPlan>,
    /// Whose programs they all are: of so many users in turn.
    pub uids: u32,
    /// The hosts' regions have one writer at a time beside their owners.
    pub has_writers: bool,
    /// Programs under `raas run`.
    pub meetings: Vec<MeetingPlan>,
    /// Half of the streams are conversations: messages by turns.
    pub has_conversations: bool,
    /// A third of the streams are those of programs under `raas run`, which leave kernel TCP and may go back.
    pub has_upgrades: bool,
    /// Longest time that a message between the control plane and its links, or its engine, takes.
    pub queue_delay_max: Duration,
    /// What breaks, and when.
    pub faults: Vec<(Time, Fault)>,
    /// From here on nothing breaks any more, and applications come to an end.
    pub quiet_at: Time,
}

/// One host.
#[derive(Debug, Clone)]
pub struct HostPlan {
    /// Most SRQ entries granted to one lane.
    pub lane_credits: u32,
    /// Bytes of all SRQ entries.
    pub srq_bytes_max: u64,
    /// Size of an SRQ entry.
    pub send_bytes_max: u32,
    /// Deficit-round-robin quantum.
    pub quantum_bytes: u32,
    /// Bytes posted and not completed on a lane.
    pub lane_inflight_bytes_max: u64,
    /// Ring size where nobody says one.
    pub ring_bytes_default: u32,
    /// To which they may grow.
    pub ring_bytes_grown: u32,
    /// Connections of the host.
    pub connections_max: u32,
    /// What of connections and lanes one user may have.
    pub user_share: UserShare,
    /// Handles to regions of one user's programs: to those of this host, and as many to others.
    pub handles_per_user_max: u64,
    /// Peer hosts.
    pub lanes_max: u32,
    /// Ring memory of one application.
    pub ring_memory_per_app_max: u64,
    /// A connect is given up after this long.
    pub connect_timeout: Duration,
    /// Path MTU of the port.
    pub mtu: PathMtu,
    /// Segments of one send.
    pub max_gso_segments: usize,
    /// Unacknowledged packets of one QP.
    pub window_packets: u32,
    /// Longest delay between a wake-up and the run that follows.
    pub wake_delay_max: Duration,
    /// Lanes not used for so long give their queue pair up.
    pub lane_rest_after: Option<Duration>,
    /// Connections not used for so long give the pages of their rings back.
    pub rest_after: Option<Duration>,
    /// Longest time between the two steps of that.
    pub rest_gap_max: Duration,
    /// Connections whose other end cannot be reached wait for so long.
    pub peer_return: Duration,
    /// The daemon that it starts with.
    pub daemon: DaemonPlan,
    /// What may carry its lanes.
    pub wire: WirePolicy,
    /// Whether they are encrypted.
    pub encrypt: Encrypt,
    /// How many records one key of a lane on TCP protects.
    pub record_limit: RecordLimit,
    /// Bytes without a pause after which a stream is bulk, and may get a TCP connection of its own. None: none does.
    pub bulk_bytes: Option<u64>,
    /// Programs under `raas run` stay on kernel TCP where a lane would be in the clear, with one path.
    pub tcp_is_faster: bool,
    /// How its engines choose verbs.
    pub choice: Thresholds,
    /// The loads that its engines are told are of 0 to so many percent.
    pub load_max: u8,
    /// Its tenants, among which its programs are divided.
    pub tenants: Vec<TenantTerms>,
}

/// What of a daemon decides whether others speak with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonPlan {
    /// Version of the wire protocol.
    pub wire_version: u32,
    /// Which cluster key.
    pub key: u8,
    /// Links without proof at a time.
    pub handshakes_max: usize,
    /// Engines, each with a context of the device.
    pub engines: u32,
    /// What is spread over them.
    pub engines_by: SpreadBy,
}

impl Default for DaemonPlan {
    fn default() -> Self {
        Self {
            wire_version: control::WIRE_VERSION,
            key: 0,
            handshakes_max: 8,
            engines: 1,
            engines_by: SpreadBy::default(),
        }
    }
}

impl Default for HostPlan {
    fn default() -> Self {
        Self {
            lane_credits: 64,
            srq_bytes_max: 16 << 20,
            send_bytes_max: 1024,
            quantum_bytes: 16 << 10,
            lane_inflight_bytes_max: 1 << 20,
            ring_bytes_default: 16 << 10,
            ring_bytes_grown: 64 << 10,
            connections_max: 4096,
            user_share: UserShare::ALL,
            handles_per_user_max: u64::MAX,
            lanes_max: 8,
            ring_memory_per_app_max: 256 << 20,
            connect_timeout: Duration::from_secs(10),
            mtu: PathMtu::Mtu4096,
            max_gso_segments: 16,
            window_packets: 256,
            wake_delay_max: Duration::from_micros(20),
            lane_rest_after: None,
            rest_after: Some(Duration::from_secs(1)),
            rest_gap_max: Duration::ZERO,
            peer_return: Duration::ZERO,
            tenants: Vec::new(),
            daemon: DaemonPlan::default(),
            wire: WirePolicy::Only(Wire::Roce),
            encrypt: Encrypt::Off,
            record_limit: RecordLimit::default(),
            bulk_bytes: None,
            tcp_is_faster: false,
            choice: Thresholds::default(),
            load_max: 0,
        }
    }
}

/// How TCP connections carry lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPlan {
    /// Bytes of one direction that are sent and not read.
    pub room_bytes: usize,
    /// Longest piece that one call sends or receives, and that arrives at a time.
    pub cut_max: usize,
}

impl Default for StreamPlan {
    fn default() -> Self {
        Self { room_bytes: 256 << 10, cut_max: 64 << 10 }
    }
}

/// A switch with a port for each host. It holds through the whole run, also when everything else is mended. A packet
/// waits for the transmitter of its host, travels [`LinkConditions::delay`], and waits for the port of the host that it goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// The transmitter of each host.
    pub host: QueueShape,
    /// The transmitter of the switch at each port, which all that send to its host share.
    pub port: QueueShape,
}

impl Switch {
    /// Packets that wait for the transmitter of a host: the length of a Linux interface's queue.
    const HOST_PACKETS_MAX: u32 = 1000;

    /// The same rate everywhere; at most so many packets wait at a port of the switch.
    pub fn of_rate(rate_bits_per_s: u64, packets_max: u32) -> Self {
        let port = QueueShape { rate_bits_per_s, packets_max, ..QueueShape::default() };
        Self { host: QueueShape { packets_max: Self::HOST_PACKETS_MAX, ..port }, port }
    }
}

/// What the network does to packets; shares are of 10,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkConditions {
    /// Packets lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets that are late by up to `late_max`, so that others pass them.
    pub reorder: u32,
    /// See `reorder`.
    pub late_max: Duration,
    /// Packets with one bit turned over.
    pub corrupt: u32,
    /// One way.
    pub delay: Duration,
    /// Bytes that a path carries in a microsecond, 0 for as many as come.
    pub bytes_per_us: u32,
    /// Bytes that wait for a path; what comes on top is lost.
    pub queue_bytes: u32,
}

impl Default for LinkConditions {
    fn default() -> Self {
        Self {
            loss: 0,
            duplicate: 0,
            reorder: 0,
            late_max: Duration::ZERO,
            corrupt: 0,
            delay: Duration::from_micros(5),
            bytes_per_us: 0,
            queue_bytes: 4 << 20,
        }
    }
}

impl LinkConditions {
    /// The transmitter of a path.
    pub(crate) fn path(&self) -> QueueShape {
        let rate_bits_per_s = u64::from(self.bytes_per_us) * 8_000_000;
        QueueShape { rate_bits_per_s, bytes_max: self.queue_bytes.into(), ..QueueShape::default() }
    }
}

/// What of a path between two hosts is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// RoCEv2 packets vanish.
    pub data: bool,
    /// The control link carries nothing.
    pub control: bool,
    /// Only from the first host to the second.
    pub one_way: bool,
}

impl Cut {
    /// Everything, both ways.
    pub const ALL: Self = Self { data: true, control: true, one_way: false };
    /// Packets only: the daemons still speak to each other.
    pub const DATA: Self = Self { data: true, control: false, one_way: false };
    /// The control link only.
    pub const CONTROL: Self = Self { data: false, control: true, one_way: false };
}

/// Something breaks, or is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A path is cut.
    Cut { from: usize, to: usize, what: Cut },
    /// Packets of one direction are kept back.
    Hold { from: usize, to: usize },
    /// They arrive after all, in order.
    Release { from: usize, to: usize },
    /// One of the two paths between two hosts carries nothing.
    PathDown { a: usize, b: usize, path: usize },
    /// It does again.
    PathUp { a: usize, b: usize, path: usize },
    /// One of the two wires between two hosts carries nothing for lanes; everything else works.
    WireDown { a: usize, b: usize, wire: Wire },
    /// It does again.
    WireUp { a: usize, b: usize, wire: Wire },
    /// All cuts between two hosts end.
    Heal { a: usize, b: usize },
    /// The host (or its daemon, with all applications) dies. `told`: its kernel tells the peers.
    Crash { host: usize, told: bool },
    /// The host dies when so many more control messages passed it: often in the middle of a handshake.
    CrashAt { host: usize, messages: u32, told: bool },
    /// Another daemon is installed: it runs from the next start on.
    Install { host: usize, daemon: DaemonPlan },
    /// It comes back, empty.
    Restart { host: usize },
    /// The daemon is killed. Its applications live, and wait for the next one.
    KillDaemon { host: usize },
    /// The next daemon starts, unless there is one; its applications come back to it.
    StartDaemon { host: usize },
    /// The engine does not run for a while; the NIC does.
    PauseEngine { host: usize, time: Duration },
    /// Nothing on the host runs for a while.
    PauseHost { host: usize, time: Duration },
    /// The queue pair of a host's datagrams fails.
    BreakDatagrams { host: usize },
    /// The queue pair of `host`'s lane to `peer` fails.
    BreakLane { host: usize, peer: usize, how: Break },
    /// Something on the way resets the TCP connections of the lane between two hosts.
    ResetStreams { a: usize, b: usize },
    /// Something on the way breaks the TCP connections of streams of bulk between two hosts.
    BreakDirects { a: usize, b: usize },
    /// An application of the plan is killed.
    KillApp { app: usize },
    /// The network changes.
    LinkConditions(LinkConditions),
    /// A host takes its region back from all that have it open.
    Revoke { host: usize },
    /// Another policy is in force on a host: its programs may have so many connections to other hosts; none: any number.
    Policy { host: usize, connections_max: Option<u32> },
}

/// How a queue pair fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Break {
    /// It goes into error; its daemon notices when it uses it, or the peer does.
    Silent,
    /// Its daemon gives it up at once.
    Asked,
    /// Its next WRITE names a key that the peer does not know.
    RemoteKey,
    /// Its next WRITE names local memory that is not registered.
    LocalKey,
    /// A work request ends with this although the peer executed it.
    Status(Status),
}

/// One application.
#[derive(Debug, Clone)]
pub struct AppPlan {
    /// Its host.
    pub host: usize,
    /// When it attaches.
    pub start: Time,
    /// Slots of its session.
    pub slots: u32,
    /// Ports that it listens on.
    pub listens: Vec<ListenPlan>,
    /// Connections that it makes.
    pub connects: Vec<ConnectPlan>,
    /// Datagram sockets that it binds.
    pub sockets: Vec<SocketPlan>,
    /// What it does with connections.
    pub talk: Talk,
    /// It is killed at the so many-th step of its work.
    pub crash_after: Option<u32>,
    /// It exits at this time, whatever its connections do.
    pub leave_at: Option<Time>,
    /// It is started again after its host came back.
    pub respawn: bool,
}

impl AppPlan {
    /// An application that does nothing yet.
    pub fn new(host: usize, talk: Talk) -> Self {
        Self {
            host,
            start: Time(1000),
            slots: 64,
            listens: Vec::new(),
            connects: Vec::new(),
            sockets: Vec::new(),
            talk,
            crash_after: None,
            leave_at: None,
            respawn: false,
        }
    }

    /// As before, listening on a port.
    pub fn listening(mut self, port: u16, backlog: u32) -> Self {
        self.listens.push(ListenPlan { port, backlog, ring_bytes: 0, accept_gap: Duration::ZERO, unlisten_at: None });
        self
    }

    /// As before, with a datagram socket.
    pub fn binding(mut self, socket: SocketPlan) -> Self {
        self.sockets.push(socket);
        self
    }

    /// As before, connecting `count` times at `at`.
    pub fn connecting(mut self, to: usize, port: u16, at: Time, count: usize, ring_bytes: u32) -> Self {
        let connect = ConnectPlan { at, to, port, ring_bytes, patience: None };
        self.connects.extend(std::iter::repeat_n(connect, count));
        self
    }
}

/// A listener.
#[derive(Debug, Clone)]
pub struct ListenPlan {
    /// Port.
    pub port: u16,
    /// Connections that may wait.
    pub backlog: u32,
    /// Ring size, 0 for that of the connecting side.
    pub ring_bytes: u32,
    /// Pause between two accepts.
    pub accept_gap: Duration,
    /// It stops listening.
    pub unlisten_at: Option<Time>,
}

/// A connect.
#[derive(Debug, Clone)]
pub struct ConnectPlan {
    /// When.
    pub at: Time,
    /// Host.
    pub to: usize,
    /// Port there.
    pub port: u16,
    /// Ring size, 0 for the default.
    pub ring_bytes: u32,
    /// It is cancelled after so long.
    pub patience: Option<Duration>,
}

/// What an application does with its connections: each draws its own script from these bounds.
#[derive(Debug, Clone)]
pub struct Talk {
    /// Bytes written in all: at least, at most.
    pub bytes: (u64, u64),
    /// Longest write.
    pub write_max: u32,
    /// Longest read.
    pub read_max: u32,
    /// Longest pause between writes; half of the connections make none.
    pub write_gap_max: Duration,
    /// Longest pause between reads; half of the connections make none.
    pub read_gap_max: Duration,
    /// The ends that a connection may choose from.
    pub endings: Vec<Ending>,
    /// Connections ask for verbs, now for one and now for another.
    pub asks_verbs: bool,
    /// Bytes that a process copies at a time.
    pub copy_bytes: usize,
}

impl Talk {
    /// Bytes that a process copies at a time, if nobody says otherwise.
    pub const COPY_BYTES: usize = 16 << 10;

    /// Each end writes so many bytes, reads to the end and closes.
    pub fn exactly(bytes: u64) -> Self {
        Self {
            bytes: (bytes, bytes),
            write_max: 4096,
            read_max: 8192,
            write_gap_max: Duration::ZERO,
            read_gap_max: Duration::ZERO,
            endings: vec![Ending::ReadToEnd],
            asks_verbs: false,
            copy_bytes: Self::COPY_BYTES,
        }
    }

    /// As before, with another end.
    pub fn ending(mut self, ending: Ending) -> Self {
        self.endings = vec![ending];
        self
    }
}

/// How a connection comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Writes all, says so, reads to the end, closes.
    ReadToEnd,
    /// Writes all and closes; what it did not read is lost.
    CloseAfterWrite,
    /// Resets in the middle.
    Abort,
    /// Says in the middle that it reads no more, writes all, closes.
    StopReading,
    /// Stops reading in the middle for a long while.
    Stall,
    /// Writes all and says nothing until the world comes to rest.
    HoldOpen,
    /// Says at once that it writes nothing, reads to the end, closes.
    ListenOnly,
}

impl Ending {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::ReadToEnd,
        Self::CloseAfterWrite,
        Self::Abort,
        Self::StopReading,
        Self::Stall,
        Self::HoldOpen,
        Self::ListenOnly,
    ];
}

impl Plan {
    /// Hosts on a good network, with nothing on them.
    pub fn calm(seed: u64, hosts: usize) -> Self {
        Self {
            seed,
            hosts: vec![HostPlan::default(); hosts],
            conditions: LinkConditions::default(),
            streams: StreamPlan::default(),
            switch: None,
            has_standby: false,
            link_timeout: Duration::from_secs(5),
            daemon_delay_max: Duration::from_micros(50),
            chunk_refusals: 0,
            queue_delay_max: Duration::from_micros(2),
            apps: Vec::new(),
            users: Vec::new(),
            uids: 1,
            meetings: Vec::new(),
            has_conversations: false,
            has_upgrades: false,
            has_writers: false,
            faults: Vec::new(),
            quiet_at: Time::ZERO + Duration::from_secs(1),
        }
    }

    /// Whether processes connect for messages that may be lost.
    pub fn has_unreliable(&self) -> bool {
        self.apps.iter().flat_map(|app| &app.connects).any(|connect| kind_of(connect.port) == Kind::Unreliable)
    }

    /// Whether a limit may be met, so that refusals for its sake are right.
    pub fn has_tight_limits(&self) -> bool {
        let calm = HostPlan::default();
        self.chunk_refusals > 0
            || self.apps.iter().any(|a| (a.slots as usize) < self.connects() + a.sockets.len())
            || self.hosts.iter().any(|h| {
                h.connections_max < calm.connections_max
                    || (h.lanes_max as usize) < self.hosts.len() - 1
                    || h.ring_memory_per_app_max < calm.ring_memory_per_app_max
            })
    }

    /// Bytes that all connections together write at most, but for those that a scenario asks for on top.
    pub(crate) fn bytes_at_most(&self) -> u64 {
        let most = self.apps.iter().map(|a| a.talk.bytes.1).max().unwrap_or(0);
        2 * most * self.connects() as u64
    }

    /// Connects of the whole plan.
    fn connects(&self) -> usize {
        self.apps.iter().map(|a| a.connects.len()).sum()
    }
}
