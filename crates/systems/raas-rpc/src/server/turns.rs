//! Clients that take turns: their requests are fetched by READ, or written by them into a seat while their turn lasts.
//!
//! Owns who is served next. A client that waits says in its word how much it laid down in its own memory. If there is
//! room among those that have a turn, the worker fetches that, and the answer tells the client its seat. If there is
//! none, it is fetched all the same (the warm-up), and executed when the next slice begins. Clients that call so rarely
//! that they would not use a turn need none, and while the worker has nothing else to do nobody waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use raas::RegionError;

use super::Counters;
use super::execute::{Answer, execute};
use super::group::GroupSize;
use super::member::{Fetch, Fetched, Member, Requests};
use super::ring::{Ring, Taken};
use super::seats::Seats;
use super::slabs::Slab;
use super::slices::Slices;
use super::work::Work;
use crate::frame::{RequestHeader, Turn};
use crate::layout::WORD_BYTES;

/// See the head of this file.
pub(super) struct Turns<'a> {
    work: &'a Work<'a>,
    /// By the numbers of their slabs.
    members: Vec<Option<Member>>,
    words: Vec<u8>,
    seats: Seats,
    /// By seat.
    rings: Vec<Option<Ring>>,
    slices: Slices,
    /// Those that laid something down, in the order in which they are admitted.
    queue: Vec<u32>,
    /// Those of which something is fetched.
    fetching: Vec<u32>,
    group: GroupSize,
    is_stale: bool,
}

impl<'a> Turns<'a> {
    pub(super) fn new(work: &'a Work<'a>) -> Self {
        let (count, now, settings) = (work.slabs.seats(), Instant::now(), &work.shared.settings);
        Self {
            work,
            members: Vec::new(),
            words: Vec::new(),
            seats: Seats::new(count),
            rings: (0..count).map(|_| None).collect(),
            slices: Slices::new(now),
            queue: Vec::new(),
            fetching: Vec::new(),
            group: GroupSize::new((settings.group, settings.group_max()), now),
            is_stale: false,
        }
    }

    fn group(&self) -> usize {
        self.work.shared.settings.group.into()
    }

    fn member(&mut self, number: u32) -> Option<&mut Member> {
        self.members.get_mut(number as usize)?.as_mut()
    }

    /// The clients as they are now.
    pub(super) fn follow(&mut self, active: &[Arc<Slab>]) {
        for number in 0..self.members.len() {
            let is_over = |member: &Member| member.slab.is_over();
            if self.members[number].as_ref().is_some_and(is_over) {
                self.remove(number as u32);
            }
        }
        for slab in active.iter().filter(|slab| slab.ring().is_some()) {
            let number = slab.number as usize;
            if self.members.len() <= number {
                self.members.resize_with(number + 1, || None);
            }
            if self.members[number].is_none() {
                self.members[number] = Some(Member::new(Arc::clone(slab)));
            }
        }
        while self.members.last().is_some_and(Option::is_none) {
            self.members.pop();
        }
        self.words.resize(self.members.len() * WORD_BYTES as usize, 0);
    }

    fn remove(&mut self, number: u32) {
        let seat = self.members.get_mut(number as usize).and_then(Option::take).and_then(|member| member.seat);
        self.queue.retain(|of| *of != number);
        self.fetching.retain(|of| *of != number);
        if let Some(seat) = seat
            && self.rings[seat as usize].as_ref().is_some_and(|ring| ring.slab().number == number)
        {
            self.seats.leave(seat, number);
            self.rings[seat as usize] = None;
        }
    }

    pub(super) fn has_members(&self) -> bool {
        !self.members.is_empty()
    }

    /// Whether nobody waits and nobody may write: then the worker may sleep.
    pub(super) fn is_quiet(&self) -> bool {
        self.queue.is_empty() && self.fetching.is_empty() && self.seats.live(Instant::now()) == 0
    }

    /// Serves what there is; says whether there was something.
    pub(super) fn round(&mut self, is_all: bool) -> Result<bool, RegionError> {
        if self.members.is_empty() {
            return Ok(false);
        }
        let now = Instant::now();
        self.notice(now)?;
        if self.is_stale || is_all || self.slices.is_over(now) {
            self.admit(now);
        }
        let did = self.serve_fetched()? | self.serve_seats(is_all)?;
        if self.group.follow(now, self.slices.length(), !self.queue.is_empty()) {
            self.is_stale = true;
        }
        Ok(did)
    }

    /// Reads the words of all clients.
    fn notice(&mut self, now: Instant) -> Result<(), RegionError> {
        self.work.place.region.read(self.work.slabs.words_at(), &mut self.words)?;
        let words = self.words.chunks_exact(WORD_BYTES as usize);
        for (number, (word, member)) in words.zip(&mut self.members).enumerate() {
            let Some(member) = member else { continue };
            let word = word.try_into().map_or(0, u64::from_le_bytes);
            if member.on_word(word, now) && matches!(member.fetch, Fetch::Nothing) {
                let number = number as u32;
                if !self.queue.contains(&number) {
                    self.queue.push(number);
                }
                self.is_stale = true;
            }
        }
        Ok(())
    }

    /// Lets clients in, as far as there is room, and has the next ones fetched.
    fn admit(&mut self, now: Instant) {
        self.is_stale = false;
        if self.slices.is_over(now) {
            self.slices.begin(now);
            self.work.shared.counters.slices.store(self.slices.ended(), Ordering::Relaxed);
            let (longest, members) = (self.slices.length(), &self.members);
            let rank = |number: &u32| members[*number as usize].as_ref().and_then(|member| member.rank(longest));
            self.queue.sort_by_key(rank);
        }
        if self.queue.is_empty() {
            return;
        }
        let coming = self.fetching.iter().filter(|number| self.is_coming(**number)).count();
        let mut room = self.group.clients().saturating_sub(self.seats.live(now) + coming);
        let is_contended = self.queue.len() > room;
        let length = self.slices.length();
        let mut rest = Vec::new();
        for number in std::mem::take(&mut self.queue) {
            let Some(member) = self.members[number as usize].as_mut() else { continue };
            let has_seat = member.seat.is_some_and(|seat| self.seats.holds(seat, number, now));
            let is_rare = is_contended && member.think() >= length;
            if !has_seat && !is_rare && room == 0 {
                rest.push(number);
                continue;
            }
            member.is_admitted = true;
            member.sits = !is_rare;
            room -= usize::from(!has_seat && !is_rare);
            self.fetch(number);
        }
        if !rest.is_empty() {
            self.slices.contend(now, self.seats.latest());
            // The warm-up of the next slice.
            for number in rest.iter().take(self.group()) {
                self.fetch(*number);
            }
        }
        self.queue = rest;
    }

    fn is_coming(&self, number: u32) -> bool {
        let member = self.members.get(number as usize).and_then(Option::as_ref);
        member.is_some_and(|member| member.is_admitted && member.sits)
    }

    /// Begins to fetch what a client laid down, unless that is under way.
    fn fetch(&mut self, number: u32) {
        let Some(member) = self.member(number) else { return };
        if !matches!(member.fetch, Fetch::Nothing) {
            return;
        }
        let slab = Arc::clone(&member.slab);
        let Some(ring) = slab.ring() else { return };
        match member.begin_fetch(ring) {
            Ok(reads) => {
                self.work.shared.counters.fetches.fetch_add(reads, Ordering::Relaxed);
                self.fetching.push(number);
            }
            Err(error) => end(&slab, &error),
        }
    }

    /// Executes what is here of those that were let in.
    fn serve_fetched(&mut self) -> Result<bool, RegionError> {
        let mut did = false;
        for number in self.fetching.clone() {
            let Some(member) = self.member(number) else { continue };
            let is_here = match member.poll_fetch() {
                Ok(is_here) => is_here,
                Err(error) => {
                    end(&member.slab, &error);
                    self.remove(number);
                    continue;
                }
            };
            // One that lost count has nothing under way.
            let is_nothing = matches!(member.fetch, Fetch::Nothing);
            if !(is_here && member.is_admitted || is_nothing) {
                continue;
            }
            let fetched = member.take_fetched();
            (member.is_admitted, did) = (false, true);
            if member.has_more() {
                self.queue.push(number);
                self.is_stale = true;
            }
            self.fetching.retain(|of| *of != number);
            if let Some(requests) = fetched {
                self.serve_requests(number, requests)?;
            }
        }
        Ok(did)
    }

    fn serve_requests(&mut self, number: u32, mut requests: Requests) -> Result<(), RegionError> {
        while !requests.is_over() {
            let Some(Fetched { header, payload, arrived }) = requests.next() else {
                // The client overwrote it meanwhile, because it gave the call up. It asks again for what it misses.
                Counters::add(&self.work.shared.counters.torn);
                return Ok(());
            };
            let Some(member) = self.member(number) else { return Ok(()) };
            if header.token != member.slab.token {
                Counters::add(&self.work.shared.counters.refused);
                return Ok(());
            }
            member.next = member.next.max(header.sequence + 1);
            self.serve(number, &header, payload, arrived)?;
        }
        Ok(())
    }

    /// Takes what clients wrote into their seats.
    fn serve_seats(&mut self, is_all: bool) -> Result<bool, RegionError> {
        let (mut looked, mut found, now) = (0, 0, Instant::now());
        for seat in 0..self.seats.used() {
            let is_live = self.seats.is_live(seat, now);
            if !is_all && !is_live {
                continue;
            }
            looked += usize::from(is_live);
            while let Some(ring) = self.rings[seat].as_mut() {
                let Some(taken) = ring.take_next(self.work, is_all)? else { break };
                let number = ring.slab().number;
                let Taken { header, arrived, .. } = taken;
                found += 1;
                let Some(member) = self.member(number) else { break };
                member.next = member.next.max(header.sequence + 1);
                member.on_request(arrived);
                self.serve(number, &header, taken.payload(), arrived)?;
            }
        }
        self.group.on_look(looked, found);
        Ok(found > 0)
    }

    fn serve(
        &mut self,
        number: u32,
        header: &RequestHeader,
        payload: &[u8],
        arrived: Instant,
    ) -> Result<(), RegionError> {
        let Some(slab) = self.member(number).map(|member| Arc::clone(&member.slab)) else { return Ok(()) };
        let answer = execute(self.work.shared, &slab.record, slab.transport, (header, payload), arrived);
        // If it runs the client asks again.
        let Answer::Send(outcome) = answer else { return Ok(()) };
        let turn = self.turn_of(number, arrived)?;
        self.work.answer(&slab, header, &outcome, Some(turn))?;
        if let Some(member) = self.member(number) {
            member.on_answer(Instant::now());
        }
        Ok(())
    }

    /// What a client that is answered now is told of its turn, in the seat that it has or in another one.
    fn turn_of(&mut self, number: u32, arrived: Instant) -> Result<Turn, RegionError> {
        let now = Instant::now();
        let until = self.slices.until(now);
        let since = |at: Instant| at.saturating_duration_since(arrived);
        let seat = if until > now { self.seat_of(number, now, until)? } else { None };
        Ok(Turn::new(seat, since(now), since(until)))
    }

    fn seat_of(&mut self, number: u32, now: Instant, until: Instant) -> Result<Option<u16>, RegionError> {
        let Some(member) = self.members.get_mut(number as usize).and_then(Option::as_mut) else { return Ok(None) };
        if !member.sits {
            return Ok(None);
        }
        if let Some(seat) = member.seat.filter(|seat| self.seats.renew(*seat, number, until)) {
            self.slices.on_call(false);
            if let Some(ring) = self.rings[seat as usize].as_mut() {
                ring.on_other(member.next - 1);
            }
            return Ok(u16::try_from(seat).ok());
        }
        let Some(seat) = self.seats.sit(number, now, until) else { return Ok(None) };
        self.slices.on_call(true);
        member.seat = Some(seat);
        let at = self.work.slabs.clear_seat(&self.work.place, seat)?;
        let ring = Ring::new(Arc::clone(&member.slab), at, self.work.slabs.slots(), member.next);
        self.rings[seat as usize] = Some(ring);
        self.work.shared.counters.seats.fetch_max(self.seats.used() as u64, Ordering::Relaxed);
        Ok(u16::try_from(seat).ok())
    }
}

/// The client's memory is gone: it connects again if it is there.
fn end(slab: &Slab, error: &RegionError) {
    tracing::debug!(%error, number = slab.number, "a client's requests cannot be fetched: its connection is closed");
    slab.hang_up();
}
