//! The table `[cluster]` of the configuration file: what each key may hold.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;

use crate::limits::check_range;
use crate::member::{ClusterConfig, EtcdConfig, Member, SERVICES_MAX, check_host_address, check_name};

/// The keys of `[cluster]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterTable {
    name: Option<Name>,
    services: Option<Services>,
    refresh_ms: Option<RefreshMs>,
    #[serde(default)]
    host: Vec<HostTable>,
    #[serde(default)]
    dns: Vec<Name>,
    etcd: Option<EtcdTable>,
}

/// The keys of `[[cluster.host]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    address: Address,
    name: Option<Name>,
    services: Option<Services>,
}

/// The keys of `[cluster.etcd]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EtcdTable {
    endpoints: Endpoints,
    prefix: Option<Prefix>,
    lease_seconds: Option<LeaseSeconds>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        check_name(&text).map(|()| Self(text))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<Name>")]
struct Services(Vec<Name>);

impl TryFrom<Vec<Name>> for Services {
    type Error = String;

    fn try_from(list: Vec<Name>) -> Result<Self, String> {
        if list.len() > SERVICES_MAX {
            return Err(format!("{} services, at most {SERVICES_MAX} are allowed", list.len()));
        }
        Ok(Self(list))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Address(IpAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let address: IpAddr = text.parse().map_err(|_| format!("\"{text}\" is no IP address"))?;
        check_host_address(address).map(|()| Self(address.to_canonical()))
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "i64")]
struct RefreshMs(u64);

impl TryFrom<i64> for RefreshMs {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        check_range(value, 100, 3_600_000).map(Self)
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "i64")]
struct LeaseSeconds(u32);

impl TryFrom<i64> for LeaseSeconds {
    type Error = String;

    fn try_from(value: i64) -> Result<Self, String> {
        let seconds = check_range(value, 2, 3600)?;
        u32::try_from(seconds).map(Self).map_err(|e| e.to_string())
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Endpoints(Vec<String>);

impl TryFrom<Vec<String>> for Endpoints {
    type Error = String;

    fn try_from(list: Vec<String>) -> Result<Self, String> {
        let wrong = list.iter().find(|e| e.strip_prefix("http://").is_none_or(str::is_empty));
        if let Some(wrong) = wrong {
            return Err(format!("\"{wrong}\" is not allowed; write \"http://HOST:PORT\" (there is no TLS here)"));
        }
        if list.is_empty() { Err("an etcd needs at least one endpoint".into()) } else { Ok(Self(list)) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Prefix(String);

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.starts_with('/') { Ok(Self(text)) } else { Err(format!("\"{text}\" does not begin with \"/\"")) }
    }
}

fn names(services: Option<Services>) -> Vec<String> {
    services.map(|s| s.0).unwrap_or_default().into_iter().map(|name| name.0).collect()
}

impl ClusterTable {
    /// Puts what the table says over `config`.
    pub(super) fn put_into(self, config: &mut ClusterConfig) {
        config.name = self.name.map(|name| name.0);
        config.services = names(self.services);
        if let Some(RefreshMs(ms)) = self.refresh_ms {
            config.refresh = Duration::from_millis(ms);
        }
        let host = |host: HostTable| Member {
            address: host.address.0,
            name: host.name.map(|name| name.0),
            services: names(host.services),
        };
        config.hosts = self.host.into_iter().map(host).collect();
        config.dns = self.dns.into_iter().map(|name| name.0).collect();
        config.etcd = self.etcd.map(|etcd| EtcdConfig {
            endpoints: etcd.endpoints.0,
            prefix: etcd.prefix.map_or_else(|| "/raas".to_owned(), |prefix| prefix.0),
            lease_seconds: etcd.lease_seconds.map_or(10, |seconds| seconds.0),
        });
    }
}
