//! Stories of groups of `agree`: three and five members, every order, torn writes, delays, deaths, pauses, restarts,
//! wiped memories, cut links. A story that fails is printed; `GroupPlan { .. }.play()` plays it again.

use rmem_sim::{GroupPlan, GroupStory};

/// Stories of each sort, with `RAAS_TEST_FULL`, as the test command sets it for `--full`, and without.
const SEEDS_FULL: u64 = 1000;
/// See [`SEEDS_FULL`].
const SEEDS: u64 = 50;
/// So many stories of each sort instead.
const SEEDS_VARIABLE: &str = "RAAS_GROUP_STORIES";

fn seeds() -> u64 {
    let asked = std::env::var(SEEDS_VARIABLE).ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(if std::env::var_os("RAAS_TEST_FULL").is_some() { SEEDS_FULL } else { SEEDS })
}

fn calm(seed: u64) -> GroupPlan {
    let members = if seed % 4 == 3 { 5 } else { 3 };
    let clients = 2 + seed % 2;
    GroupPlan {
        seed,
        members,
        clients,
        calls: 40,
        delayed: 0,
        slowness: 1,
        deaths: 0,
        pauses: 0,
        restarts: 0,
        wiped: 0,
        cuts: 0,
        lasts: 30,
        changes: 0,
        lease: 0,
        is_synced: false,
        power: 0,
        lost: 0,
        outages: 0,
    }
}

fn play_all(make: impl Fn(u64) -> GroupPlan) -> GroupStory {
    let mut sum = GroupStory::default();
    for seed in 0..seeds() {
        let plan = make(seed);
        let story = plan.play().unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}"));
        sum.steps += story.steps;
        sum.calls += story.calls;
        sum.leaders += story.leaders;
        sum.deaths += story.deaths;
        sum.restarts += story.restarts;
        sum.wipes += story.wipes;
        sum.replaced += story.replaced;
        sum.fenced += story.fenced;
        sum.saved += story.saved;
        sum.loaded += story.loaded;
        sum.cuts += story.cuts;
        sum.synced += story.synced;
    }
    println!("{sum:?}");
    sum
}

#[test]
fn a_group_in_peace_agrees_and_its_ring_goes_round() {
    let sum = play_all(calm);
    assert!(sum.saved > seeds(), "{sum:?}");
}

#[test]
fn delays_longer_than_detection_lose_nothing() {
    let sum = play_all(|seed| GroupPlan { delayed: 120, ..calm(seed) });
    assert!(sum.leaders as u64 > seeds() && sum.fenced > 0, "{sum:?}");
}

/// Nothing takes as long as a campaign or a leader's silence may, measured in periods, unless members become patient.
#[test]
fn on_machines_that_are_too_slow_for_the_period_a_group_goes_on() {
    let sum = play_all(|seed| GroupPlan { slowness: 30 + seed % 80, ..calm(seed) });
    assert!(sum.calls as u64 > 80 * seeds(), "{sum:?}");
}

#[test]
fn programs_that_die_and_pause_lose_nothing() {
    let sum = play_all(|seed| GroupPlan { delayed: 10, deaths: 8, pauses: 8, ..calm(seed) });
    assert!(sum.leaders as u64 > seeds() && sum.fenced > 0 && sum.deaths > seeds(), "{sum:?}");
}

#[test]
fn memories_that_restart_and_forget_what_they_granted_lose_nothing() {
    let sum = play_all(|seed| GroupPlan { delayed: 10, restarts: 12, deaths: 4, ..calm(seed) });
    assert!(sum.restarts > seeds(), "{sum:?}");
}

#[test]
fn a_memory_that_lost_its_bytes_is_no_member_until_it_has_caught_up() {
    let sum = play_all(|seed| GroupPlan { restarts: 10, wiped: 70, deaths: 4, pauses: 4, ..calm(seed) });
    assert!(sum.wipes > seeds() && sum.replaced > seeds() && sum.loaded > 0, "{sum:?}");
}

#[test]
fn reigns_that_end_as_soon_as_they_begin_lose_nothing() {
    let churn = |seed| GroupPlan { delayed: 100, deaths: 15, cuts: 5, lasts: 5, calls: 100, ..calm(seed) };
    let sum = play_all(churn);
    assert!(sum.leaders as u64 > 4 * seeds() && sum.fenced > seeds() / 2, "{sum:?}");
}

#[test]
fn a_leader_that_was_cut_off_or_stood_still_answers_no_read_of_what_was() {
    let apart = |seed| GroupPlan { pauses: 20, cuts: 20, calls: 80, ..calm(seed) };
    let sum = play_all(apart);
    assert!(sum.leaders as u64 > 2 * seeds(), "{sum:?}");
}

/// Clocks of hosts are days apart, and go as fast or slow as a lease allows.
#[test]
fn a_leader_with_a_lease_answers_no_read_of_what_was() {
    let leased =
        |seed| GroupPlan { lease: 16_u64 << (seed % 4), pauses: 30, cuts: 10, lasts: 90, calls: 80, ..calm(seed) };
    let sum = play_all(leased);
    assert!(sum.leaders as u64 > seeds(), "{sum:?}");
    let changing = |seed| GroupPlan { lease: 80, pauses: 20, lasts: 60, changes: 200, restarts: 6, ..calm(seed) };
    play_all(changing);
}

#[test]
fn logs_that_differ_by_many_entries_are_made_one() {
    let burst =
        |seed| GroupPlan { clients: 8, calls: 15, delayed: 60, deaths: 15, restarts: 25, lasts: 15, ..calm(seed) };
    let sum = play_all(burst);
    assert!(sum.leaders as u64 > 2 * seeds() && sum.restarts > seeds(), "{sum:?}");
}

#[test]
fn hosts_join_and_are_removed_while_others_fail() {
    let change = |seed| GroupPlan { delayed: 10, deaths: 6, restarts: 6, wiped: 20, changes: 200, ..calm(seed) };
    let sum = play_all(change);
    assert!(sum.replaced > 2 * seeds(), "{sum:?}");
}

#[test]
fn all_faults_together_lose_nothing() {
    let all = |seed| GroupPlan { delayed: 20, deaths: 6, pauses: 6, restarts: 8, wiped: 40, cuts: 10, ..calm(seed) };
    let sum = play_all(all);
    assert!(sum.leaders as u64 > seeds() && sum.fenced > 0 && sum.wipes > 0 && sum.loaded > 0, "{sum:?}");
}

fn synced(seed: u64) -> GroupPlan {
    GroupPlan { is_synced: true, slowness: 1, ..calm(seed) }
}

#[test]
fn a_synced_group_in_peace_agrees_and_its_files_follow() {
    let sum = play_all(synced);
    assert!(sum.saved > seeds() && sum.synced > 10 * seeds(), "{sum:?}");
}

#[test]
fn power_that_goes_at_hosts_takes_nothing_that_is_synced() {
    let sum = play_all(|seed| GroupPlan { delayed: 10, power: 12, deaths: 4, lasts: 20, ..synced(seed) });
    assert!(sum.cuts > seeds() && sum.leaders as u64 > seeds(), "{sum:?}");
}

#[test]
fn power_that_goes_at_all_hosts_takes_nothing_that_is_synced() {
    let sum = play_all(|seed| GroupPlan { delayed: 10, outages: 6, lasts: 20, ..synced(seed) });
    assert!(sum.cuts > seeds() && sum.leaders as u64 > seeds(), "{sum:?}");
}

#[test]
fn a_member_whose_directory_is_lost_is_another_one_and_hosts_join_and_are_removed() {
    let lost = |seed| GroupPlan { power: 15, lost: 50, deaths: 4, lasts: 20, ..synced(seed) };
    let sum = play_all(lost);
    assert!(sum.wipes > seeds() / 2 && sum.replaced > seeds() / 2 && sum.loaded > 0, "{sum:?}");
    let change =
        |seed| GroupPlan { power: 10, outages: 2, lost: 20, deaths: 4, lasts: 20, changes: 200, ..synced(seed) };
    let sum = play_all(change);
    assert!(sum.replaced > seeds() && sum.cuts > seeds(), "{sum:?}");
}

#[test]
fn a_synced_group_loses_nothing_by_all_faults_together() {
    let all = |seed| {
        let rates = GroupPlan { delayed: 40, deaths: 8, pauses: 6, restarts: 6, cuts: 8, ..synced(seed) };
        GroupPlan { power: 8, outages: 2, lasts: 20, lease: 8 * (seed % 2), calls: 60, ..rates }
    };
    let sum = play_all(all);
    assert!(sum.cuts > seeds() && sum.fenced > 0 && sum.loaded > 0, "{sum:?}");
}

#[test]
fn a_seed_is_a_story() {
    let plan = GroupPlan { delayed: 20, deaths: 3, restarts: 4, wiped: 40, cuts: 6, ..calm(7) };
    assert_eq!(plan.play(), plan.play());
}
