//! Which application connects to which, and which connection carries which files. The parent process decides it once,
//! it is the same for RaaS and for TCP, and what arrived is compared with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::corpus::Corpus;
use super::protocol::{AppLink, Seat, Transferred};

/// Findings reported at most; the rest is counted.
const FINDINGS_MAX: usize = 20;

/// A connection and what each of its ends sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Connection {
    /// The application that connects, and the one that accepts.
    pub(crate) ends: [Seat; 2],
    /// Files that each end sends, by their indices.
    pub(crate) files: [Vec<u32>; 2],
}

impl Connection {
    pub(crate) fn new(from: Seat, to: Seat) -> Self {
        Self { ends: [from, to], files: [Vec::new(), Vec::new()] }
    }

    pub(crate) fn has(&self, seat: Seat) -> bool {
        self.ends.contains(&seat)
    }
}

/// Spreads the connections evenly over the pairs of applications, half begun by each host, and the files so that each
/// direction of each connection has one, and about the same number of bytes, as far as the files allow.
pub(crate) fn plan(connections: u32, apps: u32, corpus: &Corpus) -> Vec<Connection> {
    let link = |i: u32| {
        let (pair, host) = (i / 2, i % 2);
        Connection::new(Seat { host, app: pair % apps }, Seat { host: 1 - host, app: (pair / apps) % apps })
    };
    let mut links: Vec<Connection> = (0..connections).map(link).collect();

    // Largest first, each to the direction with the fewest bytes; the count breaks ties, so that small files spread
    // too.
    let size = |file: u32| corpus.files.get(file as usize).map_or(0, |f| f.bytes);
    let mut transfers = corpus.transfers.clone();
    transfers.sort_by_key(|&file| Reverse(size(file)));
    let mut load: BinaryHeap<Reverse<(u64, usize, usize)>> = (0..links.len() * 2).map(|c| Reverse((0, 0, c))).collect();
    for file in transfers {
        let Some(Reverse((bytes, count, channel))) = load.pop() else { break };
        if let Some(link) = links.get_mut(channel / 2) {
            link.files[channel % 2].push(file);
        }
        load.push(Reverse((bytes + size(file), count + 1, channel)));
    }
    links
}

/// The connections of the application at `seat`, as it must know them.
pub(crate) fn part_of(seat: Seat, links: &[Connection], corpus: &Corpus) -> Vec<AppLink> {
    let of_end = |(connection, link): (u32, &Connection)| {
        let end = link.ends.iter().position(|end| *end == seat)?;
        let files = |end: usize| link.files[end].iter().filter_map(|file| corpus.files.get(*file as usize));
        Some(AppLink {
            connection,
            peer: link.ends[1 - end],
            connects: end == 0,
            send: files(end).cloned().collect(),
            receive: files(1 - end).map(|file| file.bytes).collect(),
        })
    };
    (0u32..).zip(links).filter_map(of_end).collect()
}

/// What was verified.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Transfers of files that arrived as they are, and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    /// Everything that is not as it must be; empty means that every byte was verified.
    pub(crate) findings: Vec<String>,
}

/// Compares what came to each application with the plan, and with the `digests` of the files themselves: a file that
/// came altered, on another connection, in another place, too often or never is found.
pub(crate) fn verify(
    links: &[Connection],
    corpus: &Corpus,
    digests: &[String],
    came: &[(Seat, Transferred)],
) -> Verified {
    let mut arrived = BTreeMap::new();
    let mut findings = Vec::new();
    for (seat, done) in came {
        for of_connection in &done.arrived {
            if arrived.insert((of_connection.connection, *seat), &of_connection.sha256).is_some() {
                findings.push(format!("connection {}: told twice by one end", of_connection.connection));
            }
        }
    }
    let mut verified = Verified::default();
    for (connection, link) in (0u32..).zip(links) {
        for (end, planned) in link.files.iter().enumerate() {
            let came = arrived.remove(&(connection, link.ends[1 - end])).map_or(&[][..], Vec::as_slice);
            let place = format!("from the {} end of connection {connection}", ["connecting", "accepting"][end]);
            if came.len() != planned.len() {
                findings.push(format!("{} files {place} arrived, not {}", came.len(), planned.len()));
            }
            for (file, came) in planned.iter().zip(came) {
                let Some((source, of_file)) = corpus.files.get(*file as usize).zip(digests.get(*file as usize)) else {
                    continue;
                };
                if came == of_file {
                    verified.files += 1;
                    verified.bytes += source.bytes;
                } else {
                    let path = source.path.display();
                    findings.push(format!("{path} {place}: SHA-256 of the file {of_file}, of what arrived {came}"));
                }
            }
        }
    }
    findings.extend(arrived.keys().map(|(connection, _)| format!("files on connection {connection}: nobody's")));
    verified.findings = bounded(findings);
    verified
}

/// The first findings, and how many more there are.
pub(crate) fn bounded(mut findings: Vec<String>) -> Vec<String> {
    let more = findings.len().saturating_sub(FINDINGS_MAX);
    findings.truncate(FINDINGS_MAX);
    findings.extend((more > 0).then(|| format!("and {more} more")));
    findings
}

#[cfg(test)]
mod tests {
    use super::super::corpus::SourceFile;
    use super::super::protocol::Arrived;
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
        assert_eq!(links.iter().filter(|l| l.ends[0].host == 0).count(), 500);
        assert!(links.iter().all(|l| l.ends[0].host != l.ends[1].host));
        for host in 0..2 {
            for (a, b) in (0..16).map(|pair| (pair / 4, pair % 4)) {
                let n = links.iter().filter(|l| l.ends[0] == Seat { host, app: a } && l.ends[1].app == b).count();
                assert!((28..=36).contains(&n), "{n}");
            }
        }
    }

    #[test]
    fn every_file_is_sent_once_every_direction_has_one_and_both_ends_agree() {
        let corpus = corpus(777);
        let links = plan(100, 3, &corpus);
        let mut sent: Vec<u32> = links.iter().flat_map(|l| l.files.concat()).collect();
        sent.sort_unstable();
        assert_eq!(sent, (0..777).collect::<Vec<_>>());
        assert!(links.iter().all(|l| l.files.iter().all(|files| !files.is_empty())));
        let link = &links[7];
        let end =
            |end: usize| part_of(link.ends[end], &links, &corpus).into_iter().find(|l| l.connection == 7).unwrap();
        let (from, to) = (end(0), end(1));
        assert!(from.connects && !to.connects && from.peer == link.ends[1] && to.peer == link.ends[0]);
        assert_eq!(from.send.iter().map(|file| file.bytes).collect::<Vec<_>>(), to.receive);
        assert_eq!(part_of(Seat { host: 0, app: 3 }, &plan(1, 4, &corpus), &corpus).len(), 0);
    }

    #[test]
    fn every_kind_of_lie_is_found() {
        let corpus = corpus(3);
        let digests = ["x", "y", "z"].map(String::from);
        let [a, b] = [0, 1].map(|host| Seat { host, app: 0 });
        let links = [Connection { ends: [a, b], files: [vec![0, 1], vec![2]] }, Connection::new(a, b)];
        let arrived =
            |connection, files: &[&str]| Arrived { connection, sha256: files.iter().map(|&f| f.into()).collect() };
        let done = |arrived| Transferred { arrived, cpu_seconds: 0.0 };
        let good = [(a, done(vec![arrived(0, &["z"]), arrived(1, &[])])), (b, done(vec![arrived(0, &["x", "y"])]))];
        let verified = Verified { files: 3, bytes: 1 + 38 + 75, findings: vec![] };
        assert_eq!(verify(&links, &corpus, &digests, &good), verified);
        type Change = fn(&mut [Vec<Arrived>; 2]);
        let changes: [(Change, &str); 7] = [
            (|r| r[0][0].sha256[0] = "w".into(), "of what arrived w"),
            (|r| r[1][0].sha256.swap(0, 1), "of what arrived y"),
            (|r| drop(r[1][0].sha256.pop()), "1 files from the connecting end of connection 0 arrived, not 2"),
            (|r| r[0][0].sha256.push("z".into()), "2 files from the accepting end"),
            (|r| r[0][1].sha256.push("z".into()), "of connection 1 arrived, not 0"),
            (|r| r[0][1].connection = 0, "told twice"),
            (|r| r[0][1].connection = 5, "nobody's"),
        ];
        for (change, expected) in changes {
            let mut told = good.clone().map(|(_, done)| done.arrived);
            change(&mut told);
            let [of_a, of_b] = told.map(done);
            let found = verify(&links, &corpus, &digests, &[(a, of_a), (b, of_b)]).findings;
            assert!(found.iter().any(|f| f.contains(expected)), "{expected}: {found:?}");
        }
        assert_eq!(bounded(vec![String::new(); 25]).last().map(String::as_str), Some("and 5 more"));
    }
}
