//! Places for control links that have not proven the key.
//!
//! Decides which links have a place, and which gives its place up when none is left; no I/O. Links of one source must
//! never take the places of a source that has fewer, and it must never keep more than the limits say.
//!
//! A new link always gets a place. An honest daemon needs it for some milliseconds, so a link that holds one for longer
//! gives it up. A link of a source that is at its limit takes that source's oldest place. If all places are taken, it
//! takes the oldest place of the source that has most. Hosts that the configuration names have places of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

/// Where links come from, as far as it counts: a host with one IPv6 address usually has 2^64 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    V4(Ipv4Addr),
    /// The first 64 bits.
    V6(u64),
    /// A host that the configuration names, by the address that names it.
    Known(IpAddr),
}

/// A place's number. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitNumber(u64);

/// A link's right to its place.
#[derive(Debug)]
pub struct Permit {
    number: PermitNumber,
    source: Source,
}

impl Permit {
    /// By which it is named when it is given to another.
    pub fn number(&self) -> PermitNumber {
        self.number
    }
}

/// A link that came in.
#[derive(Debug)]
pub struct Entered {
    /// Its place.
    pub place: Permit,
    /// Whose place it took: that link is to be closed.
    pub evicted: Option<PermitNumber>,
}

/// All places.
#[derive(Debug)]
pub struct Strangers {
    places_max: usize,
    per_source_max: usize,
    /// The hosts that the configuration names, by each address from which their links may come.
    known: BTreeMap<IpAddr, IpAddr>,
    /// By the number of the link, so the oldest come first.
    held: BTreeMap<PermitNumber, Source>,
    by_source: BTreeMap<Source, BTreeSet<PermitNumber>>,
    next: u64,
}

impl Strangers {
    /// `known`: source addresses of links, and the hosts that they name.
    pub fn new(places_max: usize, per_source_max: usize, known: BTreeMap<IpAddr, IpAddr>) -> Self {
        let (held, by_source) = (BTreeMap::new(), BTreeMap::new());
        Self { places_max, per_source_max, known, held, by_source, next: 0 }
    }

    /// Most links that can have a place.
    pub fn capacity(&self) -> usize {
        let hosts: BTreeSet<&IpAddr> = self.known.values().collect();
        self.places_max.saturating_add(hosts.len().saturating_mul(self.per_source_max))
    }

    /// A place for a link from `ip`, and the link that lost its place for it.
    pub fn enter(&mut self, ip: IpAddr) -> Entered {
        let source = self.source(ip);
        let crowded = match self.by_source.get(&source) {
            Some(own) if own.len() >= self.per_source_max => Some(source),
            _ if matches!(source, Source::Known(_)) || self.unknown() < self.places_max => None,
            _ => self.most_crowded(),
        };
        let evicted = crowded.and_then(|source| self.by_source.get(&source)?.first().copied());
        if let Some(number) = evicted {
            self.remove(number);
        }
        let number = PermitNumber(self.next);
        self.next += 1;
        self.held.insert(number, source);
        self.by_source.entry(source).or_default().insert(number);
        Entered { place: Permit { number, source }, evicted }
    }

    /// The link has proven itself, or ended.
    pub fn leave(&mut self, place: &Permit) {
        if self.held.get(&place.number) == Some(&place.source) {
            self.remove(place.number);
        }
    }

    fn source(&self, ip: IpAddr) -> Source {
        let ip = ip.to_canonical();
        match (self.known.get(&ip), ip) {
            (Some(host), _) => Source::Known(*host),
            (None, IpAddr::V4(v4)) => Source::V4(v4),
            (None, IpAddr::V6(v6)) => Source::V6((v6.to_bits() >> 64) as u64),
        }
    }

    /// Places that are taken by hosts which the configuration does not name.
    fn unknown(&self) -> usize {
        let known = |(source, links): (&Source, &BTreeSet<PermitNumber>)| match source {
            Source::Known(_) => links.len(),
            _ => 0,
        };
        self.held.len() - self.by_source.iter().map(known).sum::<usize>()
    }

    /// The source that has most; of several the one whose oldest link is the oldest.
    fn most_crowded(&self) -> Option<Source> {
        let unknown = self.by_source.iter().filter(|(source, _)| !matches!(source, Source::Known(_)));
        let key = |links: &BTreeSet<PermitNumber>| (links.len(), std::cmp::Reverse(links.first().copied()));
        unknown.max_by_key(|(_, links)| key(links)).map(|(source, _)| *source)
    }

    fn remove(&mut self, number: PermitNumber) {
        let Some(source) = self.held.remove(&number) else { return };
        if let Some(links) = self.by_source.get_mut(&source) {
            links.remove(&number);
            if links.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strangers() -> Strangers {
        let known = [("10.9.9.9", "10.9.9.9"), ("10.9.9.8", "10.9.9.9"), ("fd00::1", "10.7.7.7")];
        let known = known.map(|(source, host)| (source.parse().unwrap(), host.parse().unwrap()));
        Strangers::new(64, 8, BTreeMap::from(known))
    }

    fn v4(n: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, n])
    }

    fn has(strangers: &Strangers, place: &Permit) -> bool {
        strangers.held.contains_key(&place.number)
    }

    #[test]
    fn a_source_at_its_limit_takes_its_own_oldest_place() {
        let mut strangers = strangers();
        let other = strangers.enter(v4(1)).place;
        let idle: Vec<Permit> = (0..8).map(|_| strangers.enter(v4(2)).place).collect();
        for oldest in &idle {
            assert_eq!(strangers.enter(v4(2)).evicted, Some(oldest.number));
        }
        assert!(has(&strangers, &other));
        assert_eq!(strangers.held.len(), 9);
    }

    #[test]
    fn a_host_alone_keeps_its_place_against_many_links_of_few_sources() {
        let mut strangers = strangers();
        let idle: Vec<Permit> = (0..64).map(|n| strangers.enter(v4(n / 8)).place).collect();
        let Entered { place: honest, evicted } = strangers.enter(v4(200));
        assert_eq!(evicted, Some(idle[0].number));
        for n in 0..10_000 {
            strangers.enter(v4((n % 8) as u8));
        }
        assert!(has(&strangers, &honest), "strangers took the place of one who has only one");
        assert_eq!(strangers.held.len(), 64);
        strangers.leave(&honest);
        assert_eq!(strangers.held.len(), 63);
        // One that is out already has nothing to give back.
        idle.iter().for_each(|p| strangers.leave(p));
        assert_eq!(strangers.held.len(), 63);
    }

    #[test]
    fn against_as_many_sources_as_places_the_newest_links_stay() {
        let mut strangers = strangers();
        for n in 0..100 {
            strangers.enter(v4(n));
        }
        let honest = strangers.enter(v4(200)).place;
        for n in 0..63 {
            strangers.enter(v4(100 + n));
        }
        assert!(has(&strangers, &honest), "63 newer links have the other places");
        assert_eq!(strangers.enter(v4(99)).evicted, Some(honest.number));
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
        let mut strangers = strangers();
        for n in 0..100u32 {
            strangers.enter(format!("2001:db8:0:7::{n:x}").parse().unwrap());
        }
        assert_eq!(strangers.held.len(), 8);
        strangers.enter("2001:db8:0:8::1".parse().unwrap());
        assert_eq!(strangers.held.len(), 9);
        for _ in 0..8 {
            strangers.enter("::ffff:192.0.2.1".parse().unwrap());
        }
        assert!(strangers.enter(v4(1)).evicted.is_some());
    }

    #[test]
    fn hosts_of_the_configuration_have_places_of_their_own() {
        let mut strangers = strangers();
        let known = strangers.enter("10.9.9.8".parse().unwrap()).place;
        for n in 0..1000 {
            strangers.enter(v4((n % 250) as u8));
        }
        assert!(has(&strangers, &known));
        assert_eq!(strangers.held.len(), 65);
        for n in 0..1000 {
            strangers.enter(if n % 2 == 0 { "10.9.9.9" } else { "10.9.9.8" }.parse().unwrap());
            strangers.enter("fd00::1".parse().unwrap());
        }
        assert!(!has(&strangers, &known), "its own host's links took it");
        assert_eq!((strangers.held.len(), strangers.capacity()), (64 + 2 * 8, 64 + 2 * 8));
    }
}
