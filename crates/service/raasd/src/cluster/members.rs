//! The hosts that the directories named last, for those who tell programs.
//!
//! Owns how the answers of several directories become one list. It must never make the control plane wait while it is
//! made: a new list is built beside the old one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use control::{DirectoryRow, FOUND_MAX, MemberRow};

use super::Told;
use crate::member::{Member, SERVICES_MAX};

/// Hosts that one daemon keeps at most, of all directories; the log says when there are more.
const MEMBERS_MAX: usize = 65_536;

/// The hosts that directories named. Clones are handles to the same ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Members(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// What each directory said; held while a list is built.
    told: Mutex<Vec<Vec<Member>>>,
    shown: Mutex<Shown>,
}

#[derive(Debug, Clone, Default)]
struct Shown {
    hosts: Arc<Hosts>,
    directories: Vec<State>,
    /// Which host of a name comes first.
    turn: usize,
}

/// How it is with a directory.
#[derive(Debug, Clone)]
struct State {
    source: &'static str,
    asked: Vec<String>,
    hosts: usize,
    answered: Option<Instant>,
    failed: Option<(Instant, String)>,
}

#[derive(Debug, Default)]
struct Hosts {
    /// By address and directory.
    list: Vec<Host>,
    /// Who has or serves a name, in lower case.
    by_name: BTreeMap<String, Vec<IpAddr>>,
}

#[derive(Debug)]
struct Host {
    address: IpAddr,
    source: &'static str,
    name: Option<String>,
    services: BTreeSet<String>,
    since: Instant,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Members {
    /// Of these directories, each with its name and what is asked.
    pub(super) fn new(directories: Vec<(&'static str, Vec<String>)>) -> Self {
        let state = |(source, asked)| State { source, asked, hosts: 0, answered: None, failed: None };
        let told = Mutex::new(vec![Vec::new(); directories.len()]);
        let directories = directories.into_iter().map(state).collect();
        Self(Arc::new(Inner { told, shown: Mutex::new(Shown { hosts: Arc::default(), directories, turn: 0 }) }))
    }

    /// Takes what the directory at `place` said.
    pub(super) fn take(&self, place: usize, said: Told) {
        let mut told = lock(&self.0.told);
        let now = Instant::now();
        let Shown { hosts: before, mut directories, .. } = lock(&self.0.shown).clone();
        let (Some(slot), Some(state)) = (told.get_mut(place), directories.get_mut(place)) else { return };
        state.note(&said, now);
        let mut hosts = Arc::clone(&before);
        if let Some(members) = said.members
            && *slot != members
        {
            state.hosts = members.len();
            *slot = members;
            let sources = directories.iter().map(|state| state.source);
            hosts = Arc::new(Hosts::new(sources.zip(told.iter().map(Vec::as_slice)), &before, now));
            tracing::info!(hosts = hosts.list.len(), "the hosts of the cluster have changed");
        }
        let mut shown = lock(&self.0.shown);
        let turn = shown.turn;
        let old = std::mem::replace(&mut *shown, Shown { hosts, directories, turn });
        // A long list takes its time to be freed too.
        drop(shown);
        drop(old);
    }

    /// At most `count` rows from place `at`, each with its place, and the place behind them.
    pub(crate) fn page(&self, at: u64, count: usize) -> (Vec<(u64, MemberRow)>, Option<u64>) {
        let (hosts, now) = (Arc::clone(&lock(&self.0.shown).hosts), Instant::now());
        let from = usize::try_from(at).unwrap_or(usize::MAX);
        let looked_at = hosts.list.iter().enumerate().skip(from).take(count);
        let rows: Vec<_> = looked_at.map(|(place, host)| (place as u64, host.row(now))).collect();
        let behind = from.saturating_add(rows.len());
        (rows, (behind < hosts.list.len()).then_some(behind as u64))
    }

    /// How it is with each directory.
    pub(crate) fn directories(&self) -> Vec<DirectoryRow> {
        let now = Instant::now();
        let since = |then: Instant| now.saturating_duration_since(then).as_secs();
        let shown = lock(&self.0.shown);
        let row = |state: &State| DirectoryRow {
            source: state.source.to_owned(),
            asked: state.asked.clone(),
            hosts: state.hosts as u64,
            answered_seconds: state.answered.map(since),
            failed_seconds: state.failed.as_ref().map(|(then, _)| since(*then)),
            error: state.failed.as_ref().map(|(_, error)| error.clone()),
        };
        shown.directories.iter().map(row).collect()
    }

    /// Some hosts that have or serve a name. The next question begins with another one.
    pub(crate) fn find(&self, name: &str) -> Vec<IpAddr> {
        let (hosts, turn) = {
            let mut shown = lock(&self.0.shown);
            shown.turn = shown.turn.wrapping_add(1);
            (Arc::clone(&shown.hosts), shown.turn)
        };
        let Some(all) = hosts.by_name.get(&name.to_ascii_lowercase()) else { return Vec::new() };
        let (before, from) = all.split_at(turn % all.len().max(1));
        from.iter().chain(before).take(FOUND_MAX).copied().collect()
    }
}

impl State {
    fn note(&mut self, said: &Told, now: Instant) {
        match &said.error {
            None => {
                self.answered = Some(now);
                if self.failed.take().is_some() {
                    tracing::info!(directory = self.source, "hosts are found again");
                }
            }
            Some(error) => {
                if self.failed.is_none() {
                    tracing::warn!(directory = self.source, %error, "hosts cannot all be asked for; those of before stay");
                }
                let since = self.failed.as_ref().map_or(now, |(since, _)| *since);
                self.failed = Some((since, error.to_string()));
            }
        }
    }
}

impl Hosts {
    fn new<'a>(told: impl Iterator<Item = (&'static str, &'a [Member])>, before: &Self, now: Instant) -> Self {
        let known: BTreeMap<_, _> = before.list.iter().map(|host| ((host.address, host.source), host.since)).collect();
        let mut all: BTreeMap<(IpAddr, &'static str), Host> = BTreeMap::new();
        let mut left_out = 0_usize;
        for (source, member) in told.flat_map(|(source, members)| members.iter().map(move |m| (source, m))) {
            let place = (member.address, source);
            if all.len() >= MEMBERS_MAX && !all.contains_key(&place) {
                left_out += 1;
                continue;
            }
            let since = known.get(&place).copied().unwrap_or(now);
            let none = || Host { address: member.address, source, name: None, services: BTreeSet::new(), since };
            let host = all.entry(place).or_insert_with(none);
            host.name = host.name.take().or_else(|| member.name.clone());
            let room = SERVICES_MAX.saturating_sub(host.services.len());
            host.services.extend(member.services.iter().take(room).cloned());
        }
        if left_out > 0 {
            tracing::warn!(left_out, "the cluster has more hosts than the {MEMBERS_MAX} that are kept");
        }
        let list: Vec<Host> = all.into_values().collect();
        let mut by_name: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for host in &list {
            for name in host.name.iter().chain(&host.services) {
                let served = by_name.entry(name.to_ascii_lowercase()).or_default();
                // The list is in the order of addresses.
                if served.last() != Some(&host.address) {
                    served.push(host.address);
                }
            }
        }
        Self { list, by_name }
    }
}

impl Host {
    fn row(&self, now: Instant) -> MemberRow {
        MemberRow {
            address: self.address,
            name: self.name.clone(),
            services: self.services.iter().cloned().collect(),
            source: self.source.to_owned(),
            known_seconds: now.saturating_duration_since(self.since).as_secs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::DirectoryError;
    use super::*;

    fn member(last: u8, name: Option<&str>, services: &[&str]) -> Member {
        let services = services.iter().map(ToString::to_string).collect();
        Member { address: [10, 0, 0, last].into(), name: name.map(str::to_owned), services }
    }

    fn told(members: Vec<Member>) -> Told {
        Told { members: Some(members), error: None }
    }

    fn failed() -> Told {
        Told::failed(DirectoryError::Silent("nobody there".into()))
    }

    fn rows(members: &Members) -> Vec<MemberRow> {
        members.page(0, usize::MAX).0.into_iter().map(|(_, row)| row).collect()
    }

    #[test]
    fn a_directory_that_falls_silent_leaves_what_it_said() {
        let members = Members::new(vec![("etcd", vec!["http://a".into()])]);
        members.take(0, told(vec![member(2, None, &["a"])]));
        members.take(0, failed());
        assert_eq!(rows(&members).len(), 1, "those of before stay");
        let state = &members.directories()[0];
        assert_eq!((state.error.as_deref(), state.hosts), (Some("nobody there"), 1));
        assert!(state.answered_seconds.is_some() && state.failed_seconds.is_some());
        members.take(0, told(vec![]));
        assert!(rows(&members).is_empty() && members.directories()[0].error.is_none());
        members.take(7, told(vec![member(9, None, &[])]));
        assert!(rows(&members).is_empty(), "there is no such directory");
    }

    #[test]
    fn a_part_that_failed_does_not_keep_the_rest_from_being_told() {
        let members = Members::new(vec![("dns", vec![])]);
        members.take(0, Told { members: Some(vec![member(2, None, &["a"])]), ..failed() });
        assert_eq!((rows(&members).len(), members.directories()[0].answered_seconds), (1, None));
    }

    #[test]
    fn rows_of_one_host_become_one_with_all_its_services_and_directories_stay_apart() {
        let members = Members::new(vec![("static", vec![]), ("etcd", vec![])]);
        let list = vec![member(2, None, &["b", "a"]), member(1, None, &[]), member(2, Some("two"), &["a", "c"])];
        members.take(0, told(list));
        members.take(1, told(vec![member(2, Some("two"), &["a"])]));
        let rows = rows(&members);
        let sources: Vec<_> = rows.iter().map(|row| (row.address.to_string(), row.source.as_str())).collect();
        let two = "10.0.0.2".to_string();
        assert_eq!(sources, [("10.0.0.1".into(), "static"), (two.clone(), "etcd"), (two, "static")]);
        assert_eq!((rows[2].name.as_deref(), rows[2].services.join(",")), (Some("two"), "a,b,c".to_string()));
        assert_eq!(members.find("A"), [IpAddr::from([10, 0, 0, 2])], "one host, though two directories name it");
        assert_eq!(members.find("Two").len(), 1, "by its own name too");
        assert!(members.find("d").is_empty() && members.find("").is_empty());
    }

    #[test]
    fn each_question_for_a_name_begins_with_another_host_and_names_a_few() {
        let members = Members::new(vec![("dns", vec![])]);
        members.take(0, told((1..=40).map(|n| member(n, None, &["a"])).collect()));
        let firsts: BTreeSet<_> = (0..40).map(|_| members.find("a")[0]).collect();
        assert_eq!((firsts.len(), members.find("a").len()), (40, FOUND_MAX));
        let distinct: BTreeSet<_> = members.find("a").into_iter().collect();
        assert_eq!(distinct.len(), FOUND_MAX);
    }

    #[test]
    fn pages_have_all_rows_once_and_foreign_places_none() {
        let members = Members::new(vec![("dns", vec![])]);
        members.take(0, told((1..=40).map(|n| member(n, None, &[])).collect()));
        let (mut at, mut seen) = (Some(0), Vec::new());
        while let Some(from) = at {
            let (rows, next) = members.page(from, 7);
            seen.extend(rows.into_iter().map(|(_, row)| row.address));
            at = next;
        }
        assert_eq!(seen.len(), 40);
        assert!(seen.is_sorted());
        assert_eq!(members.page(u64::MAX, 7), (vec![], None));
    }

    #[test]
    fn a_cluster_without_end_is_cut() {
        let members = Members::new(vec![("etcd", vec![])]);
        let all = (0..70_000_u32).map(|n| Member { address: n.to_be_bytes().into(), ..member(0, None, &[]) });
        members.take(0, told(all.collect()));
        assert_eq!(rows(&members).len(), MEMBERS_MAX);
        let services: Vec<String> = (0..1000).map(|n| format!("s{n}")).collect();
        let services: Vec<&str> = services.iter().map(String::as_str).collect();
        let parts = services.chunks(50).map(|part| member(1, None, part));
        members.take(0, told(parts.collect()));
        assert_eq!(rows(&members)[0].services.len(), SERVICES_MAX);
    }
}
