//! Questions of `raas ss`, `stat`, `why` and `device`, and their answers, a page at a time.
//!
//! A table may be long, and its reader slow. So an answer is one page, and the reader names the place of the next one.
//! The daemon keeps nothing for a reader except the page that it has not taken yet. Root and the daemon's user see all
//! rows; other users see their own (docs/operate/commands.md).

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{HandOverRefusal, Reason, RegionRow};

/// Bytes of rows in one page at most, unless one row alone has more.
pub const PAGE_BYTES: usize = 16 << 10;

/// A question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectQuery {
    /// All connections of the host.
    Connections,
    /// Device, lanes, resources, counters, applications.
    Stat,
    /// All datagram sockets of the host.
    Datagrams,
    /// All regions of the host.
    Regions,
    /// Messages that were looked at, stage by stage.
    Trace,
    /// The tenants of the policy.
    Tenants,
    /// The hosts of the cluster, and the directories that know them.
    Members,
}

/// Where a page begins. A reader starts with the default, and then passes what the page before named. Any other value
/// is harmless and means nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Which of the daemon's tables.
    pub table: u32,
    /// Where in it.
    pub at: u64,
}

/// A page of an answer. A page may be empty though others follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InspectAnswer {
    /// Some connections.
    Connections(Vec<ConnectionRow>),
    /// The host's state, with as many lanes and applications as the first page has room for.
    Stat(Box<Stat>),
    /// More of its lanes and applications: the pages behind.
    StatRows {
        /// Lanes.
        lanes: Vec<LaneRow>,
        /// Applications.
        apps: Vec<AppRow>,
    },
    /// Whether there was a lane to reset.
    LaneReset(bool),
    /// Some datagram sockets.
    Datagrams(Vec<DatagramRow>),
    /// Some regions.
    Regions(Vec<RegionRow>),
    /// Some messages.
    Trace(Vec<TraceRow>),
    /// Some tenants.
    Tenants(Vec<TenantRow>),
    /// Whether the daemon ends for another one, or why it goes on.
    HandsOver(Result<(), HandOverRefusal>),
    /// Some hosts.
    Members(Vec<MemberRow>),
    /// Some directories.
    Directories(Vec<DirectoryRow>),
    /// Answer to [`crate::Request::Lookup`].
    Found {
        /// Hosts that have or serve the name, at most [`FOUND_MAX`]; the next question begins with another one.
        addresses: Vec<IpAddr>,
        /// Where the daemon looked. None: its configuration names nothing to ask.
        directories: Vec<DirectoryRow>,
    },
}

/// Hosts that the answer to a lookup names at most.
pub const FOUND_MAX: usize = 16;

/// A host of the cluster, as one directory knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct MemberRow {
    /// What its daemon listens on.
    pub address: IpAddr,
    /// Its own name, if it has one.
    pub name: Option<String>,
    /// The names that it serves.
    pub services: Vec<String>,
    /// The directory: `static`, `dns` or `etcd`.
    pub source: String,
    /// Seconds since the directory first named it.
    pub known_seconds: u64,
}

/// Where hosts are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct DirectoryRow {
    /// `static`, `dns` or `etcd`.
    pub source: String,
    /// What is asked: names, or addresses of servers.
    pub asked: Vec<String>,
    /// Hosts that it named last.
    pub hosts: u64,
    /// Seconds since it last answered in full; none if it never did.
    pub answered_seconds: Option<u64>,
    /// Seconds since which something is wrong.
    pub failed_seconds: Option<u64>,
    /// What is wrong, if anything is. The hosts of before stay.
    pub error: Option<String>,
}

/// Which path a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PathKind {
    /// Shared memory on one host.
    Shm,
    /// The shared lane.
    Lane,
    /// An exclusive lane.
    Leased,
    /// Kernel TCP.
    Tcp,
    /// A TCP connection from application to application, which the daemons made for a stream of bulk. The lane carries
    /// its beginning, and how it ends.
    #[serde(rename = "tcp-direct")]
    TcpDirect,
}

/// State of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ConnectionState {
    /// Being set up.
    Connecting,
    /// Waits for `accept`.
    Backlog,
    /// Both directions open.
    Established,
    /// This side sent FIN.
    FinSent,
    /// The peer sent FIN.
    FinReceived,
    /// Closed here, bytes or confirmations still on their way.
    Closing,
}

impl PathKind {
    /// The word for it in JSON and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Lane => "lane",
            Self::Leased => "leased",
            Self::Tcp => "tcp",
            Self::TcpDirect => "tcp-direct",
        }
    }
}

impl ConnectionState {
    /// The word for it in JSON and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Backlog => "backlog",
            Self::Established => "established",
            Self::FinSent => "fin-sent",
            Self::FinReceived => "fin-received",
            Self::Closing => "closing",
        }
    }
}

/// A row of `raas ss`. Its keys are part of the JSON interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct ConnectionRow {
    /// Number on this host.
    pub id: u64,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
    /// State.
    pub state: ConnectionState,
    /// Name of the lane, if any.
    pub lane: Option<String>,
    /// Route id that the peer puts into the immediate, if any.
    pub route_id: Option<u32>,
    /// Path.
    pub path: PathKind,
    /// What carries the lane: `roce` or `iwarp`; none without a lane that was connected.
    pub wire: Option<String>,
    /// Whether the lane is encrypted; none without a lane that was connected.
    pub encrypted: Option<bool>,
    /// What encrypts and authenticates the lane; none if nothing does.
    pub cipher: Option<String>,
    /// Why this path.
    pub reason: Reason,
    /// The verb that carried the last bytes on a lane, as the verbs of `raas stat` are called: `send`, `write_imm` or
    /// `read`; none before the first.
    pub verb: Option<String>,
    /// The verb that the program asked for, if it named one.
    pub verb_asked: Option<String>,
    /// Why that verb.
    pub verb_reason: Option<String>,
    /// Bytes sent since the connection was made.
    pub tx_bytes: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Those of them that went by a TCP connection of the stream's own, as the application says.
    pub direct_tx_bytes: u64,
    /// Those that came by it.
    pub direct_rx_bytes: u64,
    /// Bytes written by the application and not yet consumed by the peer's application.
    pub tx_queued_bytes: u64,
    /// Bytes arrived and not yet read by the application.
    pub rx_queued_bytes: u64,
    /// Process of the application.
    pub app_pid: u32,
}

/// A datagram socket of `raas ss`. Its keys are part of the JSON interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct DatagramRow {
    /// Number on this host, among those of connections.
    pub id: u64,
    /// Where it is bound.
    pub local: SocketAddr,
    /// Datagrams sent.
    pub tx_datagrams: u64,
    /// Datagrams that were put into its receive ring.
    pub rx_datagrams: u64,
    /// Bytes of the datagrams sent.
    pub tx_bytes: u64,
    /// Bytes of those received.
    pub rx_bytes: u64,
    /// Datagrams from or for it that were dropped, by reason (docs/use/datagrams.md).
    pub drops: Vec<(String, u64)>,
    /// Process of the application.
    pub app_pid: u32,
}

/// A lane of `raas stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct LaneRow {
    /// Name: the peer's address and the lane's number.
    pub name: String,
    /// The peer daemon.
    pub peer: SocketAddr,
    /// `up`, `connecting`, `failed`, `stalled` (the peer's daemon says nothing).
    pub state: String,
    /// Raised with each queue pair that the daemon makes for a lane.
    pub incarnation: u32,
    /// Resets of the lane over which its connections went on.
    pub resets: u64,
    /// Local queue pair; 0 while there is none. Only root and the daemon's user get it.
    pub qpn: Option<u32>,
    /// Peer queue pair; as above.
    pub peer_qpn: Option<u32>,
    /// What carries it: `roce` or `iwarp`; none while it is not connected.
    pub wire: Option<String>,
    /// Why this wire, in a clause for people.
    pub wire_reason: Option<String>,
    /// Whether nobody between the two hosts can read or forge it; none while it is not connected.
    pub encrypted: Option<bool>,
    /// Why it is, or is not, in a clause for people.
    pub encryption_reason: Option<String>,
    /// What encrypts and authenticates it; none while it is not encrypted.
    pub cipher: Option<String>,
    /// Microseconds since its keys were made, which is when its queue pair was connected; none without a cipher.
    pub keys_age_us: Option<u64>,
    /// Payload bytes of a packet.
    pub mtu_bytes: u32,
    /// Connections on it; for an ordinary user its own.
    pub connections: u32,
    /// SRQ entries of the peer that may still be used.
    pub credits: u64,
    /// SRQ entries here granted to the peer and not used yet.
    pub granted: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Dials in a row that failed. A lane that lasted less than 10 s counts as a failed dial. 0 after a lane that
    /// lasted longer was lost.
    pub dials_failed: u32,
    /// Microseconds for which datagrams to the host are dropped without dialing it again. 0: the next datagram makes
    /// the daemon dial it. A connect dials at once.
    pub redial_in_us: u64,
    /// The addresses between which it goes, if the host may be reached by several (docs/operate/failover.md) and there is a link.
    pub link_path: Option<String>,
    /// Why between these, in a clause for people.
    pub link_path_reason: Option<String>,
}

/// An application of `raas stat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct AppRow {
    /// Process.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Name it gave.
    pub name: String,
    /// Its connections.
    pub connections: u32,
    /// Bytes sent through lanes, and to programs of this host.
    pub tx_bytes: u64,
    /// Bytes received, likewise.
    pub rx_bytes: u64,
    /// Bytes of its memory registered with the device.
    pub pinned_bytes: u64,
    /// READs of regions of other hosts that it began (docs/use/regions.md).
    pub reads: u64,
    /// WRITEs, likewise.
    pub writes: u64,
    /// Atomics, likewise.
    pub atomics: u64,
    /// Kernels, likewise.
    #[serde(default)]
    pub kernels: u64,
    /// Its tenant (docs/operate/policy.md).
    pub tenant: String,
    /// Number of its session. A daemon with several engines tells a row for each engine, which the reader adds up.
    pub session: u64,
}

/// What the programs of a tenant have, and what they may have (docs/operate/policy.md); none: no bound of the policy's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct TenantRow {
    /// Its name.
    pub name: String,
    /// Programs.
    pub programs: u32,
    /// Programs that there may be.
    pub programs_max: Option<u32>,
    /// Listeners and datagram sockets.
    pub listeners: u32,
    /// Listeners and datagram sockets that there may be.
    pub listeners_max: Option<u32>,
    /// Connections to other hosts, those that wait included.
    pub connections: u32,
    /// Connections to other hosts that there may be.
    pub connections_max: Option<u32>,
    /// Bytes of regions.
    pub region_bytes: u64,
    /// Bytes of regions that there may be.
    pub region_bytes_max: Option<u64>,
    /// Part of a lane, beside other tenants that have something to send.
    #[serde(default)]
    pub weight: u16,
    /// Bytes a second that its programs may send to other hosts, and READ from there.
    #[serde(default)]
    pub bytes_per_s: Option<u64>,
    /// Work requests a second that the daemon posts for its programs.
    #[serde(default)]
    pub operations_per_s: Option<u64>,
}

/// How long messages spent in a stage (docs/operate/metrics.md): a histogram.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct StageRow {
    /// The stage.
    pub name: String,
    /// Nanoseconds of all messages together.
    pub sum_ns: u64,
    /// Buckets that are not empty: the smallest value that is too large for it, and how many it has.
    pub buckets: Vec<(u64, u64)>,
}

impl StageRow {
    /// Messages.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }

    /// A value that this part of all messages (0.0 to 1.0) did not exceed; 0 without messages.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, n)| {
            seen += n;
            seen >= wanted
        });
        found.map_or(0, |(end, _)| *end)
    }

    /// Adds the counts of another one.
    pub fn add(&mut self, other: &Self) {
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for (end, n) in &other.buckets {
            match self.buckets.binary_search_by_key(end, |(known, _)| *known) {
                Ok(at) => self.buckets[at].1 += n,
                Err(at) => self.buckets.insert(at, (*end, *n)),
            }
        }
    }

    /// What came since `before`, a state of the same histogram.
    pub fn since(&self, before: &Self) -> Self {
        let was = |end: &u64| before.buckets.iter().find(|(known, _)| known == end).map_or(0, |(_, n)| *n);
        let buckets = self.buckets.iter().map(|(end, n)| (*end, n.saturating_sub(was(end)))).filter(|(_, n)| *n > 0);
        Self { name: self.name.clone(), sum_ns: self.sum_ns.saturating_sub(before.sum_ns), buckets: buckets.collect() }
    }
}

/// A message that was looked at, one of its ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct TraceRow {
    /// The engine that carried it.
    pub engine: u32,
    /// Number among those that this engine looked at.
    pub number: u64,
    /// The connection's number on this host.
    pub connection: u64,
    /// The other end.
    pub peer: SocketAddr,
    /// Number of the byte of the stream for which it was looked at. The other end looks at the same.
    pub offset: u64,
    /// Stages, each from and to, in nanoseconds of this host's monotonic clock.
    pub stages: Vec<(String, u64, u64)>,
}

/// Work requests by verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct VerbCounts {
    /// SEND.
    pub send: u64,
    /// WRITE.
    pub write: u64,
    /// WRITE with immediate.
    pub write_imm: u64,
    /// READ.
    pub read: u64,
    /// Atomics.
    pub atomic: u64,
}

/// The host's state; keys bind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "rows"), non_exhaustive)]
pub struct Stat {
    /// Device in use.
    pub device: String,
    /// Why this device.
    pub device_reason: String,
    /// Lanes.
    pub lanes: Vec<LaneRow>,
    /// RC queue pairs.
    pub rc_qps: u32,
    /// UD queue pairs.
    pub ud_qps: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Receives posted and free.
    pub srq_free: u64,
    /// Memory regions.
    pub mrs: u32,
    /// Bytes registered.
    pub pinned_bytes: u64,
    /// Open descriptors of the daemon.
    pub fds: u32,
    /// Packets dropped, by reason. Empty for ordinary users, because it shows a forger which check stopped a packet.
    pub drops: Vec<(String, u64)>,
    /// Work requests by verb.
    pub verbs: VerbCounts,
    /// Packets sent again.
    pub retransmits: u64,
    /// Other counters of device and engine. Empty for ordinary users, as `drops`.
    pub counters: Vec<(String, u64)>,
    /// Applications.
    pub apps: Vec<AppRow>,
    /// How long messages spent in each stage. Empty for ordinary users.
    pub stages: Vec<StageRow>,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// The answer has lanes and applications of all users, and all counters: root or the daemon's user asks.
    pub all_users: bool,
    /// Counters that the device in use cannot report, by name. Elsewhere a counter of this name is 0 or missing. Among
    /// them may be `rnr_naks` and `retransmits`.
    pub unknown: Vec<String>,
}
