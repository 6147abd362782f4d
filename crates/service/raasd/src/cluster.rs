//! Which hosts there are, and which names they serve (docs/clusters.md).
//!
//! Owns the thread that asks the directories, and the list that programs are told. A directory is asked by one trait,
//! [`Directory`]: the list of the configuration, DNS, or etcd, where this host also says that it is there. It must never
//! hold up the daemon: a directory that does not answer leaves the list as it was, and the log says so once.

mod dns;
mod etcd;
mod fixed;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use control::MemberRow;

use crate::DaemonError;
use crate::member::{ClusterConfig, Member};

/// Hosts that one daemon knows at most; more are left out, and the log says so.
const MEMBERS_MAX: usize = 65_536;

/// Where hosts are found.
trait Directory: Send {
    /// What `raas cluster` calls it.
    fn name(&self) -> &'static str;
    /// All hosts that it knows.
    fn members(&mut self) -> Result<Vec<Member>, String>;
    /// Says that this host is there. What comes of it is seen in [`Self::members`].
    fn keep(&mut self, _own: &Member) -> Result<(), String> {
        Ok(())
    }
    /// Takes back what [`Self::keep`] said: the daemon ends.
    fn leave(&mut self) {}
}

/// The hosts of the last answers, shared with those who tell programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members(Arc<Mutex<Arc<[MemberRow]>>>);

impl Members {
    /// The list as it is now.
    pub(crate) fn rows(&self) -> Arc<[MemberRow]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, rows: Vec<MemberRow>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = rows.into();
    }
}

/// The thread that asks. Dropping it ends the thread, and takes back what this host said of itself.
#[derive(Debug)]
pub(crate) struct Asking {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts asking, if the configuration names anything to ask. `own` is this host's address.
pub(crate) fn start(config: &ClusterConfig, own: IpAddr) -> Result<(Members, Option<Asking>), DaemonError> {
    let members = Members::default();
    let directories = directories(config);
    if directories.is_empty() {
        return Ok((members, None));
    }
    let (stop, stopped) = mpsc::channel();
    let own = Member { address: own, name: config.name.clone(), services: config.services.clone() };
    let (list, refresh) = (members.clone(), config.refresh);
    let asked = directories.into_iter().map(Asked::new).collect();
    let thread = std::thread::Builder::new()
        .name("raas-cluster".into())
        .spawn(move || ask(asked, &own, &list, refresh, &stopped))
        .map_err(DaemonError::io("cannot start the thread that asks for hosts"))?;
    Ok((members, Some(Asking { stop: Some(stop), thread: Some(thread) })))
}

fn directories(config: &ClusterConfig) -> Vec<Box<dyn Directory>> {
    let mut all: Vec<Box<dyn Directory>> = Vec::new();
    if !config.hosts.is_empty() {
        all.push(Box::new(fixed::Fixed::new(config.hosts.clone())));
    }
    if !config.dns.is_empty() {
        all.push(Box::new(dns::Dns::new(config.dns.clone())));
    }
    if let Some(etcd) = &config.etcd {
        all.push(Box::new(etcd::Etcd::new(etcd)));
    }
    all
}

/// A directory, and what it said last.
struct Asked {
    directory: Box<dyn Directory>,
    members: Vec<Member>,
    /// It did not answer; the log has said so.
    is_silent: bool,
}

impl Asked {
    fn new(directory: Box<dyn Directory>) -> Self {
        Self { directory, members: Vec::new(), is_silent: false }
    }

    fn ask(&mut self, own: &Member) {
        let name = self.directory.name();
        let kept = self.directory.keep(own);
        match kept.and_then(|()| self.directory.members()) {
            Ok(members) => {
                if std::mem::take(&mut self.is_silent) {
                    tracing::info!(directory = name, "hosts are found again");
                }
                self.members = members;
            }
            Err(error) if !self.is_silent => {
                self.is_silent = true;
                tracing::warn!(directory = name, %error, "hosts cannot be asked for; those of before stay");
            }
            Err(_) => {}
        }
    }
}

fn ask(mut all: Vec<Asked>, own: &Member, list: &Members, refresh: Duration, stopped: &mpsc::Receiver<()>) {
    let mut told = 0;
    loop {
        all.iter_mut().for_each(|asked| asked.ask(own));
        let rows = rows(&all);
        if rows.len() != told {
            told = rows.len();
            tracing::info!(hosts = told, "hosts of the cluster");
        }
        list.set(rows);
        match stopped.recv_timeout(refresh) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    all.iter_mut().for_each(|asked| asked.directory.leave());
}

/// One row for each address and directory, by address.
fn rows(all: &[Asked]) -> Vec<MemberRow> {
    let mut rows: BTreeMap<(IpAddr, &'static str), (Option<String>, BTreeSet<String>)> = BTreeMap::new();
    for asked in all {
        for member in &asked.members {
            let row = rows.entry((member.address, asked.directory.name())).or_default();
            row.0 = row.0.take().or_else(|| member.name.clone());
            row.1.extend(member.services.iter().cloned());
        }
    }
    if rows.len() > MEMBERS_MAX {
        tracing::warn!(hosts = rows.len(), "the cluster has more hosts than the {MEMBERS_MAX} that are kept");
    }
    let row = |((address, source), (name, services)): ((IpAddr, &str), (Option<String>, BTreeSet<String>))| MemberRow {
        address,
        name: name.unwrap_or_default(),
        services: services.into_iter().collect(),
        source: source.to_owned(),
    };
    rows.into_iter().take(MEMBERS_MAX).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    struct Moody(Vec<Result<Vec<Member>, String>>);

    impl Directory for Moody {
        fn name(&self) -> &'static str {
            "moody"
        }

        fn members(&mut self) -> Result<Vec<Member>, String> {
            self.0.pop().unwrap_or_else(|| Err("no more".into()))
        }
    }

    fn member(last: u8, name: Option<&str>, services: &[&str]) -> Member {
        let services = services.iter().map(ToString::to_string).collect();
        Member { address: [10, 0, 0, last].into(), name: name.map(str::to_owned), services }
    }

    #[test]
    fn a_directory_that_falls_silent_leaves_what_it_said() {
        let own = member(1, None, &[]);
        let mut asked =
            Asked::new(Box::new(Moody(vec![Ok(vec![]), Err("gone".into()), Ok(vec![member(2, None, &["a"])])])));
        asked.ask(&own);
        assert_eq!(rows(std::slice::from_ref(&asked)).len(), 1);
        asked.ask(&own);
        assert!(asked.is_silent);
        assert_eq!(rows(std::slice::from_ref(&asked)).len(), 1, "those of before stay");
        asked.ask(&own);
        assert!(!asked.is_silent && rows(&[asked]).is_empty());
    }

    #[test]
    fn rows_of_one_host_become_one_with_all_its_services() {
        let mut asked = Asked::new(Box::new(Moody(Vec::new())));
        asked.members = vec![member(2, None, &["b", "a"]), member(1, None, &[]), member(2, Some("two"), &["a", "c"])];
        let rows = rows(&[asked]);
        assert_eq!(rows.len(), 2);
        assert_eq!((&*rows[1].name, rows[1].services.join(",")), ("two", "a,b,c".to_string()));
    }

    #[test]
    fn nothing_to_ask_has_no_thread_and_the_end_does_not_wait_for_the_next_time() {
        let mut config = ClusterConfig::default();
        assert!(start(&config, [10, 0, 0, 1].into()).unwrap().1.is_none());
        config.hosts = vec![member(3, None, &["store"])];
        config.refresh = Duration::from_secs(3600);
        let (members, asking) = start(&config, [10, 0, 0, 1].into()).unwrap();
        let begin = Instant::now();
        while members.rows().is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
        assert_eq!(members.rows()[0].source, "static");
        drop(asking);
    }
}
