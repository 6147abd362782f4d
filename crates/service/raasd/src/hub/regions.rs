//! Regions: what `plane::Directory` decides, carried out with memory and messages.
//!
//! Owns the descriptors of regions' memory, and the stamp page. It must never zero memory in the hub's own time, and
//! never have more descriptors of a region than a few, whoever waits for one.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::{Reason, RegionAccess, RegionKey, RegionRefusal, Reply};
use plane::{ClientId, Directory, DirectoryAction, DirectoryConfig, Handed, Party, RegionWish};
use shm::{RegionMemory, Segment, SegmentError, Sharing};
use tokio::task::JoinSet;

use super::Hub;
use crate::DaemonError;
use crate::client_socket::Outgoing;

/// Bytes of a word of the stamp page.
const WORD_BYTES: u64 = 8;

/// Memory of a region.
#[derive(Debug)]
struct Memory {
    /// What programs get.
    newest: RegionMemory,
    /// What the region is in until its owner has moved it.
    older: Option<RegionMemory>,
}

/// The regions of a host.
#[derive(Debug)]
pub(super) struct Regions {
    directory: Directory,
    memories: BTreeMap<u64, Memory>,
    /// Memory that is taken from the system when it is made, which takes long: one at a time.
    making: JoinSet<Made>,
    /// What is to be made so after that.
    wanted: VecDeque<Wanted>,
    stamps: Segment,
    stamps_fd: Arc<OwnedFd>,
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

fn make(Wanted { region, bytes, huge_pages }: Wanted) -> Made {
    let made = RegionMemory::create(bytes, huge_pages).map_err(|error| {
        let cause = error.to_string();
        if huge_pages { RegionRefusal::NoHugePages { bytes, cause } } else { RegionRefusal::NoMemory { bytes, cause } }
    });
    (region, made)
}

impl Regions {
    pub(super) fn new(config: DirectoryConfig) -> Result<Self, DaemonError> {
        let directory = Directory::new(config);
        let bytes = u64::from(directory.stamp_words()) * WORD_BYTES;
        let failed =
            |e: SegmentError| DaemonError::io("the stamp page of regions")(std::io::Error::other(e.to_string()));
        let stamps = Segment::create("raas-stamps", bytes, Sharing::PeerReadOnly).map_err(failed)?;
        if shm::overcommit_is_strict() {
            stamps.allocate(bytes).map_err(failed)?;
        }
        let stamps_fd = stamps.fd().as_fd().try_clone_to_owned().map_err(DaemonError::io("dup"))?;
        Ok(Self {
            directory,
            memories: BTreeMap::new(),
            making: JoinSet::new(),
            wanted: VecDeque::new(),
            stamps,
            stamps_fd: Arc::new(stamps_fd),
        })
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
        let gone = || std::io::Error::other("the region has no memory");
        let memory = &self.memories.get(&handed.region).ok_or_else(gone)?.newest;
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
            self.regions.memories.insert(region, Memory { newest, older });
        });
        self.regions.directory.on_made(now, region, result);
    }

    pub(super) fn on_region_open(
        &mut self,
        party: Party,
        request: u64,
        host: IpAddr,
        (name, key, access): (String, RegionKey, RegionAccess),
    ) {
        let host = host.to_canonical();
        if host.is_unspecified() || self.addresses.contains(&host) {
            self.regions.directory.handle_open(party, request, RegionWish { name, key, access });
        } else {
            let result = Err(RegionRefusal::Reason(Reason::BadAddress));
            self.send(party.client, Reply::RegionOpened { request, result }, Vec::new());
        }
    }

    pub(super) fn settle_regions(&mut self) {
        while let Some(action) = self.regions.directory.poll_action() {
            match action {
                DirectoryAction::Make { region, bytes, huge_pages } => {
                    if let Some(made) = self.regions.make(Wanted { region, bytes, huge_pages }) {
                        self.on_region_made(made);
                    }
                }
                DirectoryAction::Use { region } => self.regions.use_newest(region),
                DirectoryAction::Drop { region } => drop(self.regions.memories.remove(&region)),
                DirectoryAction::Stamp { word, value } => self.regions.stamp(word, value),
                DirectoryAction::Send { client, reply, memory: None } => self.send(client, reply, Vec::new()),
                DirectoryAction::Send { client, reply, memory: Some(handed) } => match self.regions.hand_out(handed) {
                    Ok(fds) => self.send_shared(client, Outgoing::shared(reply, fds)),
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
