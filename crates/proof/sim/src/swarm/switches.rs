//! The switch of a plan: in one seed of eight all hosts are joined by one, whose ports many share.
//!
//! It has random numbers of its own, so other seeds give the same runs as if there were no switches.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::pick;
use crate::content::mix;
use crate::plan::{Plan, Switch};

/// What separates these random numbers from the others of a seed. By this one the seeds that found planted faults have no
/// switch.
const LABEL: u64 = 0x5817_c406;

/// A switch for one plan of eight.
pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    if rng.random_bool(7.0 / 8.0) {
        return;
    }
    let rate = pick(&[100_000_000, 1_000_000_000, 10_000_000_000], &mut rng);
    let mut switch = Switch::of_rate(rate, pick(&[30, 100, 100, 1000], &mut rng));
    if rng.random_bool(0.5) {
        switch.port.mark_above = Some(switch.port.packets_max / 2);
    }
    plan.switch = Some(switch);
}
