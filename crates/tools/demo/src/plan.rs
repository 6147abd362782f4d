//! Which application connects to which, and which connection carries which files. The parent process decides it once,
//! and it is the same for RaaS and for TCP.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::corpus::Corpus;

/// A place in the demo: application `app` of host `host`, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Seat {
    /// 0 or 1.
    pub(crate) host: u32,
    /// 0 to apps - 1.
    pub(crate) app: u32,
}

/// A connection and what each of its ends sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    /// The application that connects.
    pub(crate) from: Seat,
    /// The application that accepts.
    pub(crate) to: Seat,
    /// Files that the connecting end sends.
    pub(crate) files_from: Vec<u32>,
    /// Files that the accepting end sends.
    pub(crate) files_to: Vec<u32>,
}

impl Link {
    /// Whether `seat` is one of its ends.
    pub(crate) fn has(&self, seat: Seat) -> bool {
        seat == self.from || seat == self.to
    }

    /// What `seat` sends on this connection; `None` if it is no end of it.
    pub(crate) fn files_of(&self, seat: Seat) -> Option<&[u32]> {
        match seat {
            s if s == self.from => Some(&self.files_from),
            s if s == self.to => Some(&self.files_to),
            _ => None,
        }
    }
}

/// Spreads the connections evenly over the pairs of applications, half begun by each host, and the files so that each
/// direction of each connection has one, and about the same number of bytes, as far as the files allow.
pub(crate) fn plan(connections: u32, apps: u32, corpus: &Corpus) -> Vec<Link> {
    let apps = apps.max(1);
    let mut links: Vec<Link> = (0..connections)
        .map(|i| {
            let pair = i / 2;
            let host = i % 2;
            let from = Seat { host, app: pair % apps };
            let to = Seat { host: 1 - host, app: (pair / apps) % apps };
            Link { from, to, files_from: Vec::new(), files_to: Vec::new() }
        })
        .collect();

    // Largest first, each to the direction with the fewest bytes; the count breaks ties, so that small files spread
    // too.
    let size = |file: u32| corpus.files.get(file as usize).map_or(0, |f| f.bytes);
    let mut transfers = corpus.transfers.clone();
    transfers.sort_by_key(|&file| Reverse(size(file)));
    let mut load: BinaryHeap<Reverse<(u64, usize, usize)>> = (0..links.len() * 2).map(|c| Reverse((0, 0, c))).collect();
    for file in transfers {
        let Some(Reverse((bytes, count, channel))) = load.pop() else { break };
        if let Some(link) = links.get_mut(channel / 2) {
            let files = if channel.is_multiple_of(2) { &mut link.files_from } else { &mut link.files_to };
            files.push(file);
        }
        load.push(Reverse((bytes + size(file), count + 1, channel)));
    }
    links
}

#[cfg(test)]
mod tests {
    use super::super::corpus::SourceFile;
    use super::*;

    fn corpus(files: u32) -> Corpus {
        let sizes = (0..files).map(|i| u64::from(i * 37 % 1000) + 1);
        Corpus {
            files: sizes.map(|bytes| SourceFile { path: "x".into(), bytes }).collect(),
            transfers: (0..files).collect(),
            ..Corpus::default()
        }
    }

    #[test]
    fn half_is_begun_by_each_host_and_every_pair_is_used() {
        let links = plan(1000, 4, &corpus(2000));
        assert_eq!(links.iter().filter(|l| l.from.host == 0).count(), 500);
        assert!(links.iter().all(|l| l.from.host != l.to.host));
        for host in 0..2 {
            for a in 0..4 {
                for b in 0..4 {
                    let n = links.iter().filter(|l| l.from == Seat { host, app: a } && l.to.app == b).count();
                    assert!((28..=36).contains(&n), "{n}");
                }
            }
        }
    }

    #[test]
    fn every_file_is_sent_once_and_every_direction_has_one() {
        let links = plan(100, 3, &corpus(777));
        let mut sent: Vec<u32> = links.iter().flat_map(|l| l.files_from.iter().chain(&l.files_to)).copied().collect();
        sent.sort_unstable();
        assert_eq!(sent, (0..777).collect::<Vec<_>>());
        assert!(links.iter().all(|l| !l.files_from.is_empty() && !l.files_to.is_empty()));
    }

    #[test]
    fn one_connection_is_enough() {
        let links = plan(1, 4, &corpus(3));
        assert_eq!(links.len(), 1);
        assert_eq!(links[0].files_from.len() + links[0].files_to.len(), 3);
        assert!(links[0].files_of(Seat { host: 0, app: 3 }).is_none());
    }
}
