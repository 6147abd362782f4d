//! Encryption of lanes over TCP in a plan: in half of the plans whose hosts have TCP.
//!
//! It is drawn apart from everything else, as datagram sockets are. Hosts prefer encryption: they have it with those that
//! want it too, and lanes in the clear with the others. That it is required is not drawn: a lane that cannot be encrypted
//! is refused then, and the promises here know no such refusal.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use verbs::{Encrypt, WirePolicy};

use crate::content::mix;
use crate::plan::Plan;

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x0c_1f3a;

pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    if rng.random_bool(0.5) {
        return;
    }
    let all_want = rng.random_bool(0.7);
    for host in plan.hosts.iter_mut().filter(|host| host.wire == WirePolicy::Auto) {
        if all_want || rng.random_bool(0.7) {
            host.encrypt = Encrypt::Preferred;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_seeds_with_tcp_have_encryption_and_no_other() {
        let plans: Vec<Plan> = (1..=600).map(Plan::from_seed).collect();
        let with_tcp = |plan: &&Plan| plan.hosts.iter().any(|host| host.wire == WirePolicy::Auto);
        let encrypted = |plan: &&Plan| plan.hosts.iter().any(|host| host.encrypt != Encrypt::Off);
        let (tcp, both) = (plans.iter().filter(with_tcp).count(), plans.iter().filter(encrypted).count());
        assert!((tcp / 3..=tcp * 2 / 3).contains(&both), "{both} of {tcp}");
        assert!(plans.iter().filter(encrypted).all(|plan| with_tcp(&plan)));
    }
}
