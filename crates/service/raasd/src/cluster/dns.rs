//! Hosts by DNS, or whatever this system looks names up by: each address of a name is a host that serves the name.
//!
//! The system's resolver does not tell how long an answer holds, so names are looked up again after a period. A name
//! that cannot be looked up keeps its addresses, since the resolver does not tell a name that is gone from a server that
//! is away.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use super::directory_error::plain;
use super::{Directory, DirectoryError, Told};
use crate::member::{Member, check_host_address};

/// Addresses of one name that are taken.
const ADDRESSES_MAX: usize = 4096;
/// Longest pause after a failure, unless the period is longer.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Looks a name up.
type Lookup = Box<dyn FnMut(&str) -> io::Result<Vec<IpAddr>> + Send>;

pub(super) struct Dns {
    /// The names, each with what it stood for last.
    names: BTreeMap<String, Vec<IpAddr>>,
    refresh: Duration,
    lookup: Lookup,
}

impl Dns {
    pub(super) fn new(names: Vec<String>, refresh: Duration) -> Self {
        let names = names.into_iter().map(|name| (name, Vec::new())).collect();
        Self { names, refresh, lookup: Box::new(by_system) }
    }

    fn members(&self) -> Vec<Member> {
        let of = |(name, addresses): (&String, &Vec<IpAddr>)| -> Vec<Member> {
            let member = |address: &IpAddr| Member { address: *address, name: None, services: vec![name.clone()] };
            addresses.iter().map(member).collect()
        };
        self.names.iter().flat_map(of).collect()
    }
}

fn by_system(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = (name, 0).to_socket_addrs()?;
    Ok(found.map(|at| at.ip().to_canonical()).collect())
}

impl Directory for Dns {
    fn source(&self) -> &'static str {
        "dns"
    }

    fn asked(&self) -> Vec<String> {
        self.names.keys().cloned().collect()
    }

    fn ask(&mut self, _own: &Member) -> Told {
        let (mut failed, mut looked_up, mut surplus) = (Vec::new(), 0, None);
        for (name, addresses) in &mut self.names {
            match (self.lookup)(name) {
                Ok(mut found) => {
                    looked_up += 1;
                    // Filters answer 0.0.0.0 for names that they do not like.
                    found.retain(|address| check_host_address(*address).is_ok());
                    if found.len() > ADDRESSES_MAX {
                        surplus = Some(DirectoryError::TooMany { kept: ADDRESSES_MAX });
                        found.truncate(ADDRESSES_MAX);
                    }
                    *addresses = found;
                }
                Err(error) => failed.push(format!("{name}: {error}")),
            }
        }
        let error = if failed.is_empty() { surplus } else { Some(DirectoryError::Names(plain(&failed.join("; ")))) };
        Told { members: (looked_up > 0).then(|| self.members()), error }
    }

    fn period(&self) -> Duration {
        self.refresh
    }

    fn pause_max(&self) -> Duration {
        PAUSE_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Member {
        Member { address: [10, 0, 0, 1].into(), name: None, services: Vec::new() }
    }

    fn dns(names: &[&str], lookup: impl FnMut(&str) -> io::Result<Vec<IpAddr>> + Send + 'static) -> Dns {
        let names = names.iter().map(ToString::to_string).collect();
        Dns { lookup: Box::new(lookup), ..Dns::new(names, Duration::from_secs(5)) }
    }

    #[test]
    fn the_system_is_asked() {
        let told = Dns::new(vec!["localhost".into()], Duration::from_secs(5)).ask(&own());
        let found = told.members.unwrap();
        assert!(!found.is_empty() && told.error.is_none());
        assert!(found.iter().all(|host| host.address.is_loopback() && host.services == ["localhost"]), "{found:?}");
    }

    #[test]
    fn a_name_that_cannot_be_looked_up_keeps_its_hosts_and_the_others_go_on() {
        let mut turn = 0;
        let mut dns = dns(&["a", "b"], move |name| {
            turn += 1;
            match (name, turn) {
                ("a", 1) => Ok(vec![[10, 0, 0, 1].into()]),
                ("b", _) => Ok(vec![[10, 0, 1, turn].into()]),
                _ => Err(io::Error::other("no\nanswer")),
            }
        });
        assert_eq!(dns.ask(&own()).members.unwrap().len(), 2);
        let told = dns.ask(&own());
        let addresses: Vec<String> = told.members.unwrap().iter().map(|m| m.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.1", "10.0.1.4"]);
        assert_eq!(told.error, Some(DirectoryError::Names("a: no answer".into())));
    }

    #[test]
    fn answers_of_any_kind_are_bounded_and_name_hosts() {
        let many = |n: u32| (0..n).map(|i| IpAddr::from((0x0a00_0000 + i).to_be_bytes())).collect::<Vec<_>>();
        let mut dns = dns(&["a"], move |_| {
            let mut all = many(5000);
            all.extend(["0.0.0.0", "224.0.0.1", "::", "ff02::1"].map(|a| a.parse::<IpAddr>().unwrap()));
            all.rotate_right(4);
            Ok(all)
        });
        let told = dns.ask(&own());
        let members = told.members.unwrap();
        assert_eq!(members.len(), ADDRESSES_MAX);
        assert!(members.iter().all(|m| check_host_address(m.address).is_ok()));
        assert_eq!(told.error, Some(DirectoryError::TooMany { kept: ADDRESSES_MAX }));
    }
}
