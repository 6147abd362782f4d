//! Which engine carries a connection.
//!
//! Owns the counts of connections by engine, and the choice. It must never choose an engine that the other host does
//! not have. A connection stays with its engine for its life.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;

use super::{Admission, Program};
use crate::ClientId;

/// What is spread over the engines of a daemon (docs/inside/engine.md).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SpreadBy {
    /// Connections: one program uses all engines.
    #[default]
    Connections,
    /// Programs: all connections of one go through one engine.
    Programs,
    /// Tenants of the policy: all connections of all programs of one go through one engine.
    Tenants,
}

impl FromStr for SpreadBy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "connections" => Ok(Self::Connections),
            "programs" => Ok(Self::Programs),
            "tenants" => Ok(Self::Tenants),
            _ => Err(format!("\"{word}\" is not allowed; use \"connections\", \"programs\" or \"tenants\"")),
        }
    }
}

/// Who has an engine to itself, as long as there are enough of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Program(ClientId),
    Tenant(usize),
}

impl SpreadBy {
    /// `None`: connections are spread one by one.
    fn party(self, client: ClientId, program: &Program) -> Option<Party> {
        match self {
            Self::Connections => None,
            Self::Programs => Some(Party::Program(client)),
            Self::Tenants => Some(Party::Tenant(program.tenant)),
        }
    }
}

impl Admission {
    /// The engine for one more connection of a program to a host to which there are so many lanes.
    pub(super) fn choose_engine(&self, client: ClientId, host: IpAddr, lanes: u32) -> u32 {
        let Some(program) = self.programs.get(&client).filter(|_| lanes > 1) else { return 0 };
        match self.config.spread.party(client, program) {
            None => program.spread.choose(host, lanes, &self.load),
            Some(party) => self.engine_of(party, lanes),
        }
    }

    /// The engine with the fewest other parties, of these the one with most of the party's own connections, of these the
    /// one with the fewest of the daemon's.
    fn engine_of(&self, party: Party, lanes: u32) -> u32 {
        let mut own = vec![0_u32; lanes as usize];
        let mut others = vec![BTreeSet::new(); lanes as usize];
        for (&client, program) in &self.programs {
            let Some(of) = self.config.spread.party(client, program) else { continue };
            for (&engine, &count) in &program.spread.all {
                // Engines that the host does not have are none of its.
                let (Some(own), Some(others)) = (own.get_mut(engine as usize), others.get_mut(engine as usize)) else {
                    continue;
                };
                if of == party {
                    *own += count;
                } else {
                    others.insert(of);
                }
            }
        }
        let load = |engine: usize| self.load.get(engine).copied().unwrap_or(0);
        let facts = own.iter().zip(&others).enumerate();
        let best = facts.min_by_key(|(engine, (own, others))| (others.len(), Reverse(**own), load(*engine)));
        best.and_then(|(engine, _)| u32::try_from(engine).ok()).unwrap_or(0)
    }
}

/// Connections of one program by engine, with what waits to become one. Nothing is counted where there is one engine.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// With each host.
    with: BTreeMap<(IpAddr, u32), u32>,
    /// With all hosts, by engine.
    all: BTreeMap<u32, u32>,
}

impl Spread {
    /// The engine for one more connection to a host to which there are so many lanes: the one with the fewest of the
    /// program's connections to that host, of these the one with the fewest of the program's, of these the one with the
    /// fewest of the daemon's (`load`, by engine).
    pub(super) fn choose(&self, host: IpAddr, lanes: u32, load: &[u32]) -> u32 {
        if lanes <= 1 {
            return 0;
        }
        let count = |engine: &u32| {
            let with = self.with.get(&(host, *engine)).copied().unwrap_or(0);
            let all = self.all.get(engine).copied().unwrap_or(0);
            (with, all, load.get(*engine as usize).copied().unwrap_or(0))
        };
        (0..lanes).min_by_key(count).unwrap_or(0)
    }

    pub(super) fn add(&mut self, host: IpAddr, engine: u32) {
        *self.with.entry((host, engine)).or_default() += 1;
        *self.all.entry(engine).or_default() += 1;
    }

    pub(super) fn drop(&mut self, host: IpAddr, engine: u32) {
        decrement(&mut self.with, (host, engine));
        decrement(&mut self.all, engine);
    }
}

/// Forgets what comes to nothing.
fn decrement<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_where_the_fewest_are() {
        let mut spread = Spread::default();
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut load = [0; 3];
        let mut connect = |n: u8, lanes: u32| {
            let engine = spread.choose(host(n), lanes, &load);
            spread.add(host(n), engine);
            load[engine as usize] += 1;
            engine
        };
        assert_eq!([0; 4].map(|_| connect(2, 3)), [0, 1, 2, 0]);
        assert_eq!([connect(3, 3), connect(3, 3)], [1, 2], "another host: where the program has fewer");
        assert_eq!([connect(4, 1), connect(4, 1)], [0, 0], "a host with one engine");
        assert_eq!([connect(5, 2), connect(5, 2)], [1, 0], "a host with two");
        (0..2).for_each(|_| spread.drop(host(2), 0));
        assert_eq!(spread.choose(host(2), 3, &load), 0, "those that are over do not count");
        // A program without connections goes where the daemon has fewer.
        assert_eq!(Spread::default().choose(host(2), 3, &[4, 3, 3]), 1);
    }

    #[test]
    fn nothing_is_left_of_what_is_over() {
        let mut spread = Spread::default();
        let host = IpAddr::from([10, 0, 0, 2]);
        (0..4).for_each(|engine| spread.add(host, engine % 2));
        (0..4).for_each(|engine| spread.drop(host, engine % 2));
        spread.drop(host, 7);
        assert!(spread.with.is_empty() && spread.all.is_empty());
    }
}
