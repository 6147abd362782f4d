//! Bench `same-host`: two processes of one host, against kernel sockets, UCX over posix shared memory, and libfabric shm.
//! Owns the bars.

use anyhow::Result;
use serde_json::json;

use super::matrix::{self, Case, Effort, Metric, RAAS, Runner, Side, TCP, TCP_BUSY, UNIX, UNIX_BUSY, claim};
use super::place::{Place, has};
use super::report::Findings;
use super::rivals::{self, Rival};
use super::stats::{Bar, Kind};
use super::{Args, SECONDS};
use crate::repo::Repo;

const SMALL: u32 = 64;
const LARGE: u32 = 64 << 10;
const TINY: u32 = 8;

fn ucx(name: &'static str, test: &'static str, bytes: u32, iterations: u32) -> Side {
    Side { name, runner: Runner::Rival(Rival::Ucx(test, bytes, iterations)) }
}

fn fabric(bytes: u32, iterations: u32) -> Side {
    Side { name: "libfabric-shm", runner: Runner::Rival(Rival::Libfabric("shm", "rdm", bytes, iterations)) }
}

fn cases() -> Vec<Case> {
    use Bar::{RatioAtLeast, RatioAtMost};
    use Kind::{Goal, Must};
    use Metric::{Gbit, HalfRtt, Msgs};
    vec![
        Case {
            name: "latency of 64 B",
            test: "lat",
            bytes: SMALL,
            sides: vec![
                RAAS,
                TCP_BUSY,
                TCP,
                UNIX_BUSY,
                UNIX,
                ucx("ucx-tag_lat", "tag_lat", SMALL, 1_000_000),
                fabric(SMALL, 100_000),
            ],
            claims: vec![
                claim("64 B half round trip", HalfRtt, "tcp-busy", RatioAtMost(0.05), Must),
                claim("64 B half round trip", HalfRtt, "ucx-tag_lat", RatioAtMost(1.5), Must),
                claim("64 B half round trip", HalfRtt, "ucx-tag_lat", RatioAtMost(1.0), Goal),
            ],
        },
        Case {
            name: "stream of 64 KiB",
            test: "bw",
            bytes: LARGE,
            sides: vec![RAAS, TCP, UNIX, ucx("ucx-stream_bw", "stream_bw", LARGE, 200_000), fabric(LARGE, 20_000)],
            claims: vec![
                claim("64 KiB stream", Gbit, "tcp", RatioAtLeast(5.0), Must),
                claim("64 KiB stream", Gbit, "ucx-stream_bw", RatioAtLeast(0.8), Must),
                claim("64 KiB stream", Gbit, "ucx-stream_bw", RatioAtLeast(1.2), Goal),
            ],
        },
        Case {
            name: "rate of 8 B",
            test: "bw",
            bytes: TINY,
            sides: vec![RAAS, TCP, ucx("ucx-tag_bw", "tag_bw", TINY, 5_000_000)],
            claims: vec![claim("8 B messages", Msgs, "ucx-tag_bw", RatioAtLeast(1.0), Goal)],
        },
    ]
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let effort = Effort { rounds: args.rounds(), seconds: args.seconds(SECONDS) };
    let mut findings = Findings { rounds: effort.rounds, rivals_missing: rivals::install(), ..Findings::default() };
    findings.setting = json!({ "seconds": effort.seconds, "ucx_tls": "posix", "tcp_congestion": "cubic" });
    let place = Place::one_host(repo, "same-host", "")?;
    let cases: Vec<Case> = cases().into_iter().filter(|case| args.wants(case.name)).map(without_absent).collect();
    matrix::run(&place, &cases, effort, &mut findings)?;
    Ok(findings)
}

/// The case without sides whose program is not here.
pub(super) fn without_absent(mut case: Case) -> Case {
    case.sides.retain(|side| match side.runner {
        Runner::Rival(rival) => has(rival.program()),
        Runner::Sock(..) => true,
    });
    case
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_claim_names_a_side_of_its_case() {
        for case in super::cases() {
            assert_eq!(case.sides[0].name, "raas");
            for claim in &case.claims {
                assert!(case.sides.iter().any(|side| side.name == claim.rival), "{}", claim.rival);
            }
        }
    }
}
