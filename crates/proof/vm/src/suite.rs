//! Stage `vm`: suites that run in a guest, one boot each. Owns the registry and the reading of result lines. A suite
//! says `PASS name`, `FAIL name: reason` or `SKIP name: reason` per case, or runs a Rust test binary; one that ends
//! early cannot pass, because each states how many cases it has at least.

use super::artifacts::{self, Artifacts, Device};
use super::guest::{self, Boot};
use anyhow::Result;
use harness::child::{self, Stream};
use harness::programs;
use harness::repo::Repo;
use harness::result_lines::counted;
use harness::tally::Tally;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One suite: what is built on the host, then booted and run.
struct Suite {
    name: &'static str,
    about: &'static str,
    guests: u32,
    /// Kernel series, `6.1` or `6.12`.
    kernel: &'static str,
    device: Device,
    /// MTU of the guests' network.
    mtu: u32,
    /// Packages that the guest needs beyond the usual ones.
    packages: &'static [&'static str],
    /// It needs this repository's programs.
    programs: bool,
    /// Run in every guest, in the repository's root.
    command: &'static [&'static str],
    /// Run on the host afterwards, with the guest's results and packages: a judge of captures need not be emulated.
    judges: Option<&'static str>,
    /// Fewer cases than this, over all guests, is a failure.
    cases_min: u64,
    timeout_s: u64,
    /// Only with `--full`.
    full_only: bool,
}

/// Five runs over the suite's cases; of four captures the packets and their ICRCs, and 35 opcodes.
const INTEROP_CASES: u64 = 5 * 212 + 4 * 2 + 35;
/// 17 runs, 16 captures.
const INTEROP_CASES_THOROUGH: u64 = 17 * 212 + 16 * 2 + 35;
/// The judges of one suite's results.
const JUDGES_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What the suites of siw need: the dissector, and librdmacm for the script that is their application.
const SIW_PACKAGES: &[&str] = &["tshark", "python3-pyverbs"];

/// Both ends of ten connections of the exercise and of its four rounds, of rping and two programs of perftest; the capture.
const SIW_CASES: u64 = 2 * (10 + 4 + 1 + 2) + 1;
/// With five broken rules, an rping and four programs more.
const SIW_CASES_LONG: u64 = SIW_CASES + 2 * (5 + 1 + 4);
/// Of one capture the FPDUs, five opcodes, and what tshark says.
const SIW_JUDGEMENTS: u64 = 1 + 5 + 1;

/// Both ends of 13 connections in each direction, and of the two rounds.
const SIW_INTEROP_ROUND: u64 = 2 * 2 * (13 + 1);
/// One round, both ends of three more exercises with their rounds, of two rpings, of three programs of perftest, and the
/// capture.
const SIW_INTEROP_CASES: u64 = SIW_INTEROP_ROUND + 2 * (3 + 3 + 2 + 3) + 1;
/// With the five Terminate messages that our end must send.
const SIW_INTEROP_JUDGEMENTS: u64 = SIW_JUDGEMENTS + 5;

const SUITES: &[Suite] = &[
    Suite {
        name: "rxe-smoke",
        about: "kernel rxe talks to itself in one guest",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 12,
        timeout_s: 600,
        full_only: false,
    },
    Suite {
        name: "rxe-pair",
        about: "kernel rxe talks between two guests",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 24,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "interop",
        about: "the conformance suite on rxe and between the software NIC and rxe, over clean and faulty links; tshark and an \
                independent ICRC check judge every packet",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/interop-suite", "all"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: INTEROP_CASES,
        timeout_s: 1200,
        full_only: false,
    },
    Suite {
        name: "interop-thorough",
        about: "the same with each address family beside each MTU, clean and faulty, in each direction",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/interop-suite", "thorough"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: INTEROP_CASES_THOROUGH,
        timeout_s: 2400,
        full_only: true,
    },
    Suite {
        name: "interop-6.12",
        about: "the same judged by the newer kernel, whose rxe was rewritten in part",
        guests: 1,
        kernel: "6.12",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/interop-suite", "thorough"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: INTEROP_CASES_THOROUGH,
        timeout_s: 2400,
        full_only: true,
    },
    Suite {
        name: "service-rxe",
        about: "the service on rdma-core between two guests: real files both ways, every SHA-256 compared",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 4200,
        packages: &[],
        programs: true,
        command: &["tests/vm/service-pair", "rdma-core", "rdma-core"],
        judges: None,
        cases_min: 44,
        timeout_s: 400,
        full_only: false,
    },
    Suite {
        name: "service-mixed",
        about: "the service with rxe on one host and the software NIC on the other",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/service-pair", "rdma-core", "softnic"],
        judges: None,
        cases_min: 45,
        timeout_s: 400,
        full_only: false,
    },
    Suite {
        name: "overcommit",
        about: "what a daemon does with memory that the system promised to nobody",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/overcommit"],
        judges: None,
        cases_min: 6,
        timeout_s: 200,
        full_only: false,
    },
    Suite {
        name: "siw-smoke",
        about: "kernel siw (iWARP) talks to itself in one guest; tshark and an independent CRC check judge every FPDU",
        guests: 1,
        kernel: "6.1",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: false,
        command: &["tests/vm/siw-tools"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_CASES + SIW_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "siw-interop",
        about: "our TCP wire against siw in both directions, rping too; tshark and an independent CRC check judge every FPDU",
        guests: 1,
        kernel: "6.1",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: true,
        command: &["tests/vm/siw-interop"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_INTEROP_CASES + SIW_INTEROP_JUDGEMENTS,
        timeout_s: 600,
        full_only: false,
    },
    Suite {
        name: "siw-interop-6.12",
        about: "the same with the newer kernel's siw, and with the segments of Ethernet too",
        guests: 1,
        kernel: "6.12",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: true,
        command: &["tests/vm/siw-interop", "long"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_INTEROP_CASES + SIW_INTEROP_ROUND + SIW_INTEROP_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "siw-smoke-6.12",
        about: "the same and more with the newer kernel's siw",
        guests: 1,
        kernel: "6.12",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: false,
        command: &["tests/vm/siw-tools", "long"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_CASES_LONG + SIW_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "rxe-smoke-6.12",
        about: "the same with the newer kernel",
        guests: 1,
        kernel: "6.12",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 12,
        timeout_s: 600,
        full_only: true,
    },
];

/// Fetches and unpacks what the stage's guests are made of, on a thread beside other stages: it waits for the network
/// most of the time. The suite that needs a part which failed tries again, and reports it; a suite that comes earlier
/// waits.
pub fn prepare_ahead(repo: &Repo, full: bool) {
    let cache = repo.target.join("vm");
    std::thread::spawn(move || {
        for suite in SUITES.iter().filter(|suite| full || !suite.full_only) {
            if artifacts::prepare(&cache, suite.kernel, suite.packages, suite.device).is_err() {
                return;
            }
        }
    });
}

/// The stage: every suite that is due.
pub fn run(repo: &Repo, full: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    for suite in SUITES.iter().filter(|suite| full || !suite.full_only) {
        let start = Instant::now();
        println!("vm suite {}: {} ({} guest(s), kernel {})", suite.name, suite.about, suite.guests, suite.kernel);
        let counts = run_suite(repo, suite)?;
        println!("vm suite {}: {counts} in {:.1} s", suite.name, start.elapsed().as_secs_f64());
        tally.add(counts);
    }
    Ok(tally)
}

/// Runs one suite by its name, for `cargo xtask vm --suite`.
pub(super) fn run_named(repo: &Repo, name: &str) -> Result<Tally> {
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        anyhow::bail!("no suite named {name}; there are: {}", known.join(", "));
    };
    run_suite(repo, suite)
}

fn run_suite(repo: &Repo, suite: &Suite) -> Result<Tally> {
    let mut tally = Tally::default();
    if suite.programs {
        let built = programs::build(repo)?;
        if !built.success() {
            tally.case(&format!("{}: build", suite.name), built.took, &[built.describe(), built.text(Stream::Err)]);
            return Ok(tally);
        }
    }
    let cache = repo.target.join("vm");
    let artifacts = match artifacts::prepare(&cache, suite.kernel, suite.packages, suite.device) {
        Ok(artifacts) => artifacts,
        Err(error) => {
            // Without the guest's parts no case can run: that is a skip, which is loud and fails in CI.
            tally.skip(suite.name, &format!("{error:#}"));
            return Ok(tally);
        }
    };
    let results = fresh(cache.join("results").join(suite.name))?;
    let boot = Boot {
        guests: suite.guests,
        device: suite.device,
        cpus: 2,
        memory_mib: if suite.guests == 1 { 2048 } else { 1024 },
        mtu: suite.mtu,
        timeout: Duration::from_secs(suite.timeout_s),
        results: results.clone(),
        command: suite.command.iter().map(|word| (*word).to_owned()).collect(),
    };
    let show = |index: u32, _, line: &str| println!("  {}", labelled(suite.guests, index, line));
    let outcomes = guest::run(&artifacts, &boot, &repo.root, &cache.join("runs"), show)?;
    let mut trouble = vec![];
    for (index, outcome) in (1..).zip(&outcomes) {
        tally.add(counted(outcome.lines.iter().map(|(_, line)| line.as_str())));
        if outcome.code != 0 {
            trouble.push(labelled(suite.guests, index, &format!("exit code {}", outcome.code)));
        }
    }
    if let Some(judges) = suite.judges {
        let mut command = on_host(repo, &artifacts, judges, &results);
        let ended = child::run(&mut command, JUDGES_LIMIT, |_, line| println!("  {line}"))?;
        println!("  judged in {:.1} s", ended.took.as_secs_f64());
        tally.add(counted(ended.lines.iter().map(|(_, line)| line.as_str())));
        if !ended.success() {
            trouble.push(format!("{judges}: {}", ended.describe()));
        }
    }
    let cases = tally.passed + tally.failed + tally.skipped;
    if cases < suite.cases_min {
        trouble.push(format!("{cases} cases, not at least {}", suite.cases_min));
    }
    let took = outcomes.iter().map(|outcome| outcome.took).max().unwrap_or_default();
    tally.case(&format!("{}: the guest ended well", suite.name), took, &trouble);
    Ok(tally)
}

/// A program of the guests' packages, or a script that uses them, on the host itself.
fn on_host(repo: &Repo, artifacts: &Artifacts, program: &str, results: &Path) -> Command {
    let mut command = repo.command(program, &[]);
    let usr = artifacts.layer.join("usr");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", usr.join("bin").display()));
    command.env("LD_LIBRARY_PATH", artifacts.layer.join(super::apt::LIBRARIES)).env("VM_RESULTS", results);
    // Wireshark looks for its tables where its package would have put them, and must not follow this user's
    // preferences.
    command
        .env("WIRESHARK_DATA_DIR", usr.join("share/wireshark"))
        .env("WIRESHARK_CONFIG_DIR", results.join("wireshark"));
    command
}

/// The folder, empty: what an earlier boot left there must not be taken for this one's.
pub(super) fn fresh(results: PathBuf) -> Result<PathBuf> {
    match std::fs::remove_dir_all(&results) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e.into()),
        _ => Ok(results),
    }
}

/// A guest's line with its name in front, where there are two.
pub(super) fn labelled(guests: u32, index: u32, line: &str) -> String {
    if guests == 1 { line.to_owned() } else { format!("[vm{index}] {line}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_unique_names_and_cases() {
        let mut names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), SUITES.len());
        assert!(SUITES.iter().all(|suite| suite.cases_min > 0 && (1..=2).contains(&suite.guests)));
    }
}
