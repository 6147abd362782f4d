//! What daemons hold, by their own tables and by the kernel's: the account that must balance after each death.

use anyhow::Result;

use crate::host::{Footprint, Host, eventually};

/// Bytes of a region of an engine's own pools at most.
const POOL_REGION_BYTES_MAX: u64 = 4 << 20;

/// What some daemons hold, one entry for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    apps: Vec<usize>,
    connections: Vec<u32>,
    rows: Vec<usize>,
    /// Regions, and handles to them.
    regions: Vec<(usize, u32)>,
    pairs: Vec<u64>,
    rc_qps: Vec<u32>,
    cqs: Vec<u32>,
    srqs: Vec<u32>,
    mrs: Vec<u32>,
    pinned: Vec<u64>,
    memfds: Vec<u64>,
    memfd_mappings: Vec<u64>,
    threads: Vec<u64>,
    fds: Vec<u64>,
    /// Regions that an engine may still add to its own pools, which is nobody's doing.
    pool_room: u32,
}

impl Held {
    /// Now.
    pub fn of<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Result<Self> {
        let (mut stats, mut prints, mut rows, mut regions) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for host in hosts {
            stats.push(host.stat()?);
            rows.push(raas::inspect::connections(Some(&host.socket))?.len());
            let found = raas::inspect::regions(Some(&host.socket))?;
            regions.push((found.len(), found.iter().map(|region| region.opens).sum()));
            prints.push(Footprint::of(host.pid())?);
        }
        let counter = |s: &control::Stat, name: &str| {
            s.counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("there is no counter {name}")).1
        };
        let own = |s: &control::Stat, names: [&str; 2]| {
            names.iter().map(|name| u32::try_from(counter(s, name)).unwrap_or(0)).sum::<u32>()
        };
        Ok(Self {
            apps: stats.iter().map(|s| s.apps.len()).collect(),
            connections: stats.iter().map(|s| s.lanes.iter().map(|l| l.connections).sum()).collect(),
            rows,
            regions,
            pairs: stats.iter().map(|s| counter(s, "pairs")).collect(),
            rc_qps: stats.iter().map(|s| s.rc_qps).collect(),
            cqs: stats.iter().map(|s| s.cqs).collect(),
            srqs: stats.iter().map(|s| s.srqs).collect(),
            // Receives come when lanes need them, and stay, up to a bound: nobody holds them. A busy engine has the rings
            // of any program registered for READ; that goes with the program's chunks, each of which is counted too.
            mrs: stats.iter().map(|s| s.mrs - own(s, ["srq_regions", "lent_chunks"])).collect(),
            pinned: stats.iter().map(|s| s.pinned_bytes - counter(s, "srq_bytes") - counter(s, "lent_bytes")).collect(),
            memfds: prints.iter().map(|p| p.memfds).collect(),
            memfd_mappings: prints.iter().map(|p| p.memfd_mappings).collect(),
            threads: prints.iter().map(|p| p.threads).collect(),
            fds: prints.iter().map(|p| p.fds).collect(),
            pool_room: 0,
        })
    }

    /// Waits until no more than this is held again.
    pub fn wait_for<'a, I>(&self, hosts: I) -> Result<()>
    where
        I: IntoIterator<Item = &'a Host> + Copy,
    {
        eventually("what was held has returned", || {
            let now = Self::of(hosts)?;
            Ok(if now.is_within(self) { Ok(()) } else { Err((now, self.clone())) })
        })
    }

    /// This account with the registered memory of the engine's own pools, as a daemon keeps it from its first lane on:
    /// no more than two regions for lanes, and two of the UD queue pair. Not all of them are there at once.
    pub fn with_pool_of_one_lane(&self, host: &Host) -> Result<Self> {
        const POOL_REGIONS: u32 = 4;
        let mut account = self.clone();
        eventually("the lane of the dead is gone", || {
            let now = Self::of([host])?;
            (account.mrs, account.pinned) = (now.mrs.clone(), now.pinned.clone());
            let settled = now.is_within(&account) && now.mrs.iter().all(|mrs| *mrs <= POOL_REGIONS);
            Ok(if settled { Ok(()) } else { Err(now) })
        })?;
        account.pool_room = POOL_REGIONS - account.mrs.iter().max().copied().unwrap_or(POOL_REGIONS);
        Ok(account)
    }

    /// Descriptors may be fewer, or one more: a question has a socket of its own, which may not be closed yet when the
    /// next one comes. Threads of the runtime's pool end when they were idle for a while.
    fn is_within(&self, before: &Self) -> bool {
        let fewer = self.fds.iter().zip(&before.fds).all(|(now, before)| now <= &(before + 1));
        let threads = self.threads.iter().zip(&before.threads).all(|(now, before)| now <= before);
        let added = self.mrs.iter().zip(&before.mrs).map(|(now, before)| now.checked_sub(*before));
        let Some(added) = added.collect::<Option<Vec<u32>>>() else { return false };
        let room = before.pool_room;
        let pools = self.pinned.iter().zip(&before.pinned).zip(&added).all(|((now, before), added)| {
            let bytes = u64::from(*added) * POOL_REGION_BYTES_MAX;
            *added <= room && now.checked_sub(*before).is_some_and(|more| more <= bytes)
        });
        let same = Self {
            fds: before.fds.clone(),
            threads: before.threads.clone(),
            mrs: before.mrs.clone(),
            pinned: before.pinned.clone(),
            pool_room: before.pool_room,
            ..self.clone()
        };
        fewer && threads && pools && same == *before
    }
}
