//! Histories that somebody else recorded: 102 of etcd under Jepsen, which crate todc-utils has in its tests. Its checker
//! and this crate's must say the same of each, and what those say who published them.
//!
//! The logs are read here anew, so that a mistake in reading is not in both.

use std::path::PathBuf;
use std::process::Command;

use histories::{Event, Verdict, judge_by};
use todc_utils::linearizability::WGLChecker;
use todc_utils::specifications::etcd::{EtcdSpecification, history_from_log};

/// By <https://github.com/ahorn/linearizability-checker> those that one order explains.
const EXPLAINED: [u32; 23] =
    [2, 5, 7, 18, 25, 31, 38, 45, 48, 49, 51, 53, 56, 67, 75, 76, 80, 87, 92, 98, 100, 101, 102];
/// In this one etcd did not start.
const EMPTY: u32 = 95;
const LOGS: u32 = 103;

/// What a client of etcd asked of the one register, and how that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Read(Option<u32>),
    Write(u32),
    Swap(u32, u32),
    /// It found another value.
    NotSwapped(u32),
}

fn apply(state: &Option<u32>, act: &Act) -> Option<Option<u32>> {
    match *act {
        Act::Read(found) => (found == *state).then_some(*state),
        Act::Write(value) => Some(Some(value)),
        Act::Swap(old, new) => (*state == Some(old)).then_some(Some(new)),
        Act::NotSwapped(old) => (*state != Some(old)).then_some(*state),
    }
}

/// Where the logs are: with the sources of the crate, which this one is built with.
fn logs() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--offline"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let told = command.output().expect("cargo runs");
    let told = String::from_utf8(told.stdout).expect("its words");
    let manifests = told.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let manifest = manifests.map(PathBuf::from).find(|path| {
        let package = path.parent().and_then(|dir| dir.file_name()).and_then(|name| name.to_str());
        package.is_some_and(|name| name.starts_with("todc-utils-"))
    });
    manifest.expect("todc-utils is a dependency").with_file_name("tests/linearizability/etcd")
}

fn number(word: &str) -> u32 {
    word.trim_matches(['[', ']']).parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

/// The calls of a log. One that failed did nothing; of one with `:info` nobody knows.
fn calls(log: &str) -> Vec<Event<Act>> {
    let mut open: Vec<(u32, usize)> = vec![];
    let mut calls: Vec<Option<Event<Act>>> = vec![];
    for (at, line) in log.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "jepsen.util", "-", process, how, what, rest @ ..] = words.as_slice() else { continue };
        if *process == ":nemesis" {
            continue;
        }
        let (process, value) = (number(process), rest.first().copied().unwrap_or_default());
        let act = || match *what {
            ":write" => Act::Write(number(value)),
            ":cas" => Act::Swap(number(value), number(rest[1])),
            _ => Act::Read(value.parse().ok()),
        };
        if *how == ":invoke" {
            open.push((process, calls.len()));
            calls.push(Some(Event { what: act(), asked: at as u64, ended: None, after: None }));
            continue;
        }
        let place = open.iter().rposition(|(other, _)| *other == process).expect("a call before its end");
        let (_, call) = open.swap_remove(place);
        let Some(event) = &mut calls[call] else { continue };
        match (*how, event.what) {
            (":ok", _) => (event.what, event.ended) = (act(), Some(at as u64)),
            (":fail", Act::Swap(old, _)) => (event.what, event.ended) = (Act::NotSwapped(old), Some(at as u64)),
            (":fail", _) => calls[call] = None,
            (":info", _) => {}
            other => panic!("line {at}: {other:?}"),
        }
    }
    calls.into_iter().flatten().collect()
}

#[test]
fn of_every_recorded_history_of_etcd_two_checkers_say_what_was_published() {
    let (dir, mut sums) = (logs(), [0; 2]);
    for log in (0..LOGS).filter(|log| *log != EMPTY) {
        let path = dir.join(format!("etcd_{log:03}.log"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let calls = calls(&text);
        assert!(calls.len() > 10, "log {log} has {} calls", calls.len());
        let ours = judge_by(&calls, None, apply);
        let path = path.into_os_string().into_string().expect("a name");
        let theirs = WGLChecker::<EtcdSpecification>::is_linearizable(history_from_log(path));
        let published = EXPLAINED.contains(&log);
        assert_eq!((ours == Verdict::Explained, theirs), (published, published), "log {log}: {ours:?}");
        assert_ne!(ours, Verdict::Undecided, "log {log}");
        sums[usize::from(published)] += 1;
    }
    assert_eq!(sums, [79, 23]);
}
