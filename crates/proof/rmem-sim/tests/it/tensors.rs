//! Stories of pools of tensors: no reader ever sees bytes of another generation, whoever ends whenever.

use rmem_sim::{TensorPlan, TensorStory};

const SEEDS: u64 = 300;
/// With `RAAS_TEST_FULL`.
const SEEDS_FULL: u64 = 6000;

const CALM: TensorPlan = TensorPlan { seed: 0, steps: 3000, deaths: 0, revokes: 0, restarts: 0, early: 0 };

fn play(plan: TensorPlan) -> TensorStory {
    let seeds = if std::env::var_os("RAAS_TEST_FULL").is_some() { SEEDS_FULL } else { SEEDS };
    let mut sums = TensorStory::default();
    for seed in 0..seeds {
        let plan = TensorPlan { seed, ..plan };
        let story = plan.play().unwrap_or_else(|wrong| panic!("{plan:?}: {wrong}"));
        sums.puts += story.puts;
        sums.reused += story.reused;
        sums.looks += story.looks;
        sums.old_looks += story.old_looks;
        sums.confirmed += story.confirmed;
        sums.caught += story.caught;
        sums.stale += story.stale;
        sums.no_room += story.no_room;
    }
    assert!(sums.puts > 20 * seeds && sums.reused > 10 * seeds && sums.stale > 10 * seeds, "little happens: {sums:?}");
    assert!(
        sums.looks > 100 * seeds && sums.confirmed > 10 * seeds && sums.no_room > seeds,
        "little is read: {sums:?}"
    );
    sums
}

#[test]
fn tensors_of_readers_that_live_are_never_used_again_under_them() {
    let sums = play(CALM);
    assert_eq!((sums.caught, sums.old_looks), (0, 0), "nothing ended, and a copy was thrown away");
}

#[test]
fn tensors_of_readers_that_die_come_back_and_are_never_taken_early() {
    let sums = play(TensorPlan { deaths: 30, ..CALM });
    assert_eq!(sums.caught, 0);
}

#[test]
fn tensors_that_are_mapped_keep_their_bytes_when_the_pool_moves() {
    let sums = play(TensorPlan { deaths: 5, revokes: 4, restarts: 4, ..CALM });
    assert!(sums.old_looks > SEEDS, "few look at memory that the pool has left: {sums:?}");
}

#[test]
fn tensors_that_are_copied_when_their_loan_is_over_are_caught_by_the_header() {
    let sums = play(TensorPlan { deaths: 5, restarts: 2, early: 60, ..CALM });
    assert!(sums.caught > SEEDS, "few copies meet another tensor: {sums:?}");
}

#[test]
fn tensors_of_a_seed_are_one_story() {
    let plan = TensorPlan { seed: 7, deaths: 20, revokes: 3, restarts: 3, early: 20, ..CALM };
    assert_eq!(plan.play(), plan.play());
}
