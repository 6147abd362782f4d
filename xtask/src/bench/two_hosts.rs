//! Bench `two-hosts`: two network namespaces joined by veth, four processes, against kernel TCP with the same writes, UCX over TCP and
//! libfabric over TCP. Owns the bars.

use anyhow::Result;
use serde_json::json;

use super::matrix::{self, Case, Claim, Effort, Metric, RAAS, Runner, Side, TCP, TCP_BUSY, claim};
use super::place::Place;
use super::report::Findings;
use super::rivals::{self, Rival};
use super::same_host::without_absent;
use super::stats::{Bar, Kind};
use super::{Args, SECONDS};
use crate::repo::Repo;

const SMALL: u32 = 64;
const MIDDLE: u32 = 64 << 10;
const LARGE: u32 = 1 << 20;
const TINY: u32 = 8;

fn ucx(test: &'static str, bytes: u32, iterations: u32) -> Side {
    Side { name: "ucx-tcp", runner: Runner::Rival(Rival::Ucx(test, bytes, iterations)) }
}

fn fabric(bytes: u32, iterations: u32) -> Side {
    Side { name: "libfabric-tcp", runner: Runner::Rival(Rival::Libfabric("tcp", "msg", bytes, iterations)) }
}

fn cases() -> Vec<Case> {
    use Bar::{RatioAtLeast, RatioAtMost};
    use Kind::{Goal, Must};
    use Metric::{Gbit, Msgs, P50, P99};
    vec![
        Case {
            name: "latency of 64 B",
            test: "lat",
            bytes: SMALL,
            sides: vec![RAAS, TCP, TCP_BUSY, ucx("tag_lat", SMALL, 50_000), fabric(SMALL, 20_000)],
            claims: vec![
                claim("64 B half round trip, p50", P50, "tcp", RatioAtMost(0.5), Must),
                claim("64 B half round trip, p50", P50, "tcp", RatioAtMost(0.35), Goal),
                Claim {
                    name: "64 B half round trip, p99 beside TCP's p50",
                    ours: P99,
                    rival: "tcp",
                    theirs: P50,
                    bar: RatioAtMost(1.0),
                    kind: Must,
                },
            ],
        },
        Case {
            name: "stream of 64 KiB",
            test: "bw",
            bytes: MIDDLE,
            sides: vec![RAAS, TCP, ucx("stream_bw", MIDDLE, 5_000), fabric(MIDDLE, 2_000)],
            claims: vec![
                claim("64 KiB stream", Gbit, "tcp", RatioAtLeast(0.6), Must),
                claim("64 KiB stream", Gbit, "tcp", RatioAtLeast(1.0), Goal),
                claim("64 KiB stream", Gbit, "ucx-tcp", RatioAtLeast(2.0), Must),
                claim("64 KiB stream", Gbit, "ucx-tcp", RatioAtLeast(4.0), Goal),
            ],
        },
        Case {
            name: "stream of 1 MiB",
            test: "bw",
            bytes: LARGE,
            sides: vec![RAAS, TCP, ucx("stream_bw", LARGE, 400), fabric(LARGE, 200)],
            claims: vec![
                claim("1 MiB stream", Gbit, "tcp", RatioAtLeast(0.4), Must),
                claim("1 MiB stream", Gbit, "tcp", RatioAtLeast(1.0), Goal),
                claim("1 MiB stream", Gbit, "ucx-tcp", RatioAtLeast(2.0), Must),
                claim("1 MiB stream", Gbit, "ucx-tcp", RatioAtLeast(4.0), Goal),
            ],
        },
        Case {
            name: "rate of 8 B",
            test: "bw",
            bytes: TINY,
            sides: vec![RAAS, TCP, ucx("tag_bw", TINY, 300_000)],
            claims: vec![
                claim("8 B messages, one write each", Msgs, "tcp", RatioAtLeast(10.0), Must),
                claim("8 B messages, one write each", Msgs, "tcp", RatioAtLeast(20.0), Goal),
            ],
        },
    ]
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let effort = Effort { rounds: args.rounds(), seconds: args.seconds(SECONDS) };
    let mut findings = Findings { rounds: effort.rounds, rivals_missing: rivals::install(), ..Findings::default() };
    findings.setting = json!({
        "seconds": effort.seconds, "link": "veth", "mtu": args.mtu, "ucx_tls": "tcp", "tcp_congestion": "cubic",
    });
    let place = Place::two_hosts(repo, "two-hosts", args.mtu, "")?;
    let cases: Vec<Case> = cases().into_iter().filter(|case| args.wants(case.name)).map(without_absent).collect();
    matrix::run(&place, &cases, effort, &mut findings)?;
    Ok(findings)
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
