//! What a daemon has for regions: the shipped `plane::Directory` and `plane::Foreign`, memory, and the stamp page.
//!
//! Owns what raasd's hub owns of them. It must never decide what `plane` decides.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use control::{Reason, RegionAccess, RegionGrant, RegionPath, RegionRefusal};
use engine::AppId;
use plane::{ClientId, Directory, DirectoryConfig, Foreign, Handed, Party};
use raas_core::RegionMapping;
use verbs::Region;

/// Regions of a host, and so words of its stamp page.
const REGIONS_MAX: u32 = 16;
/// Bytes of a word of the stamp page.
const WORD_BYTES: u64 = 8;
/// `FUTEX_OWNER_DIED` of the kernel.
const OWNER_DIED: u32 = 0x4000_0000;
/// The user of all programs that use regions.
pub(crate) const UID: u32 = 1;

/// Memory that goes with a message to a program.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) memory: Region,
    /// The stamp page; without it the program has it.
    pub(crate) stamps: Option<Region>,
}

impl Shared {
    /// As the program maps it.
    pub(crate) fn map(self, path: &RegionPath) -> Option<RegionMapping> {
        let RegionPath::Local { word, words, .. } = *path else { return None };
        let stamps = self.stamps?;
        let word = stamps.word64(u64::from(word) * WORD_BYTES).ok()?;
        let life = stamps.word32(u64::from(words) * WORD_BYTES).ok()?;
        Some(RegionMapping { memory: self.memory, word, life, extents: None })
    }
}

/// What the control plane wants of the engine for regions, as `raasd::command::RegionCommand`.
#[derive(Debug)]
pub(crate) enum RegionCommand {
    Grant {
        region: u64,
        epoch: u64,
        memory: Option<(Region, RegionAccess)>,
        peer: IpAddr,
        open: u64,
        lane: Option<u32>,
    },
    EndLane {
        peer: IpAddr,
        lane: u32,
        reason: Reason,
    },
    Ungrant {
        region: u64,
        peer: IpAddr,
    },
    Forget {
        region: u64,
    },
    Halt {
        region: u64,
        peer: IpAddr,
    },
    Deregister {
        region: u64,
        epoch: u64,
    },
    NotificationsTaken {
        region: u64,
        count: u32,
    },
    Path {
        app: AppId,
        request: u64,
        host: IpAddr,
    },
    Open {
        app: AppId,
        peer: IpAddr,
        open: u64,
        grant: RegionGrant,
        lane: Option<u32>,
    },
    Close {
        app: AppId,
        handle: u32,
    },
    Stop {
        peer: IpAddr,
        region: u64,
        epoch: u64,
    },
    /// The program is gone.
    Detach {
        app: AppId,
    },
}

/// What the engine says of regions.
#[derive(Debug)]
pub(crate) enum RegionInput {
    Path { client: ClientId, request: u64, result: Result<(), Reason> },
    Granted { peer: IpAddr, open: u64, result: Result<RegionGrant, RegionRefusal>, not_registered: Option<u64> },
    Deregistered { region: u64 },
    Opened { open: u64, result: Result<u32, Reason> },
    Closed { peer: IpAddr, handle: u32 },
    Stopped { peer: IpAddr, region: u64, epoch: u64 },
    Notified { region: u64, notify: u32 },
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) directory: Directory,
    pub(crate) foreign: Foreign,
    /// What programs get.
    memories: BTreeMap<u64, Region>,
    stamps: Option<Region>,
    /// Programs that use regions, and what the engine calls those that have a session.
    programs: BTreeMap<ClientId, Option<AppId>>,
}

impl Regions {
    /// Numbers of handles begin behind `first_number`, and identities of regions behind `id`.
    pub(crate) fn new(first_number: u64, id: u64) -> Self {
        let config = DirectoryConfig {
            regions_max: REGIONS_MAX,
            // The engine's tables bound them here.
            leased_lanes_per_user_max: DirectoryConfig::default().leased_lanes_max,
            ..DirectoryConfig::default()
        };
        let (mut directory, mut foreign) = (Directory::new(config), Foreign::new(config));
        directory.begin_after(first_number);
        foreign.begin_after(first_number);
        directory.draw_from(id);
        Self { directory, foreign, memories: BTreeMap::new(), stamps: None, programs: BTreeMap::new() }
    }

    /// The stamp page, with the word of the daemon's life behind the others. It is made when a region is.
    fn stamps(&mut self) -> Option<&Region> {
        if self.stamps.is_none() {
            self.stamps = Region::anonymous(((u64::from(REGIONS_MAX) + 1) * WORD_BYTES) as usize).ok();
        }
        self.stamps.as_ref()
    }

    /// The kernel stores the end of the daemon, which was killed.
    pub(crate) fn end_life(&self) {
        let word = self.stamps.as_ref().and_then(|s| s.word32(u64::from(REGIONS_MAX) * WORD_BYTES).ok());
        word.into_iter().for_each(|word| word.store(OWNER_DIED, Ordering::SeqCst));
    }

    pub(crate) fn stamp(&mut self, word: u32, value: u64) {
        let word = self.stamps().and_then(|stamps| stamps.word64(u64::from(word) * WORD_BYTES).ok());
        word.into_iter().for_each(|word| word.store(value, Ordering::SeqCst));
    }

    // ---- programs

    pub(crate) fn attach(&mut self, client: ClientId, app: Option<AppId>) {
        self.programs.insert(client, app);
    }

    /// A program left, or died. What the engine calls it, if it had a session.
    pub(crate) fn leave(&mut self, client: ClientId) -> Option<AppId> {
        let app = self.programs.remove(&client)?;
        self.directory.handle_left(client);
        self.foreign.handle_left(client);
        app
    }

    /// The program, as long as it is there.
    pub(crate) fn party(&self, client: ClientId) -> Option<Party> {
        self.programs.contains_key(&client).then_some(Party { client, pid: 1, uid: UID })
    }

    pub(crate) fn app_of(&self, client: ClientId) -> Option<AppId> {
        *self.programs.get(&client)?
    }

    pub(crate) fn client_of(&self, app: AppId) -> Option<ClientId> {
        self.programs.iter().find(|(_, of)| **of == Some(app)).map(|(client, _)| *client)
    }

    // ---- memory

    pub(crate) fn make(&mut self, region: u64, bytes: u64) -> Result<(), RegionRefusal> {
        let made = Region::anonymous(bytes as usize);
        let newest = made.map_err(|error| RegionRefusal::NoMemory { bytes, cause: error.to_string() })?;
        self.memories.insert(region, newest);
        Ok(())
    }

    pub(crate) fn forget(&mut self, region: u64) {
        self.memories.remove(&region);
    }

    pub(crate) fn memory(&self, region: u64) -> Option<Region> {
        self.memories.get(&region).cloned()
    }

    pub(crate) fn hand_out(&mut self, handed: Handed) -> Option<Shared> {
        let memory = self.memory(handed.region)?;
        let stamps = if handed.with_stamps { Some(self.stamps()?.clone()) } else { None };
        Some(Shared { memory, stamps })
    }

    /// Nothing is left of any program: what there is.
    pub(crate) fn left(&self) -> Option<String> {
        let (directory, leases, foreign) =
            (self.directory.in_use(), self.directory.leases_in_use(), self.foreign.count());
        let memories = self.memories.len();
        let is_empty = (directory, leases, foreign, memories) == ((0, 0, 0), (0, 0), 0, 0);
        (!is_empty).then(|| {
            format!(
                "regions, handles, stamps {directory:?}, leases {leases:?}, handles to other hosts {foreign}, memories \
                 {memories}"
            )
        })
    }
}
