//! The engine's connections: by key, by the route id that their peers know, and lane by lane.
//!
//! Owns the keys and the lists through the connections of a lane. It must never hold a connection in the list of a lane
//! that is not its own.

use std::collections::BTreeMap;

use control::{LaneTicket, Reason};
use genslab::GenSlab;
use verbs::Time;

use super::{Names, NewVqp, Vqp};
use crate::app::{App, SlotUse};
use crate::frame::check_route;
use crate::ids::{LaneId, RouteId};
use crate::members::Members;
use crate::route_names::RouteNames;
use crate::slot::TakenSlot;

/// The table.
#[derive(Debug)]
pub(crate) struct Connections {
    table: GenSlab<RouteId, Vqp>,
    names: RouteNames,
    /// Names that other daemons of this host gave, which their connections keep; they count first.
    aliases: BTreeMap<u32, RouteId>,
}

impl Connections {
    pub(crate) fn new(max: u32, names: RouteNames) -> Self {
        Self { table: GenSlab::new(max), names, aliases: BTreeMap::new() }
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
        if !self.aliases.is_empty()
            && let Some(&route) = self.aliases.get(&name)
        {
            return route;
        }
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
        let (names, aliases) = (&self.names, &mut self.aliases);
        let made = self.table.insert_with(|route| {
            let slot = tenant.take_slot(SlotUse::Connection(route)).expect("a slot is free, as asked above");
            let own_route = unused_name(names.name(route), route, aliases);
            let vqp = Vqp::new(new, Names { own_route, slot }, now);
            vqp.slot.publish_new(epoch, vqp.identity.is_outgoing);
            vqp
        });
        made.ok_or(Reason::LocalLimit)
    }

    /// Takes over a connection that a daemon before this one made, with its slot and its name. `None`: there is no place,
    /// the slot is another one's, or the name names something.
    pub(crate) fn adopt(&mut self, new: NewVqp, ticket: &LaneTicket, tenant: &mut App, now: Time) -> Option<RouteId> {
        let name = ticket.own_route;
        let is_named = self.aliases.contains_key(&name) || self.table.contains(self.names.route(name));
        if is_named || check_route(name).is_err() || name == 0 || self.table.is_full() {
            return None;
        }
        let mut is_adopted = false;
        let route = self.table.insert_with(|route| {
            let place = (ticket.slot, ticket.generation);
            let slot = tenant.adopt_slot(place, SlotUse::Connection(route));
            is_adopted = slot.is_some();
            let words = || Box::new(tenant.any_words());
            let slot = slot.unwrap_or_else(|| TakenSlot { number: 0, generation: 0, words: words() });
            Vqp::new(new, Names { own_route: name, slot }, now)
        })?;
        if !is_adopted {
            self.table.remove(route);
            return None;
        }
        self.aliases.insert(name, route);
        Some(route)
    }

    /// Takes a connection out of the table. The caller has taken it out of its lane's list.
    pub(crate) fn remove(&mut self, route: RouteId) -> Option<Vqp> {
        let vqp = self.table.remove(route);
        if let Some(vqp) = &vqp
            && !self.aliases.is_empty()
        {
            self.aliases.remove(&vqp.routes.own);
        }
        vqp
    }

    // ---- a lane's connections

    /// The connections of a lane, the youngest first.
    pub(crate) fn of(&self, members: &Members) -> Vec<RouteId> {
        let mut routes = Vec::with_capacity(members.count() as usize);
        let mut next = members.first();
        while let Some(route) = next {
            routes.push(route);
            next = self.table.get(route).and_then(|v| v.place.next);
        }
        routes
    }

    /// Puts a connection into its lane's list.
    pub(crate) fn link(&mut self, members: &mut Members, route: RouteId) {
        let old = members.push(route);
        if let Some(first) = old.and_then(|r| self.table.get_mut(r)) {
            first.place.previous = Some(route);
        }
        if let Some(vqp) = self.table.get_mut(route) {
            (vqp.place.previous, vqp.place.next) = (None, old);
        }
    }

    /// Takes a connection out of its lane's list.
    pub(crate) fn unlink(&mut self, members: &mut Members, route: RouteId, now: Time) {
        let Some(vqp) = self.table.get_mut(route) else { return };
        let (previous, next) = (vqp.place.previous.take(), vqp.place.next.take());
        members.remove(previous.is_none(), next, now);
        if let Some(before) = previous.and_then(|r| self.table.get_mut(r)) {
            before.place.next = next;
        }
        if let Some(after) = next.and_then(|r| self.table.get_mut(r)) {
            after.place.previous = previous;
        }
    }

    /// The connection behind a record of a lane. `None`: it is not, or no longer, one of that lane.
    #[inline]
    pub(crate) fn on_lane(&mut self, lane: LaneId, route: RouteId) -> Option<&mut Vqp> {
        self.table.get_mut(route).filter(|v| v.place.lane() == Some(lane))
    }
}

/// A name that no connection of an earlier daemon has: nearly always the one that is the connection's by its key.
fn unused_name(name: u32, route: RouteId, aliases: &mut BTreeMap<u32, RouteId>) -> u32 {
    if !aliases.contains_key(&name) {
        return name;
    }
    let last = (1 << crate::immediate::ROUTE_BITS) - 1;
    let other = (name..=last).chain(1..name).find(|other| !aliases.contains_key(other)).unwrap_or(name);
    aliases.insert(other, route);
    other
}
