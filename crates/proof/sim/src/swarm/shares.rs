//! Users of a plan, and what of a host's tables one of them may have: in one plan of six.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use control::UserShare;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::pick;
use crate::content::mix;
use crate::plan::Plan;

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x5a_4e5;

pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if !rng.random_ratio(1, 6) {
        return;
    }
    plan.uids = rng.random_range(2..=3);
    for host in &mut plan.hosts {
        host.user_share = UserShare::percent(pick(&[10, 25, 50], rng));
        host.connections_max = host.connections_max.min(pick(&[8, 16, 40], rng));
        host.handles_per_user_max = pick(&[1, 2, 3], rng);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_of_six_has_several_users() {
        let with = (1..=600).filter(|seed| Plan::from_seed(*seed).uids > 1).count();
        assert!((60..=140).contains(&with), "{with} of 600");
    }
}
