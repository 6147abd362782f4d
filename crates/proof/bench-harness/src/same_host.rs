//! Bench `same-host`: two processes of one host, each with a processor of its own, beside a bare ring and UCX over
//! posix shared memory, which decide; kernel sockets and libfabric shm are reported. Owns the bars.

use anyhow::Result;
use serde_json::json;

use super::Args;
use super::matrix::{BARE_RING, Case, Metric, RAAS, Side, TCP, TCP_BUSY, UNIX, UNIX_BUSY, claim, reported};
use super::place::Place;
use super::report::Findings;
use super::sockets::{self, ucx};
use super::stats::{Bar, Kind};
use harness::repo::Repo;

const SMALL: u32 = 64;
const LARGE: u32 = 64 << 10;
const TINY: u32 = 8;

fn fabric(bytes: u32, iterations: u32) -> Side {
    sockets::libfabric("libfabric-shm", ["shm", "rdm"], bytes, iterations)
}

/// Bytes of a bare ring for small messages, and for a stream: a ring of ours begins with the one and grows to the
/// other.
const RING_BYTES: u64 = 256 << 10;
const GROWN_RING_BYTES: u64 = 4 << 20;

fn case(name: &'static str, test: &'static str, bytes: u32) -> Case {
    let ring_bytes = if bytes == SMALL { RING_BYTES } else { GROWN_RING_BYTES };
    Case { name, test, bytes, ring_bytes, pinned: true, crowded: false, sides: vec![RAAS, BARE_RING], claims: vec![] }
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
    vec![latency, stream, rate]
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let setting = json!({ "ucx_tls": "posix", "processors_client_server": Place::processors()? });
    sockets::run(args, setting, || Place::one_host(repo, "same-host", ""), cases())
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_claim_names_a_side_of_its_case() {
        let cases = super::cases();
        super::sockets::check(&cases);
        for case in &cases {
            assert!(case.pinned && case.sides.iter().any(|side| side.name == "bare-ring"), "{}", case.name);
        }
    }
}
