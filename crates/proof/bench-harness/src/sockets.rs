//! What the benches of sockets share, on one host and between two: which cases are run, with which sides, and in what
//! they are found. Owns no bar.

use anyhow::Result;
use serde_json::Value;

use super::matrix::{self, Case, Effort, Runner, Side};
use super::place::Place;
use super::report::Findings;
use super::rivals::{self, Rival};
use super::{Args, SECONDS};

/// UCX's own test.
pub(super) const fn ucx(name: &'static str, test: &'static str, bytes: u32, iterations: u32) -> Side {
    Side { name, runner: Runner::Rival(Rival::Ucx(test, bytes, iterations)) }
}

/// libfabric's ping-pong over one of its providers, with this type of endpoint.
pub(super) const fn libfabric(
    name: &'static str,
    [provider, endpoint]: [&'static str; 2],
    bytes: u32,
    iterations: u32,
) -> Side {
    Side { name, runner: Runner::Rival(Rival::Libfabric(provider, endpoint, bytes, iterations)) }
}

/// iceoryx2's samples of shared memory.
pub(super) const fn iceoryx2(bytes: u32, seconds: u32) -> Side {
    Side { name: "iceoryx2", runner: Runner::Rival(Rival::Iceoryx2(bytes, seconds)) }
}

/// Runs the cases that were asked for, without sides whose program is not here. `setting` is written beside the results, with the seconds of a run added.
pub(super) fn run(
    args: &Args,
    mut setting: Value,
    place: impl FnOnce() -> Result<Place>,
    cases: Vec<Case>,
) -> Result<Findings> {
    let effort = Effort { rounds: args.rounds(), seconds: args.seconds(SECONDS) };
    let mut findings = Findings { rounds: effort.rounds, rivals_missing: rivals::missing(), ..Findings::default() };
    setting["seconds"] = effort.seconds.into();
    setting["tcp_congestion"] = "cubic".into();
    findings.setting = setting;
    let mut place = place()?;
    let cases: Vec<Case> = cases.into_iter().filter(|case| args.wants(case.name)).map(without_absent).collect();
    matrix::run(&mut place, &cases, effort, &mut findings)?;
    Ok(findings)
}

/// The case without sides whose program is not here.
fn without_absent(mut case: Case) -> Case {
    case.sides.retain(|side| match side.runner {
        Runner::Rival(rival) => rival.is_here(),
        Runner::Sock(..) | Runner::SockOf(..) | Runner::SecondDaemons | Runner::Reference => true,
    });
    case
}

/// Each case begins with our side, and no claim names a rival that its case does not have.
#[cfg(test)]
pub(super) fn check(cases: &[Case]) {
    for case in cases {
        assert_eq!(case.sides[0].name, "raas");
        for claim in &case.claims {
            assert!(case.sides.iter().any(|side| side.name == claim.rival), "{}: {}", case.name, claim.rival);
        }
    }
}
