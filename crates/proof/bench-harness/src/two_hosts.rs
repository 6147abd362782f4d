//! Bench `two-hosts`: two network namespaces joined by veth, four processes, beside a bare relay (ring, UDP, ring),
//! kernel TCP with the same writes, UCX over TCP and libfabric over TCP. Owns the bars.

use anyhow::Result;
use serde_json::json;

use super::matrix::{BARE_RELAY, Case, Metric, RAAS, Runner, Side, TCP, TCP_BUSY, claim, reported};
use super::place::Place;
use super::report::Findings;
use super::stats::{Bar, Kind};
use super::{Args, Wire, sockets};
use harness::repo::Repo;

const SMALL: u32 = 64;
const MIDDLE: u32 = 64 << 10;
const LARGE: u32 = 1 << 20;
const TINY: u32 = 8;
/// The side whose lanes are not encrypted.
const CLEAR: &str = "clear";

fn ucx(test: &'static str, bytes: u32, iterations: u32) -> Side {
    sockets::ucx("ucx-tcp", test, bytes, iterations)
}

fn fabric(bytes: u32, iterations: u32) -> Side {
    sockets::libfabric("libfabric-tcp", ["tcp", "msg"], bytes, iterations)
}

fn case(name: &'static str, test: &'static str, bytes: u32) -> Case {
    // The ring between an application and a bare relay has one size.
    Case {
        name,
        test,
        bytes,
        ring_bytes: 0,
        path: "lane",
        pinned: false,
        crowded: false,
        sides: vec![RAAS],
        claims: vec![],
    }
}

/// Where the conversation has a TCP connection of its own, the bars are TCP's; on the lane, those of a bare relay.
fn latency(is_direct: bool) -> Case {
    use Bar::RatioAtMost;
    use Kind::{Goal, Must};
    use Metric::{P50, P99};
    const MIDDLE_ONE: &str = "64 B half round trip, p50";
    const LATE_ONE: &str = "64 B half round trip, p99";
    let mut case = case("latency of 64 B", "lat", SMALL);
    case.sides.extend([BARE_RELAY, TCP, TCP_BUSY, ucx("tag_lat", SMALL, 50_000), fabric(SMALL, 20_000)]);
    if is_direct {
        case.path = "tcp-direct";
        for rival in ["tcp-busy", "ucx-tcp"] {
            case.claims.push(claim(MIDDLE_ONE, P50, rival, RatioAtMost(1.15), Must));
            case.claims.push(claim(MIDDLE_ONE, P50, rival, RatioAtMost(0.95), Goal));
        }
        case.claims.push(claim(LATE_ONE, P99, "tcp-busy", RatioAtMost(1.5), Must));
        case.claims.extend(["bare-relay", "tcp", "libfabric-tcp"].map(|rival| reported(MIDDLE_ONE, P50, rival)));
        return case;
    }
    case.claims = vec![
        claim(MIDDLE_ONE, P50, "bare-relay", RatioAtMost(1.2), Must),
        claim(LATE_ONE, P99, "bare-relay", RatioAtMost(1.5), Must),
    ];
    case.claims.extend(["tcp", "tcp-busy", "ucx-tcp", "libfabric-tcp"].map(|rival| reported(MIDDLE_ONE, P50, rival)));
    case.claims.extend(["tcp", "tcp-busy"].map(|rival| reported(LATE_ONE, P99, rival)));
    case
}

fn crowded(is_direct: bool) -> Case {
    use Bar::RatioAtMost;
    use Kind::Must;
    const BESIDE: &str = "64 B half round trip, p50, beside programs that compute";
    let mut case = case("latency of 64 B beside programs that compute", "lat", SMALL);
    case.crowded = true;
    case.sides.extend([BARE_RELAY, TCP, TCP_BUSY]);
    let bar = if is_direct { 1.3 } else { 3.0 };
    case.claims = ["bare-relay", "tcp-busy"].map(|rival| reported(BESIDE, Metric::P50, rival)).to_vec();
    case.claims.push(claim(BESIDE, Metric::P50, "tcp", RatioAtMost(bar), Must));
    if is_direct {
        case.path = "tcp-direct";
    }
    case
}

/// What our side encrypts beside the same in the clear, by daemons of their own.
fn beside_clear(case: &mut Case) {
    use Metric::{Cpu, Gbit};
    case.sides.push(Side { name: CLEAR, runner: Runner::SecondDaemons });
    case.claims =
        vec![claim(case.name, Gbit, CLEAR, Bar::RatioAtLeast(0.6), Kind::Must), reported(case.name, Cpu, CLEAR)];
}

/// The bars toward UCX over TCP are those of the wire.
fn cases(wire: Wire, is_direct: bool) -> Vec<Case> {
    use Bar::RatioAtLeast;
    use Kind::{Goal, Must};
    use Metric::{Gbit, Msgs};
    const RATE: &str = "8 B messages, one write each";
    let mut middle = case("stream of 64 KiB", "bw", MIDDLE);
    middle.sides.extend([TCP, ucx("stream_bw", MIDDLE, 5_000), fabric(MIDDLE, 2_000)]);
    middle.claims = vec![
        claim("64 KiB stream", Gbit, "tcp", RatioAtLeast(0.6), Must),
        claim("64 KiB stream", Gbit, "tcp", RatioAtLeast(1.0), Goal),
        match wire {
            Wire::Roce => claim("64 KiB stream", Gbit, "ucx-tcp", RatioAtLeast(2.0), Must),
            Wire::Iwarp => claim("64 KiB stream", Gbit, "ucx-tcp", RatioAtLeast(0.85), Must),
        },
        claim("64 KiB stream", Gbit, "ucx-tcp", RatioAtLeast(if wire == Wire::Roce { 4.0 } else { 1.0 }), Goal),
        reported("64 KiB stream", Gbit, "libfabric-tcp"),
    ];
    let mut large = case("stream of 1 MiB", "bw", LARGE);
    large.sides.extend([TCP, ucx("stream_bw", LARGE, 400), fabric(LARGE, 200)]);
    large.claims = vec![
        claim("1 MiB stream", Gbit, "tcp", RatioAtLeast(0.4), Must),
        claim("1 MiB stream", Gbit, "tcp", RatioAtLeast(1.0), Goal),
        match wire {
            Wire::Roce => claim("1 MiB stream", Gbit, "ucx-tcp", RatioAtLeast(2.0), Must),
            Wire::Iwarp => reported("1 MiB stream", Gbit, "ucx-tcp"),
        },
        reported("1 MiB stream", Gbit, "libfabric-tcp"),
    ];
    let mut rate = case("rate of 8 B", "bw", TINY);
    rate.sides.extend([TCP, ucx("tag_bw", TINY, 300_000)]);
    rate.claims = vec![
        claim(RATE, Msgs, "tcp", RatioAtLeast(10.0), Must),
        claim(RATE, Msgs, "tcp", RatioAtLeast(20.0), Goal),
        reported(RATE, Msgs, "ucx-tcp"),
    ];
    // What several engines can share.
    let mut several = case("8 streams of 64 KiB", "streams", MIDDLE);
    several.sides.push(TCP);
    several.claims = vec![claim("8 streams of 64 KiB, together", Gbit, "tcp", RatioAtLeast(0.95), Must)];
    if is_direct {
        // The many share their bytes, and each has little; short writes stay on the ring.
        (middle.path, large.path) = ("tcp-direct", "tcp-direct");
    }
    vec![latency(is_direct), crowded(is_direct), middle, large, rate, several]
}

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    let chosen = args.wire.unwrap_or(Wire::Iwarp);
    let wire = match chosen {
        Wire::Roce => "roce",
        Wire::Iwarp => "iwarp",
    };
    let is_lane_only = args.lane_only || args.encrypt;
    let direct = if is_lane_only { "off" } else { "auto" };
    let encrypt = if args.encrypt { "required" } else { "off" };
    let setting = json!({
        "link": "veth", "mtu": args.mtu, "ucx_tls": "tcp", "wire": wire, "engines": args.engines, "tcp_direct": direct,
        "encrypt": encrypt,
    });
    let engines = args.engines;
    let config = |encrypt: &str| {
        format!("wire = \"{wire}\"\nengines = {engines}\ntcp_direct = \"{direct}\"\nencrypt = \"{encrypt}\"\n")
    };
    let mut cases = cases(chosen, !is_lane_only && chosen == Wire::Iwarp);
    if args.encrypt {
        cases.iter_mut().filter(|case| case.test == "bw").for_each(beside_clear);
    }
    let place = || {
        let mut place = Place::two_hosts(repo, "two-hosts", args.mtu, &config(encrypt))?;
        if args.encrypt {
            place.start_second_daemons(&config("off"))?;
        }
        Ok(place)
    };
    sockets::run(args, setting, place, cases)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_claim_names_a_side_of_its_case() {
        for wire in [super::Wire::Roce, super::Wire::Iwarp] {
            for is_direct in [true, false] {
                let mut cases = super::cases(wire, is_direct);
                super::sockets::check(&cases);
                cases.iter_mut().for_each(super::beside_clear);
                super::sockets::check(&cases);
            }
        }
    }
}
