//! What an operator may set of who gets what, and the sizes that follow from it.
//!
//! It must never hold state, and nothing outside [`AdmissionConfig::check`] may rely on a value that it did not pass.

use std::net::IpAddr;

use control::UserShare;
use shm::{ENGINES_MAX, RING_BYTES_MAX, RING_BYTES_MIN};

use super::SpreadBy;

/// Bounds of what programs may have of a host; every bound has its name here.
#[derive(Debug, Clone)]
pub struct AdmissionConfig {
    /// Addresses that name this host; the first is used as local address of connections.
    pub addresses: Vec<IpAddr>,
    /// Engines of the daemon, 1 to [`shm::ENGINES_MAX`].
    pub engines: u32,
    /// What is spread over them.
    pub spread: SpreadBy,
    /// Size in bytes to which a ring between two applications of this host may grow, when the application names none.
    pub local_ring_bytes_default: u32,
    /// Largest ring in bytes that an application gets (power of two, 4 KiB..=8 MiB).
    pub ring_bytes_max: u32,
    /// Applications at a time, those whose memory is still in quarantine included.
    pub apps_max: u32,
    /// Connections of the host that go through lanes, and connects that wait.
    pub connections_max: u32,
    /// Connections and waiting connects of one application.
    pub connections_per_app_max: u32,
    /// Listeners of the host.
    pub listeners_max: u32,
    /// Connections that may wait at one listener, whatever it asks for.
    pub backlog_max: u32,
    /// Peer hosts.
    pub lanes_max: u32,
    /// What one user's applications may have of applications, connections to other hosts with what waits, listeners with
    /// datagram sockets, and hosts to which they connect.
    pub user_share: UserShare,
    /// The daemon's own user: like root, it has no bounded share.
    pub owner_uid: u32,
}

/// A bound that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AdmissionConfigError(String);

impl AdmissionConfig {
    /// Defaults for a host with these addresses.
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        Self {
            addresses,
            engines: 1,
            spread: SpreadBy::default(),
            local_ring_bytes_default: 4 << 20,
            ring_bytes_max: RING_BYTES_MAX,
            apps_max: 256,
            connections_max: 65_536,
            connections_per_app_max: 65_536,
            listeners_max: 4096,
            backlog_max: 4096,
            lanes_max: 4096,
            user_share: UserShare::default(),
            owner_uid: 0,
        }
    }

    /// Refuses values that make no sense. [`crate::Admission::new`] runs this very function.
    pub fn check(&self) -> Result<(), AdmissionConfigError> {
        if self.addresses.is_empty() {
            return Err(AdmissionConfigError("addresses is empty: name at least one address of this host".into()));
        }
        if !(1..=ENGINES_MAX).contains(&self.engines) {
            return Err(AdmissionConfigError(format!("engines is {}: use 1 to {ENGINES_MAX}", self.engines)));
        }
        for (what, bytes) in
            [("local_ring_bytes_default", self.local_ring_bytes_default), ("ring_bytes_max", self.ring_bytes_max)]
        {
            if !bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) {
                return Err(AdmissionConfigError(format!(
                    "{what} is {bytes}: use a power of two from {RING_BYTES_MIN} to {RING_BYTES_MAX}"
                )));
            }
        }
        for (what, value) in [
            ("apps_max", self.apps_max),
            ("connections_max", self.connections_max),
            ("connections_per_app_max", self.connections_per_app_max),
            ("listeners_max", self.listeners_max),
            ("backlog_max", self.backlog_max),
            ("lanes_max", self.lanes_max),
        ] {
            if value == 0 {
                return Err(AdmissionConfigError(format!("{what} is 0: use 1 or more")));
            }
        }
        Ok(())
    }

    /// The most that a listener allows which asks for `asked` bytes; 0 leaves it to the connecting side.
    pub(crate) fn listener_ring_bytes(&self, asked: u32) -> u32 {
        if asked == 0 { 0 } else { shm::round_ring_bytes(asked, self.ring_bytes_max) }
    }

    /// The ring size of a connection to another application of this host that asks for `asked` bytes (0: no wish).
    pub(crate) fn local_ring_bytes(&self, asked: u32) -> u32 {
        let wanted = if asked == 0 { self.local_ring_bytes_default } else { asked };
        shm::round_ring_bytes(wanted, self.ring_bytes_max)
    }

    /// The address of this end of connections.
    pub(crate) fn local_address(&self) -> IpAddr {
        self.addresses.first().copied().unwrap_or(IpAddr::from([0, 0, 0, 0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> AdmissionConfig {
        AdmissionConfig::new(vec!["10.0.0.1".parse().unwrap()])
    }

    #[test]
    fn defaults_pass_and_nonsense_is_refused_by_name() {
        config().check().unwrap();
        let refused = |change: fn(&mut AdmissionConfig), name: &str| {
            let mut c = config();
            change(&mut c);
            let text = c.check().unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        };
        refused(|c| c.addresses.clear(), "addresses");
        refused(|c| c.local_ring_bytes_default = 1 << 30, "local_ring_bytes_default");
        refused(|c| c.ring_bytes_max = 2048, "ring_bytes_max");
        refused(|c| c.backlog_max = 0, "backlog_max");
        refused(|c| c.engines = 0, "engines");
        refused(|c| c.engines = ENGINES_MAX + 1, "engines");
        refused(|c| c.connections_max = 0, "connections_max");
    }

    #[test]
    fn ring_bytes_are_rounded_and_clamped() {
        let mut c = config();
        c.ring_bytes_max = 1 << 20;
        assert_eq!([0, 1, 4097, u32::MAX].map(|asked| c.listener_ring_bytes(asked)), [0, 4096, 8192, 1 << 20]);
        assert_eq!([0, 1, 4097].map(|asked| c.local_ring_bytes(asked)), [1 << 20, 4096, 8192]);
    }
}
