//! Why a connection was refused, closed or reset: one list for control messages, the shared slots (`reason`), the
//! lane's frames and `raas ss`. The numbers are wire format and never reused; docs/reasons.md explains each.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $text:literal, $key:literal;)*) => {
        /// Why a connection was refused, closed or reset.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
        // By number, so that one which the other side does not know is no error there.
        #[serde(from = "u32", into = "u32")]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[doc = $doc])* #[error($text)] $name,)*
        }

        impl Reason {
            /// Every reason.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its number in shared memory and on the wire.
            pub const fn code(self) -> u32 {
                match self { $(Self::$name => $code,)* }
            }

            /// The reason with this number; an unknown number (a newer peer) is [`Reason::Unspecified`].
            pub const fn from_code(code: u32) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Unspecified }
            }

            /// Its stable key in JSON output and docs/reasons.md.
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }
        }
    };
}

reasons! {
    /// No reason was given, or one that this build does not know.
    Unspecified = 0, "no reason was given", "unspecified";
    /// Both sides closed in order.
    Closed = 1, "the connection was closed", "closed";
    /// Nobody listens on that port at the peer.
    NoListener = 2, "connection refused: nobody listens on that port there", "no-listener";
    /// The listener's backlog is full.
    BacklogFull = 3, "connection refused: the listener's backlog is full", "backlog-full";
    /// The peer daemon could not be reached.
    PeerUnreachable = 4, "the peer's daemon cannot be reached: is `raas daemon` running there, and its peer_port open?", "peer-unreachable";
    /// The two daemons do not share the key.
    PeerAuth = 5, "the peer's daemon has another cluster key: give both the same key_file", "peer-auth";
    /// The two daemons speak different versions.
    PeerVersion = 6, "the peer's daemon speaks another protocol version: install the same release on both", "peer-version";
    /// The control link to the peer daemon broke: the daemon or host died, or the network is cut.
    PeerLost = 7, "the peer's daemon was lost", "peer-lost";
    /// This host's daemon died or was stopped.
    DaemonLost = 8, "this host's daemon was lost", "daemon-lost";
    /// The other application closed without reading everything, or dropped the connection before it accepted it.
    ResetByPeer = 9, "the connection was reset by the peer application", "reset-by-peer";
    /// The other application died.
    PeerAppDied = 10, "the peer application died", "peer-app-died";
    /// This application broke the rules of the shared memory.
    AppFault = 11, "the application broke the shared-memory protocol and was detached", "app-fault";
    /// A table of this host's daemon is full.
    LocalLimit = 12, "a limit of this host's daemon is reached (see `raas stat`, and limits in its configuration)", "local-limit";
    /// A table of the peer's daemon is full.
    PeerLimit = 13, "a limit of the peer's daemon is reached", "peer-limit";
    /// The lane failed: a breach of its protocol, or too many resets.
    LaneFailed = 14, "the lane to the peer failed", "lane-failed";
    /// The daemon is shutting down in order.
    ShuttingDown = 15, "the daemon is shutting down", "shutting-down";
    /// The address names no host that this daemon can reach.
    BadAddress = 16, "the address cannot be used with this daemon", "bad-address";
    /// No answer within the time allowed.
    TimedOut = 17, "no answer within the time allowed", "timed-out";
    /// The port is taken by another listener.
    PortInUse = 18, "the port is already in use on this host", "port-in-use";
    /// The daemon's policy does not allow it.
    Policy = 19, "the daemon's configuration does not allow it (for another host: name its network in `connect_to`; for a tenant: see the file of `policy`)", "policy";
    /// One end is a stream of bytes, the other of messages.
    WrongKind = 20, "the listener there is of another kind: connect streams to stream listeners, messages to message listeners", "wrong-kind";
    /// This user has as many programs at the daemon as one user may.
    UserPrograms = 21, "this user has its share of this host's programs: end some, or raise `apps_max`, `clients_max` or `user_share_percent` in the daemon's [limits]", "user-programs";
    /// This user's programs have as many listeners as one user's may.
    UserListeners = 22, "this user's programs have their share of this host's listeners: close some, or raise `listeners_max` or `user_share_percent` in the daemon's [limits]", "user-listeners";
    /// Something listens on the peer daemon's port and did not finish the handshake of a control link.
    PeerBusy = 23, "the peer's daemon takes no new link: it is too busy, or stands still; try again, and look into its log", "peer-busy";
    /// The peer's daemon says nothing; the connection waits for it.
    Stalled = 24, "the peer's daemon says nothing: it stands still, or cannot be reached; the connection waits for it", "stalled";
    /// The peer's daemon said nothing for longer than the connection's peer timeout.
    PeerTimeout = 25, "the connection was given up: one of the two daemons stood still, or could not be reached, for longer than the peer timeout", "peer-timeout";
    /// This user's programs have as many connections to other hosts as one user's may.
    UserConnections = 26, "this user's programs have their share of this host's connections: close some, or raise `connections_max` or `user_share_percent` in the daemon's [limits]", "user-connections";
    /// This user's programs connect to as many other hosts as one user's may.
    UserLanes = 27, "this user's programs connect to as many hosts as one user's may: close all connections to one of them, or raise `lanes_max` or `user_share_percent` in the daemon's [limits]", "user-lanes";
    /// The daemon dials as many hosts for this user as it may dial for one user.
    UserDials = 28, "the daemon is dialing as many hosts for this user as for one user it may: wait for their answers, or raise `lanes_max` or `user_share_percent` in the daemon's [limits]", "user-dials";
    /// This user's programs share memory with as many others as one user's may.
    UserPairs = 29, "this user's programs have their share of this host's same-host pairs: end some, or raise `pairs_max` or `user_share_percent` in the daemon's [limits]", "user-pairs";
    /// This program may open no more descriptors, so the daemon could not give it what a connection needs.
    AppDescriptors = 30, "this program is at its limit of open descriptors: close some, or raise it (`ulimit -n`)", "app-descriptors";
    /// The program at the other end may open no more descriptors.
    PeerAppDescriptors = 31, "the peer application is at its limit of open descriptors", "peer-app-descriptors";
    /// The peer is on this host: rings are shared between the two applications.
    SameHost = 32, "the peer is on this host: shared memory, no daemon on the path", "same-host";
    /// The peer is on another host: the shared lane to its daemon.
    OtherHost = 33, "the peer is on another host: the shared lane to its daemon", "other-host";
    /// No daemon here or none that can be reached at the peer; kernel TCP was asked for as fallback.
    TcpFallback = 34, "no daemon here or at the peer to carry it: kernel TCP, as asked for", "tcp-fallback";
    /// The device of this host, or that of the other, has no datagrams.
    NoDatagrams = 35, "the device of one of the two hosts has no datagrams: use streams or messages", "no-datagrams";
    /// Between the two hosts there are no unreliable connections.
    NoUnreliable = 36, "one of the two hosts has no unreliable connections (UC): its device lacks them, its release is older, or the wire over TCP alone is allowed; set `wire = \"roce\"` or \"auto\" at both, or connect without UC", "no-unreliable";
    /// The stream is bulk, between hosts without RDMA hardware: a TCP connection of its own.
    BulkStream = 40, "the stream is bulk or a conversation, and neither host has RDMA hardware: a TCP connection of its own, made by the daemons", "bulk-stream";
    /// The stream's own TCP connection broke.
    DirectLost = 41, "the TCP connection that the daemons made for this stream broke: bytes on their way are lost", "direct-lost";
    /// A daemon makes no TCP connections for streams of bulk.
    DirectOff = 42, "one of the two daemons makes no TCP connections for streams of bulk (`tcp_direct`, `encrypt`, or RDMA hardware): the shared lane", "direct-off";
    /// A kernel TCP connection whose other end did not ask for a stream in its place.
    NotMet = 50, "the other end is no program under `raas run`, or has not used the connection yet: kernel TCP", "not-met";
    /// The socket is of another network namespace than the daemon's, or is not a connected TCP socket.
    ForeignSocket = 51, "the two ends are in different network namespaces, and could not be shown to be those of one connection (address translation, another user's program, or a network that passes no UDP), or the other end is no program under `raas run`: kernel TCP", "foreign-socket";
    /// A connection of a program under `raas run` to another host, whose lane would be a software NIC's.
    PolledTcp = 52, "the lane to the peer would be a software NIC's, and kernel TCP with waits that look before they sleep is faster: kernel TCP (`run_lanes`)", "polled-tcp";
    /// The program set or did what only kernel TCP has.
    KernelOption = 53, "the program uses what only kernel TCP has (a socket option, urgent bytes): kernel TCP", "kernel-option";
    /// The program wants a signal for each arrival.
    KernelSignals = 54, "the program wants SIGIO from the connection (`O_ASYNC`), which only the kernel sends: kernel TCP", "kernel-signals";
    /// The program uses it by calls that the library does not see.
    UnseenCalls = 55, "the program uses connections by io_uring or kernel AIO, which `raas run` does not see: kernel TCP", "unseen-calls";
    /// The program has entered a sandbox (seccomp), in which the library's own calls might end it.
    Sandbox = 56, "the program has entered a sandbox (seccomp, or hardly any descriptors), in which the library makes no calls of its own: kernel TCP", "sandbox";
    /// The library of the other end brought it back.
    PeerKeepsTcp = 57, "the other end brought the connection back to kernel TCP, where its program needs it", "peer-keeps-tcp";
    /// Several processes have a connection, or will.
    KernelOnly = 58, "the connection is used in another process too, or in a program that this one starts: kernel TCP", "kernel-only";
    /// One of the two hosts requires that the lane is encrypted, and the other one does not encrypt, or cannot.
    NotEncrypted = 60, "one of the two hosts requires encryption (`encrypt`), and the other one does not encrypt, or its device cannot: see the log of both daemons", "not-encrypted";
    /// The owner of a region ended the leased lane by which another host's program used it.
    LaneRevoked = 65, "the owner of the region, or its host, ended the lane that was leased for it", "lane-revoked";
    /// A handle to another host's region, with a lane that the program asked for.
    LeasedLane = 66, "the program asked for a lane of its own for this region of another host", "leased-lane";
    /// Another program took a region over that has one writer.
    Superseded = 67, "another program took the region over by a greater term, and writes it now", "superseded";
    /// The operator's policy gives the program's tenant no more of this.
    TenantLimit = 70, "this program's tenant has all that the daemon's policy gives it (`raas stat --tenant` shows it): close some, or raise the bound in the policy's file", "tenant-limit";
}

impl From<u32> for Reason {
    fn from(code: u32) -> Self {
        Self::from_code(code)
    }
}

impl From<Reason> for u32 {
    fn from(reason: Reason) -> Self {
        reason.code()
    }
}

#[cfg(test)]
mod tests {
    use super::Reason;

    #[test]
    fn a_reason_of_a_newer_release_is_none() {
        for &r in Reason::ALL {
            assert_eq!(postcard::from_bytes::<Reason>(&postcard::to_allocvec(&r).unwrap()).unwrap(), r);
        }
        let newer = postcard::to_allocvec(&9999u32).unwrap();
        assert_eq!(postcard::from_bytes::<Reason>(&newer).unwrap(), Reason::Unspecified);
    }

    #[test]
    fn codes_and_keys_are_unique_and_reversible() {
        let mut keys = std::collections::BTreeSet::new();
        for &r in Reason::ALL {
            assert_eq!(Reason::from_code(r.code()), r);
            assert!(keys.insert(r.key()), "{} twice", r.key());
        }
        assert_eq!(Reason::from_code(9999), Reason::Unspecified);
    }
}
