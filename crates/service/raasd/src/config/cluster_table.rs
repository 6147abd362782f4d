//! The table `[cluster]` of the configuration file: what each key may hold.

use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;
use ureq::http::Uri;

use crate::limits::check_range;
use crate::member::{ClusterConfig, EtcdConfig, Member, SERVICES_MAX, check_host_address, check_name};

/// Hosts that a configuration may list.
const HOSTS_MAX: usize = 4096;
/// Names that may be looked up.
const DNS_MAX: usize = 64;
/// Servers of an etcd.
const ENDPOINTS_MAX: usize = 16;
/// Letters of the address of a server, and of a prefix.
const LETTERS_MAX: usize = 256;

/// The keys of `[cluster]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterTable {
    name: Option<Spanned<Name>>,
    services: Option<Spanned<Services>>,
    refresh_ms: Option<RefreshMs>,
    #[serde(default)]
    host: List<HostTable, HOSTS_MAX>,
    #[serde(default)]
    dns: List<Name, DNS_MAX>,
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

/// A list of so many entries at most.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<T>", bound = "T: Deserialize<'de>")]
struct List<T, const MAX: usize>(Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T, const MAX: usize> TryFrom<Vec<T>> for List<T, MAX> {
    type Error = String;

    fn try_from(list: Vec<T>) -> Result<Self, String> {
        if list.len() > MAX {
            Err(format!("{} entries, at most {MAX} are allowed", list.len()))
        } else {
            Ok(Self(list))
        }
    }
}

type Services = List<Name, SERVICES_MAX>;

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
        if list.len() > ENDPOINTS_MAX {
            return Err(format!("{} servers, at most {ENDPOINTS_MAX} are allowed", list.len()));
        }
        if let Some(wrong) = list.iter().find(|text| !is_endpoint(text)) {
            return Err(format!("{wrong:?} is not allowed; write \"http://HOST:PORT\" (there is no TLS here)"));
        }
        if list.is_empty() { Err("an etcd needs at least one endpoint".into()) } else { Ok(Self(list)) }
    }
}

/// Scheme, host and port, and nothing else: no user, no path.
fn is_endpoint(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else { return false };
    let Some(authority) = uri.authority() else { return false };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    text.len() <= LETTERS_MAX
        && uri.scheme_str() == Some("http")
        && !authority.host().is_empty()
        && authority.port_u16().is_some_and(|port| port > 0)
        && !authority.as_str().contains('@')
        && path == "/"
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Prefix(String);

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_plain = text.bytes().all(|b| b.is_ascii_graphic()) && text.len() <= LETTERS_MAX;
        if text.starts_with('/') && is_plain {
            return Ok(Self(text));
        }
        Err(format!("{text:?} is no prefix: it begins with \"/\" and has at most {LETTERS_MAX} letters without spaces"))
    }
}

fn names(services: Services) -> Vec<String> {
    services.0.into_iter().map(|name| name.0).collect()
}

impl ClusterTable {
    /// Puts what the table says over `config`. Returned are problems: where, and what.
    pub(super) fn put_into(self, config: &mut ClusterConfig) -> Vec<(usize, String)> {
        let places = [
            ("name", self.name.as_ref().map(|name| name.span().start)),
            ("services", self.services.as_ref().map(|services| services.span().start)),
        ];
        let unheard = |(key, place): (&str, Option<usize>)| {
            let told =
                format!("`{key}`: nobody hears of it without [cluster.etcd]; a list names it under [[cluster.host]]");
            Some((place?, told))
        };
        let problems = if self.etcd.is_some() { Vec::new() } else { places.into_iter().filter_map(unheard).collect() };
        config.name = self.name.map(|name| name.into_inner().0);
        config.services = self.services.map(|services| names(services.into_inner())).unwrap_or_default();
        if let Some(RefreshMs(ms)) = self.refresh_ms {
            config.refresh = Duration::from_millis(ms);
        }
        let host = |host: HostTable| Member {
            address: host.address.0,
            name: host.name.map(|name| name.0),
            services: host.services.map(names).unwrap_or_default(),
        };
        config.hosts = self.host.0.into_iter().map(host).collect();
        config.dns = self.dns.0.into_iter().map(|name| name.0).collect();
        config.etcd = self.etcd.map(|etcd| EtcdConfig {
            endpoints: etcd.endpoints.0,
            prefix: etcd.prefix.map_or_else(|| "/raas".to_owned(), |prefix| prefix.0),
            lease_seconds: etcd.lease_seconds.map_or(10, |seconds| seconds.0),
        });
        problems
    }
}
