//! How a run ends: everything is mended, what can finish does, new connections work, everything is given back, silence.

use std::time::Duration;

use control::Request;
use verbs::{Provider, QpState, Qpn, Time};

use super::World;
use crate::address::{At, address, is_shared, path_of};
use crate::check::{End, LinkAtRest};
use crate::links::{HANDSHAKE, Stage};
use crate::plan::{AppPlan, Break, Fault, SocketPlan, Talk};

/// What can finish does so within this time after the last fault: links and connects time out in less. On top comes
/// what the bytes to be moved take on the slowest lane.
const FINISH: Duration = Duration::from_secs(30);
const SLOWEST_BYTES_PER_US: u64 = 1;
/// On top of a link's silence: heartbeats of both ends.
const NOTICE: Duration = Duration::from_secs(3);
/// Links are over the first path again this long after it works: the longest pause between tries, and two tries.
const RETURN: Duration = Duration::from_secs(130);
/// New connections between all hosts are made and served within this time.
pub(super) const PROBE: Duration = Duration::from_secs(20);
/// Everything is given back within this time.
const RELEASE: Duration = Duration::from_secs(5);
/// Then nothing is sent for this long.
const SILENCE: Duration = Duration::from_secs(10);
/// Time for what is on its way.
const SETTLE: Duration = Duration::from_secs(3);
/// Port and bytes of the probes.
const PROBE_PORT: u16 = 9;
const PROBE_BYTES: u64 = 3000;
/// Datagrams of a probe to each other host.
const PROBE_DATAGRAMS: u32 = 3;
/// Other hosts that a host probes.
const PROBED_MAX: usize = 3;
/// All probes listen and are bound after this long, however slow the queues are: only then are they asked.
const PROBES_READY: Duration = Duration::from_secs(1);

impl World {
    /// Brings the run to its end and checks what must hold there.
    pub fn finish(&mut self) {
        self.mend_everything();
        self.finish_connections();
        if self.goes_on() {
            // The last broken links are noticed, by hosts that run.
            let still = self.stalled_for();
            // A handshake with a machine that died ends by its time limit alone.
            self.pass(still + self.plan.link_timeout.max(HANDSHAKE) + NOTICE);
            self.return_to_first_paths();
            self.judge_users();
            for (index, host) in self.hosts.iter().enumerate() {
                // The first engine has the datagrams.
                if let Some(driven) = host.running.as_ref().and_then(|running| running.engines.first()) {
                    self.checks.on_sockets_at_rest(self.now, index, &driven.engine);
                }
            }
        }
        if self.goes_on() {
            self.reset_silently_broken();
            self.probe();
            self.return_to_first_paths();
        }
        if self.goes_on() {
            self.probe_meetings();
        }
        if self.goes_on() {
            self.give_everything_back();
        }
        if self.goes_on() {
            self.fall_silent();
        }
    }

    /// From the start to the end.
    pub fn run(&mut self) {
        self.run_until(self.plan.quiet_at);
        if self.goes_on() {
            self.finish();
        }
    }

    /// How long a host still stands still.
    fn stalled_for(&self) -> Duration {
        let still = self.hosts.iter().filter_map(|host| Some(host.running.as_ref()?.stalled_until)).max();
        still.map_or(Duration::ZERO, |until| until.saturating_since(self.now))
    }

    fn goes_on(&self) -> bool {
        self.is_sound() && !self.is_cut_short()
    }

    /// All links are over the first path again, some time after it works.
    fn return_to_first_paths(&mut self) {
        let end = self.now + RETURN;
        if !self.run_while(end, |w| w.is_any_elsewhere()) && self.goes_on() {
            self.checks.fail(self.now, "liveness", format!("links are not over the first path after {RETURN:?}"));
        }
    }

    /// The wire of the lane between two hosts, as the first one has it.
    pub fn wire_of(&self, host: usize, peer: usize) -> Option<String> {
        self.lane_rows(0, host, peer)?.0.wire
    }

    /// Whether the link between two hosts, as the first one has it, is over their second path.
    pub fn is_elsewhere(&self, host: usize, peer: usize) -> bool {
        let running = self.hosts[host].running.as_ref();
        running
            .and_then(|r| r.control.daemon.peers().path_to(address(peer)))
            .is_some_and(|(path, _)| path_of(path.own) > 0)
    }

    fn is_any_elsewhere(&self) -> bool {
        let hosts = 0..self.hosts.len();
        self.plan.has_standby && hosts.clone().any(|a| hosts.clone().any(|b| self.is_elsewhere(a, b)))
    }

    fn finish_connections(&mut self) {
        self.trace.text(self.now, || "everything is mended".into());
        for (host, uid) in self.processes() {
            if let Some(app) = self.hosts[host].app_mut(uid) {
                app.end();
            }
            self.wake_app(host, uid);
        }
        let limit = FINISH + Duration::from_micros(self.plan.bytes_at_most() / SLOWEST_BYTES_PER_US);
        let end = self.after(limit);
        let done = self.run_while(end, |w| !w.all_idle());
        if !done && self.goes_on() {
            let left = self.left();
            self.checks.fail(self.now, "liveness", format!("not finished {limit:?} after the last fault: {left}"));
        }
        if self.goes_on() {
            self.checks.on_rest(self.now);
            self.give_loans_back();
        }
    }

    /// Engines give up local memory that no program has, and then, when programs have ended, lenders hear that leases are
    /// over.
    fn give_loans_back(&mut self) {
        self.wait_until_none(RELEASE, Self::too_much_local_memory);
        self.finish_users();
        self.wait_until_none(self.plan.link_timeout.max(HANDSHAKE) + NOTICE, Self::lasting_leases);
        self.finish_owners();
    }

    /// Something wrong ends within so much time, once all hosts run.
    fn wait_until_none(&mut self, time: Duration, wrong: impl Fn(&Self) -> Option<String>) {
        let end = self.after(self.stalled_for() + time);
        if wrong(self).is_some()
            && !self.run_while(end, |w| wrong(w).is_some())
            && self.goes_on()
            && let Some(detail) = wrong(self)
        {
            self.checks.fail(self.now, "release", detail);
        }
    }

    fn all_idle(&self) -> bool {
        let running = || self.hosts.iter().filter_map(|h| h.running.as_ref());
        self.hosts.iter().all(|host| host.orphans.apps.is_empty())
            && running().all(|r| r.apps.values().all(crate::app::App::is_idle))
            && running().flat_map(|r| &r.engines).all(|d| d.engine.apps().iter().all(|a| a.connections == 0))
            && self.users_idle()
    }

    /// What is left, for a person.
    fn left(&self) -> String {
        let mut out = format!("[{} operations] ", self.users_left());
        for (i, host) in self.hosts.iter().enumerate() {
            let Some(running) = &host.running else { continue };
            for app in running.apps.values().filter(|a| !a.is_idle()) {
                let (open, asked) = app.pending();
                out += &format!("[application {} on {i}: {open} connections, {asked} connects] ", app.uid);
            }
            for driven in &running.engines {
                for row in driven.engine.connections().iter().take(4) {
                    out += &format!("[host {i}: {row:?}] ");
                }
                for row in driven.engine.lanes() {
                    out += &format!("[host {i}: {row:?}] ");
                }
            }
        }
        out
    }

    /// Fresh applications on all hosts connect to each other.
    fn probe(&mut self) {
        self.trace.text(self.now, || "probes".into());
        let hosts = self.hosts.len();
        // Each to all others where hosts are few.
        let count = (hosts - 1).min(PROBED_MAX);
        let peers = |host: usize| (1..=count).map(move |next| (host + next) % hosts);
        let (bind_at, connect_at) = (self.after(Duration::from_millis(5)), self.after(PROBES_READY));
        let first = self.plan.apps.len();
        for host in 0..hosts {
            let others: Vec<(usize, u16)> = peers(host).map(|p| (p, PROBE_PORT)).collect();
            let socket = SocketPlan::new(bind_at, PROBE_PORT).sending(0, &others);
            let socket = SocketPlan {
                asks: true,
                told: PROBE_DATAGRAMS,
                told_after: PROBES_READY,
                ring_bytes: 64 << 10,
                ..socket
            };
            let mut plan = AppPlan::new(host, Talk::exactly(PROBE_BYTES)).listening(PROBE_PORT, 64).binding(socket);
            for peer in peers(host) {
                plan = plan.connecting(peer, PROBE_PORT, connect_at, 1, 4096);
            }
            self.add_app(plan);
        }
        let (begun, end) = (self.now, self.after(PROBE));
        let asks_much = self.plan.has_tight_limits();
        let done =
            self.run_while(end, |w| w.probes(first) < hosts || (!asks_much && !w.missing_datagrams(begun).is_empty()));
        if !self.goes_on() {
            return;
        }
        if !done {
            let (left, lost) = (self.left(), self.missing_datagrams(begun));
            let detail =
                format!("probes not answered after {PROBE:?}: {left}, datagrams that did not arrive: {lost:?}");
            return self.checks.fail(self.now, "liveness", detail);
        }
        let may_refuse = self.plan.has_tight_limits() || (0..hosts).any(|host| self.checks.causes.has_few_places(host));
        for host in 0..hosts {
            let answers = self.answers(first + host);
            let fitting = peers(host).filter(|peer| self.checks.causes.fit_together(host, *peer)).count();
            let refused = ((answers.connected + answers.refused.values().sum::<u64>()) as usize == count)
                && !answers.refused.is_empty();
            // Those that do not fit together refuse, each with its reason, which another checker looks at.
            let is_right = answers.connected as usize == fitting && (fitting == count || refused);
            if !is_right && !may_refuse {
                let detail = format!("a probe of host {host} failed: {answers:?}");
                self.checks.fail(self.now, "liveness", detail);
            }
        }
    }

    /// An operator resets lanes whose queue pair a fault broke without a word, and over which nothing went since. Only
    /// traffic finds such a break, when its retries are spent: on a slow link the time limit of a probe is over by then.
    fn reset_silently_broken(&mut self) {
        let silent = |(_, fault): &(Time, Fault)| match *fault {
            Fault::BreakLane { host, peer, how: Break::Silent } => Some((host, peer)),
            _ => None,
        };
        for (host, peer) in self.plan.faults.iter().filter_map(silent).collect::<Vec<_>>() {
            let Some(running) = self.hosts[host].running.as_mut() else { continue };
            let mut is_broken = false;
            for driven in &mut running.engines {
                let lanes = driven.engine.lanes();
                let lane = lanes.iter().find(|lane| is_shared(lane) && lane.peer.ip() == address(peer));
                let qp = lane.and_then(|lane| lane.qpn).and_then(|qpn| driven.tap.query_qp(Qpn(qpn)).ok());
                is_broken |= qp.is_some_and(|qp| qp.state == QpState::Err);
            }
            if is_broken {
                // Whatever broke it, and nobody used it since: the end is this operator's doing.
                self.checks.causes.on_break(host, peer);
                self.ask_as_operator(host, Request::ResetLane { request: 0, peer: address(peer) });
            }
        }
    }

    /// Datagrams of probes that nobody took, between hosts whose daemons speak with each other. A link that went back to
    /// its first path since `begun` may have lost some.
    fn missing_datagrams(&self, begun: Time) -> Vec<(End, End)> {
        let (mut missing, causes) = (self.checks.datagrams.missing(PROBE_PORT), &self.checks.causes);
        missing.retain(|(from, to)| causes.fit_together(from.0, to.0) && !causes.was_troubled(from.0, to.0, begun));
        missing
    }

    fn links_at_rest(&self) -> Vec<LinkAtRest> {
        let mut all = Vec::new();
        for (host, running) in self.hosts.iter().enumerate().filter_map(|(i, h)| Some((i, h.running.as_ref()?))) {
            for (id, link) in &running.control.links {
                all.push(LinkAtRest {
                    hosts: (host, link.peer),
                    connection: link.end.map(|(connection, _)| connection),
                    is_up: matches!(link.stage, Stage::Up(_)) && link.is_known,
                    is_the_peers: running.control.daemon.peers().link_to(address(link.peer)) == Some(*id),
                });
            }
        }
        all
    }

    /// Probing applications that have had all their answers and are done.
    fn probes(&self, first: usize) -> usize {
        (first..self.plan.apps.len()).filter(|i| self.app_of(*i).is_some_and(|a| a.is_idle())).count()
    }

    /// Starts a further application now; its number in the plan.
    pub fn add_app(&mut self, plan: AppPlan) -> usize {
        let index = self.plan.apps.len();
        self.plan.apps.push(plan);
        self.answers.push(Default::default());
        let was_quiet = std::mem::take(&mut self.quiet);
        self.start_app(index);
        self.quiet = was_quiet;
        index
    }

    fn give_everything_back(&mut self) {
        self.trace.text(self.now, || "all processes leave".into());
        let now = self.now;
        self.finish_meetings();
        for (host, uid) in self.processes() {
            if let Some(app) = self.hosts[host].app_mut(uid) {
                app.leave(now);
            }
            self.wake_app(host, uid);
        }
        let end = self.after(RELEASE);
        let done = self.run_while(end, |w| {
            w.hosts.iter().filter_map(|h| h.running.as_ref()).any(|r| r.engines.iter().any(|d| !d.uids.is_empty()))
        });
        if !done && self.goes_on() {
            let left = self.left();
            self.checks.fail(self.now, "release", format!("memory is held {RELEASE:?} after its owners left: {left}"));
        }
    }

    fn fall_silent(&mut self) {
        let settled = self.after(SETTLE);
        self.run_until(settled);
        let (packets, departed, open) = (self.network.packets, self.streams.departed, self.open_streams());
        let end = self.after(SILENCE);
        self.run_until(end);
        if !self.goes_on() {
            return;
        }
        for host in 0..self.hosts.len() {
            let numbers = self.hosts[host].running.as_ref().map_or(0, |r| r.control.numbers.len());
            let admission = self.hosts[host].running.as_ref().map(|r| r.control.daemon.admission());
            if numbers > 0 || admission.is_some_and(|admission| admission.connections() > 0) {
                let detail = format!("host {host}: {numbers} numbers did not come back: {admission:?}");
                self.checks.fail(self.now, "release", detail);
            }
            let left = self.hosts[host].running.as_ref().map_or(0, |r| r.control.daemon.pairs().count());
            if left > 0 {
                self.checks.fail(self.now, "release", format!("host {host} has {left} pairs without processes"));
            }
        }
        self.check_regions_at_rest();
        self.check_meetings_at_rest();
        let links = self.links_at_rest();
        self.checks.on_links_at_rest(self.now, &links);
        // A lane that came to rest meanwhile closed its stream.
        let segments = if self.open_streams() < open { 0 } else { self.streams.departed - departed };
        let sent = self.network.packets - packets + segments;
        if sent > 0 {
            self.checks.fail(
                self.now,
                "liveness",
                format!("{sent} packets in {SILENCE:?} although nobody has anything to say"),
            );
        }
        for host in 0..self.hosts.len() {
            for at in self.engines_of(host) {
                self.check_engine_at_rest(at);
            }
            self.check_streams_at_rest(host);
        }
    }

    fn check_regions_at_rest(&mut self) {
        for host in 0..self.hosts.len() {
            if let Some(left) = self.regions_left(host) {
                self.checks.fail(self.now, "release", format!("host {host} has without programs: {left}"));
            }
        }
    }

    fn check_streams_at_rest(&mut self, host: usize) {
        let first = self.hosts[host].running.as_ref().and_then(|running| running.engines.first());
        let lanes = first.map_or_else(Vec::new, |driven| driven.engine.lanes());
        let on_tcp =
            lanes.iter().filter(|lane| lane.qpn.is_some_and(|q| q != 0) && lane.wire.as_deref() == Some("iwarp"));
        let (on_tcp, open) = (on_tcp.count(), self.streams.open_at(host));
        if open != on_tcp {
            let detail = format!("host {host} has {open} streams at rest, and {on_tcp} lanes on TCP");
            self.checks.fail(self.now, "release", detail);
        }
    }

    fn check_engine_at_rest(&mut self, at: At) {
        let At { host, engine } = at;
        let running = self.hosts[host].running.as_ref();
        let Some(driven) = running.and_then(|r| r.engines.get(engine as usize)) else { return };
        self.checks.on_host_at_rest(self.now, &self.hosts[host].limits, &driven.engine, &driven.tap);
        if engine == 0 {
            self.checks.on_datagrams_at_rest(self.now, host, &driven.engine, &driven.tap);
        }
        let lanes = driven.engine.lanes();
        let peers: Vec<usize> = lanes.iter().filter_map(|lane| self.host_at(lane.peer.ip())).collect();
        for peer in peers.into_iter().filter(|peer| *peer > host) {
            if let Some((a, b)) = self.lane_rows(engine, host, peer)
                && [a.qpn, b.qpn].into_iter().flatten().any(|qpn| qpn != 0)
            {
                self.checks.on_lane_at_rest(self.now, (host, peer), &a, &b);
            }
        }
    }

    fn open_streams(&self) -> usize {
        (0..self.hosts.len()).map(|host| self.streams.open_at(host)).sum()
    }

    /// Runs for some time.
    pub fn pass(&mut self, time: Duration) {
        let end: Time = self.after(time);
        self.run_until(end);
    }
}
