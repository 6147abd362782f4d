//! How a program becomes a member of a group.
//!
//! Owns the defaults, and what is checked before anything is made.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use agree::{Layout, Machine, Replica, Settings};
use raas::{Region, RegionAccess, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};

use crate::drive::Drive;
use crate::driver::Driver;
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

/// Settings of a group. All but [`me`](Self::me) are the same in all of its programs.
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
        let own = own_memory(session, &region, self.key, layout.bytes())?;
        let places = Places { session: session.clone(), region, key: self.key, me: self.me, hosts: self.hosts };
        let [period_us, lease_us] =
            [self.period, self.read_lease].map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let members = founding::members(&places, &own, (&self.name, lease_us), self.founded_within)?;
        let hosts = places.hosts.clone();
        Sign { layout, command_bytes_max: self.command_bytes_max, period_us, hosts }.write(&own)?;
        let mut seed = [0; 16];
        getrandom::fill(&mut seed).map_err(|e| system("drawing random bytes", &e))?;
        let (seed, client) = seed.split_at(8);
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes));
        let settings = Settings {
            group: group_number(&self.name),
            me: self.me,
            members,
            layout,
            command_bytes_max: self.command_bytes_max,
            piece_bytes_max: PIECE_BYTES_MAX,
            period_us,
            lease_us,
            seed: number(seed),
        };
        let replica = Replica::new(settings, machine)?;
        let inbox = Inbox::new(number(client));
        let memories = Memories::new(places, own, &inbox);
        let driver = Driver::new(replica, memories, &inbox, self.period);
        let drive = Drive::new(driver, Arc::clone(&inbox), self.period);
        Group::start(drive, inbox).map_err(|e| system("starting a thread", &e))
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
