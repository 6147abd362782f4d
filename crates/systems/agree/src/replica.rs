//! A member's replica: the machine that a driver feeds.
//!
//! Owns what this member is, and when it changes: it learns, looks around, and reigns. It must answer everything that
//! was proposed to it exactly once: committed, or unknown when it leads no more.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::action::{Action, Answer, Event, Outbox, Role, Use};
use crate::context::Context;
use crate::detector::Detector;
use crate::error::{OutOfRange, Refused};
use crate::layout::{OWNER_AT, OWNER_BYTES, Owner};
use crate::learner::Learner;
use crate::look::Look;
use crate::machine::{Machine, State};
use crate::members::Members;
use crate::pace::Pace;
use crate::reign::{End, Phase, Reign};
use crate::settings::{JITTER_PERIODS, Settings};
use crate::term::{ROUND_MAX, Term};

/// See the head of this file. The driver calls one input or several, then takes [`Replica::action`] and
/// [`Replica::event`], in this order, until there are none.
#[derive(Debug)]
pub struct Replica<M> {
    settings: Settings,
    state: State<M>,
    outbox: Outbox,
    rng: StdRng,
    now: u64,
    /// The next period begins.
    period_at: u64,
    beat: u64,
    /// The greatest term that was seen in a head; its member is taken for the leader.
    known: Term,
    /// The greatest round that anybody was seen to try.
    round: u64,
    detector: Detector,
    pace: Pace,
    campaign_at: Option<u64>,
    /// The members by the log that was furthest on.
    members: Members,
    what: What,
    last_read: u64,
    /// Commands wait for [`Replica::action`].
    has_proposed: bool,
    role: Role,
    /// The members that the user was told of.
    said: Members,
}

#[derive(Debug)]
pub(crate) enum What {
    Learning(Learner),
    Looking(Look),
    Reigning(Box<Reign>),
}

impl<M: Machine> Replica<M> {
    /// A replica that knows nothing yet: it finds log and state in the memories. The machine is as new.
    pub fn new(settings: Settings, machine: M) -> Result<Self, OutOfRange> {
        settings.check()?;
        let members = settings.first();
        Ok(Self {
            state: State::new(machine, settings.group, members.clone()),
            rng: StdRng::seed_from_u64(settings.seed),
            outbox: Outbox::default(),
            now: 0,
            period_at: 0,
            beat: 0,
            known: Term::NONE,
            round: 0,
            detector: Detector::nobody(),
            pace: Pace::default(),
            campaign_at: None,
            members,
            what: What::Learning(Learner::Idle),
            last_read: 0,
            has_proposed: false,
            role: Role::Follower { leader: None },
            said: settings.first(),
            settings,
        })
    }

    /// Time has come to here: microseconds, never less than before. To be called about as often as the period.
    pub fn tick(&mut self, now_us: u64) {
        self.now = self.now.max(now_us);
        if self.now >= self.period_at {
            self.period_at = self.now + self.settings.period_us;
            self.beat += 1;
            if matches!(self.what, What::Reigning(_)) || !self.detector.is_gone() {
                self.pace.on_period(self.state.applied.term, self.state.commanded);
            }
            self.publish();
            self.on_period();
        }
        if let Some((reign, mut cx)) = self.reign() {
            reign.ask_files(&mut cx);
        }
        self.say_role();
    }

    /// A client's command. The numbers of a client grow, and it has one command under way at a time; a repeated number
    /// is the same command, and is done once. Answered by [`Event::Committed`] or [`Event::Unknown`].
    pub fn propose(&mut self, client: u64, number: u64, bytes: &[u8]) -> Result<(), Refused> {
        let hint = self.leader();
        let Some((reign, mut cx)) = self.reign() else { return Err(Refused::NotLeader { hint }) };
        reign.propose((client, number, bytes), &mut cx)?;
        self.has_proposed = true;
        Ok(())
    }

    /// Begins a read that is linearizable: at [`Event::Readable`] with the number that this returns,
    /// [`Replica::machine`] has everything that was committed now. The clock must be asked for `now_us` after the user asked
    /// for the read: under a lease that is all that is looked at.
    pub fn read(&mut self, now_us: u64) -> Result<u64, Refused> {
        let hint = self.leader();
        self.now = self.now.max(now_us);
        self.last_read += 1;
        let read = self.last_read;
        let Some((reign, mut cx)) = self.reign() else { return Err(Refused::NotLeader { hint }) };
        let Phase::Leading(leading) = &mut reign.phase else { return Err(Refused::NotLeader { hint }) };
        leading.read(read, &reign.members, &mut cx);
        Ok(read)
    }

    /// Has a host join. It is a member when its memory has caught up, which [`Event::Members`] tells.
    pub fn add(&mut self, id: u8) -> Result<(), Refused> {
        self.alter(id, true)
    }

    /// Removes a member.
    pub fn remove(&mut self, id: u8) -> Result<(), Refused> {
        self.alter(id, false)
    }

    fn alter(&mut self, id: u8, is_added: bool) -> Result<(), Refused> {
        let hint = self.leader();
        let Some((reign, mut cx)) = self.reign() else { return Err(Refused::NotLeader { hint }) };
        reign.alter((id, is_added), &mut cx)?;
        let result = reign.settle(&mut cx);
        self.after(result);
        self.say_role();
        Ok(())
    }

    /// The driver knows that a member's host cannot be reached.
    pub fn link_lost(&mut self, member: u8) {
        if self.known.member() == member {
            self.detector.on_gone();
        }
        if let Some((reign, mut cx)) = self.reign() {
            let result = reign.on_lost(member, &mut cx);
            self.after(result);
        }
        self.say_role();
    }

    /// How an action ended.
    pub fn answer(&mut self, id: u64, answer: Answer) {
        match self.outbox.take(id) {
            Some(Use::Beat(term)) => self.on_beat(term, answer),
            Some(Use::Learn) => self.on_learn(answer),
            Some(Use::Look(member)) => self.on_look(member, answer),
            Some(Use::Hold(member, hold)) => {
                if let Some((reign, mut cx)) = self.reign() {
                    let result = reign.on_hold((id, member, hold), answer, &mut cx);
                    self.after(result);
                }
            }
            Some(Use::Confirm(member, round)) => self.on_confirm((member, round), &answer),
            Some(Use::Load) => {
                if let Some((reign, mut cx)) = self.reign() {
                    let result = reign.on_load(answer, &mut cx);
                    self.after(result);
                }
            }
            // Nobody waits for it any more.
            None => {}
        }
        self.say_role();
    }

    /// What the driver is to do next. What was proposed since the last time goes with one WRITE.
    pub fn action(&mut self) -> Option<Action> {
        if std::mem::take(&mut self.has_proposed)
            && let Some((reign, mut cx)) = self.reign()
        {
            let result = reign.settle(&mut cx);
            self.after(result);
            self.say_role();
        }
        self.outbox.actions.pop_front()
    }

    /// What the user hears next.
    pub fn event(&mut self) -> Option<Event> {
        self.outbox.events.pop_front()
    }

    /// Whether it needs no answer before the next [`Replica::tick`]: it follows, and looks once in a period.
    pub fn is_patient(&self) -> bool {
        matches!(self.what, What::Learning(_))
    }

    /// Whether members' files are looked at again and again: then [`Replica::tick`] is to be called some times in a period.
    pub fn waits_for_files(&self) -> bool {
        self.settings.is_synced && matches!(&self.what, What::Reigning(reign) if reign.waits_for_files())
    }

    /// The user's machine. Unless an [`Event::Readable`] was just taken it may be behind.
    pub fn machine(&self) -> &M {
        &self.state.machine
    }

    /// The index of the last entry that was applied.
    pub fn applied(&self) -> u64 {
        self.state.applied.index
    }

    /// The members as of that entry.
    pub fn members(&self) -> &Members {
        &self.state.members
    }

    pub(crate) fn what(&self) -> &What {
        &self.what
    }

    pub(crate) fn known(&self) -> Term {
        self.known
    }

    pub(crate) fn doublings(&self) -> u32 {
        self.pace.doublings()
    }

    pub(crate) fn asked(&self) -> usize {
        self.outbox.asked()
    }

    /// Who leads, as far as is known.
    pub fn leader(&self) -> Option<u8> {
        match &self.what {
            What::Reigning(reign) => reign.leading().map(|_| self.settings.me),
            _ => (self.known > Term::NONE).then(|| self.known.member()).filter(|id| *id != self.settings.me),
        }
    }

    fn parts(&mut self) -> (&mut What, Context<'_, M>) {
        let Self { settings, state, outbox, now, what, pace, .. } = self;
        (what, Context { settings, state, outbox, now: *now, doublings: pace.doublings() })
    }

    fn reign(&mut self) -> Option<(&mut Reign, Context<'_, M>)> {
        match self.parts() {
            (What::Reigning(reign), cx) => Some((reign, cx)),
            _ => None,
        }
    }

    fn publish(&mut self) {
        let leads = self.reign().map_or(Term::NONE, |(reign, _)| reign.term);
        let owner = Owner { beat: self.beat, leads, applied: self.state.applied.index };
        self.outbox.actions.push_back(Action::Publish { offset: OWNER_AT, bytes: owner.encode() });
    }

    fn say_role(&mut self) {
        let leader = self.leader();
        let role = match &self.what {
            What::Reigning(reign) if reign.leading().is_some_and(|leading| leading.is_whole()) => {
                Role::Leader { term: reign.term }
            }
            What::Reigning(reign) => Role::Candidate { term: reign.term },
            _ => Role::Follower { leader },
        };
        if self.state.members != self.said {
            self.said = self.state.members.clone();
            self.outbox.events.push_back(Event::Members(self.said.clone()));
        }
        if role != self.role {
            self.role = role;
            self.outbox.events.push_back(Event::Role(role));
        }
    }

    fn on_period(&mut self) {
        if let Some((reign, mut cx)) = self.reign() {
            let result = reign.on_period(&mut cx);
            return self.after(result);
        }
        match self.parts() {
            // Its state may be any, so it must not lead.
            (What::Learning(Learner::Stopped), _) => {}
            (What::Looking(look), cx) if cx.now >= look.until => self.decide(),
            (What::Learning(learner), mut cx) => {
                learner.begin(&mut cx);
                self.watch();
            }
            _ => {}
        }
    }

    /// Looks at the leader's beat, and after him if he is gone.
    fn watch(&mut self) {
        let (known, me) = (self.known, self.settings.me);
        if known == Term::NONE || known.member() == me {
            self.detector.on_gone();
        } else if self.outbox.waits_for(|what| *what == Use::Beat(known)) {
            self.detector.on_none(self.pace.doublings());
        } else {
            self.outbox.read(Use::Beat(known), known.member(), (OWNER_AT, OWNER_BYTES));
        }
        if !self.detector.is_gone() {
            self.campaign_at = None;
            return;
        }
        let jitter = self.rng.random_range(0..=JITTER_PERIODS << self.pace.doublings()) * self.settings.period_us;
        let at = *self.campaign_at.get_or_insert(self.now + jitter);
        if self.now >= at {
            self.look();
        }
    }

    fn look(&mut self) {
        self.campaign_at = None;
        let lists = [self.settings.first(), self.state.members.clone(), self.members.clone()];
        let hosts: BTreeSet<u8> = lists.iter().flat_map(Members::iter).map(|member| member.id).collect();
        self.outbox.forget(|what| matches!(what, Use::Learn));
        let (what, mut cx) = self.parts();
        *what = What::Looking(Look::begin(&hosts, &mut cx));
    }

    fn on_look(&mut self, member: u8, answer: Answer) {
        let (What::Looking(look), mut cx) = self.parts() else { return };
        look.on_answer(member, answer, &mut cx);
        if look.is_over() {
            self.decide();
        }
    }

    /// All was seen that can be seen.
    fn decide(&mut self) {
        self.outbox.forget(|what| matches!(what, Use::Look(_)));
        let (What::Looking(look), cx) = self.parts() else { return };
        let (seen, is_over) = (look.seen(&cx), look.is_over());
        self.what = What::Learning(Learner::Idle);
        self.outbox.events.extend(seen.wild.iter().map(|member| Event::Wild { member: *member }));
        self.round = self.round.max(seen.term.round());
        if seen.term > self.known {
            return self.follow(seen.term);
        }
        // The next look goes to them too.
        self.members = seen.members.clone();
        if !seen.is_majority && !is_over {
            self.pace.on_late();
        }
        let is_over = self.round >= ROUND_MAX;
        if !seen.is_majority || !seen.members.has_host(self.settings.me) || is_over {
            return;
        }
        self.round += 1;
        let term = Term::new(self.round, self.settings.me);
        self.pace.on_term(term);
        let hosts = seen.members.iter().map(|member| member.id).collect();
        let (what, mut cx) = self.parts();
        *what = What::Reigning(Box::new(Reign::begin(term, seen.members, &hosts, &mut cx)));
        self.publish();
    }

    /// Somebody leads, or is about to.
    fn follow(&mut self, term: Term) {
        if term > self.known {
            self.known = term;
            self.pace.on_term(term);
            self.detector = Detector::fresh();
            self.campaign_at = None;
        }
        self.round = self.round.max(term.round());
    }

    fn on_beat(&mut self, term: Term, answer: Answer) {
        if term != self.known {
            return;
        }
        let owner = match answer {
            Answer::Read { bytes, .. } => Owner::decode(&bytes),
            _ => None,
        };
        match owner.filter(|owner| owner.leads == term) {
            Some(owner) => self.detector.on_beat(owner.beat, self.pace.doublings()),
            None => self.detector.on_gone(),
        }
    }

    fn on_learn(&mut self, answer: Answer) {
        let (What::Learning(learner), mut cx) = self.parts() else { return };
        if let Some(term) = learner.on_answer(answer, &mut cx) {
            self.follow(term);
        }
    }

    fn on_confirm(&mut self, (member, round): (u8, u64), answer: &Answer) {
        let Some((reign, mut cx)) = self.reign() else { return };
        let Phase::Leading(leading) = &mut reign.phase else { return };
        let result = leading.on_confirm((member, round), answer, (reign.term, &reign.members), &mut cx);
        self.after(result.map_err(End::Superseded));
    }

    /// A reign goes on, or ends here.
    fn after(&mut self, result: Result<(), End>) {
        let Err(end) = result else { return };
        let What::Reigning(reign) = std::mem::replace(&mut self.what, What::Learning(Learner::Idle)) else { return };
        self.outbox.forget(|what| matches!(what, Use::Hold(..) | Use::Confirm(..) | Use::Load));
        if let Phase::Leading(mut leading) = reign.phase {
            let pending = std::mem::take(&mut leading.pending).into_values();
            self.outbox.events.extend(pending.map(|(client, number)| Event::Unknown { client, number }));
            let reads = leading.confirm.end().into_iter();
            self.outbox.events.extend(reads.map(|read| Event::ReadFailed { read }));
        }
        self.known = self.known.max(reign.term);
        self.members = reign.members;
        self.detector.on_gone();
        self.campaign_at = None;
        match end {
            End::Superseded(term) => self.follow(term),
            End::BadSnapshot => {
                self.what = What::Learning(Learner::Stopped);
                self.outbox.events.push_back(Event::BadSnapshot);
            }
            End::NoMajority | End::Removed => {}
        }
        self.publish();
    }
}
