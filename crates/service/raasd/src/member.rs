//! A host of a cluster, and where such hosts are found: values, checked where they are made.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Letters of a name at most: a label of DNS with its domain.
const NAME_MAX: usize = 253;
/// Names that one host may serve.
pub(crate) const SERVICES_MAX: usize = 64;

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// What its daemon listens on.
    pub address: IpAddr,
    /// Its own name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The names that it serves.
    #[serde(default)]
    pub services: Vec<String>,
}

impl Member {
    /// Refuses what no configuration could say. A directory is asked over the network.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.services.len() > SERVICES_MAX {
            return Err(format!("{} services, at most {SERVICES_MAX} are allowed", self.services.len()));
        }
        self.name.iter().chain(&self.services).try_for_each(|name| check_name(name))
    }
}

/// A name of a host or a service: as in DNS, and no address.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let is_name = (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(allowed)
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.parse::<IpAddr>().is_err();
    if is_name {
        Ok(())
    } else {
        Err(format!("{name:?} is no name: letters, digits, \"-\", \"_\" and \".\" are, up to {NAME_MAX}"))
    }
}

/// An address that names one host.
pub(crate) fn check_host_address(address: IpAddr) -> Result<(), String> {
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("{address} names no host; use the address by which other hosts reach this one"));
    }
    Ok(())
}

/// Where hosts are found, and what this one says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The name of this host.
    pub name: Option<String>,
    /// The names that this host serves.
    pub services: Vec<String>,
    /// How often directories are asked.
    pub refresh: Duration,
    /// Hosts that the configuration lists.
    pub hosts: Vec<Member>,
    /// Names whose addresses are hosts that serve this name.
    pub dns: Vec<String>,
    /// An etcd.
    pub etcd: Option<EtcdConfig>,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            name: None,
            services: Vec::new(),
            refresh: Duration::from_secs(5),
            hosts: Vec::new(),
            dns: Vec::new(),
            etcd: None,
        }
    }
}

/// An etcd, asked through its HTTP gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Where its members answer clients, `http://HOST:PORT`; asked in turn until one answers.
    pub endpoints: Vec<String>,
    /// Before each key.
    pub prefix: String,
    /// Seconds after which a host that says nothing is no longer listed.
    pub lease_seconds: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_dns_and_no_addresses() {
        for good in ["a", "store", "Store-2", "_x".trim_start_matches('_'), "store.example.org", "10x"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        let long = "a".repeat(254);
        for bad in ["", "10.0.0.1", "::1", "a b", "a:7", "-a", "a/b", "ä", &long] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
