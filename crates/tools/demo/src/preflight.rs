//! What the demo needs of the machine, looked at before anything is started.

use std::net::IpAddr;

use rustix::process::{Resource, getrlimit};

use super::host::{Ports, check_ports};
use super::plan::{Link, Seat};
use transport::process;

/// Descriptors of an application in addition to its connections: standard streams, files being sent, listener, session.
const APP_DESCRIPTORS: u64 = 48;
/// Descriptors of a daemon in addition to those of its applications.
const DAEMON_DESCRIPTORS: u64 = 64;
/// Descriptors that a daemon has for each application.
const DAEMON_DESCRIPTORS_PER_APP: u64 = 8;
/// Descriptors of this process in addition to two for each child.
const OWN_DESCRIPTORS: u64 = 48;

/// Raises what may be raised, and says what is short.
pub(super) fn check(hosts: [IpAddr; 2], ports: Ports, seats: &[Seat], links: &[Link]) -> Result<(), String> {
    process::raise_descriptor_limit();
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    enough_descriptors(limit, ports.engines, seats, links)?;
    hosts.into_iter().try_for_each(|ip| check_ports(ip, ports))
}

fn enough_descriptors(limit: u64, engines: u32, seats: &[Seat], links: &[Link]) -> Result<(), String> {
    let apps = seats.len() as u64;
    let of_app = seats.iter().map(|&seat| links.iter().filter(|l| l.has(seat)).count()).max().unwrap_or(0) as u64;
    let needs = [
        ("each application over kernel TCP", APP_DESCRIPTORS + of_app),
        ("each daemon", DAEMON_DESCRIPTORS + (DAEMON_DESCRIPTORS_PER_APP + u64::from(engines) - 1) * apps),
        ("the demo itself", OWN_DESCRIPTORS + 2 * (apps + 2)),
    ];
    let Some((who, needed)) = needs.into_iter().filter(|(_, needed)| *needed > limit).max_by_key(|(_, needed)| *needed)
    else {
        return Ok(());
    };
    Err(format!(
        "too few descriptors: {who} needs {needed}, and this shell allows {limit} (`ulimit -Hn`). Raise that, or ask for less \
         with --connections and --apps"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named() {
        let seat = |host, app| Seat { host, app };
        let link = Link { from: seat(0, 0), to: seat(1, 0), files_from: Vec::new(), files_to: Vec::new() };
        let (seats, links) = ([seat(0, 0), seat(1, 0)], vec![link; 1000]);
        let short = enough_descriptors(64, 1, &seats, &links).unwrap_err();
        assert!(short.contains("over kernel TCP needs 1048") && short.contains("allows 64"), "{short}");
        let short = enough_descriptors(64, 1, &seats, &links[..1]).unwrap_err();
        assert!(short.contains("each daemon needs 80"), "{short}");
        assert!(enough_descriptors(1048, 1, &seats, &links).is_ok());
    }
}
