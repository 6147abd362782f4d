//! A daemon that dies, and the one that comes after it: its applications live, and bring what they had.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use control::{ChunkKind, LaneTicket, Reason, Ticket};
use engine::{AppId, Attach, Returned, ReturnedChunk, SlotSet, TenantPlace};
use verbs::Capabilities;

use super::desk::HostConfig;
use super::{Arrival, Host, OWNER, World, addr};
use crate::apps::SimApp;

type Apps = BTreeMap<AppId, SimApp>;

impl World {
    /// The daemons of these hosts die at once, each whatever it did; then the next ones come, one after the other, and
    /// their applications with them.
    pub(crate) fn restart(&mut self, which: &[usize], configure: &impl Fn(&mut HostConfig)) {
        for (host, apps) in self.restart_alone(which, configure) {
            self.bring_back(host, apps);
        }
    }

    /// As [`Self::restart`]; the applications of each host are still to be brought back.
    pub(crate) fn restart_alone(
        &mut self,
        which: &[usize],
        configure: &impl Fn(&mut HostConfig),
    ) -> Vec<(usize, Apps)> {
        for &i in which {
            for name in ["violations", "device_refusals", "app_faults", "connections_given_up"] {
                assert_eq!(self.counter(i, name), 0, "{name} at host {i}");
            }
            for peer in (0..self.hosts.len()).filter(|peer| *peer != i) {
                let on_link = |from, to| (from, to) == (i, peer) || (from, to) == (peer, i);
                self.flying.retain(|_, x| !matches!(x, Arrival::Link { from, to, .. } if on_link(*from, *to)));
                self.forget_round(i, peer);
                self.forget_round(peer, i);
            }
        }
        self.restarts += 1;
        let mut left = Vec::new();
        for &i in which {
            let seed = self.restarts << 32 | u64::from(self.next_seq as u32);
            let mut next = Host::new(i, seed, Capabilities::SOFTWARE_NIC, configure);
            // Applications know where the engine says that it sleeps.
            next.page = self.hosts[i].page.clone();
            next.renew_engine(seed, configure);
            left.push((i, std::mem::replace(&mut self.hosts[i], next).apps));
        }
        for &i in which {
            for peer in (0..self.hosts.len()).filter(|peer| !which.contains(peer)) {
                let h = &mut self.hosts[peer];
                h.wake();
                h.engine.lane_lost(self.now, &mut h.nic, addr(i), Reason::PeerLost);
            }
        }
        left
    }

    /// Applications of a host come back, with what they had.
    pub(crate) fn bring_back(&mut self, host: usize, apps: Apps) {
        for (id, app) in apps {
            self.hosts[host].take_back(self.now, id, app);
        }
    }
}

impl World {
    /// An application comes back that says it uses all of its slots, and brings no tickets.
    pub(crate) fn attach_again(&mut self, host: usize, slots: u32) -> (AppId, SimApp) {
        let (now, host) = (self.now, &mut self.hosts[host]);
        let app = SimApp::new(slots, 0, host.page.engine_sleep(0));
        let used = (0..slots).collect();
        let client = host.desk.attach(OWNER);
        let session = app.session.clone();
        let name = "back".into();
        let attach = Attach { pid: 1, uid: OWNER, name, session, connect_to: None, tenant: TenantPlace::default() };
        let id = host.engine.attach(attach).unwrap();
        host.desk.on_attached(client, id);
        host.engine.take_back(now, &mut host.nic, id, Returned { used, ..Returned::default() });
        host.wake();
        (id, app)
    }
}

impl Host {
    fn take_back(&mut self, now: verbs::Time, id: engine::AppId, app: SimApp) {
        let client = self.desk.attach(OWNER);
        let attach = Attach {
            pid: 1,
            uid: OWNER,
            name: "app".into(),
            session: app.session.clone(),
            connect_to: None,
            tenant: TenantPlace::default(),
        };
        let taken = self.engine.attach(attach).unwrap();
        assert_eq!(taken, id, "the tests know it by this name");
        self.desk.on_attached(client, taken);
        let live =
            |ticket: &LaneTicket| app.session.slot(ticket.slot).generation.load(Ordering::Acquire) == ticket.generation;
        let decode = |c: &crate::apps::SimConn| match control::decode(&c.connection.ticket).unwrap() {
            Ticket::Lane(ticket) => ticket,
            Ticket::Socket(ticket) => panic!("a connection has {ticket:?}"),
        };
        let connections: Vec<LaneTicket> = app.conns.values().map(decode).filter(live).collect();
        let used: SlotSet = app.conns.values().filter(|c| !c.closed).map(crate::apps::SimConn::slot).collect();
        let kinds: BTreeMap<u32, ChunkKind> =
            connections.iter().flat_map(|t| [(t.tx.chunk, ChunkKind::Tx), (t.rx.chunk, ChunkKind::Rx)]).collect();
        let chunk =
            |(&chunk, &kind): (&u32, &ChunkKind)| ReturnedChunk { chunk, kind, region: app.chunks[&chunk].clone() };
        let chunks = kinds.iter().map(chunk).collect();
        for ticket in &connections {
            self.desk.adopt(id, ticket);
        }
        self.apps.insert(id, app);
        self.engine.take_back(now, &mut self.nic, id, Returned { used, chunks, connections, ..Returned::default() });
        self.wake();
    }
}
