//! Bench `same-host`: two processes of one host, each with a processor of its own, beside a bare ring and UCX over
//! posix shared memory, which decide; kernel sockets and libfabric shm are reported. Owns the bars.

use anyhow::Result;
use serde_json::json;

use super::Args;
use super::matrix::{BARE_RING, Case, Metric, RAAS, Runner, Side, TCP, TCP_BUSY, UNIX, UNIX_BUSY, claim, reported};
use super::place::Place;
use super::report::Findings;
use super::rivals;
use super::sockets::{self, iceoryx2, ucx};
use super::stats::{Bar, Kind};
use harness::repo::Repo;

const SMALL: u32 = 64;
const LARGE: u32 = 64 << 10;
const TINY: u32 = 8;
const HUGE: u32 = 1 << 20;
/// A run over iceoryx2.
const RIVAL_SECONDS: u32 = 1;

fn fabric(bytes: u32, iterations: u32) -> Side {
    sockets::libfabric("libfabric-shm", ["shm", "rdm"], bytes, iterations)
}

/// Bytes of a bare ring for small messages, and for a stream: a ring of ours begins with the one and grows to the
/// other.
const RING_BYTES: u64 = 256 << 10;
const GROWN_RING_BYTES: u64 = 4 << 20;

fn case(name: &'static str, test: &'static str, bytes: u32) -> Case {
    let ring_bytes = if bytes == SMALL { RING_BYTES } else { GROWN_RING_BYTES };
    Case {
        name,
        test,
        bytes,
        ring_bytes,
        path: "shm",
        pinned: true,
        crowded: false,
        sides: vec![RAAS, BARE_RING],
        claims: vec![],
    }
}

fn cases() -> Vec<Case> {
    use Bar::{RatioAtLeast, RatioAtMost};
    use Kind::Must;
    use Metric::{Gbit, HalfRtt, Msgs};
    const LATENCY: &str = "64 B half round trip";
    const STREAM: &str = "64 KiB stream";
    const RATE: &str = "8 B messages";
    let mut latency = case("latency of 64 B", "lat", SMALL);
    latency.sides.extend([
        ucx("ucx-tag_lat", "tag_lat", SMALL, 1_000_000),
        TCP_BUSY,
        TCP,
        UNIX_BUSY,
        UNIX,
        fabric(SMALL, 100_000),
    ]);
    latency.claims = vec![
        claim(LATENCY, HalfRtt, "ucx-tag_lat", RatioAtMost(1.0), Must),
        claim(LATENCY, HalfRtt, "bare-ring", RatioAtMost(1.2), Must),
    ];
    let beside = ["tcp-busy", "tcp", "unix-busy", "unix", "libfabric-shm"];
    latency.claims.extend(beside.map(|rival| reported(LATENCY, HalfRtt, rival)));
    let mut stream = case("stream of 64 KiB", "bw", LARGE);
    stream.sides.extend([ucx("ucx-stream_bw", "stream_bw", LARGE, 200_000), TCP, UNIX, fabric(LARGE, 20_000)]);
    stream.claims = vec![
        claim(STREAM, Gbit, "ucx-stream_bw", RatioAtLeast(1.2), Must),
        claim(STREAM, Gbit, "bare-ring", RatioAtLeast(0.8), Must),
    ];
    stream.claims.extend(["tcp", "unix", "libfabric-shm"].map(|rival| reported(STREAM, Gbit, rival)));
    let mut rate = case("rate of 8 B", "bw", TINY);
    rate.sides.extend([ucx("ucx-tag_bw", "tag_bw", TINY, 5_000_000), TCP]);
    rate.claims = vec![
        claim(RATE, Msgs, "ucx-tag_bw", RatioAtLeast(1.0), Must),
        reported(RATE, Msgs, "bare-ring"),
        reported(RATE, Msgs, "tcp"),
    ];
    let mut cases = vec![latency, stream, rate];
    cases.extend(by_reference());
    cases
}

/// Slices that are lent, where nothing is copied: each end touches the first and the last 8 bytes.
fn by_reference() -> Vec<Case> {
    use Bar::RatioAtMost;
    use Kind::Must;
    use Metric::HalfRtt;
    let own = Side { name: "raas", runner: Runner::Reference };
    let small = Side { name: "raas-64", runner: Runner::SockOf("raas", false, SMALL) };
    let of = |name, claim_name, bytes| {
        let mut of = case(name, "lat", bytes);
        of.sides = vec![own, iceoryx2(bytes, RIVAL_SECONDS)];
        of.claims = vec![claim(claim_name, HalfRtt, "iceoryx2", RatioAtMost(1.2), Must)];
        of
    };
    let mut all = vec![
        of("latency by reference of 64 B", "64 B by reference, half round trip", SMALL),
        of("latency by reference of 64 KiB", "64 KiB by reference, half round trip", LARGE),
        of("latency by reference of 1 MiB", "1 MiB by reference, half round trip", HUGE),
    ];
    if let Some(largest) = all.last_mut() {
        largest.sides.push(small);
        let name = "1 MiB by reference beside 64 B copied";
        largest.claims.push(claim(name, HalfRtt, "raas-64", RatioAtMost(3.0), Must));
    }
    all
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let setting = json!({ "ucx_tls": "posix", "processors_client_server": Place::processors()? });
    let missing = rivals::build_iceoryx2(repo);
    let mut findings = sockets::run(args, setting, || Place::one_host(repo, "same-host", ""), cases())?;
    findings.rivals_missing.extend(missing);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_claim_names_a_side_of_its_case() {
        let cases = super::cases();
        super::sockets::check(&cases);
        for case in &cases {
            let beside = ["bare-ring", "iceoryx2"];
            assert!(case.pinned && case.sides.iter().any(|side| beside.contains(&side.name)), "{}", case.name);
        }
    }
}
