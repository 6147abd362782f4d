//! The lanes of this host: by key, by peer, by queue pair, and those with work.
//!
//! Owns the four ways to a lane, which it keeps in step. It must never forget a lane that has a queue pair.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use genslab::GenSlab;
use verbs::Qpn;

use crate::ids::LaneId;
use crate::lane::Lane;

/// The lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    table: GenSlab<LaneId, Lane>,
    peers: BTreeMap<IpAddr, LaneId>,
    /// By queue pair, sorted.
    by_qpn: Vec<(Qpn, LaneId)>,
    /// Those with work, in order.
    queue: VecDeque<LaneId>,
    /// Those whose queue pair failed in this round.
    failing: Vec<LaneId>,
}

impl Lanes {
    pub(crate) fn new(max: u32) -> Self {
        Self {
            table: GenSlab::new(max),
            peers: BTreeMap::new(),
            by_qpn: Vec::new(),
            queue: VecDeque::new(),
            failing: Vec::new(),
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

    pub(crate) fn is_full(&self) -> bool {
        self.table.is_full()
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

    // ---- by peer

    /// The lane to a host, whichever form of its address is said.
    pub(crate) fn to(&self, peer: IpAddr) -> Option<LaneId> {
        self.peers.get(&peer.to_canonical()).copied()
    }

    /// Takes in a lane to a host to which there is none. `None`: the table is full.
    pub(crate) fn insert(&mut self, lane: Lane) -> Option<LaneId> {
        let peer = lane.peer();
        let id = self.table.insert(lane)?;
        self.peers.insert(peer, id);
        Some(id)
    }

    /// Takes out a lane without a queue pair.
    pub(crate) fn remove(&mut self, id: LaneId) -> Option<Lane> {
        if self.table.get(id).is_none_or(Lane::has_qp) {
            return None;
        }
        let lane = self.table.remove(id)?;
        self.peers.remove(&lane.peer());
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
        self.by_qpn.retain(|(q, _)| *q != qpn);
    }

    /// How many queue pairs there are.
    pub(crate) fn queue_pairs(&self) -> u32 {
        self.by_qpn.len() as u32
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

    // ---- those that failed

    /// The queue pair broke. What has arrived is still handled, and at the end of the round the lane is reset.
    pub(crate) fn fail(&mut self, id: LaneId, detail: String) {
        if let Some(lane) = self.table.get_mut(id)
            && lane.fail(detail)
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
