//! Which hosts there are, and which names they serve (docs/operate/clusters.md).
//!
//! Owns the threads that ask the directories. A directory is asked by one trait, [`Directory`]: the list of the
//! configuration, DNS, or etcd, where this host also says that it is there. Each has a thread of its own, so that a slow
//! one holds up neither the daemon nor another one. A directory that does not answer leaves the hosts of before.

mod asking;
mod directory_error;
mod dns;
mod etcd;
mod fixed;
mod members;

use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use crate::DaemonError;
use crate::member::{ClusterConfig, Member};

use directory_error::DirectoryError;
pub(crate) use members::Members;

/// How long the end of the daemon waits for a directory to take back what this host said of itself.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Where hosts are found.
trait Directory: Send {
    /// What `raas cluster` calls it.
    fn source(&self) -> &'static str;
    /// What is asked: names, or addresses of servers.
    fn asked(&self) -> Vec<String>;
    /// Asks once, and says that this host is there if the directory has such a thing. It may take its time.
    fn ask(&mut self, own: &Member) -> Told;
    /// When to ask again.
    fn period(&self) -> Duration;
    /// Longest pause after a failure.
    fn pause_max(&self) -> Duration;
    /// Takes back what this host said of itself: the daemon ends.
    fn leave(&mut self) {}
}

/// What a directory said.
#[derive(Debug, Default)]
struct Told {
    /// All hosts that it knows; none if that cannot be known now.
    members: Option<Vec<Member>>,
    /// What went wrong, with all of it or with a part.
    error: Option<DirectoryError>,
}

impl Told {
    fn failed(error: DirectoryError) -> Self {
        Self { members: None, error: Some(error) }
    }
}

/// A thread that asks.
#[derive(Debug)]
struct Asker {
    /// A word ends it; closed, it leaves its directory before.
    stop: Sender<()>,
    /// Closed when it has left its directory.
    left: Receiver<()>,
}

/// The threads that ask. Dropping them ends them, and takes back what this host said of itself. A thread that waits for
/// a system's answer ends when that comes; nobody waits for it.
#[derive(Debug)]
pub(crate) struct Asking(Vec<Asker>);

impl Asking {
    /// Another daemon takes this one's place at once: what this host said of itself stays, and nobody is waited for.
    pub(crate) fn hand_over(mut self) {
        for asker in self.0.drain(..) {
            let _ = asker.stop.send(());
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let (stops, lefts): (Vec<_>, Vec<_>) = self.0.drain(..).map(|asker| (asker.stop, asker.left)).unzip();
        drop(stops);
        let deadline = Instant::now() + LEAVE_TIMEOUT;
        for left in lefts {
            // Nothing is ever sent: this ends with the thread, or with the time.
            let _ = left.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }
}

/// Starts asking what the configuration names, if it names anything. `own` is this host's address.
pub(crate) fn start(config: &ClusterConfig, own: IpAddr) -> Result<(Members, Asking), DaemonError> {
    let own = Member { address: own, name: config.name.clone(), services: config.services.clone() };
    let directories = directories(config);
    let members = Members::new(directories.iter().map(|directory| (directory.source(), directory.asked())).collect());
    let mut asking = Asking(Vec::new());
    for (place, directory) in directories.into_iter().enumerate() {
        let (stop, stopped) = mpsc::channel();
        let (leaving, left) = mpsc::channel();
        let (own, members) = (own.clone(), members.clone());
        let ask = move || {
            asking::run(directory, &own, &members, place, &stopped);
            drop::<Sender<()>>(leaving);
        };
        let thread = std::thread::Builder::new().name("raas-cluster".into()).spawn(ask);
        thread.map_err(DaemonError::io("cannot start a thread that asks for hosts"))?;
        asking.0.push(Asker { stop, left });
    }
    Ok((members, asking))
}

fn directories(config: &ClusterConfig) -> Vec<Box<dyn Directory>> {
    let mut all: Vec<Box<dyn Directory>> = Vec::new();
    if !config.hosts.is_empty() {
        all.push(Box::new(fixed::Fixed::new(config.hosts.clone())));
    }
    if !config.dns.is_empty() {
        all.push(Box::new(dns::Dns::new(config.dns.clone(), config.refresh)));
    }
    if let Some(etcd) = &config.etcd {
        all.push(Box::new(etcd::Etcd::new(etcd, config.refresh)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_ask_has_no_thread() {
        let (members, asking) = start(&ClusterConfig::default(), [10, 0, 0, 1].into()).unwrap();
        assert!(asking.0.is_empty() && members.directories().is_empty() && members.find("a").is_empty());
    }

    #[test]
    fn the_list_of_the_configuration_is_told_and_the_end_does_not_wait_for_the_next_time() {
        let services = vec!["store".to_owned()];
        let hosts = vec![Member { address: [10, 0, 0, 3].into(), name: None, services }];
        let config = ClusterConfig { hosts, refresh: Duration::from_secs(3600), ..ClusterConfig::default() };
        let (members, asking) = start(&config, [10, 0, 0, 1].into()).unwrap();
        let begin = Instant::now();
        while members.find("store").is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert_eq!(members.find("STORE"), [IpAddr::from([10, 0, 0, 3])]);
        assert_eq!(members.directories()[0].source, "static");
        drop(asking);
    }
}
