//! Hosts by DNS, or whatever this system looks names up by: each address of a name is a host that serves the name.

use std::net::ToSocketAddrs;

use super::Directory;
use crate::member::Member;

pub(super) struct Dns(Vec<String>);

impl Dns {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self(names)
    }
}

impl Directory for Dns {
    fn name(&self) -> &'static str {
        "dns"
    }

    fn members(&mut self) -> Result<Vec<Member>, String> {
        let mut all = Vec::new();
        for name in &self.0 {
            let found = (name.as_str(), 0).to_socket_addrs().map_err(|e| format!("{name}: {e}"))?;
            let member = |address: std::net::SocketAddr| Member {
                address: address.ip().to_canonical(),
                name: None,
                services: vec![name.clone()],
            };
            all.extend(found.map(member));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_of_a_name_is_a_host_that_serves_it() {
        let found = Dns::new(vec!["localhost".into()]).members().unwrap();
        assert!(!found.is_empty());
        assert!(found.iter().all(|host| host.address.is_loopback() && host.services == ["localhost"]), "{found:?}");
        let refused = Dns::new(vec!["localhost".into(), "no-such-name.invalid".into()]).members().unwrap_err();
        assert!(refused.contains("no-such-name.invalid"), "{refused}");
    }
}
