//! Which rows `raas ss` shows: conditions of different kinds must all hold, of one kind any.

use std::net::{IpAddr, SocketAddr};

use control::{ConnectionRow, DatagramRow};

use super::programs::Programs;
use crate::cli::SsArgs;
use crate::route;
use terminal::Failure;

/// The conditions of one command line.
#[derive(Debug, Default)]
pub(super) struct Filter {
    peers: Vec<(IpAddr, Option<u16>)>,
    ports: Vec<u16>,
    states: Vec<String>,
    paths: Vec<String>,
    pids: Vec<u32>,
    programs: Vec<String>,
}

impl Filter {
    /// Fails where a host's name has no address.
    pub(super) fn new(args: &SsArgs) -> Result<Self, Failure> {
        let peers = args.peer.iter().map(|text| route::target(text, args.socket.path())).collect::<Result<_, _>>()?;
        Ok(Self {
            peers,
            ports: args.port.clone(),
            states: args.state.clone(),
            paths: args.path.clone(),
            pids: args.pid.clone(),
            programs: args.program.clone(),
        })
    }

    pub(super) fn takes_connection(&self, row: &ConnectionRow, programs: &Programs) -> bool {
        let is_peer = |at: SocketAddr| {
            any(&self.peers, |(ip, port)| {
                ip.to_canonical() == at.ip().to_canonical() && port.is_none_or(|p| p == at.port())
            })
        };
        is_peer(row.peer)
            && any(&self.ports, |port| [row.local.port(), row.peer.port()].contains(port))
            && any(&self.states, |state| state == row.state.as_str())
            && any(&self.paths, |path| path == row.path.as_str())
            && self.takes_process(row.app_pid, programs)
    }

    /// A datagram socket has no peer, state or path: a condition on one of these leaves it out.
    pub(super) fn takes_datagram(&self, row: &DatagramRow, programs: &Programs) -> bool {
        self.peers.is_empty()
            && self.states.is_empty()
            && self.paths.is_empty()
            && any(&self.ports, |port| row.local.port() == *port)
            && self.takes_process(row.app_pid, programs)
    }

    fn takes_process(&self, pid: u32, programs: &Programs) -> bool {
        any(&self.pids, |p| *p == pid)
            && any(&self.programs, |name| programs.name(pid).is_some_and(|n| n.split(", ").any(|n| n == name)))
    }
}

/// Whether no condition is set or one of them holds.
fn any<T>(conditions: &[T], holds: impl Fn(&T) -> bool) -> bool {
    conditions.is_empty() || conditions.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{app, connection, datagram};
    use super::*;

    #[test]
    fn each_condition_takes_its_rows_and_no_others() {
        let programs = Programs::of(&[app(5, "server"), app(5, "other"), app(6, "client")]);
        assert_eq!(programs.name(5), Some("other, server"));
        let row = connection();
        let takes = |change: fn(&mut Filter)| {
            let mut filter = Filter::default();
            change(&mut filter);
            (filter.takes_connection(&row, &programs), filter.takes_datagram(&datagram(), &programs))
        };
        assert_eq!(takes(|_| ()), (true, true));
        assert_eq!(takes(|f| f.peers = vec![("10.0.0.2".parse().unwrap(), None)]), (true, false));
        assert_eq!(takes(|f| f.peers = vec![("::ffff:10.0.0.2".parse().unwrap(), Some(80))]), (true, false));
        assert_eq!(takes(|f| f.peers = vec![("10.0.0.2".parse().unwrap(), Some(81))]), (false, false));
        assert_eq!(takes(|f| f.ports = vec![5000]), (true, false));
        assert_eq!(takes(|f| f.ports = vec![1, 80, 7001]), (true, true));
        assert_eq!(takes(|f| f.states = vec!["established".into()]), (false, false));
        assert_eq!(takes(|f| f.states = vec!["established".into(), "fin-sent".into()]), (true, false));
        assert_eq!(takes(|f| f.paths = vec!["lane".into()]), (true, false));
        assert_eq!(takes(|f| f.pids = vec![5]), (true, false));
        assert_eq!(takes(|f| f.programs = vec!["server".into()]), (true, false));
        assert_eq!(takes(|f| f.programs = vec!["client".into()]), (false, true));
        assert_eq!(takes(|f| f.programs = vec!["serv".into()]), (false, false));
        assert_eq!(takes(|f| (f.pids, f.ports) = (vec![5], vec![81])), (false, false), "all kinds must hold");
    }
}
