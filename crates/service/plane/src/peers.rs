//! Other daemons: at most one control link to each, and the rounds of its lanes.
//!
//! Decides which side dials, which of two simultaneous links is kept, and what the engine learns of a link's end; no
//! I/O. Of a link that has not proven the key it must keep only the number, and such a link must never delay it for
//! longer than [`YIELD`].
//!
//! Two daemons that dial each other at the same time: the accepting side decides, when it gets the other's Hello and
//! before it proves anything. The dial of the daemon with the lower instance number goes on; the other dial is refused
//! or given up. While the peer's handshake is under way, a daemon's own dial waits.

mod lanes;
mod paths;
mod redials;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use control::{LEASED_LANE_FIRST, MeetMessage, PeerMessage, Reason, RegionMessage};
use verbs::Time;

use crate::lane_round::LaneRound;
use crate::{Identity, LaneCommand, LinkCommand, LinkId, LinkPath, Ways};
use paths::Paths;
use redials::Redials;

pub use paths::PATH_MISSES;

/// Pause before the next dial to a peer that said that a link exists, or that it dials itself.
const REDIAL: Duration = Duration::from_millis(100);
/// Such dials in a row, then the wish for a lane fails.
const REDIALS_MAX: u32 = 20;
/// Leased lanes of a link that are used or being made, at most. The daemons' own limits are smaller.
const LEASED_PER_LINK_MAX: usize = 4096;
/// How long one's own dial waits for an incoming link that may still prove itself.
const YIELD: Duration = Duration::from_millis(500);

/// What the daemon does for its peers.
#[derive(Debug)]
pub(crate) enum PeerAction {
    /// Do something about a link.
    Link(LinkCommand),
    /// Tell [`crate::Directs::handle_message`].
    Direct { peer: IpAddr, message: PeerMessage },
    /// The peer's daemon speaks of regions.
    Region { peer: IpAddr, message: RegionMessage },
    /// The peer's daemon speaks of TCP connections that streams are to replace.
    Meet { peer: IpAddr, message: MeetMessage },
    /// A link is over. One that follows it is not up before this was said.
    LinkOver { peer: IpAddr, reason: Reason },
    /// For an engine, about a lane of its.
    Engine { engine: u32, lane: u32, command: LaneCommand },
}

/// Whether a link whose Hello was heard may go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may.
    Proceed,
    /// It is refused, with the reason.
    Refuse(Reason, String),
}

/// A link that has proven the key.
#[derive(Debug)]
struct Established {
    link: LinkId,
    instance: u64,
    /// The number by which both daemons name it.
    name: u64,
    /// Of a peer that may have several.
    path: Option<LinkPath>,
    /// Where lanes are, if not between the first addresses of both.
    lane_path: Option<LinkPath>,
    /// The peer says something at least so often.
    heartbeat: Duration,
    /// By number: as many as the daemon with fewer engines has.
    lanes: Vec<LaneSetUp>,
    /// Leased ones that are used or being made, by number.
    leased: BTreeMap<u32, LaneSetUp>,
    /// How many numbers of leased lanes this daemon has given.
    leases: u32,
    heard_at: Time,
    /// The engines know that the peer says nothing.
    is_silent: bool,
}

/// One lane of a link.
#[derive(Debug)]
struct LaneSetUp {
    round: LaneRound,
    pending_since: Option<Time>,
}

impl LaneSetUp {
    fn new(number: u32, rounds: u64) -> Self {
        Self { round: LaneRound::new(number, rounds), pending_since: None }
    }
}

/// The engine that has a lane: the one of its number, and engine 0 for leased ones, as regions are its.
fn engine_of(lane: u32) -> u32 {
    if lane < LEASED_LANE_FIRST { lane } else { 0 }
}

impl Established {
    fn lane_mut(&mut self, number: u32) -> Option<&mut LaneSetUp> {
        if number < LEASED_LANE_FIRST { self.lanes.get_mut(number as usize) } else { self.leased.get_mut(&number) }
    }

    /// All lanes, with their numbers.
    fn all_mut(&mut self) -> impl Iterator<Item = (u32, &mut LaneSetUp)> {
        (0..).zip(&mut self.lanes).chain(self.leased.iter_mut().map(|(&number, lane)| (number, lane)))
    }

    /// The shared lanes that are used, made or at rest.
    fn used_lanes(&self) -> Vec<u32> {
        (0..).zip(&self.lanes).filter(|(_, lane)| !lane.round.is_over()).map(|(number, _)| number).collect()
    }

    fn all(&self) -> impl Iterator<Item = (u32, &LaneSetUp)> {
        (0..).zip(&self.lanes).chain(self.leased.iter().map(|(&number, lane)| (number, lane)))
    }
}

#[derive(Debug, Default)]
struct Peer {
    established: Option<Established>,
    dial: Option<LinkId>,
    /// Numbers of the lanes that engines wait for.
    wanted: BTreeSet<u32>,
    redials: u32,
    /// The dial made way for an incoming link once; it does not do so again before a link is up.
    yielded: bool,
}

/// Addresses from which control links of a host may come beside its own: pairs of such a source and the host.
pub type PeerSources = BTreeSet<(IpAddr, IpAddr)>;
/// The paths to hosts that have several, the preferred one first.
pub type PeerPaths = BTreeMap<IpAddr, Vec<LinkPath>>;

/// Whom a daemon knows, and its bounds.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// This daemon's random number.
    pub instance: u64,
    /// Its engines.
    pub engines: u32,
    /// Other daemons known at a time.
    pub peers_max: usize,
    /// Time for two daemons to set up a lane, while they speak.
    pub lane_setup: Duration,
    /// How often a peer says something at least.
    pub heartbeat: Duration,
    /// Time that a connect of an application may take.
    pub connect_timeout: Duration,
    /// Who may speak for whom.
    pub sources: PeerSources,
    /// How hosts are reached that have several addresses.
    pub paths: PeerPaths,
}

/// All peers of the host.
#[derive(Debug)]
pub struct Peers {
    config: PeersConfig,
    peers: BTreeMap<IpAddr, Peer>,
    /// Dials, and links that are up.
    links: BTreeMap<LinkId, IpAddr>,
    /// Links that we accepted, that have said Hello and not yet proven the key. The code that accepts them bounds their
    /// number.
    incoming: BTreeMap<LinkId, IpAddr>,
    waiting: Redials,
    /// Of the hosts that have several.
    paths: BTreeMap<IpAddr, Paths>,
    path_changes: u64,
    next_link: u64,
    /// No round of a lane had a greater number.
    rounds: u64,
    actions: VecDeque<PeerAction>,
}

impl Peers {
    /// Nobody is known yet.
    pub(crate) fn new(mut config: PeersConfig) -> Self {
        let several = std::mem::take(&mut config.paths).into_iter().filter(|(_, paths)| paths.len() > 1);
        Self {
            paths: several.map(|(peer, paths)| (peer, Paths::new(paths))).collect(),
            config,
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            incoming: BTreeMap::new(),
            waiting: Redials::default(),
            path_changes: 0,
            next_link: 1,
            rounds: 0,
            actions: VecDeque::new(),
        }
    }

    /// Sends a peer's daemon something that is not about lanes. False: there is no link to it.
    pub(crate) fn tell(&mut self, peer: IpAddr, message: PeerMessage) -> bool {
        let link = self.link_to(peer);
        if let Some(link) = link {
            self.actions.push_back(PeerAction::Link(LinkCommand::Send { link, message }));
        }
        link.is_some()
    }

    /// As [`Self::tell`], about regions.
    pub(crate) fn tell_of_region(&mut self, peer: IpAddr, message: RegionMessage) -> bool {
        self.tell(peer, PeerMessage::Region(message))
    }

    /// Ends the link to a peer that does not do what it must.
    pub(crate) fn drop_peer(&mut self, peer: IpAddr, detail: &str) {
        if let Some(link) = self.link_to(peer) {
            self.give_up(peer, link, Reason::PeerLost, detail);
        }
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<PeerAction> {
        self.actions.pop_front()
    }

    /// The link to a peer that is up, if there is one.
    pub fn link_to(&self, peer: IpAddr) -> Option<LinkId> {
        Some(self.peers.get(&peer)?.established.as_ref()?.link)
    }

    fn entry(&mut self, peer: IpAddr) -> Option<&mut Peer> {
        if self.peers.len() >= self.config.peers_max && !self.peers.contains_key(&peer) {
            return None;
        }
        Some(self.peers.entry(peer).or_default())
    }

    // ---- wishes

    /// An engine wants its lane to this host.
    pub(crate) fn handle_wanted(&mut self, now: Time, peer: IpAddr, lane: u32) {
        let rounds = self.rounds;
        let Some(entry) = self.entry(peer) else {
            self.engine_lost(peer, lane, Reason::LocalLimit);
            return;
        };
        let Some(established) = &mut entry.established else {
            if lane >= LEASED_LANE_FIRST {
                // Its handle ended with the link.
                self.engine_lost(peer, lane, Reason::PeerLost);
                return self.forget_idle(peer);
            }
            entry.wanted.insert(lane);
            return self.dial_if_needed(now, peer);
        };
        if lane >= LEASED_LANE_FIRST && !established.leased.contains_key(&lane) {
            established.leased.insert(lane, LaneSetUp::new(lane, rounds));
        }
        match established.lane_mut(lane) {
            Some(wanted) => {
                wanted.round.want();
                self.pump(now, peer);
            }
            // It was chosen when another daemon was there, which had more engines.
            None => self.engine_lost(peer, lane, Reason::PeerLost),
        }
    }

    fn is_arriving(&self, peer: IpAddr) -> bool {
        self.incoming.values().any(|p| *p == peer)
    }

    fn dial_if_needed(&mut self, now: Time, peer: IpAddr) {
        let (arriving, waits) = (self.is_arriving(peer), self.waiting.has(peer));
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let busy = entry.established.is_some() || entry.dial.is_some() || waits;
        if busy || entry.wanted.is_empty() {
            return self.forget_idle(peer);
        }
        if arriving && !std::mem::replace(&mut entry.yielded, true) {
            return self.waiting.set(peer, now + YIELD);
        }
        // A little less than a connect may take, so that its failure has the true reason.
        let deadline = now + self.config.connect_timeout * 4 / 5;
        self.dial(peer, deadline, self.ways_to(peer));
    }

    fn dial(&mut self, peer: IpAddr, deadline: Time, ways: Ways) {
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let link = LinkId(self.next_link);
        self.next_link += 1;
        entry.dial = Some(link);
        self.links.insert(link, peer);
        self.actions.push_back(PeerAction::Link(LinkCommand::Dial { link, peer, deadline, ways }));
    }

    fn forget_idle(&mut self, peer: IpAddr) {
        let idle = |p: &Peer| p.established.is_none() && p.dial.is_none() && p.wanted.is_empty();
        if !self.waiting.has(peer) && self.peers.get(&peer).is_some_and(idle) {
            self.peers.remove(&peer);
        }
    }

    fn engine_lost(&mut self, peer: IpAddr, lane: u32, reason: Reason) {
        let engine = engine_of(lane);
        self.actions.push_back(PeerAction::Engine { engine, lane, command: LaneCommand::Lost { peer, reason } });
    }

    // ---- links coming up

    /// The Hello of a link that we accepted from `source`, before anything is proven.
    pub(crate) fn handle_hello(&mut self, now: Time, link: LinkId, source: IpAddr, hello: Identity) -> Verdict {
        let Identity { instance, address: peer, .. } = hello;
        let source = source.to_canonical();
        if source != peer && !self.config.sources.contains(&(source, peer)) {
            let detail = format!("{source} may not speak for {peer}: give it as a source in [[peer]]");
            return Verdict::Refuse(Reason::BadAddress, detail);
        }
        let may_move = self.paths.contains_key(&peer);
        if let Some(entry) = self.peers.get_mut(&peer) {
            if entry.established.as_ref().is_some_and(|e| e.instance == instance) && !may_move {
                return Verdict::Refuse(Reason::Closed, "there is a link between the two daemons already".into());
            }
            if entry.dial.is_some() && self.config.instance < instance {
                return Verdict::Refuse(Reason::Closed, "both daemons dialed: the other link is kept".into());
            }
            if let Some(dial) = entry.dial
                && !std::mem::replace(&mut entry.yielded, true)
            {
                entry.dial = None;
                self.waiting.set(peer, now + YIELD);
                self.links.remove(&dial);
                self.actions.push_back(PeerAction::Link(LinkCommand::CancelDial { link: dial }));
            }
        } else if self.peers.len() >= self.config.peers_max {
            return Verdict::Refuse(Reason::PeerLimit, "this daemon knows as many peers as it may".into());
        }
        self.incoming.insert(link, peer);
        Verdict::Proceed
    }

    /// A link has proven the key. It goes over `path`, if that is known.
    pub(crate) fn handle_up(&mut self, now: Time, link: LinkId, identity: Identity, path: Option<LinkPath>) {
        let Identity { address: peer, instance, engines, .. } = identity;
        let known = self.incoming.remove(&link).is_some() || self.links.contains_key(&link);
        let Some(entry) = self.entry(peer).filter(|_| known) else {
            self.links.remove(&link);
            return self.close(link, Reason::Closed, "this link was given up");
        };
        let dialed = entry.dial.take_if(|d| *d == link).is_some();
        let same = self.peers.get(&peer).and_then(|p| p.established.as_ref()).filter(|e| e.instance == instance);
        let is_move = same.is_some_and(|old| self.may_replace(old, link, dialed, &identity));
        if same.is_some() && !is_move {
            self.links.remove(&link);
            return self.close(link, Reason::Closed, "there is a link between the two daemons already");
        }
        let mut moved = Vec::new();
        if let Some(old) = self.take_established(peer) {
            // Without the same number it is a restarted peer, and the old link a dead process's.
            let words = if is_move { "the link has another path now" } else { "the peer's daemon was started again" };
            self.close(old.link, Reason::Closed, words);
            self.note_link_over(now, peer, old.is_silent);
            self.lanes_lost(peer, &old, Reason::PeerLost);
            moved = if is_move { old.used_lanes() } else { moved };
        }
        self.establish(now, (link, path), &identity, engines, moved);
    }

    /// There is no link to the peer, so this is the one.
    fn establish(
        &mut self,
        now: Time,
        (link, path): (LinkId, Option<LinkPath>),
        identity: &Identity,
        engines: u32,
        moved: Vec<u32>,
    ) {
        let Identity { address: peer, instance, .. } = *identity;
        let lane_path = self.lane_path(peer, path);
        self.note_path(now, peer, identity.link.own, path);
        let heartbeat = identity.heartbeat;
        let lanes = engines.clamp(1, self.config.engines.max(1));
        let lanes: Vec<LaneSetUp> = (0..lanes).map(|number| LaneSetUp::new(number, self.rounds)).collect();
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        let dial = entry.dial.take();
        self.waiting.cancel(peer);
        (entry.redials, entry.yielded) = (0, false);
        let leased = BTreeMap::new();
        let name = identity.link.own;
        let (leases, is_silent, heard_at) = (0, false, now);
        let mut established = Established {
            link,
            instance,
            name,
            path,
            lane_path,
            heartbeat,
            lanes,
            leased,
            leases,
            heard_at,
            is_silent,
        };
        let mut without = Vec::new();
        entry.wanted.extend(moved);
        for number in std::mem::take(&mut entry.wanted) {
            match established.lanes.get_mut(number as usize) {
                Some(lane) => lane.round.want(),
                None => without.push(number),
            }
        }
        entry.established = Some(established);
        self.links.insert(link, peer);
        if let Some(dial) = dial {
            self.links.remove(&dial);
            self.actions.push_back(PeerAction::Link(LinkCommand::CancelDial { link: dial }));
        }
        // They were chosen when another daemon was there, which had more engines.
        for engine in without {
            self.engine_lost(peer, engine, Reason::PeerLost);
        }
        self.pump(now, peer);
    }

    // ---- links going down

    /// A dial ended without a link. `Reason::Closed` is the peer's word that another link exists or comes.
    pub(crate) fn handle_dial_failed(&mut self, now: Time, link: LinkId, reason: Reason) {
        let Some(peer) = self.links.remove(&link) else { return };
        let Some(entry) = self.peers.get_mut(&peer).filter(|p| p.dial == Some(link)) else { return };
        entry.dial = None;
        self.note_dial_failed(now, peer);
        let Some(entry) = self.peers.get_mut(&peer) else { return };
        if reason == Reason::Closed && entry.redials < REDIALS_MAX {
            entry.redials += 1;
            return self.waiting.set(peer, now + REDIAL);
        }
        let wanted = std::mem::take(&mut entry.wanted);
        (entry.redials, entry.yielded) = (0, false);
        let reason = if reason == Reason::Closed { Reason::PeerUnreachable } else { reason };
        for engine in wanted {
            self.engine_lost(peer, engine, reason);
        }
        self.forget_idle(peer);
    }

    /// A link that we accepted or that was up has ended.
    pub(crate) fn handle_down(&mut self, now: Time, link: LinkId, reason: Reason) {
        if let Some(peer) = self.incoming.remove(&link) {
            if !self.is_arriving(peer) {
                self.waiting.cancel(peer);
            }
            return self.dial_if_needed(now, peer);
        }
        let Some(&peer) = self.links.get(&link) else { return };
        let established = self.peers.get(&peer).and_then(|p| p.established.as_ref());
        if let Some(over) = established.filter(|e| e.link == link) {
            let (was_silent, used) = (over.is_silent, over.used_lanes());
            self.note_link_over(now, peer, was_silent);
            let goes_on = reason == Reason::PeerLost && self.paths.contains_key(&peer);
            self.drop_established(peer, reason);
            if let Some(entry) = self.peers.get_mut(&peer).filter(|_| goes_on) {
                // Without waiting for the engines' word: another path may be there.
                entry.wanted.extend(used);
            }
            self.dial_if_needed(now, peer);
        }
    }

    fn take_established(&mut self, peer: IpAddr) -> Option<Established> {
        let established = self.peers.get_mut(&peer)?.established.take()?;
        let last = established.all().map(|(_, lane)| lane.round.number()).max();
        self.rounds = self.rounds.max(last.unwrap_or_default());
        self.links.remove(&established.link);
        Some(established)
    }

    fn drop_established(&mut self, peer: IpAddr, reason: Reason) {
        if let Some(old) = self.take_established(peer) {
            tracing::info!(%peer, %reason, "the link to the peer's daemon is lost; its connections end");
            self.lanes_lost(peer, &old, reason);
        }
    }

    /// All lanes of a link are lost with it.
    fn lanes_lost(&mut self, peer: IpAddr, old: &Established, reason: Reason) {
        for (lane, _) in old.all() {
            self.engine_lost(peer, lane, reason);
        }
        self.actions.push_back(PeerAction::LinkOver { peer, reason });
    }

    /// Our side ends a link that is up.
    fn give_up(&mut self, peer: IpAddr, link: LinkId, reason: Reason, detail: &str) {
        self.close(link, reason, detail);
        self.drop_established(peer, reason);
        self.forget_idle(peer);
    }

    fn close(&mut self, link: LinkId, reason: Reason, detail: &str) {
        self.actions.push_back(PeerAction::Link(LinkCommand::Close { link, reason, detail: detail.into() }));
    }

    // ---- time

    /// When [`Self::handle_timeout`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.waiting.deadline(), self.probe_deadline()].into_iter().flatten().min()
    }

    /// Dials again, and tries better paths.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        // A dial that makes way once more waits until later than now.
        while let Some(peer) = self.waiting.take_due(now) {
            self.dial_if_needed(now, peer);
        }
        self.probe_due(now);
    }
}

#[cfg(test)]
mod tests;
