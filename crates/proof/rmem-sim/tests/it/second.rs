//! Histories of the model beside a checker that somebody else wrote, `WGLChecker` of crate todc-utils: as they were played,
//! and broken by hand. Crate `histories` must say the same of each.

use histories::{Event, Verdict, judge_by};
use rmem_sim::{Calls, GroupPlan, Kind, Scenario, WordAct};
use todc_utils::linearizability::WGLChecker;
use todc_utils::linearizability::history::{Action, History};
use todc_utils::specifications::Specification;

/// Stories of groups, and of each kind of words in regions.
const STORIES: u64 = 100;

/// A word that is 0 at first, in the other crate's terms.
struct Word;

impl Specification for Word {
    type State = u64;
    type Operation = WordAct;

    fn init() -> u64 {
        0
    }

    fn apply(act: &WordAct, state: &u64) -> (bool, u64) {
        // Written anew: a mistake in the model's own words would be in both.
        let sees = |found: &Option<u64>| found.is_none() || *found == Some(*state);
        match act {
            WordAct::Write(value) => (true, *value),
            WordAct::Add(value, found) if sees(found) => (true, state.wrapping_add(*value)),
            WordAct::Max(value, found) if sees(found) => (true, *state.max(value)),
            WordAct::Read(found) if sees(found) => (true, *state),
            WordAct::Add(..) | WordAct::Max(..) | WordAct::Read(_) => (false, *state),
        }
    }
}

/// What the other checker says. A call of which nobody knows the end ends behind all else.
fn other(calls: &[Event<WordAct>]) -> bool {
    let mut all: Vec<(u64, usize, Action<WordAct>)> = vec![];
    for (process, call) in calls.iter().enumerate() {
        all.push((call.asked, process, Action::Call(call.what)));
        all.push((call.ended.unwrap_or(u64::MAX), process, Action::Response(call.what)));
    }
    all.sort_by_key(|(at, ..)| *at);
    let actions = all.into_iter().map(|(_, process, action)| (process, action)).collect();
    WGLChecker::<Word>::is_linearizable(History::from_actions(actions))
}

#[derive(Debug, Default)]
struct Sums {
    right: u32,
    wrong: u32,
    undecided: u32,
}

impl Sums {
    fn compare(&mut self, calls: &[Event<WordAct>], what: &str) {
        let ours = judge_by(calls, 0, WordAct::apply);
        if ours == Verdict::Undecided {
            self.undecided += 1;
            return;
        }
        let theirs = other(calls);
        assert_eq!(ours == Verdict::Explained, theirs, "{what}: {calls:?}");
        (self.right, self.wrong) = (self.right + u32::from(theirs), self.wrong + u32::from(!theirs));
    }
}

/// The history with one thing other than it was: a value that was found, a change that is missing, a call that was asked
/// for only just before it ended.
fn broken(calls: &[Event<WordAct>], way: usize, at: usize) -> Option<Vec<Event<WordAct>>> {
    // Between any two moments is another one.
    let apart = |call: &Event<WordAct>| Event { asked: call.asked * 2, ended: call.ended.map(|at| at * 2), ..*call };
    let mut calls: Vec<Event<WordAct>> = calls.iter().map(apart).collect();
    let call = calls.get_mut(at).filter(|call| call.ended.is_some())?;
    match (way, &mut call.what) {
        (0, WordAct::Read(Some(found)) | WordAct::Add(_, Some(found)) | WordAct::Max(_, Some(found))) => *found ^= 1,
        (1, WordAct::Write(_) | WordAct::Add(..) | WordAct::Max(..)) => drop(calls.remove(at)),
        (2, _) => call.asked = call.ended? - 1,
        _ => return None,
    }
    Some(calls)
}

fn compare_all(all: impl Iterator<Item = (String, Calls<WordAct>)>) -> (Sums, Sums) {
    let (mut played, mut spoilt) = (Sums::default(), Sums::default());
    for (number, (what, calls)) in all.enumerate() {
        for (object, calls) in calls.iter().filter(|(_, calls)| !calls.is_empty()) {
            played.compare(calls, &format!("{what}, {object}"));
            for way in 0..3 {
                for at in (number % 7..calls.len()).step_by(7) {
                    if let Some(calls) = broken(calls, way, at) {
                        spoilt.compare(&calls, &format!("{what}, {object}, {way} at {at}"));
                    }
                }
            }
        }
    }
    println!("played {played:?}, broken {spoilt:?}");
    (played, spoilt)
}

#[test]
fn two_checkers_say_the_same_of_histories_of_groups() {
    let story = |seed| {
        let plan = GroupPlan {
            seed,
            members: if seed % 4 == 3 { 5 } else { 3 },
            clients: 2 + seed % 3,
            calls: 20,
            delayed: 20,
            slowness: 1,
            deaths: 6,
            pauses: 6,
            restarts: 8,
            wiped: 40,
            cuts: 10,
            lasts: 30,
            changes: 0,
            lease: 6 * (seed % 2),
            is_synced: false,
            power: 0,
            lost: 0,
            outages: 0,
        };
        (format!("{plan:?}"), plan.record().unwrap().1)
    };
    let (played, spoilt) = compare_all((0..STORIES).map(story));
    assert!(played.right > 150 && played.wrong == 0 && played.undecided == 0, "{played:?}");
    assert!(spoilt.wrong > 500 && spoilt.right > 100 && spoilt.undecided < 10, "{spoilt:?}");
}

#[test]
fn two_checkers_say_the_same_of_histories_of_words_in_regions() {
    let story = |seed: u64| {
        let kind = if seed.is_multiple_of(2) { Kind::Words } else { Kind::Register };
        let deaths = 10 * (seed / 2 % 3) as u32;
        let scenario = Scenario { kind, seed, clients: 3, operations: 8, delayed: 50, deaths, node_dies_at: None };
        (format!("{scenario:?}"), scenario.record().unwrap().1)
    };
    let (played, spoilt) = compare_all((0..2 * STORIES).map(story));
    assert!(played.right > 200 && played.wrong == 0 && played.undecided == 0, "{played:?}");
    assert!(spoilt.wrong > 300 && spoilt.right > 50 && spoilt.undecided < 10, "{spoilt:?}");
}
