//! What the programs of each user hold of the host's tables.
//!
//! Owns the counts and their bounds. It must never bound root or the daemon's user, who could end the daemon anyway. It
//! must forget a user who holds nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use control::Reason;

use super::AdmissionConfig;

/// See the head of this file. At most as many users as there are applications.
#[derive(Debug)]
pub(super) struct Users {
    held: BTreeMap<u32, Usage>,
    apps_max: u32,
    listeners_max: u32,
    connections_max: u32,
    lanes_max: u32,
    owner_uid: u32,
}

#[derive(Debug, Default)]
struct Usage {
    apps: u32,
    listeners: u32,
    /// Connections that go through lanes, and whatever waits to become one.
    connections: u32,
    /// Other hosts with a connection, or one that waits, by engine.
    hosts: BTreeMap<(IpAddr, u32), HostUse>,
    /// Of these, hosts to which the user's programs connect.
    hosts_out: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct HostUse {
    outgoing: u32,
    incoming: u32,
}

/// The other host of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Far {
    pub(super) host: IpAddr,
    /// The engine that carries it.
    pub(super) engine: u32,
    /// This host's application connects, or did.
    pub(super) is_outgoing: bool,
}

impl Usage {
    /// Connections that the user's programs made to a host.
    fn outgoing(&self, host: IpAddr) -> u32 {
        self.hosts.range((host, 0)..=(host, u32::MAX)).map(|(_, use_)| use_.outgoing).sum()
    }

    fn is_nothing(&self) -> bool {
        self.apps == 0 && self.listeners == 0 && self.connections == 0 && self.hosts.is_empty()
    }
}

impl Users {
    pub(super) fn new(config: &AdmissionConfig) -> Self {
        let of_user = |max: u32| config.user_share.of_table(max);
        Self {
            held: BTreeMap::new(),
            apps_max: of_user(config.apps_max),
            listeners_max: of_user(config.listeners_max),
            connections_max: of_user(config.connections_max),
            lanes_max: of_user(config.lanes_max),
            owner_uid: config.owner_uid,
        }
    }

    // ---- may they?

    /// Whether a user may have one more application.
    pub(super) fn check_app(&self, uid: u32) -> Result<(), Reason> {
        self.check(uid, |held| held.apps < self.apps_max, Reason::UserPrograms)
    }

    /// Whether a user's applications may have one more listener.
    pub(super) fn check_listener(&self, uid: u32) -> Result<(), Reason> {
        self.check(uid, |held| held.listeners < self.listeners_max, Reason::UserListeners)
    }

    /// Whether a user's applications may have one more connection to another host.
    pub(super) fn check_connection(&self, uid: u32) -> Result<(), Reason> {
        self.check(uid, |held| held.connections < self.connections_max, Reason::UserConnections)
    }

    /// Whether a user's applications may connect to this host in addition to those that they connect to already.
    pub(super) fn check_host(&self, uid: u32, host: IpAddr) -> Result<(), Reason> {
        let fits = |held: &Usage| held.hosts_out < self.lanes_max || held.outgoing(host) > 0;
        self.check(uid, fits, Reason::UserLanes)
    }

    fn check(&self, uid: u32, fits: impl FnOnce(&Usage) -> bool, or: Reason) -> Result<(), Reason> {
        let fits = self.is_unbounded(uid) || self.held.get(&uid).is_none_or(fits);
        if fits { Ok(()) } else { Err(or) }
    }

    fn is_unbounded(&self, uid: u32) -> bool {
        uid == 0 || uid == self.owner_uid
    }

    /// Connections of a user with a host through an engine, and what waits to become one.
    pub(super) fn connections_with(&self, uid: u32, host: IpAddr, engine: u32) -> u32 {
        let use_ = self.held.get(&uid).and_then(|held| held.hosts.get(&(host, engine)));
        use_.map_or(0, |use_| use_.outgoing.saturating_add(use_.incoming))
    }

    // ---- they do

    pub(super) fn add_app(&mut self, uid: u32) {
        self.held.entry(uid).or_default().apps += 1;
    }

    pub(super) fn add_listener(&mut self, uid: u32) {
        self.held.entry(uid).or_default().listeners += 1;
    }

    /// One that waits counts too.
    pub(super) fn add_connection(&mut self, uid: u32, far: Far) {
        let held = self.held.entry(uid).or_default();
        held.connections += 1;
        held.hosts_out += u32::from(far.is_outgoing && held.outgoing(far.host) == 0);
        let use_ = held.hosts.entry((far.host, far.engine)).or_default();
        if far.is_outgoing {
            use_.outgoing += 1;
        } else {
            use_.incoming += 1;
        }
    }

    // ---- they do no more

    pub(super) fn drop_app(&mut self, uid: u32) {
        self.release(uid, |held| held.apps = held.apps.saturating_sub(1));
    }

    pub(super) fn drop_listener(&mut self, uid: u32) {
        self.release(uid, |held| held.listeners = held.listeners.saturating_sub(1));
    }

    pub(super) fn drop_connection(&mut self, uid: u32, far: Far) {
        self.release(uid, |held| {
            held.connections = held.connections.saturating_sub(1);
            let is_last = held.outgoing(far.host) == 1;
            let Some(use_) = held.hosts.get_mut(&(far.host, far.engine)) else { return };
            if far.is_outgoing {
                held.hosts_out -= u32::from(is_last);
                use_.outgoing = use_.outgoing.saturating_sub(1);
            } else {
                use_.incoming = use_.incoming.saturating_sub(1);
            }
            if use_.outgoing == 0 && use_.incoming == 0 {
                held.hosts.remove(&(far.host, far.engine));
            }
        });
    }

    fn release(&mut self, uid: u32, take: impl FnOnce(&mut Usage)) {
        if let Some(held) = self.held.get_mut(&uid) {
            take(held);
            if held.is_nothing() {
                self.held.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> AdmissionConfig {
        let mut config = AdmissionConfig::new(vec!["10.0.0.1".parse().unwrap()]);
        config.owner_uid = 77;
        config
    }

    #[test]
    fn shares_are_a_quarter_or_as_configured_and_are_given_back() {
        let mut config = config();
        (config.apps_max, config.listeners_max) = (9, 4);
        let mut users = Users::new(&config);
        for uid in [5, 6] {
            for _ in 0..3 {
                users.check_app(uid).unwrap();
                users.add_app(uid);
            }
            assert_eq!(users.check_app(uid), Err(Reason::UserPrograms));
            users.add_listener(uid);
            assert_eq!(users.check_listener(uid), Err(Reason::UserListeners));
        }
        users.drop_listener(5);
        users.check_listener(5).unwrap();
        users.drop_app(5);
        users.check_app(5).unwrap();
        for uid in [0, 77] {
            (0..100).for_each(|_| users.add_app(uid));
            users.check_app(uid).unwrap();
        }
        (0..2).for_each(|_| users.drop_app(5));
        assert!(!users.held.contains_key(&5));
    }

    #[test]
    fn hosts_count_once_whatever_number_of_connections_and_not_if_they_came() {
        let mut config = config();
        (config.lanes_max, config.connections_max) = (8, 24);
        let mut users = Users::new(&config);
        let far = |n: u8, is_outgoing| Far { host: IpAddr::from([10, 0, 1, n]), engine: 0, is_outgoing };
        let came = [1, 2, 3].map(|n| far(n, false));
        // The two to host 1 go through two engines.
        let went = [(1, 0), (1, 1), (4, 0)].map(|(n, engine)| Far { engine, ..far(n, true) });
        for one in came.iter().chain(&went) {
            users.check_connection(5).unwrap();
            users.add_connection(5, *one);
        }
        assert_eq!(users.check_connection(5), Err(Reason::UserConnections));
        assert_eq!(users.check_host(5, far(9, true).host), Err(Reason::UserLanes));
        assert_eq!(users.check_host(5, far(2, true).host), Err(Reason::UserLanes), "it came, and was not connected to");
        users.check_host(5, far(4, true).host).unwrap();
        users.check_host(6, far(9, true).host).unwrap();
        assert_eq!([1, 2, 9].map(|n| users.connections_with(5, far(n, true).host, 0)), [2, 1, 0]);
        assert_eq!([1, 2].map(|n| users.connections_with(5, far(n, true).host, 1)), [1, 0]);
        users.drop_connection(5, went[0]);
        assert_eq!(users.check_host(5, far(9, true).host), Err(Reason::UserLanes), "another one is left");
        users.drop_connection(5, went[1]);
        users.check_host(5, far(9, true).host).unwrap();
        users.check_connection(5).unwrap();
        for one in came.iter().chain(&went[2..]) {
            users.drop_connection(5, *one);
        }
        assert!(users.held.is_empty(), "who holds nothing is forgotten");
    }
}
