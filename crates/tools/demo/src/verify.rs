//! Compares what all senders say they sent with what all receivers say arrived, and both with the plan. A receiver that
//! fools itself, a file that went to the wrong connection, and one that never came are all found here.

use std::collections::BTreeMap;

use super::plan::{Link, Seat};
use super::protocol::{FileRecord, Transferred};

/// Findings reported at most; the rest is counted.
const FINDINGS_MAX: usize = 20;

/// What was verified.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Verified {
    /// Transfers of files whose digests agree.
    pub(crate) files: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Everything that is not as it must be; empty means that every byte was verified.
    pub(crate) findings: Vec<String>,
}

/// A file on a connection in one direction: connection, whether its connecting end sent it, file number.
type Key = (u32, bool, u32);

/// Checks the records of all applications against `links`.
pub(crate) fn verify(links: &[Link], records: &[(Seat, Transferred)]) -> Verified {
    let mut findings = Vec::new();
    let mut sent: BTreeMap<Key, Vec<&FileRecord>> = BTreeMap::new();
    let mut received: BTreeMap<Key, Vec<&FileRecord>> = BTreeMap::new();
    for (seat, transferred) in records {
        for (list, target, is_sender) in
            [(&transferred.sent, &mut sent, true), (&transferred.received, &mut received, false)]
        {
            for record in list {
                match links.get(record.connection as usize).filter(|l| l.files_of(*seat).is_some()) {
                    Some(link) => {
                        let by_connector = (link.from == *seat) == is_sender;
                        target.entry((record.connection, by_connector, record.file)).or_default().push(record);
                    }
                    None => findings.push(format!("connection {} does not belong to its end", record.connection)),
                }
            }
        }
    }
    let mut verified = Verified::default();
    let mut planned = BTreeMap::<Key, usize>::new();
    for (connection, link) in (0u32..).zip(links) {
        let both = link.files_from.iter().map(|f| (true, *f)).chain(link.files_to.iter().map(|f| (false, *f)));
        for (by_connector, file) in both {
            *planned.entry((connection, by_connector, file)).or_default() += 1;
        }
    }
    for (key, count) in &planned {
        let out = sent.remove(key).unwrap_or_default();
        let mut arrived = received.remove(key).unwrap_or_default().into_iter();
        if out.len() != *count {
            findings.push(format!("{}: sent {} times, not {count}", describe(*key), out.len()));
        }
        for out in out {
            match arrived.next() {
                None => findings.push(format!("{}: did not arrive", describe(*key))),
                Some(r) if r.bytes != out.bytes => {
                    findings.push(format!("{}: {} bytes sent, {} arrived", describe(*key), out.bytes, r.bytes));
                }
                Some(r) if r.sha256 != out.sha256 || r.announced != out.sha256 => findings.push(format!(
                    "{}: SHA-256 of the file {}, of what arrived {}, announced {}",
                    describe(*key),
                    out.sha256,
                    r.sha256,
                    r.announced
                )),
                Some(_) => {
                    verified.files += 1;
                    verified.bytes += out.bytes;
                }
            }
        }
        let surplus = arrived.count();
        if surplus > 0 {
            findings.push(format!("{}: arrived {surplus} times too often", describe(*key)));
        }
    }
    findings.extend(sent.keys().chain(received.keys()).map(|k| format!("{}: nobody planned that", describe(*k))));
    if findings.len() > FINDINGS_MAX {
        let more = findings.len() - FINDINGS_MAX;
        findings.truncate(FINDINGS_MAX);
        findings.push(format!("and {more} more"));
    }
    verified.findings = findings;
    verified
}

fn describe((connection, by_connector, file): Key) -> String {
    format!(
        "file {file} of the {} end of connection {connection}",
        if by_connector { "connecting" } else { "accepting" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Seat = Seat { host: 0, app: 0 };
    const B: Seat = Seat { host: 1, app: 0 };

    fn record(connection: u32, file: u32, digest: &str) -> FileRecord {
        FileRecord { connection, file, bytes: 10, sha256: digest.into(), announced: digest.into() }
    }

    fn good() -> (Vec<Link>, Vec<(Seat, Transferred)>) {
        let links = vec![Link { from: A, to: B, files_from: vec![1, 1], files_to: vec![2] }];
        let a = Transferred {
            sent: vec![record(0, 1, "x"), record(0, 1, "x")],
            received: vec![record(0, 2, "y")],
            cpu_seconds: 0.0,
        };
        let b = Transferred { sent: a.received.clone(), received: a.sent.clone(), cpu_seconds: 0.0 };
        (links, vec![(A, a), (B, b)])
    }

    #[test]
    fn agreeing_records_verify() {
        let (links, records) = good();
        assert_eq!(verify(&links, &records), Verified { files: 3, bytes: 30, findings: vec![] });
    }

    #[test]
    fn every_kind_of_lie_is_found() {
        type Change = fn(&mut Vec<(Seat, Transferred)>);
        let changes: [(Change, &str); 7] = [
            (|r| r[1].1.received[0].sha256 = "z".into(), "SHA-256"),
            (|r| r[1].1.received[0].announced = "z".into(), "SHA-256"),
            (|r| r[1].1.received[0].bytes = 9, "9 arrived"),
            (|r| drop(r[1].1.received.pop()), "did not arrive"),
            (|r| drop(r[0].1.sent.pop()), "sent 1 times"),
            (|r| r[0].1.received.push(record(0, 2, "y")), "too often"),
            (|r| r[0].1.sent.push(record(0, 7, "y")), "nobody planned"),
        ];
        for (change, expected) in changes {
            let (links, mut records) = good();
            change(&mut records);
            let found = verify(&links, &records);
            assert!(found.findings.iter().any(|f| f.contains(expected)), "{expected}: {found:?}");
        }
        let (links, mut records) = good();
        records[0].1.sent.push(record(5, 1, "x"));
        assert!(!verify(&links, &records).findings.is_empty());
    }
}
