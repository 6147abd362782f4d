//! Hundreds of stories of each structure: all orders, delays of several leases, clients that end at any step, a node
//! that dies. A story that fails is shrunk and printed; `Scenario { .. }.play()` plays it again.

use rmem_sim::{Kind, Scenario, Story, shrink};

/// Stories of each kind and each sort of faults: with `RAAS_TEST_FULL`, as the test command sets it for `--full`, and
/// without.
const SEEDS_FULL: u64 = 1500;
/// See [`SEEDS_FULL`].
const SEEDS: u64 = 150;

fn seeds() -> u64 {
    if std::env::var_os("RAAS_TEST_FULL").is_some() { SEEDS_FULL } else { SEEDS }
}

#[derive(Debug, Default)]
struct Sums {
    calls: usize,
    deaths: u64,
    rejoins: u64,
    reclaimed: u64,
    taken_over: u64,
    errors: u64,
}

fn play_all(make: impl Fn(u64) -> Scenario) -> Sums {
    let mut sums = Sums::default();
    for seed in 0..seeds() {
        let scenario = make(seed);
        match scenario.play() {
            Ok(Story { ended, calls, rejoins, reclaimed, taken_over, errors }) => {
                sums.calls += calls;
                sums.deaths += u64::from(ended.deaths);
                sums.rejoins += rejoins;
                sums.reclaimed += reclaimed;
                sums.taken_over += taken_over;
                sums.errors += errors;
            }
            Err(wrong) => {
                let (scenario, wrong) = shrink(scenario, wrong);
                panic!("{scenario:?}: {wrong}");
            }
        }
    }
    sums
}

fn calm(kind: Kind, seed: u64) -> Scenario {
    let clients = 2 + seed as usize % 3;
    Scenario { kind, seed, clients, operations: 6, delayed: 0, deaths: 0, node_dies_at: None }
}

fn all_sorts(kind: Kind) -> [Sums; 4] {
    let quiet = play_all(|seed| calm(kind, seed));
    let delayed = play_all(|seed| Scenario { delayed: 20, ..calm(kind, seed) });
    let deadly = play_all(|seed| Scenario { delayed: 10, deaths: 30, ..calm(kind, seed) });
    let lost = play_all(|seed| Scenario { node_dies_at: Some(60 + seed * 7 % 700), ..calm(kind, seed) });
    assert_eq!(quiet.errors, 0);
    assert!(deadly.deaths > seeds() / 10, "clients end in few stories: {deadly:?}");
    assert!(lost.errors > seeds() / 20, "a lost node is an error in few stories: {lost:?}");
    [quiet, delayed, deadly, lost]
}

#[test]
fn the_set_is_linearizable_whoever_ends_wherever() {
    let [quiet, delayed, deadly, _] = all_sorts(Kind::Set);
    assert!(quiet.reclaimed > seeds(), "blocks are used again: {quiet:?}");
    assert!(delayed.rejoins > seeds() / 10, "slow clients are taken for dead: {delayed:?}");
    assert_eq!(deadly.errors, 0, "a death is no error of others");
}

#[test]
fn the_map_is_linearizable_whoever_ends_wherever() {
    let [quiet, delayed, deadly, _] = all_sorts(Kind::Map);
    assert!(quiet.reclaimed > seeds(), "blocks are used again: {quiet:?}");
    assert!(delayed.rejoins > seeds() / 10, "slow clients are taken for dead: {delayed:?}");
    assert_eq!(deadly.errors, 0, "a death is no error of others");
}

#[test]
fn a_kernel_that_is_halted_for_leases_answers_nothing_of_another_life() {
    let halted = play_all(|seed| Scenario { delayed: 60, operations: 50, ..calm(Kind::Map, seed) });
    assert!(halted.rejoins > seeds() && halted.reclaimed > seeds(), "{halted:?}");
}

#[test]
fn the_queue_is_linearizable_whoever_ends_wherever() {
    let [quiet, _, deadly, _] = all_sorts(Kind::Queue);
    assert!(quiet.reclaimed > seeds() / 2, "blocks are used again: {quiet:?}");
    assert_eq!(deadly.errors, 0, "a death is no error of others");
}

#[test]
fn counter_and_max_register_are_linearizable() {
    let [_, _, deadly, _] = all_sorts(Kind::Words);
    assert_eq!(deadly.errors, 0);
}

#[test]
fn the_register_is_linearizable_and_never_torn() {
    let [_, _, deadly, _] = all_sorts(Kind::Register);
    assert_eq!(deadly.errors, 0, "a death is no error of others");
}

#[test]
fn an_alock_has_one_holder_and_breaks_when_it_dies() {
    let [_, delayed, deadly, _] = all_sorts(Kind::ALock);
    assert_eq!(delayed.errors, 0, "slow is not dead");
    assert!(deadly.errors > seeds() / 20, "whoever waits for the dead learns of it: {deadly:?}");
}

#[test]
fn a_lease_lock_has_one_holder_and_goes_on_when_it_dies() {
    let [quiet, _, deadly, _] = all_sorts(Kind::LeaseLock);
    assert_eq!(quiet.taken_over, 0);
    assert!(deadly.taken_over > seeds() / 20, "{deadly:?}");
    assert_eq!(deadly.errors, 0, "a death is no error of others");
}

#[test]
fn a_seed_is_a_story() {
    let scenario = Scenario { delayed: 20, deaths: 30, ..calm(Kind::Map, 7) };
    assert_eq!(scenario.play(), scenario.play());
}
