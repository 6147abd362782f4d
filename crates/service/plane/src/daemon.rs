//! The daemon's decisions as one machine: programs, ports, connections of one host, regions, other daemons.
//!
//! Owns the machines that decide about one thing each, and the way from one to another: a message of a peer goes to the
//! machine that it is for, a lane that is lost ends the regions that it carried. What only a driver can do is an
//! [`Action`]: sockets, memory, engines. It must never keep an action back: after each input the driver polls until there is
//! none, and then every machine is at rest.
//!
//! **That ends.** One machine sets another to work in four ways: a peer's message goes to the one that it is for; a wish for
//! a host with a link is answered at once; a lane or link that is gone, or was never there, ends what is bound to it; and a
//! connection of one host that came to nothing gives its place in a backlog back. Each uses up a message, a wish, a handle,
//! a grant or a place, and none makes one.

mod action;
mod attaching;
mod engines;
mod links;
mod meetings;
mod operators;
mod ports;
mod program;
mod programs;
mod regions;
mod returns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use shm::SessionShape;
use verbs::{Encrypt, Time};

use crate::{
    Admission, ClientId, Directory, DirectoryConfig, Directs, Fallbacks, Foreign, Meetings, OwnEnds, PairLimits, Pairs,
    Party, Peers, PeersConfig, Tickets,
};
pub use action::Action;
pub use attaching::Newcomer;
pub use meetings::SocketFacts;
use operators::Operators;
pub use operators::OwnPlace;
use program::{Adopted, Program};

/// The engine that has the UD queue pair, and with it datagram sockets, operation queues and regions.
pub const DATAGRAM_ENGINE: u32 = 0;

/// What the machine asks its driver for while it takes an input.
pub trait Supply<F> {
    /// A random number that nobody else can know.
    fn word(&mut self) -> u64;
    /// The two ends of a wake socket for two programs; none if there is no descriptor for it.
    fn wake(&mut self) -> Option<(F, F)>;
}

/// What a daemon is made of.
#[derive(Debug)]
pub struct DaemonConfig {
    /// Other daemons. The hosts that `paths` names are those to which there are several.
    pub peers: PeersConfig,
    /// Connections of one host.
    pub pairs: PairLimits,
    /// Regions.
    pub directory: DirectoryConfig,
    /// The daemon's own address.
    pub listen: IpAddr,
    /// All addresses of this host.
    pub addresses: Vec<IpAddr>,
    /// Whether lanes are encrypted, but for hosts in `encrypts`.
    pub encrypt: Encrypt,
    /// Whether lanes to these hosts are.
    pub encrypts: BTreeMap<IpAddr, Encrypt>,
    /// Streams may get TCP connections of their own.
    pub makes_directs: bool,
    /// Kernel TCP between hosts is faster than a lane in the clear with one path: programs that have it stay on it.
    pub tcp_is_faster: bool,
    /// The daemon's network namespace; none: the kernel does not say.
    pub namespace: Option<u64>,
    /// Of programs' sessions.
    pub shape: SessionShape,
    /// Seals and opens the tickets of programs.
    pub tickets: Tickets,
    /// The number of all users that the daemon's user namespace does not have, which so is no one user's.
    pub nobody: Option<u32>,
    /// Where it serves.
    pub place: OwnPlace,
}

/// What the configuration says of hosts.
#[derive(Debug)]
struct Hosts {
    own: Vec<IpAddr>,
    encrypt: Encrypt,
    encrypts: BTreeMap<IpAddr, Encrypt>,
    several_paths: BTreeSet<IpAddr>,
    /// Streams may have TCP connections of their own.
    makes_directs: bool,
}

impl Hosts {
    fn encrypt_to(&self, peer: IpAddr) -> Encrypt {
        self.encrypts.get(&peer).copied().unwrap_or(self.encrypt)
    }

    /// Whether bytes to a peer may go in the clear, and by a connection that is bound to one path.
    fn are_plain(&self, peer: IpAddr) -> bool {
        self.encrypt_to(peer) == Encrypt::Off && !self.several_paths.contains(&peer)
    }

    /// Whether some host gets nothing in the clear.
    fn requires_encryption(&self) -> bool {
        self.encrypt == Encrypt::Required || self.encrypts.values().any(|of| *of == Encrypt::Required)
    }

    /// The host of an address, unless it is this one.
    fn other(&self, host: IpAddr) -> Option<IpAddr> {
        let host = host.to_canonical();
        (!host.is_unspecified() && !self.own.contains(&host)).then_some(host)
    }
}

/// See the head of this file. `F` is a descriptor that one program has for another, `S` a TCP connection for a stream.
#[derive(Debug)]
pub struct Daemon<F, S> {
    engines: u32,
    hosts: Hosts,
    tcp_is_faster: bool,
    namespace: Option<u64>,
    nobody: Option<u32>,
    tickets: Tickets,
    shape: SessionShape,
    programs: BTreeMap<ClientId, Program>,
    /// What was counted of what programs bring along, for engines that have not answered.
    adopted: BTreeMap<(ClientId, u32), Adopted>,
    admission: Admission,
    pairs: Pairs<F>,
    fallbacks: Fallbacks,
    own_ends: OwnEnds,
    meetings: Meetings,
    directs: Directs<S>,
    peers: Peers,
    directory: Directory,
    foreign: Foreign,
    operators: Operators,
    actions: VecDeque<Action<F, S>>,
}

impl<F, S> Daemon<F, S> {
    /// Without programs and peers.
    pub fn new(config: DaemonConfig, admission: Admission) -> Self {
        let DaemonConfig { peers, pairs, directory, listen, addresses, encrypt, encrypts, .. } = config;
        let several_paths: BTreeSet<IpAddr> = peers.paths.keys().copied().collect();
        Self {
            engines: peers.engines,
            admission,
            fallbacks: Fallbacks::new(pairs.owner_uid),
            operators: Operators::new(pairs.owner_uid, config.place),
            pairs: Pairs::new(pairs, listen),
            own_ends: OwnEnds::default(),
            meetings: Meetings::new(addresses.clone(), listen),
            directs: Directs::new(listen),
            peers: Peers::new(peers),
            directory: Directory::new(directory),
            foreign: Foreign::new(directory),
            hosts: Hosts { own: addresses, encrypt, encrypts, several_paths, makes_directs: config.makes_directs },
            tcp_is_faster: config.tcp_is_faster,
            namespace: config.namespace,
            nobody: config.nobody,
            tickets: config.tickets,
            shape: config.shape,
            programs: BTreeMap::new(),
            adopted: BTreeMap::new(),
            actions: VecDeque::new(),
        }
    }

    /// Numbers of connections and handles begin behind `number`, so that none is one of a daemon before this one.
    pub fn begin_after(&mut self, number: u64) {
        self.pairs.begin_after(number);
        self.directory.begin_after(number);
        self.foreign.begin_after(number);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<Action<F, S>> {
        self.directory.see(now);
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if !self.step(now) {
                return None;
            }
        }
    }

    /// Passes one decision of a machine on. Whether there was one.
    fn step(&mut self, now: Time) -> bool {
        if let Some(action) = self.pairs.poll_action() {
            self.on_pair_action(action);
        } else if let Some(action) = self.peers.poll_action() {
            self.on_peer_action(now, action);
        } else if let Some(action) = self.foreign.poll_action() {
            self.on_foreign_action(now, action);
        } else if let Some(action) = self.directory.poll_action() {
            self.on_directory_action(now, action);
        } else if let Some(action) = self.directs.poll_action(now) {
            self.on_direct_action(action);
        } else if let Some(action) = self.meetings.poll_action() {
            self.on_meeting_action(now, action);
        } else {
            return false;
        }
        true
    }

    /// When [`Daemon::handle_timeout`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        let deadlines =
            [self.pairs.deadline(), self.peers.deadline(), self.directory.deadline(), self.directs.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Time) {
        self.pairs.handle_timeout(now);
        self.peers.handle_timeout(now);
        self.directory.handle_timeout(now);
        self.directs.handle_timeout(now);
    }

    // ---- what there is, for tables and counters

    /// Whether some host gets nothing in the clear.
    pub fn requires_encryption(&self) -> bool {
        self.hosts.requires_encryption()
    }

    /// The program, as long as it is there.
    pub fn party(&self, client: ClientId) -> Option<Party> {
        self.programs.get(&client).map(|program| Party { client, pid: program.pid, uid: program.uid })
    }

    /// Ports, shares and the policy.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Connections of one host.
    pub fn pairs(&self) -> &Pairs<F> {
        &self.pairs
    }

    /// Rows of connections over kernel TCP.
    pub fn fallbacks(&self) -> &Fallbacks {
        &self.fallbacks
    }

    /// The ends that programs under `raas run` name their connections by.
    pub fn own_ends(&self) -> &OwnEnds {
        &self.own_ends
    }

    /// TCP connections of streams.
    pub fn directs(&self) -> &Directs<S> {
        &self.directs
    }

    /// Other daemons.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// Regions of this host.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The same, for a driver that takes over regions of a daemon before this one.
    pub fn directory_mut(&mut self) -> &mut Directory {
        &mut self.directory
    }

    /// Ends of kernel TCP connections that wait for the other one, and questions of other daemons about such.
    pub fn meetings(&self) -> usize {
        self.meetings.count()
    }

    /// Handles to regions of other hosts.
    pub fn foreign_handles(&self) -> usize {
        self.foreign.count()
    }
}

#[cfg(test)]
mod tests;
