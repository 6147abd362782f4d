//! The lanes of this host: by key, by name, by queue pair, and those with work.
//!
//! Owns the four ways to a lane, which it keeps in step. It must never forget a lane that has a queue pair.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use genslab::GenSlab;
use verbs::{Qpn, Time};

use crate::ids::LaneId;
use crate::lane::Lane;
use crate::lane_at::LaneAt;
use crate::numbers::count;

/// The lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    table: GenSlab<LaneId, Lane>,
    by_name: BTreeMap<LaneAt, LaneId>,
    /// Most shared ones, and most leased ones.
    most: (u32, u32),
    /// How many are leased.
    leased: u32,
    /// By queue pair, sorted.
    by_qpn: Vec<(Qpn, LaneId)>,
    /// Those with work, in order.
    queue: VecDeque<LaneId>,
    /// Those whose queue pair failed in this round.
    failing: Vec<LaneId>,
    /// Those whose way takes shorter packets than the device has; perhaps some that are gone.
    narrowed: BTreeSet<LaneId>,
    /// Those with worn keys; perhaps some that have new ones.
    worn: Vec<LaneId>,
}

impl Lanes {
    pub(crate) fn new(shared: u32, leased: u32) -> Self {
        Self {
            table: GenSlab::new(shared.saturating_add(leased)),
            by_name: BTreeMap::new(),
            most: (shared, leased),
            leased: 0,
            by_qpn: Vec::new(),
            queue: VecDeque::new(),
            failing: Vec::new(),
            narrowed: BTreeSet::new(),
            worn: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.table.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.table.get_mut(id)
    }

    /// Whether there is no place for one more that is shared.
    pub(crate) fn is_full(&self) -> bool {
        self.table.len().saturating_sub(self.leased) >= self.most.0
    }

    /// How many are leased.
    pub(crate) fn leased(&self) -> u32 {
        self.leased
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LaneId, &Lane)> {
        self.table.iter()
    }

    pub(crate) fn keys(&self) -> Vec<LaneId> {
        self.table.keys()
    }

    pub(crate) fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = (u32, LaneId, &Lane)>, Option<u32>) {
        self.table.page(from, looks)
    }

    // ---- by name

    /// The shared lane to a host, whichever form of its address is said.
    pub(crate) fn to(&self, peer: IpAddr) -> Option<LaneId> {
        self.at(peer)
    }

    /// A lane by its name.
    pub(crate) fn at(&self, at: impl Into<LaneAt>) -> Option<LaneId> {
        self.by_name.get(&at.into().canonical()).copied()
    }

    /// All lanes that lead to an address, which may be another one than the name of their host.
    pub(crate) fn all_over(&self, address: IpAddr) -> Vec<LaneId> {
        let address = address.to_canonical();
        self.table.iter().filter(|(_, lane)| lane.peer_address() == address).map(|(id, _)| id).collect()
    }

    /// Takes in a lane of which there is none. `None`: there is no place for it.
    pub(crate) fn insert(&mut self, lane: Lane) -> Option<LaneId> {
        let at = lane.at();
        let has_place = if at.leased.is_some() { self.leased < self.most.1 } else { !self.is_full() };
        if !has_place || self.by_name.contains_key(&at) {
            return None;
        }
        let id = self.table.insert(lane)?;
        self.leased += u32::from(at.leased.is_some());
        self.by_name.insert(at, id);
        Some(id)
    }

    /// Takes out a lane without a queue pair.
    pub(crate) fn remove(&mut self, id: LaneId) -> Option<Lane> {
        if self.table.get(id).is_none_or(|l| l.qp.exists()) {
            return None;
        }
        let lane = self.table.remove(id)?;
        self.by_name.remove(&lane.at());
        self.leased -= u32::from(lane.is_leased());
        Some(lane)
    }

    // ---- by queue pair

    /// The lane of a queue pair; `None` if that was destroyed.
    #[inline]
    pub(crate) fn of_qp(&self, qpn: Qpn) -> Option<LaneId> {
        let at = self.by_qpn.binary_search_by_key(&qpn, |(q, _)| *q).ok()?;
        self.by_qpn.get(at).map(|(_, id)| *id)
    }

    /// A queue pair was made for a lane.
    pub(crate) fn bind(&mut self, qpn: Qpn, id: LaneId) {
        let at = self.by_qpn.partition_point(|(q, _)| *q < qpn);
        self.by_qpn.insert(at, (qpn, id));
    }

    /// A queue pair was destroyed.
    pub(crate) fn unbind(&mut self, qpn: Qpn) {
        if let Ok(at) = self.by_qpn.binary_search_by_key(&qpn, |(q, _)| *q) {
            self.by_qpn.remove(at);
        }
    }

    /// How many queue pairs there are.
    pub(crate) fn queue_pairs(&self) -> u32 {
        count(self.by_qpn.len())
    }

    // ---- those with work

    /// Puts a lane into the list of those with work.
    #[inline]
    pub(crate) fn queue(&mut self, id: LaneId) {
        if let Some(lane) = self.table.get_mut(id)
            && lane.enter_queue()
        {
            self.queue.push_back(id);
        }
    }

    /// How many have work.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Takes the first of those with work that is still there.
    pub(crate) fn next_queued(&mut self) -> Option<LaneId> {
        let id = self.queue.pop_front()?;
        if let Some(lane) = self.table.get_mut(id) {
            lane.leave_queue();
        }
        Some(id)
    }

    // ---- those with a narrow way

    /// The way of a lane was found narrow: it is looked at now and then.
    pub(crate) fn note_narrow(&mut self, id: LaneId) {
        if self.table.get(id).is_some_and(|l| l.mtu.is_narrowed()) {
            self.narrowed.insert(id);
        }
    }

    /// Those whose way is still held for narrow.
    pub(crate) fn narrowed(&mut self) -> Vec<LaneId> {
        let table = &self.table;
        self.narrowed.retain(|id| table.get(*id).is_some_and(|l| l.mtu.is_narrowed()));
        self.narrowed.iter().copied().collect()
    }

    // ---- those with worn keys

    pub(crate) fn note_worn(&mut self, id: LaneId) {
        self.worn.push(id);
    }

    /// Those that have to be made anew.
    pub(crate) fn worn(&mut self) -> Vec<LaneId> {
        let table = &self.table;
        self.worn.retain(|id| table.get(*id).is_some_and(|lane| lane.renews_keys_at().is_some()));
        self.worn.clone()
    }

    /// When the next one of them can be looked at with another result although nothing happens.
    pub(crate) fn keys_deadline(&self, now: Time) -> Option<Time> {
        let at = |id: &LaneId| self.table.get(*id).and_then(Lane::renews_keys_at);
        self.worn.iter().filter_map(at).filter(|at| *at > now).min()
    }

    // ---- those that failed

    /// The queue pair broke. What has arrived is still handled, and at the end of the round the lane is reset.
    pub(crate) fn fail(&mut self, id: LaneId, detail: String) {
        if let Some(lane) = self.table.get_mut(id)
            && lane.qp.fail(detail)
        {
            self.failing.push(id);
        }
    }

    pub(crate) fn has_failing(&self) -> bool {
        !self.failing.is_empty()
    }

    /// Those that failed since this was last asked.
    pub(crate) fn take_failing(&mut self) -> Vec<LaneId> {
        std::mem::take(&mut self.failing)
    }
}
