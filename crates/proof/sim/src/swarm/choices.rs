//! By which verbs the connections of a plan carry their bytes: in half of the plans by all that applications may ask for,
//! which they do again and again; and how the engines choose where nobody asks.
//!
//! It is drawn apart from everything else, as datagram sockets are.

use engine::Thresholds;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::pick;
use crate::content::mix;
use crate::plan::Plan;

/// What tells this draw from the others of a seed.
const LABEL: u64 = 0x3e_2b5d;

pub(super) fn draw(plan: &mut Plan) {
    let mut rng = StdRng::seed_from_u64(mix(plan.seed ^ mix(LABEL)));
    let rng = &mut rng;
    let is_asked = rng.random_bool(0.5);
    for app in &mut plan.apps {
        app.talk.asks_verbs = is_asked && rng.random_bool(0.8);
    }
    let is_chosen = rng.random_bool(0.5);
    for host in plan.hosts.iter_mut().filter(|_| is_chosen) {
        host.load_max = pick(&[0, 60, 100], rng);
        host.choice = Thresholds {
            send_bytes_max: pick(&[0, 64, 4096], rng),
            read_bytes_min: pick(&[1, 1000, 8192], rng),
            register_bytes_min: pick(&[1, 16 << 10], rng),
            ..Thresholds::default()
        };
    }
}
