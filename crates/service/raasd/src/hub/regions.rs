//! Regions: what `plane::Directory` decides, carried out with memory and messages.
//!
//! Owns the descriptors of regions' memory, and the stamp page. It must never zero memory in the hub's own time, and
//! never have more descriptors of a region than a few, whoever waits for one.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::{
    LEASED_LANE_FIRST, REGION_EPOCH_MAX, Reason, RegionAccess, RegionKey, RegionLine, RegionMessage, RegionRefusal,
    RegionSpec, Reply,
};
use plane::{
    ClientId, Directory, DirectoryAction, DirectoryConfig, Foreign, ForeignAction, Handed, Lessee, Party, RegionWish,
};
use shm::{Life, Region, RegionMemory, Segment, SegmentError, Sharing};
use tokio::task::JoinSet;

use super::{DATAGRAM_ENGINE, Hub};
use crate::DaemonError;
use crate::client_socket::Outgoing;
use crate::command::{Command, RegionCommand};

/// Bytes of a word of the stamp page.
const WORD_BYTES: u64 = 8;

/// Memory of a region.
#[derive(Debug)]
struct Memory {
    /// What programs get.
    newest: RegionMemory,
    /// What the region is in until its owner has moved it.
    older: Option<RegionMemory>,
    /// What programs get, mapped here since one had a kernel run at it.
    mapped: Option<Region>,
}

/// The regions of a host.
#[derive(Debug)]
pub(super) struct Regions {
    directory: Directory,
    /// Handles to regions of other hosts.
    foreign: Foreign,
    memories: BTreeMap<u64, Memory>,
    /// Memory that is taken from the system when it is made, which takes long: one at a time.
    making: JoinSet<Made>,
    /// What is to be made so after that.
    wanted: VecDeque<Wanted>,
    stamps: Segment,
    stamps_fd: Arc<OwnedFd>,
    /// Says to all who have a region of this host that this daemon has ended. None: the kernel does not say it.
    _life: Option<Life>,
}

/// Memory that is to be made.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    region: u64,
    bytes: u64,
    huge_pages: bool,
}

/// Memory that was made for a region, or why not.
pub(super) type Made = (u64, Result<RegionMemory, RegionRefusal>);

fn no_memory() -> std::io::Error {
    std::io::Error::other("the region has no memory")
}

fn make(Wanted { region, bytes, huge_pages }: Wanted) -> Made {
    let made = RegionMemory::create(bytes, huge_pages).map_err(|error| {
        let cause = error.to_string();
        if huge_pages { RegionRefusal::NoHugePages { bytes, cause } } else { RegionRefusal::NoMemory { bytes, cause } }
    });
    (region, made)
}

impl Regions {
    pub(super) fn new(config: DirectoryConfig) -> Result<Self, DaemonError> {
        let (directory, foreign) = (Directory::new(config), Foreign::new(config));
        let life_at = u64::from(directory.stamp_words()) * WORD_BYTES;
        let bytes = life_at + WORD_BYTES;
        let failed =
            |e: SegmentError| DaemonError::io("the stamp page of regions")(std::io::Error::other(e.to_string()));
        let stamps = Segment::create("raas-stamps", bytes, Sharing::PeerReadOnly).map_err(failed)?;
        if shm::overcommit_is_strict() {
            stamps.allocate(bytes).map_err(failed)?;
        }
        // Without it regions end with this daemon if it dies.
        let life = Life::begin(stamps.region(), life_at);
        let life = life.inspect_err(|error| tracing::warn!(%error, "regions will not go on over this daemon's death"));
        let stamps_fd = stamps.fd().as_fd().try_clone_to_owned().map_err(DaemonError::io("dup"))?;
        Ok(Self {
            directory,
            foreign,
            memories: BTreeMap::new(),
            making: JoinSet::new(),
            wanted: VecDeque::new(),
            stamps,
            stamps_fd: Arc::new(stamps_fd),
            _life: life.ok(),
        })
    }

    /// As [`Directory::begin_after`], of all handles.
    pub(super) fn begin_after(&mut self, number: u64) {
        self.directory.begin_after(number);
        self.foreign.begin_after(number);
    }

    /// As [`Directory::draw_from`].
    pub(super) fn draw_from(&mut self, id: u64) {
        self.directory.draw_from(id);
    }

    /// The next memory that was made; none while none is being made.
    pub(super) async fn next_made(&mut self) -> Option<Made> {
        // The thread that makes memory has no code that panics; if it is cut off, the daemon stops.
        self.making.join_next().await?.ok()
    }

    pub(super) fn deadline(&self) -> Option<verbs::Time> {
        self.directory.deadline()
    }

    pub(super) fn directory(&mut self) -> &mut Directory {
        &mut self.directory
    }

    /// Makes memory, or has it made: [`Self::next_made`] then has it.
    fn make(&mut self, wanted: Wanted) -> Option<Made> {
        if !wanted.huge_pages && !shm::overcommit_is_strict() {
            return Some(make(wanted));
        }
        self.wanted.push_back(wanted);
        self.make_next();
        None
    }

    fn make_next(&mut self) {
        if self.making.is_empty()
            && let Some(wanted) = self.wanted.pop_front()
        {
            self.making.spawn_blocking(move || make(wanted));
        }
    }

    /// The memory of a region that was there before this daemon.
    pub(super) fn put(&mut self, region: u64, newest: RegionMemory) {
        self.memories.insert(region, Memory { newest, older: None, mapped: None });
    }

    /// A descriptor of a region's memory.
    pub(super) fn memory_fd(&self, region: u64) -> std::io::Result<Arc<OwnedFd>> {
        let memory = self.memories.get(&region).ok_or_else(no_memory)?;
        Ok(memory.newest.writable_fd())
    }

    /// A region ended: its memory goes, and none is made for it any more.
    fn forget(&mut self, region: u64) {
        self.memories.remove(&region);
        self.wanted.retain(|wanted| wanted.region != region);
    }

    /// A region's memory, mapped into the daemon once.
    pub(super) fn mapped(&mut self, region: u64) -> Result<Region, RegionRefusal> {
        let memory = self.memories.get_mut(&region).ok_or(RegionRefusal::OwnerGone)?;
        if let Some(mapped) = &memory.mapped {
            return Ok(mapped.clone());
        }
        let bytes = memory.newest.bytes();
        let cause = |error: SegmentError| RegionRefusal::NoMemory { bytes, cause: error.to_string() };
        Ok(memory.mapped.insert(memory.newest.map().map_err(cause)?).clone())
    }

    fn use_newest(&mut self, region: u64) {
        if let Some(memory) = self.memories.get_mut(&region) {
            memory.older = None;
        }
    }

    fn stamp(&self, word: u32, value: u64) {
        match self.stamps.region().word64(u64::from(word) * WORD_BYTES) {
            // Before the owner learns that it is to copy: see `Mapping` of the client library.
            Ok(word) => word.store(value, Ordering::SeqCst),
            Err(error) => debug_assert!(false, "the directory named word {word}: {error}"),
        }
    }

    /// The descriptors that go with a message.
    fn hand_out(&self, handed: Handed) -> std::io::Result<Vec<Arc<OwnedFd>>> {
        let memory = &self.memories.get(&handed.region).ok_or_else(no_memory)?.newest;
        let mut fds = vec![if handed.writable { memory.writable_fd() } else { memory.read_only_fd()? }];
        if handed.with_stamps {
            fds.push(Arc::clone(&self.stamps_fd));
        }
        Ok(fds)
    }
}

impl Hub {
    pub(super) fn on_region_made(&mut self, (region, result): Made) {
        let now = self.now();
        self.regions.make_next();
        let result = result.map(|newest| {
            let older = self.regions.memories.remove(&region).map(|before| before.newest);
            self.regions.memories.insert(region, Memory { newest, older, mapped: None });
        });
        self.regions.directory.on_made(now, region, result);
    }

    /// A region of this host is mapped, and needs no lane.
    pub(super) fn on_region_open(
        &mut self,
        party: Party,
        request: u64,
        host: IpAddr,
        (wish, is_leased): (RegionWish, bool),
    ) {
        if !self.may_open(party.client, is_leased) {
            return self.refuse_region(party.client, request);
        }
        match self.other_host(host) {
            None => self.regions.directory.handle_open(party, request, wish),
            Some(host) => self.regions.foreign.handle_open(party, request, host, wish, is_leased),
        }
    }

    pub(super) fn on_region_create(&mut self, party: Party, request: u64, spec: RegionSpec) {
        match self.region_share(party.client) {
            Some(share) => self.regions.directory.handle_create(party, request, spec, share),
            None => self.refuse_region(party.client, request),
        }
    }

    /// A program brings back a region that a daemon before this one had made. Nothing that it says is believed but what
    /// it could ask for as well: its user, share and policy are judged as for a new one.
    pub(super) fn on_region_return(
        &mut self,
        party: Party,
        request: u64,
        (spec, epoch, line): (RegionSpec, u64, RegionLine),
    ) {
        if !(1..=REGION_EPOCH_MAX).contains(&epoch) {
            let words = format!("its region was in epoch {epoch}, which is not from 1 to {REGION_EPOCH_MAX}");
            return self.detach(party.client, Reason::AppFault, &words);
        }
        match self.region_share(party.client) {
            Some(share) => self.regions.directory.handle_return(party, request, (spec, epoch, line), share),
            None => self.refuse_region(party.client, request),
        }
    }

    /// The policy does not let the program have the region.
    fn refuse_region(&mut self, client: ClientId, request: u64) {
        let result = Err(RegionRefusal::Reason(Reason::Policy));
        self.send(client, Reply::RegionOpened { request, result }, Vec::new());
    }

    /// The host of an address, unless it is this one.
    fn other_host(&self, host: IpAddr) -> Option<IpAddr> {
        let host = host.to_canonical();
        (!host.is_unspecified() && !self.addresses.contains(&host)).then_some(host)
    }

    pub(super) fn on_region_lend(
        &mut self,
        client: ClientId,
        request: u64,
        open: u64,
        (connection, host, key): (u64, IpAddr, RegionKey),
    ) {
        let of_pair = self.pairs.other_end(client, connection).map(Lessee::Program);
        let to = of_pair.or_else(|| self.other_host(host).map(Lessee::Host));
        self.regions.directory.handle_lend(client, request, open, (connection, to), key);
    }

    pub(super) fn on_loans_back(&mut self, client: ClientId, host: IpAddr, (lease, key, loans): (u64, RegionKey, u64)) {
        match self.other_host(host) {
            None => self.regions.directory.handle_loans_back(Lessee::Program(client), lease, &key, loans),
            // Whether the program was lent them is for the lender's daemon to say: it knows the key.
            Some(host) => self.tell_of_region(host, RegionMessage::LoansBack { lease, key, loans }),
        }
    }

    pub(super) fn on_region_close(&mut self, client: ClientId, open: u64, delete: bool) {
        if Foreign::is_foreign(open) {
            self.regions.foreign.handle_close(client, open);
        } else {
            self.regions.directory.handle_close(client, open, delete);
        }
    }

    pub(super) fn on_region_program_left(&mut self, client: ClientId) {
        self.regions.directory.handle_left(client);
        self.regions.foreign.handle_left(client);
    }

    // ---- other hosts

    /// The engine says whether there is a link to a host. False: no region was wished for there.
    pub(super) fn on_region_path(&mut self, client: ClientId, request: u64, result: Result<u32, Reason>) -> bool {
        // A device without datagrams says so only when the lane is there.
        let result = match result {
            Ok(_) | Err(Reason::NoDatagrams) => Ok(()),
            Err(reason) => Err(reason),
        };
        self.regions.foreign.on_path(client, request, result)
    }

    pub(super) fn on_region_message(&mut self, peer: IpAddr, message: RegionMessage) {
        let now = self.now();
        if !self.regions.directory.handle_peer(now, peer, &message) {
            self.regions.foreign.handle_peer(peer, message);
        }
    }

    /// The lane or the link to a peer is gone, and the engine knows it before anything that is asked of it from here on.
    pub(super) fn on_region_peer_gone(&mut self, peer: IpAddr, reason: Reason) {
        let now = self.now();
        self.regions.directory.handle_peer_gone(now, peer);
        self.regions.foreign.handle_peer_gone(peer, reason);
    }

    /// One lane to a peer is gone, and the engine knows it.
    pub(super) fn on_region_lane_gone(&mut self, peer: IpAddr, lane: u32, reason: Reason) {
        if lane >= LEASED_LANE_FIRST {
            self.regions.foreign.handle_lane_gone(peer, lane, reason);
        } else if lane == DATAGRAM_ENGINE {
            self.on_region_peer_gone(peer, reason);
        }
    }

    pub(super) fn regions(&mut self) -> (&mut Directory, &mut Foreign) {
        (&mut self.regions.directory, &mut self.regions.foreign)
    }

    pub(super) fn region_command(&mut self, command: RegionCommand) {
        self.command(DATAGRAM_ENGINE, Command::Region(command));
    }

    fn tell_of_region(&mut self, peer: IpAddr, message: RegionMessage) {
        if !self.peers.tell_of_region(peer, message) {
            self.on_region_peer_gone(peer, Reason::PeerLost);
        }
    }

    fn settle_foreign(&mut self) {
        while let Some(action) = self.regions.foreign.poll_action() {
            match action {
                ForeignAction::Path { client, request, host } => {
                    self.command_of(client, DATAGRAM_ENGINE, |app| Command::DatagramPath { app, request, to: host });
                }
                ForeignAction::Tell { peer, message } => self.tell_of_region(peer, message),
                ForeignAction::Lease { open, peer } => {
                    let lane = self.peers.lane_number(peer);
                    self.regions.foreign.on_lane_number(open, lane);
                }
                ForeignAction::Open { open, client, peer, grant, lane } => match self.app_of(client, DATAGRAM_ENGINE) {
                    Some(app) => self.region_command(RegionCommand::Open { app, peer, open, grant, lane }),
                    None => self.regions.foreign.on_opened(open, Err(Reason::AppFault)),
                },
                ForeignAction::Close { client, handle } => {
                    // Of a program that has left the engine closes it by itself.
                    if let Some(app) = self.app_of(client, DATAGRAM_ENGINE) {
                        self.region_command(RegionCommand::Close { app, handle });
                    }
                }
                ForeignAction::Stop { peer, region, epoch } => {
                    self.region_command(RegionCommand::Stop { peer, region, epoch });
                }
                ForeignAction::Send { client, reply } => self.send(client, reply, Vec::new()),
            }
        }
    }

    /// The memory that a device is to register; none if it has it already.
    fn grant(
        &mut self,
        (region, epoch): (u64, u64),
        register: Option<RegionAccess>,
        (peer, open, lane): (IpAddr, u64, Option<u32>),
    ) {
        let memory = register.map(|access| {
            let memory = self.regions.memories.get(&region).ok_or("the region has no memory")?;
            Ok((memory.newest.map().map_err(|e| e.to_string())?, access))
        });
        self.region_command(RegionCommand::Grant { region, epoch, memory, peer, open, lane });
    }

    /// Registers a region's memory, or that which it moves away from (`older`), for a program of this host.
    fn attach_region(&mut self, client: ClientId, (region, older): (u64, bool), number: u32, writable: bool) {
        let Some(app) = self.app_of(client, DATAGRAM_ENGINE) else {
            return self.regions.directory.on_attached(client, number, Err(RegionRefusal::Reason(Reason::AppFault)));
        };
        let memory = self.regions.memories.get(&region).ok_or("the region has no memory".to_owned());
        let memory = memory.and_then(|m| {
            let memory = m.older.as_ref().filter(|_| older).unwrap_or(&m.newest);
            memory.map().map_err(|e| e.to_string())
        });
        self.region_command(RegionCommand::Attach { client, app, number, memory, writable });
    }

    pub(super) fn settle_regions(&mut self) {
        self.settle_foreign();
        self.settle_directory();
        // What is told to a peer without a link ends handles to it.
        self.settle_foreign();
    }

    fn settle_directory(&mut self) {
        let now = self.now();
        self.regions.directory.see(now);
        while let Some(action) = self.regions.directory.poll_action() {
            match action {
                DirectoryAction::Make { region, bytes, huge_pages } => {
                    if let Some(made) = self.regions.make(Wanted { region, bytes, huge_pages }) {
                        self.on_region_made(made);
                    }
                }
                DirectoryAction::Use { region } => self.regions.use_newest(region),
                DirectoryAction::Keep { region, kept } => self.keep_region(region, kept),
                DirectoryAction::Drop { region } => {
                    self.forget_kept(region);
                    self.regions.forget(region);
                    self.region_command(RegionCommand::Forget { region });
                }
                DirectoryAction::Stamp { word, value } => self.regions.stamp(word, value),
                DirectoryAction::Grant { region, epoch, register, peer, open, lane } => {
                    self.grant((region, epoch), register, (peer, open, lane));
                }
                DirectoryAction::EndLane { peer, lane, reason } => {
                    self.region_command(RegionCommand::EndLane { peer, lane, reason });
                }
                DirectoryAction::Ungrant { region, peer } => {
                    self.region_command(RegionCommand::Ungrant { region, peer });
                }
                DirectoryAction::Deregister { region, epoch } => {
                    self.region_command(RegionCommand::Deregister { region, epoch });
                }
                DirectoryAction::NotificationsTaken { region, count } => {
                    self.region_command(RegionCommand::NotificationsTaken { region, count });
                }
                DirectoryAction::Attach { client, region, older, number, writable } => {
                    self.attach_region(client, (region, older), number, writable);
                }
                DirectoryAction::Detach { client, number } => {
                    // Of a program that has left the engine detaches it by itself.
                    if let Some(app) = self.app_of(client, DATAGRAM_ENGINE) {
                        self.region_command(RegionCommand::Detach { app, number });
                    }
                }
                DirectoryAction::Tell { peer, message } => {
                    if let RegionMessage::Stop { region, .. } = message {
                        self.region_command(RegionCommand::Halt { region, peer });
                    }
                    self.tell_of_region(peer, message);
                }
                DirectoryAction::DropPeer { peer } => {
                    self.peers.drop_peer(peer, "it goes on using a region that was revoked");
                }
                DirectoryAction::Send { client, reply, memory: None } => self.send(client, reply, Vec::new()),
                DirectoryAction::Send { client, reply, memory: Some(handed) } => match self.regions.hand_out(handed) {
                    Ok(fds) => self.send_shared(client, Outgoing::shared(&reply, fds)),
                    Err(error) => self.cannot_hand_out(client, reply, &error),
                },
            }
        }
    }

    /// The daemon has no descriptor to give, most likely because it is at its limit of them.
    fn cannot_hand_out(&mut self, client: ClientId, reply: Reply, error: &std::io::Error) {
        tracing::warn!(%error, "a region's memory cannot be handed out");
        match reply {
            Reply::RegionOpened { request, result: Ok(opened) } => {
                self.regions.directory.handle_close(client, opened.open, true);
                let refused = RegionRefusal::NoMemory { bytes: opened.info.bytes, cause: error.to_string() };
                self.send(client, Reply::RegionOpened { request, result: Err(refused) }, Vec::new());
            }
            // Without its new memory the owner has no region.
            Reply::RegionMove { open, .. } => {
                self.regions.directory.handle_close(client, open, true);
                self.send(client, Reply::RegionEnded { open, why: RegionRefusal::OwnerGone }, Vec::new());
            }
            other => self.send(client, other, Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_memory_is_made_for_regions_that_have_ended() {
        let mut regions = Regions::new(DirectoryConfig::default()).unwrap();
        // One is being made, and the others wait for it. They may be of programs that come and go.
        for region in 1..=100 {
            assert!(regions.make(Wanted { region, bytes: 8, huge_pages: true }).is_none());
            if region != 50 {
                regions.forget(region);
            }
        }
        let waiting: Vec<u64> = regions.wanted.iter().map(|wanted| wanted.region).collect();
        assert_eq!(waiting, [50]);
    }
}
