//! The applications of this host: which are attached, which must be woken, and what is left of those that went.
//!
//! Owns the lists through the table of applications. It must never wake an application of which nothing was said since
//! its last wake.

use std::collections::VecDeque;

use genslab::GenSlab;

use crate::app::App;
use crate::ids::{AppId, SlotAt};
use crate::ringpool::Retired;

/// The applications.
#[derive(Debug)]
pub(crate) struct Apps {
    table: GenSlab<AppId, App>,
    /// Those whose doorbells are looked at.
    attached: Vec<AppId>,
    /// Place in it of the one whose turn is next.
    turn: usize,
    /// Those whose doorbell was rung in this round.
    touched: Vec<AppId>,
    wakes: Vec<AppId>,
    gone: Vec<AppId>,
    retired: VecDeque<(AppId, Retired)>,
}

impl Apps {
    pub(crate) fn new(max: u32) -> Self {
        Self {
            table: GenSlab::new(max),
            attached: Vec::new(),
            turn: 0,
            touched: Vec::new(),
            wakes: Vec::new(),
            gone: Vec::new(),
            retired: VecDeque::new(),
        }
    }

    #[inline]
    pub(crate) fn get(&self, id: AppId) -> Option<&App> {
        self.table.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: AppId) -> Option<&mut App> {
        self.table.get_mut(id)
    }

    /// One that has not left.
    pub(crate) fn get_here(&self, id: AppId) -> Option<&App> {
        self.table.get(id).filter(|a| !a.is_leaving())
    }

    /// One that has not left.
    pub(crate) fn get_here_mut(&mut self, id: AppId) -> Option<&mut App> {
        self.table.get_mut(id).filter(|a| !a.is_leaving())
    }

    /// Its process, 0 if it is gone.
    pub(crate) fn pid(&self, id: AppId) -> u32 {
        self.table.get(id).map_or(0, App::pid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AppId, &App)> {
        self.table.iter()
    }

    pub(crate) fn page(&self, from: u32, looks: u32) -> (impl Iterator<Item = (u32, AppId, &App)>, Option<u32>) {
        self.table.page(from, looks)
    }

    // ---- come and go

    /// Takes an application in. `None`: the table is full.
    pub(crate) fn attach(&mut self, app: App) -> Option<AppId> {
        let id = self.table.insert(app)?;
        self.attached.push(id);
        Some(id)
    }

    /// An application leaves: from now on its doorbells are ignored. `None`: it has left already.
    pub(crate) fn leave(&mut self, id: AppId) -> Option<&mut App> {
        let app = self.table.get_mut(id).filter(|a| !a.is_leaving())?;
        app.on_left();
        self.hush(id);
        self.table.get_mut(id)
    }

    /// Its doorbells are not looked at before [`Self::hear`].
    pub(crate) fn hush(&mut self, id: AppId) {
        if let Some(place) = self.attached.iter().position(|a| *a == id) {
            self.attached.remove(place);
            // The others' turns come as they would have.
            self.turn -= usize::from(place < self.turn);
        }
    }

    /// See [`Self::hush`].
    pub(crate) fn hear(&mut self, id: AppId) {
        if self.get_here(id).is_some() {
            self.attached.push(id);
        }
    }

    /// How many are attached.
    pub(crate) fn attached(&self) -> usize {
        self.attached.len()
    }

    /// The one whose turn it is.
    pub(crate) fn next_attached(&mut self) -> Option<AppId> {
        if self.turn >= self.attached.len() {
            self.turn = 0;
        }
        let app = *self.attached.get(self.turn)?;
        self.turn += 1;
        Some(app)
    }

    /// Whether an attached application has rung.
    pub(crate) fn has_rung(&self) -> bool {
        self.attached.iter().any(|id| self.table.get(*id).is_some_and(App::has_rung))
    }

    /// Remembers an application of which nothing is in use any more.
    pub(crate) fn note_departure(&mut self, id: AppId) {
        if self.table.get(id).is_some_and(App::is_gone) {
            self.gone.push(id);
        }
    }

    /// Takes out the applications of which nothing is in use any more.
    pub(crate) fn take_gone(&mut self) -> Vec<(AppId, App)> {
        let mut taken = Vec::new();
        for id in std::mem::take(&mut self.gone) {
            // It may stand in the list twice.
            if self.table.get(id).is_some_and(App::is_gone)
                && let Some(app) = self.table.remove(id)
            {
                taken.push((id, app));
            }
        }
        taken
    }

    // ---- what waits

    /// A connect, parked open or bind of an application waits.
    pub(crate) fn start_waiting(&mut self, id: AppId) {
        if let Some(app) = self.table.get_mut(id) {
            app.add_waiting();
        }
    }

    /// It waits no more.
    pub(crate) fn stop_waiting(&mut self, id: AppId) {
        if let Some(app) = self.table.get_mut(id) {
            app.drop_waiting();
        }
    }

    // ---- doorbells and wakes

    /// Marks a slot for its application; with `awaited` it is woken at the end of the round if it sleeps.
    #[inline]
    pub(crate) fn mark(&mut self, at: SlotAt, awaited: bool) {
        if let Some(app) = self.get_here_mut(at.app)
            && app.ring(at.slot, awaited)
        {
            self.touched.push(at.app);
        }
    }

    /// The round is over: collects the applications that were rung and sleep.
    pub(crate) fn collect_wakes(&mut self) {
        for id in self.touched.drain(..) {
            if self.table.get_mut(id).is_some_and(App::end_round) {
                self.wakes.push(id);
            }
        }
    }

    pub(crate) fn take_wakes(&mut self, out: &mut Vec<AppId>) {
        out.append(&mut self.wakes);
    }

    // ---- chunks to be deregistered

    pub(crate) fn retire(&mut self, id: AppId, chunks: impl IntoIterator<Item = Retired>) {
        self.retired.extend(chunks.into_iter().map(|chunk| (id, chunk)));
    }

    pub(crate) fn first_retired(&mut self) -> Option<(AppId, &mut Retired)> {
        self.retired.front_mut().map(|(id, chunk)| (*id, chunk))
    }

    pub(crate) fn take_retired(&mut self) -> Option<(AppId, Retired)> {
        self.retired.pop_front()
    }

    /// Whether a round has something to report or to release.
    pub(crate) fn has_work(&self) -> bool {
        !self.wakes.is_empty() || !self.gone.is_empty() || !self.retired.is_empty()
    }

    /// Whether something of those that left is to be taken down.
    pub(crate) fn has_departures(&self) -> bool {
        !self.retired.is_empty() || !self.gone.is_empty()
    }
}
