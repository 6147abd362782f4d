//! The engine's connections: by key, by the route id that their peers know, and lane by lane.
//!
//! Owns the keys and the lists through the connections of a lane. It must never hold a connection in the list of a lane
//! that is not its own.

use control::Reason;
use genslab::GenSlab;
use verbs::Time;

use super::{Names, NewVqp, Vqp};
use crate::app::{App, SlotUse};
use crate::ids::{LaneId, RouteId};
use crate::members::Members;
use crate::route_names::RouteNames;

/// The table.
#[derive(Debug)]
pub(crate) struct Connections {
    table: GenSlab<RouteId, Vqp>,
    names: RouteNames,
}

impl Connections {
    pub(crate) fn new(max: u32, names: RouteNames) -> Self {
        Self { table: GenSlab::new(max), names }
    }

    #[inline]
    pub(crate) fn get(&self, route: RouteId) -> Option<&Vqp> {
        self.table.get(route)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, route: RouteId) -> Option<&mut Vqp> {
        self.table.get_mut(route)
    }

    /// The connection that a peer names by this route id. Any number is safe.
    #[inline]
    pub(crate) fn named(&self, name: u32) -> RouteId {
        self.names.route(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RouteId, &Vqp)> {
        self.table.iter()
    }

    pub(crate) fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = (u32, RouteId, &Vqp)>, Option<u32>) {
        self.table.page(from, looks)
    }

    pub(crate) fn page_mut(&mut self, from: u32, looks: u32) -> (impl Iterator<Item = &mut Vqp>, Option<u32>) {
        self.table.page_mut(from, looks)
    }

    /// Makes a connection in a slot of its application, which is told of it. [`Reason::LocalLimit`] if there is none,
    /// or no place in the table; then the rings are the caller's still.
    pub(crate) fn make(&mut self, new: NewVqp, tenant: &mut App, epoch: u32, now: Time) -> Result<RouteId, Reason> {
        if !tenant.has_slot() || self.table.is_full() {
            return Err(Reason::LocalLimit);
        }
        let names = &self.names;
        let made = self.table.insert_with(|route| {
            let slot = tenant.take_slot(SlotUse::Connection(route)).expect("a slot is free, as asked above");
            let vqp = Vqp::new(new, Names { own_route: names.name(route), slot }, now);
            vqp.publish_new(epoch);
            vqp
        });
        made.ok_or(Reason::LocalLimit)
    }

    /// Takes a connection out of the table. The caller has taken it out of its lane's list.
    pub(crate) fn remove(&mut self, route: RouteId) -> Option<Vqp> {
        self.table.remove(route)
    }

    // ---- a lane's connections

    /// The connections of a lane, the youngest first.
    pub(crate) fn of(&self, members: &Members) -> Vec<RouteId> {
        let mut routes = Vec::with_capacity(members.count() as usize);
        let mut next = members.first();
        while let Some(route) = next {
            routes.push(route);
            next = self.table.get(route).and_then(|v| v.next);
        }
        routes
    }

    /// Puts a connection into its lane's list.
    pub(crate) fn link(&mut self, members: &mut Members, route: RouteId) {
        let old = members.push(route);
        if let Some(first) = old.and_then(|r| self.table.get_mut(r)) {
            first.previous = Some(route);
        }
        if let Some(vqp) = self.table.get_mut(route) {
            vqp.previous = None;
            vqp.next = old;
        }
    }

    /// Takes a connection out of its lane's list.
    pub(crate) fn unlink(&mut self, members: &mut Members, route: RouteId, now: Time) {
        let Some(vqp) = self.table.get_mut(route) else { return };
        let (previous, next) = (vqp.previous.take(), vqp.next.take());
        members.remove(previous.is_none(), next, now);
        if let Some(before) = previous.and_then(|r| self.table.get_mut(r)) {
            before.next = next;
        }
        if let Some(after) = next.and_then(|r| self.table.get_mut(r)) {
            after.previous = previous;
        }
    }

    /// The connection behind a record of a lane. `None`: it is not, or no longer, one of that lane.
    #[inline]
    pub(crate) fn on_lane(&mut self, lane: LaneId, route: RouteId) -> Option<&mut Vqp> {
        self.table.get_mut(route).filter(|v| v.lane == Some(lane))
    }
}
