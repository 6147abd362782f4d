//! How a connection to a host would travel, found out by trying: this host's daemon is asked to open a connection that
//! the peer's daemon must refuse, so that the control link, the key, the lane and its frames are all used, and no
//! application sees anything.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use control::{LaneRow, Reason};
use raas::{ConnectError, ConnectOptions};

use terminal::Failure;
use transport::{Raas, session_failure};

/// Port that the probe asks for: `tcpmux`, on which no program listens. One that does would see a connection that ends.
const PROBE_PORT: u16 = 1;
/// How long an answer may take, in addition to the daemon's own limit for making a lane.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// Where a connection to a host would go.
#[derive(Debug)]
pub(crate) enum Route {
    /// This host itself.
    SameHost,
    /// Another host's daemon answered over the lane.
    Lane {
        /// The lane, unless it was lost right afterwards.
        lane: Option<Box<LaneRow>>,
        /// From the question to the answer, when the lane was there.
        round_trip: Duration,
    },
    /// No way.
    None(Reason),
}

/// Host and, if given, port. A name counts as its first address; it may be one of the cluster.
pub(crate) fn target(text: &str, socket: Option<&Path>) -> Result<(IpAddr, Option<u16>), Failure> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok((ip, None));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    let has_port = text.contains(':');
    let whole = if has_port { text.to_owned() } else { format!("{text}:{PROBE_PORT}") };
    let found = crate::cli::resolve(&whole, socket)?;
    let first = found.first().ok_or_else(|| Failure::Failed(format!("`{text}`: the name has no address")))?;
    Ok((first.ip(), has_port.then_some(first.port())))
}

/// Tries the way to `host`.
pub(crate) fn probe(raas: &Raas, host: IpAddr) -> Result<Route, Failure> {
    if host.is_unspecified() || raas.session().addresses().contains(&host.to_canonical()) {
        return Ok(Route::SameHost);
    }
    if let Err(reason) = ask(raas, host)? {
        return Ok(Route::None(reason));
    }
    // The first question may have made the lane; the second one measures it.
    let begin = Instant::now();
    if let Err(reason) = ask(raas, host)? {
        return Ok(Route::None(reason));
    }
    let round_trip = begin.elapsed();
    let stat = raas::inspect::stat(Some(raas.session().socket())).map_err(session_failure)?;
    let lane =
        stat.lanes.into_iter().find(|lane| lane.name.split('/').next() == Some(&host.to_canonical().to_string()));
    Ok(Route::Lane { lane: lane.map(Box::new), round_trip })
}

/// Whether the peer's daemon answers, or why not.
fn ask(raas: &Raas, host: IpAddr) -> Result<Result<(), Reason>, Failure> {
    let to = SocketAddr::new(host, PROBE_PORT);
    match ConnectOptions::new().timeout(PROBE_TIMEOUT).connect(raas.session(), to) {
        // Somebody accepts or could: the way is open.
        Ok(_) | Err(ConnectError::Refused { reason: Reason::NoListener | Reason::BacklogFull, .. }) => Ok(Ok(())),
        Err(ConnectError::Refused { reason, .. }) => Ok(Err(reason)),
        Err(ConnectError::TimedOut { .. }) => Ok(Err(Reason::TimedOut)),
        Err(ConnectError::Session(e)) => Err(session_failure(e)),
        Err(e) => Err(Failure::failed(format!("probe of {host}"), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of no daemon.
    const NOWHERE: Option<&Path> = None;

    #[test]
    fn targets_are_hosts_with_or_without_a_port() {
        assert_eq!(target("10.0.0.2", NOWHERE).unwrap(), ("10.0.0.2".parse().unwrap(), None));
        assert_eq!(target("10.0.0.2:80", NOWHERE).unwrap(), ("10.0.0.2".parse().unwrap(), Some(80)));
        assert_eq!(target("::1", NOWHERE).unwrap().1, None);
        assert_eq!(target("[::1]:9", NOWHERE).unwrap().1, Some(9));
        assert!(target("localhost", NOWHERE).unwrap().0.is_loopback());
        assert!(target("localhost:7", NOWHERE).unwrap().1 == Some(7));
        for bad in ["", "localhost:port", "1.2.3.4:99999"] {
            assert!(matches!(target(bad, NOWHERE), Err(Failure::Usage(_))), "{bad}");
        }
    }
}
