//! Which engine carries a connection.
//!
//! Owns the counts of connections by engine, and the choice. It must never choose an engine that the other host does
//! not have. A connection stays with its engine for its life.

use std::collections::BTreeMap;
use std::net::IpAddr;

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
