//! Which failures have a cause: what the world broke, when, and for whom.
//!
//! A cause found here is necessary, not sufficient: it can excuse a failure that had another origin, but a failure
//! without any fault is never excused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use control::Reason;
use verbs::Time;

use super::AppUid;
use crate::plan::DaemonPlan;

/// Harms after which a queue pair may give up: its retries and the first attempt, less one.
const HARMS_OF_A_FAILURE: usize = 6;
/// Harms of one pair of hosts that are remembered.
const HARMS_MAX: usize = 64;
/// A failure's causes are looked for this far back: longer than all retries of a queue pair together take, which is
/// What an engine says of a lane that it makes anew because of its keys.
const WORN_KEYS: &str = "its keys have protected";
/// seven times the four-fold ACK timeout of a lane at most.
const LOOK_BACK: Duration = Duration::from_secs(20);
/// How long a command of the daemon is on its way to an engine, at most.
const ENGINE_HEARS: Duration = Duration::from_millis(1);
/// Resets of a lane after which its connections may end: as many that were of no use.
const RESETS_OF_A_FAILURE: usize = 3;
/// They are looked for this far back.
const RESETS_LOOK_BACK: Duration = Duration::from_secs(100);
/// What it takes on top of a daemon's death until its processes have found the next one and lanes are up.
const COMES_BACK: Duration = Duration::from_millis(400);
/// Longest time that a daemon dials.
const DIALS: Duration = Duration::from_secs(12);

fn before(at: Time, by: Duration) -> Time {
    Time(at.as_nanos().saturating_sub(by.as_nanos() as u64))
}

/// A connect that was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) at: Time,
    pub(crate) from: usize,
    /// Host and port.
    pub(crate) to: (usize, u16),
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
struct Listener {
    owner: AppUid,
    from: Time,
    until: Option<Time>,
    backlog: u32,
}

/// What was broken.
#[derive(Debug)]
pub(crate) struct Causes {
    has_tight_limits: bool,
    without_unreliable: BTreeSet<usize>,
    listeners: BTreeMap<(usize, u16), Vec<Listener>>,
    connects: BTreeMap<(usize, u16), u32>,
    /// By the host whose end was lost, and the peer.
    lane_losses: BTreeMap<(usize, usize), Vec<(Time, Reason)>>,
    /// Hosts that were dead or stood still.
    outages: Vec<(usize, Time, Option<Time>)>,
    /// Daemons that were killed.
    kills: Vec<(usize, Time)>,
    /// How long connections wait for their other ends.
    peer_return: Duration,
    /// Packets that did not arrive as they were sent, of each undirected pair, newest last.
    harms: BTreeMap<(usize, usize), VecDeque<Time>>,
    /// Queue pairs that were broken, by undirected pair.
    breaks: BTreeSet<(usize, usize)>,
    /// When the TCP connections of streams of bulk were broken, by undirected pair.
    directs_broken: Vec<((usize, usize), Time)>,
    /// Resets over which connections went on, by the host whose end it was, and the peer.
    lane_resets: BTreeMap<(usize, usize), Vec<Time>>,
    /// Hosts on which a process did not make a segment that it was asked for.
    segments_refused: BTreeSet<usize>,
    /// The daemons that hosts run, or ran last.
    daemons: BTreeMap<usize, DaemonPlan>,
    /// Pairs of hosts whose daemons had different keys at some time.
    other_key: BTreeSet<(usize, usize)>,
    /// Pairs of hosts whose daemons spoke different versions at some time.
    other_version: BTreeSet<(usize, usize)>,
    /// Hosts whose programs might have few connections at some time.
    policies: BTreeSet<usize>,
    /// Pairs of hosts whose network was cut.
    troubles: Vec<((usize, usize), Time, Option<Time>)>,
}

fn lasts(until: Option<Time>, since: Time) -> bool {
    until.is_none_or(|until| until >= since)
}

impl Causes {
    pub(crate) fn new(has_tight_limits: bool) -> Self {
        Self {
            has_tight_limits,
            without_unreliable: BTreeSet::new(),
            listeners: BTreeMap::new(),
            connects: BTreeMap::new(),
            lane_losses: BTreeMap::new(),
            outages: Vec::new(),
            kills: Vec::new(),
            peer_return: Duration::ZERO,
            harms: BTreeMap::new(),
            breaks: BTreeSet::new(),
            directs_broken: Vec::new(),
            lane_resets: BTreeMap::new(),
            segments_refused: BTreeSet::new(),
            daemons: BTreeMap::new(),
            other_key: BTreeSet::new(),
            other_version: BTreeSet::new(),
            policies: BTreeSet::new(),
            troubles: Vec::new(),
        }
    }

    pub(crate) fn has_tight_limits(&self) -> bool {
        self.has_tight_limits
    }

    /// Whether the next daemon of a host may not take what its programs had open: its tables are small, or a policy counts.
    pub(crate) fn may_not_be_adopted(&self, host: usize) -> bool {
        self.has_tight_limits || self.policies.contains(&host)
    }

    // ---- what the world tells

    pub(crate) fn on_listening(&mut self, now: Time, owner: AppUid, at: (usize, u16), backlog: u32) {
        self.listeners.entry(at).or_default().push(Listener { owner, from: now, until: None, backlog });
    }

    /// A process is gone for its daemon, and its listeners with it.
    pub(crate) fn on_owner_gone(&mut self, now: Time, owner: AppUid) {
        for l in self.listeners.values_mut().flatten().filter(|l| l.owner == owner) {
            l.until.get_or_insert(now);
        }
    }

    pub(crate) fn on_unlistened(&mut self, now: Time, host: usize, port: u16) {
        for l in self.listeners.entry((host, port)).or_default() {
            l.until.get_or_insert(now);
        }
    }

    pub(crate) fn on_policy(&mut self, host: usize) {
        self.policies.insert(host);
    }

    pub(crate) fn on_asked(&mut self, to: (usize, u16)) {
        *self.connects.entry(to).or_default() += 1;
    }

    /// A daemon gave a lane up, or learned that it is lost.
    pub(crate) fn on_lane_lost(&mut self, now: Time, host: usize, peer: usize, reason: Reason) {
        self.lane_losses.entry((host, peer)).or_default().push((now, reason));
    }

    /// A host died or stands still.
    pub(crate) fn on_outage(&mut self, host: usize, from: Time, until: Option<Time>) {
        self.outages.push((host, from, until));
    }

    /// The daemon of a host is killed: nobody listens there until processes have come back to the next one.
    pub(crate) fn on_daemon_killed(&mut self, now: Time, host: usize) {
        self.kills.push((host, now));
        for listener in self.listeners.iter_mut().filter(|((at, _), _)| *at == host).flat_map(|(_, all)| all) {
            listener.until.get_or_insert(now);
        }
    }

    /// Hosts whose lanes take RDMA over TCP alone.
    pub(crate) fn set_without_unreliable(&mut self, hosts: BTreeSet<usize>) {
        self.without_unreliable = hosts;
    }

    /// Connections wait for so long when the other end cannot be reached.
    pub(crate) fn set_peer_return(&mut self, wait: Duration) {
        self.peer_return = wait;
    }

    /// Whether they wait at all.
    pub(crate) fn waits(&self) -> bool {
        !self.peer_return.is_zero()
    }

    /// Why connections between two hosts could wait in vain: something other than short deaths of daemons came between.
    pub(crate) fn explains_giving_up(&self, host: usize, peer: usize) -> bool {
        let pair = (host.min(peer), host.max(peer));
        let outages = || self.outages.iter().filter(|(at, ..)| *at == host || *at == peer);
        let is_kill = |(at, from, _): &&(usize, Time, Option<Time>)| self.kills.contains(&(*at, *from));
        let away = |(_, from, until): &(usize, Time, Option<Time>)| {
            until.map(|until| until.saturating_since(*from) + COMES_BACK)
        };
        let away: Option<Duration> = outages().map(away).sum();
        let was_short = away.is_some_and(|away| 2 * away < self.peer_return);
        let was_alone = outages().all(|outage| is_kill(&outage))
            && !self.troubles.iter().any(|(of, ..)| *of == pair)
            && !self.harms.contains_key(&pair)
            && !self.breaks.contains(&pair)
            && !self.has_tight_limits
            && self.fit_together(host, peer)
            && !self.has_few_places(host)
            && !self.has_few_places(peer);
        !(was_short && was_alone)
    }

    /// Whether the daemon of a host was killed since.
    pub(crate) fn was_daemon_killed(&self, host: usize, since: Time) -> bool {
        self.kills.iter().any(|(at, when)| *at == host && *when >= since)
    }

    /// A host is back.
    pub(crate) fn on_back(&mut self, now: Time, host: usize) {
        for (h, _, until) in &mut self.outages {
            if *h == host {
                until.get_or_insert(now);
            }
        }
    }

    /// The path between two hosts is cut.
    pub(crate) fn on_cut(&mut self, now: Time, a: usize, b: usize) {
        self.troubles.push(((a.min(b), a.max(b)), now, None));
    }

    /// A host's link to another one went over to another path, with the lanes.
    pub(crate) fn on_moved(&mut self, now: Time, a: usize, b: usize) {
        self.troubles.push(((a.min(b), a.max(b)), now, Some(now)));
    }

    /// A packet between two hosts did not arrive as it was sent.
    pub(crate) fn on_harm(&mut self, now: Time, a: usize, b: usize) {
        let harms = self.harms.entry((a.min(b), a.max(b))).or_default();
        if harms.len() == HARMS_MAX {
            harms.pop_front();
        }
        harms.push_back(now);
    }

    /// A queue pair between two hosts was broken.
    pub(crate) fn on_break(&mut self, a: usize, b: usize) {
        self.breaks.insert((a.min(b), a.max(b)));
    }

    /// The TCP connections of streams of bulk between two hosts were broken.
    pub(crate) fn on_directs_broken(&mut self, now: Time, a: usize, b: usize) {
        self.directs_broken.push(((a.min(b), a.max(b)), now));
    }

    /// Whether they were since.
    pub(crate) fn were_directs_broken(&self, a: usize, b: usize, since: Time) -> bool {
        self.directs_broken.iter().any(|(pair, at)| *pair == (a.min(b), a.max(b)) && *at >= since)
    }

    /// An end of a lane gave its queue pair up and kept its connections.
    pub(crate) fn on_lane_reset(&mut self, now: Time, host: usize, peer: usize) {
        self.lane_resets.entry((host, peer)).or_default().push(now);
    }

    /// It works again.
    pub(crate) fn on_healed(&mut self, now: Time, a: usize, b: usize) {
        for (pair, _, until) in &mut self.troubles {
            if *pair == (a.min(b), a.max(b)) {
                until.get_or_insert(now);
            }
        }
    }

    /// A process of a host does not make its segment for a pair.
    pub(crate) fn on_segment_refused(&mut self, host: usize) {
        self.segments_refused.insert(host);
    }

    /// A host's daemon starts.
    pub(crate) fn on_daemon(&mut self, host: usize, daemon: &DaemonPlan) {
        for (other, theirs) in self.daemons.iter().filter(|(other, _)| **other != host) {
            let pair = (host.min(*other), host.max(*other));
            if theirs.key != daemon.key {
                self.other_key.insert(pair);
            }
            if theirs.wire_version != daemon.wire_version {
                self.other_version.insert(pair);
            }
        }
        self.daemons.insert(host, daemon.clone());
    }

    // ---- what the checkers ask

    /// Whether the daemons of two hosts speak with each other now, if both run.
    pub(crate) fn fit_together(&self, a: usize, b: usize) -> bool {
        let name = |host: usize| self.daemons.get(&host).map(|daemon| (daemon.key, daemon.wire_version));
        name(a) == name(b)
    }

    /// Whether the daemons of two hosts spoke with each other whenever both ran.
    pub(crate) fn always_fit(&self, a: usize, b: usize) -> bool {
        let pair = (a.min(b), a.max(b));
        !self.other_key.contains(&pair) && !self.other_version.contains(&pair)
    }

    /// Whether a host has so few places for links without proof that one may take another's.
    pub(crate) fn has_few_places(&self, host: usize) -> bool {
        self.daemons.get(&host).is_some_and(|daemon| daemon.handshakes_max < DaemonPlan::default().handshakes_max)
    }

    /// Why a lane of `host` to `peer` could be lost.
    pub(crate) fn explains_loss(&self, now: Time, host: usize, peer: usize, reason: Reason) -> bool {
        let pair = (host.min(peer), host.max(peer));
        match reason {
            // The peer gave the link's place away before it had this host's proof, which was on its way.
            Reason::PeerLost if self.has_few_places(peer) => true,
            Reason::PeerLost | Reason::TimedOut => self.was_troubled(host, peer, before(now, LOOK_BACK)),
            Reason::PeerUnreachable => self.was_troubled(host, peer, before(now, DIALS)),
            Reason::PeerBusy => self.has_few_places(peer) || self.was_troubled(host, peer, before(now, DIALS)),
            Reason::PeerAuth => self.other_key.contains(&pair),
            Reason::PeerVersion => self.other_version.contains(&pair),
            Reason::LocalLimit | Reason::PeerLimit | Reason::Closed => self.has_tight_limits,
            Reason::LaneFailed => {
                self.explains_lane_failure(now, host, peer) || self.explains_lane_failure(now, peer, host)
            }
            _ => false,
        }
    }

    pub(crate) fn was_lane_lost(&self, host: usize, peer: usize, since: Time, reason: Reason) -> bool {
        let losses = self.lane_losses.get(&(host, peer));
        losses.is_some_and(|l| l.iter().any(|(at, r)| *at >= since && *r == reason))
    }

    fn was_any_lane_lost(&self, host: usize, peer: usize, since: Time) -> bool {
        self.lane_losses.get(&(host, peer)).is_some_and(|l| l.iter().any(|(at, _)| *at >= since))
    }

    pub(crate) fn was_unlistened(&self, host: usize, port: u16, since: Time) -> bool {
        let listeners = self.listeners.get(&(host, port));
        // The engine, which takes connections in until it hears of it, hears of it later.
        let since = before(since, ENGINE_HEARS);
        listeners.is_some_and(|l| l.iter().any(|l| l.until.is_some_and(|until| until >= since)))
    }

    /// Whether there was no moment since `since` at which nobody listened.
    fn was_always_listening(&self, host: usize, port: u16, since: Time) -> bool {
        let listeners = self.listeners.get(&(host, port));
        listeners.is_some_and(|l| l.iter().any(|l| l.from <= since && l.until.is_none()))
    }

    /// Whether one of two hosts was dead or stood still, or the path between them was cut.
    pub(crate) fn was_troubled(&self, a: usize, b: usize, since: Time) -> bool {
        let pair = (a.min(b), a.max(b));
        self.outages.iter().any(|(h, _, until)| (*h == a || *h == b) && lasts(*until, since))
            || self.troubles.iter().any(|(p, _, until)| *p == pair && lasts(*until, since))
    }

    /// Whether a lane between two hosts got a new queue pair at any time.
    pub(crate) fn was_reset_between(&self, a: usize, b: usize) -> bool {
        [(a, b), (b, a)].iter().any(|pair| self.lane_resets.contains_key(pair))
    }

    /// Packets between two hosts that were lost or spoilt since `since`, at most [`HARMS_MAX`].
    fn harms_since(&self, a: usize, b: usize, since: Time) -> usize {
        let harms = self.harms.get(&(a.min(b), a.max(b)));
        harms.map_or(0, |h| h.iter().rev().take_while(|at| **at >= since).count())
    }

    /// Whether a queue pair between two hosts was ever broken: an idle one is found broken when it is used.
    pub(crate) fn was_broken(&self, a: usize, b: usize) -> bool {
        self.breaks.contains(&(a.min(b), a.max(b)))
    }

    /// Why a queue pair of `host` to `peer` could give up.
    pub(crate) fn explains_lane_reset(&self, now: Time, host: usize, peer: usize, detail: &str) -> bool {
        let since = before(now, LOOK_BACK);
        let gave_up = self.harms_since(host, peer, since) >= HARMS_OF_A_FAILURE
            || self.was_troubled(host, peer, since)
            || self.was_any_lane_lost(peer, host, since);
        // One end's queue pair is gone before the other end learns that, and does not answer any more.
        let peer_reset = self.lane_resets.get(&(peer, host)).is_some_and(|r| r.iter().any(|at| *at >= since));
        // Over TCP an end hears of the other one's: by the connection, or by its last message.
        let by_peer = ["RetryExcErr", "in error", "WrFlushErr", "RemOpErr"].iter().any(|how| detail.contains(how));
        // A wire is left when nothing comes back over it, and used again when it leads there.
        let left = detail.contains("nothing comes back over") && gave_up;
        let returned = detail.contains("leads to the peer again") && self.was_troubled(host, peer, Time::ZERO);
        // What waited for the peer is over, and the peer may know of it.
        let given_up = detail.contains("of which it may know") && self.was_troubled(host, peer, since);
        // What no host needs a cause for: the device has counted.
        let has_worn_keys = detail.contains(WORN_KEYS);
        let has_own = left || returned || given_up || has_worn_keys;
        has_own || self.was_broken(host, peer) || (by_peer && (gave_up || peer_reset))
    }

    /// Why the connections of a lane of `host` to `peer` could end: it was reset too often.
    pub(crate) fn explains_lane_failure(&self, now: Time, host: usize, peer: usize) -> bool {
        let since = before(now, RESETS_LOOK_BACK);
        let resets = self.lane_resets.get(&(host, peer)).map_or(0, |r| r.iter().filter(|at| **at >= since).count());
        resets >= RESETS_OF_A_FAILURE
    }

    /// `Err` with words if nothing explains the refusal of a connect.
    pub(crate) fn explain_refusal(&self, now: Time, asked: &Asked, reason: Reason) -> Result<(), String> {
        let (host, port) = asked.to;
        let lane =
            self.was_any_lane_lost(asked.from, host, asked.at) || self.was_any_lane_lost(host, asked.from, asked.at);
        let is_local = asked.from == host;
        let is_explained = match reason {
            Reason::AppDescriptors | Reason::PeerAppDescriptors if is_local => self.segments_refused.contains(&host),
            Reason::TimedOut if is_local => self.segments_refused.contains(&host),
            // A segment that one end never answers for keeps its place in the pair.
            Reason::LocalLimit if is_local && self.segments_refused.contains(&host) => true,
            // Its listener has gone.
            Reason::PeerAppDied if is_local => !self.was_always_listening(host, port, asked.at),
            Reason::NoUnreliable => [asked.from, host].iter().any(|host| self.without_unreliable.contains(host)),
            Reason::NoListener => !self.was_always_listening(host, port, asked.at),
            Reason::BacklogFull => {
                let aimed = self.connects.get(&(host, port)).copied().unwrap_or(0);
                let listeners = self.listeners.get(&(host, port));
                listeners.is_some_and(|l| l.iter().any(|l| aimed > l.backlog))
            }
            Reason::TenantLimit => self.policies.contains(&asked.from),
            Reason::PeerLimit if self.policies.contains(&host) => true,
            // Also what a connect hears whose lanes made room for other hosts' too often.
            Reason::LocalLimit
            | Reason::PeerLimit
            | Reason::UserConnections
            | Reason::UserLanes
            | Reason::UserDials => self.has_tight_limits,
            Reason::TimedOut => {
                let lost = self.harms_since(asked.from, host, before(asked.at, LOOK_BACK)) > 0;
                let broken = self.was_broken(asked.from, host);
                let late = now.saturating_since(asked.at) >= asked.timeout;
                // A peer that left a lane half made was given up by the daemon itself.
                let given_up = self.was_lane_lost(asked.from, host, asked.at, reason);
                // The dial may have begun while the peer was away, and waits for it as long as it may.
                let dialed = self.was_troubled(asked.from, host, before(asked.at, DIALS));
                (dialed || lane || lost || broken) && (late || given_up)
            }
            // The dial that failed may have begun for an earlier connect.
            Reason::PeerUnreachable | Reason::PeerBusy | Reason::PeerAuth | Reason::PeerVersion => {
                self.explains_loss(asked.at, asked.from, host, reason)
            }
            Reason::PeerLost => self.was_lane_lost(asked.from, host, asked.at, reason),
            Reason::DaemonLost => self.was_daemon_killed(asked.from, asked.at),
            // A connect that waited for rings while the lane was lost for another reason gets this too.
            Reason::LaneFailed => self.was_any_lane_lost(asked.from, host, asked.at),
            _ => false,
        };
        if is_explained {
            Ok(())
        } else {
            let waited = now.saturating_since(asked.at);
            Err(format!("`{}` after {waited:?}, for which there is no cause", reason.key()))
        }
    }
}
