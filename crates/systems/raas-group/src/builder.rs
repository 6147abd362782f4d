//! How a program becomes a member of a group.
//!
//! Owns the defaults, and what is checked before anything is made.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agree::{Layout, Machine, Replica, Settings, Title};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::class::Class;
use crate::drive::Drive;
use crate::driver::Driver;
use crate::durable::{Durable, Keeping};
use crate::error::GroupError;
use crate::founding;
use crate::group::Group;
use crate::memories::{Memories, Places};
use crate::sign::Sign;
use crate::wish::Inbox;

/// Bytes of a command, at most, unless another number is given.
const COMMAND_BYTES_MAX: usize = 16 << 10;
/// Bytes of a READ or WRITE.
const PIECE_BYTES_MAX: usize = 32 << 10;
/// Lines of the log.
const RING_LINES: u64 = 64 << 10;
const SNAPSHOT_BYTES: u64 = 16 << 20;
const PERIOD: Duration = Duration::from_millis(5);
const FOUNDED_WITHIN: Duration = Duration::from_secs(60);

/// Settings of a group. All but [`me`](Self::me) and the directory are the same in all of its programs.
#[derive(Debug, Clone)]
pub struct GroupBuilder {
    name: String,
    key: RegionKey,
    hosts: Vec<(u8, IpAddr)>,
    me: u8,
    command_bytes_max: usize,
    ring_lines: u64,
    snapshot_bytes: u64,
    period: Duration,
    read_lease: Duration,
    directory: Option<PathBuf>,
    founded_within: Duration,
}

impl GroupBuilder {
    /// Settings of a group of this name. Who knows the key can be a member: it is that of the members' regions.
    #[must_use]
    pub fn new(name: &str, key: RegionKey) -> Self {
        Self {
            name: name.to_owned(),
            key,
            hosts: Vec::new(),
            me: 0,
            command_bytes_max: COMMAND_BYTES_MAX,
            ring_lines: RING_LINES,
            snapshot_bytes: SNAPSHOT_BYTES,
            period: PERIOD,
            read_lease: Duration::ZERO,
            directory: None,
            founded_within: FOUNDED_WITHIN,
        }
    }

    /// The members, from 1 to 9: a number of the group's own for each, from 0 to 255, and its host's address. Hosts that
    /// may join later are given too.
    #[must_use]
    pub fn members(mut self, hosts: &[(u8, IpAddr)]) -> Self {
        self.hosts = hosts.to_vec();
        self
    }

    /// Which member this program is: that of its host.
    #[must_use]
    pub fn me(mut self, me: u8) -> Self {
        self.me = me;
        self
    }

    /// Bytes of a command, at most: 16 KiB unless given. Eight of them must fit into the log.
    #[must_use]
    pub fn command_bytes_max(mut self, bytes: usize) -> Self {
        self.command_bytes_max = bytes;
        self
    }

    /// Lines of 64 bytes of the log, from 32 on: 65,536 unless given. A command takes one for its header and its bytes.
    #[must_use]
    pub fn log_lines(mut self, lines: u64) -> Self {
        self.ring_lines = lines;
        self
    }

    /// Bytes of the machine's state, at most, a multiple of 64: 16 MiB unless given. Each memory has room for two of them.
    #[must_use]
    pub fn snapshot_bytes_max(mut self, bytes: u64) -> Self {
        self.snapshot_bytes = bytes;
        self
    }

    /// How often a leader is looked at, and followers look for what is new: 5 ms unless given. A leader that is not
    /// heard of for some periods is replaced.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// For how long a leader answers reads by itself after a look at a majority of memories; it looks again four times in
    /// this time. None unless given, else from four periods to four hours, and the same in all programs: another length
    /// than the founder's is refused. A new leader waits for as long, and a 64th more, before it answers anything, so the
    /// group stands still for that time longer when a leader is lost.
    ///
    /// **It trusts clocks**: in this time the boot-time clocks (`CLOCK_BOOTTIME`) of two hosts must not run apart by more
    /// than a 64th of it. Reads without a lease trust none.
    #[must_use]
    pub fn read_lease(mut self, time: Duration) -> Self {
        self.read_lease = time;
        self
    }

    /// Makes acknowledgements [`Class::SyncedMajority`]: what is acknowledged is in files of a majority too, each in a
    /// directory of its member's own on its host, which is made if it is not there. All programs of a group give one, or
    /// none does. Opened again over their directories, a majority of members has all that was acknowledged, though power
    /// went at all hosts. The price: a command waits for a sync of files at a majority, and so for the programs of a
    /// majority; and a new leader too.
    ///
    /// A directory is the member's memory: if it is lost, or an older copy is put in its place, the member has forgotten
    /// what it promised. A lost one may be begun anew with an empty one. An older copy must not be put there.
    #[must_use]
    pub fn synced(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// How long [`open`](Self::open) waits for the memories of all members when the group is new: a minute unless given.
    #[must_use]
    pub fn founded_within(mut self, time: Duration) -> Self {
        self.founded_within = time;
        self
    }

    /// Makes this host's memory, or finds the one of an earlier program, and takes part. It returns when it is known who
    /// the members are: a new group needs the memories of all of them once. `machine` is as new: it gets the state of the
    /// group by and by.
    pub fn open<M: Machine + Send + 'static>(self, session: &Session, machine: M) -> Result<Group<M>, GroupError> {
        if !self.hosts.iter().any(|(id, _)| *id == self.me) {
            return Err(GroupError::NoMember { me: self.me });
        }
        let layout = Layout::new(self.snapshot_bytes, self.ring_lines)?;
        let region = region_name(&self.name);
        let mut drawn = [0; 24];
        getrandom::fill(&mut drawn).map_err(|e| system("drawing random bytes", &e))?;
        let [seed, client, number] =
            [0, 8, 16].map(|at| drawn[at..].first_chunk().map_or(1, |b| u64::from_le_bytes(*b)));
        let (group, command_bytes_max) = (group_number(&self.name), self.command_bytes_max as u64);
        let title = Title { group, member: self.me, number: number.max(1), layout, command_bytes_max };
        let mut durable = self.directory.as_ref().map(|path| Durable::open(path, title)).transpose()?;
        let own = own_memory(session, &region, self.key, layout.bytes())?;
        if let Some(durable) = &mut durable {
            durable.restore(&own, &self.name)?;
        }
        let number = durable.as_ref().map_or_else(|| own.id(), Durable::number);
        let class = if durable.is_some() { Class::SyncedMajority } else { Class::RamMajority };
        let places =
            Places { session: session.clone(), region, key: self.key, me: self.me, hosts: self.hosts, class, number };
        let [period_us, lease_us] =
            [self.period, self.read_lease].map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let founded = founding::members(&places, &own, (&self.name, lease_us), self.founded_within)?;
        if let Some(durable) = &mut durable {
            durable.found(&founded)?;
        }
        let hosts = places.hosts.clone();
        Sign { layout, command_bytes_max: self.command_bytes_max, period_us, hosts }.write(&own)?;
        let settings = Settings {
            group,
            me: self.me,
            members: founded.members,
            layout,
            command_bytes_max: self.command_bytes_max,
            piece_bytes_max: PIECE_BYTES_MAX,
            period_us,
            lease_us,
            is_synced: class.is_synced(),
            seed,
        };
        let replica = Replica::new(settings, machine)?;
        let start = |durable| Keeping::start(durable, own.clone(), self.period);
        let keeping = durable.map(start).transpose().map_err(|e| system("starting a thread", &e))?;
        let inbox = Inbox::new(client);
        let memories = Memories::new(places, own, &inbox);
        let driver = Driver::new(replica, memories, &inbox, (self.period, class));
        let drive = Drive::new(driver, Arc::clone(&inbox), self.period);
        Group::start((drive, inbox), (class, keeping)).map_err(|e| system("starting a thread", &e))
    }
}

/// The name of a group's regions.
pub(crate) fn region_name(group: &str) -> String {
    format!("group/{group}")
}

/// A group's number.
pub(crate) fn group_number(group: &str) -> u64 {
    u64::from(crc32c::crc32c(group.as_bytes())) | 1 << 32
}

fn system(what: &'static str, cause: &dyn std::fmt::Display) -> GroupError {
    GroupError::System { what, cause: cause.to_string() }
}

/// The region of this host: a new one, or that of a program before this one.
fn own_memory(session: &Session, name: &str, key: RegionKey, bytes: u64) -> Result<Region, GroupError> {
    let access = RegionAccess::READ | RegionAccess::WRITE;
    let options = RegionOptions::new().key(key).access(access).single_writer(true).outlives(true);
    match options.create(session, name, bytes) {
        Err(RegionError::Refused { why: RegionRefusal::NameTaken { .. }, .. }) => {
            Ok(options.adopt(session, name, bytes, key)?)
        }
        other => Ok(other?),
    }
}
