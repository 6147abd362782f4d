//! Hosts that reach each other in more than one way: which paths there are, and how soon another one is tried
//! (docs/operate/failover.md).
//!
//! Owns the pairs of addresses. It must never take one from anywhere but the configuration.

use std::net::IpAddr;

use plane::{Heartbeat, LinkPath, PATH_MISSES, PeerPaths};

use super::{Config, DeviceChoice, PeerConfig};

impl Config {
    /// The addresses at which other hosts reach this one, the preferred one first.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.listen).chain(self.standby.iter().copied())
    }

    /// The paths to each peer that has several.
    pub(crate) fn paths(&self) -> PeerPaths {
        let several = self.peers.iter().filter(|peer| !peer.standby.is_empty());
        several.map(|peer| (peer.address.to_canonical(), self.paths_to(peer))).collect()
    }

    /// The n-th address of the peer from the n-th of this host, or from its last one.
    fn paths_to(&self, peer: &PeerConfig) -> Vec<LinkPath> {
        let mut own = self.listen;
        let mut ours = self.own_addresses();
        let theirs = std::iter::once(&peer.address).chain(&peer.standby);
        let path = |theirs: &IpAddr| {
            own = ours.next().unwrap_or(own);
            LinkPath { own: own.to_canonical(), peer: theirs.to_canonical() }
        };
        theirs.map(path).collect()
    }

    /// Whether a peer may be reached in more than one way.
    pub(crate) fn has_standby(&self, peer: IpAddr) -> bool {
        self.peers.iter().any(|p| p.address == peer && !p.standby.is_empty())
    }

    /// Signs of life on the link to a peer: where another path may be tried, silence has to show soon.
    pub(crate) fn heartbeat_to(&self, peer: IpAddr) -> Heartbeat {
        let Heartbeat { interval, misses } = self.heartbeat;
        let soon = self.failover / PATH_MISSES;
        if !self.has_standby(peer) || soon >= interval || soon.is_zero() {
            return self.heartbeat;
        }
        let patience = interval.saturating_mul(misses).as_nanos();
        let misses = u32::try_from(patience.div_ceil(soon.as_nanos())).unwrap_or(u32::MAX);
        Heartbeat { interval: soon, misses }
    }

    /// What is wrong with the standby addresses, if anything is.
    pub(crate) fn check_standby(&self) -> Result<(), String> {
        let peer = self.peers.iter().find(|peer| !peer.standby.is_empty());
        if self.standby.is_empty() && peer.is_none() {
            return Ok(());
        }
        if let DeviceChoice::RdmaCore(_) = self.device {
            return Err("`standby`: only the software NIC is at more than one address; set device = \"softnic\"".into());
        }
        if self.data_path().engine.peer_return.is_zero() {
            return Err("`standby`: connections must wait for the other path; `peer_return_ms` must not be 0".into());
        }
        let mut own = std::collections::BTreeSet::new();
        if let Some(twice) = self.own_addresses().find(|address| !own.insert(*address)) {
            return Err(format!("`standby`: {twice} is an address of this host already"));
        }
        for peer in &self.peers {
            let differs = |path: &LinkPath| path.own.is_ipv4() != path.peer.is_ipv4();
            if let Some(path) = self.paths_to(peer).into_iter().skip(1).find(differs) {
                return Err(format!("`standby` of peer {}: {path} is of two IP versions", peer.address));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use verbs::{Wire, WirePolicy};

    use super::*;

    fn ip(net: u8, host: u8) -> IpAddr {
        IpAddr::from([10, 0, net, host])
    }

    fn config(own: &[u8], theirs: &[u8]) -> Config {
        let mut config = Config::new(ip(0, 1));
        config.standby = own.iter().map(|net| ip(*net, 1)).collect();
        let standby = theirs.iter().map(|net| ip(*net, 2)).collect();
        config.peers.push(PeerConfig { standby, ..PeerConfig::new(ip(0, 2)) });
        config
    }

    fn paths(own: &[u8], theirs: &[u8]) -> Vec<(IpAddr, IpAddr)> {
        let found = config(own, theirs).paths().remove(&ip(0, 2)).unwrap_or_default();
        found.into_iter().map(|path| (path.own, path.peer)).collect()
    }

    #[test]
    fn addresses_are_paired_by_their_places() {
        assert_eq!(paths(&[1], &[]), [], "the peer has one address");
        assert_eq!(paths(&[1], &[1]), [(ip(0, 1), ip(0, 2)), (ip(1, 1), ip(1, 2))]);
        assert_eq!(paths(&[], &[1]), [(ip(0, 1), ip(0, 2)), (ip(0, 1), ip(1, 2))]);
        let last_again = [(ip(0, 1), ip(0, 2)), (ip(1, 1), ip(1, 2)), (ip(1, 1), ip(2, 2))];
        assert_eq!(paths(&[1], &[1, 2]), last_again);
    }

    #[test]
    fn silence_shows_sooner_where_there_is_another_path_and_patience_is_the_same() {
        let config = config(&[1], &[1]);
        assert_eq!(config.heartbeat_to(ip(0, 9)), config.heartbeat);
        let soon = config.heartbeat_to(ip(0, 2));
        assert_eq!((soon.stalled_after() * 2).as_millis(), 999, "{soon:?}");
        assert!(soon.patience() >= config.heartbeat.patience(), "{soon:?}");
        let slow = Config { failover: Duration::from_secs(60), ..config };
        assert_eq!(slow.heartbeat_to(ip(0, 2)), slow.heartbeat);
    }

    #[test]
    fn what_cannot_work_is_told() {
        let told = |change: fn(&mut Config)| {
            let mut config = config(&[1], &[1]);
            change(&mut config);
            config.check_standby().err().unwrap_or_default()
        };
        assert_eq!(told(|_| ()), "");
        for wire in [WirePolicy::Auto, WirePolicy::Only(Wire::Roce), WirePolicy::Only(Wire::Iwarp)] {
            let with = Config { wire, ..config(&[1], &[1]) };
            assert_eq!(with.check_standby(), Ok(()), "any wire of the software NIC: {wire}");
        }
        assert!(told(|c| c.device = DeviceChoice::RdmaCore(None)).contains("softnic"));
        assert!(told(|c| c.set_limit("peer_return_ms", 0).unwrap()).contains("peer_return_ms"));
        assert!(told(|c| c.standby.push(c.listen)).contains("10.0.0.1 is an address of this host already"));
        assert!(told(|c| c.peers[0].standby = vec!["fd00::2".parse().unwrap()]).contains("two IP versions"));
    }
}
