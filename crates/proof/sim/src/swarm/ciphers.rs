//! Encryption of lanes in a plan: in half of the plans, on whichever wire their hosts have.
//!
//! It is drawn apart from everything else, as datagram sockets are. Hosts prefer encryption: they have it with those that
//! want it too, and lanes in the clear with the others. That it is required is not drawn: a lane that cannot be encrypted
//! is refused then, and the promises here know no such refusal.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use records::RecordLimit;
use verbs::Encrypt;

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
    for host in &mut plan.hosts {
        if all_want || rng.random_bool(0.7) {
            host.encrypt = Encrypt::Preferred;
        }
    }
    // A key that protects few records, so that lanes on TCP change theirs while they are used.
    if rng.random_bool(0.5) {
        let until_worn = rng.random_range(20..2000);
        plan.hosts.iter_mut().for_each(|host| host.record_limit = RecordLimit::lowered_to(until_worn, 16 * until_worn));
    }
}

#[cfg(test)]
mod tests {
    use verbs::WirePolicy;

    use super::*;

    #[test]
    fn half_of_the_seeds_have_encryption_with_tcp_and_without() {
        let plans: Vec<Plan> = (1..=600).map(Plan::from_seed).collect();
        let has_tcp = |plan: &Plan| plan.hosts.iter().any(|host| host.wire == WirePolicy::Auto);
        let encrypts = |plan: &Plan| plan.hosts.iter().any(|host| host.encrypt != Encrypt::Off);
        for with_tcp in [false, true] {
            let all = plans.iter().filter(|plan| has_tcp(plan) == with_tcp).count();
            let those = plans.iter().filter(|plan| has_tcp(plan) == with_tcp && encrypts(plan)).count();
            assert!((all / 3..=all * 2 / 3).contains(&those), "{those} of {all}, TCP: {with_tcp}");
            let short = |plan: &Plan| plan.hosts.iter().all(|host| host.record_limit != RecordLimit::default());
            let short = plans.iter().filter(|plan| has_tcp(plan) == with_tcp && encrypts(plan) && short(plan)).count();
            assert!((those / 3..=those * 2 / 3).contains(&short), "keys wear in {short} of {those}");
        }
    }
}
