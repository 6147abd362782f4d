//! Regions: what `plane::Directory` decides, carried out with memory and messages.
//!
//! Owns the descriptors of regions' memory, and the stamp page. It must never make memory in the hub's own time: of
//! huge pages that takes as long as zeroing them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use control::{Reason, RegionAccess, RegionKey, RegionRefusal, Reply};
use plane::{ClientId, Directory, DirectoryAction, DirectoryConfig, Handed, Party, RegionWish};
use shm::{RegionMemory, Segment, SegmentError, Sharing};
use tokio::task::JoinSet;

use super::Hub;
use crate::DaemonError;

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
    making: JoinSet<Made>,
    stamps: Segment,
}

/// Memory that was made for a region, or why not.
pub(super) type Made = (u64, Result<RegionMemory, RegionRefusal>);

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
        Ok(Self { directory, memories: BTreeMap::new(), making: JoinSet::new(), stamps })
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

    fn make(&mut self, region: u64, bytes: u64, huge_pages: bool) {
        self.making.spawn_blocking(move || {
            let made = RegionMemory::create(bytes, huge_pages).map_err(|error| {
                let cause = error.to_string();
                match huge_pages {
                    true => RegionRefusal::NoHugePages { bytes, cause },
                    false => RegionRefusal::NoMemory { bytes, cause },
                }
            });
            (region, made)
        });
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
    fn hand_out(&self, handed: Handed) -> std::io::Result<Vec<OwnedFd>> {
        let gone = || std::io::Error::other("the region has no memory");
        let memory = &self.memories.get(&handed.region).ok_or_else(gone)?.newest;
        let mut fds = vec![if handed.writable { memory.writable_fd()? } else { memory.read_only_fd()? }];
        if handed.with_stamps {
            fds.push(self.stamps.fd().as_fd().try_clone_to_owned()?);
        }
        Ok(fds)
    }
}

impl Hub {
    pub(super) fn on_region_made(&mut self, (region, result): Made) {
        let now = self.now();
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
                DirectoryAction::Make { region, bytes, huge_pages } => self.regions.make(region, bytes, huge_pages),
                DirectoryAction::Use { region } => self.regions.use_newest(region),
                DirectoryAction::Drop { region } => drop(self.regions.memories.remove(&region)),
                DirectoryAction::Stamp { word, value } => self.regions.stamp(word, value),
                DirectoryAction::Send { client, reply, memory: None } => self.send(client, reply, Vec::new()),
                DirectoryAction::Send { client, reply, memory: Some(handed) } => match self.regions.hand_out(handed) {
                    Ok(fds) => self.send(client, reply, fds),
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
