//! Bench `instructions`: instructions for a message in the engine and for a packet in the NIC, counted by callgrind.
//! Two runs of different length; what the longer one takes more is the messages' alone. Unlike times they do not depend
//! on the machine's load.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::Args;
use super::report::Findings;
use harness::child::{self, Stream};
use harness::packages;
use harness::repo::Repo;

/// Messages of the shorter and the longer run.
const COUNTS: [u64; 2] = [20_000, 60_000];
const BUILD_LIMIT: Duration = Duration::from_secs(40 * 60);
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// What is counted: name, package, example, bytes of a message.
const PROGRAMS: [(&str, &str, &str, u32); 4] = [
    ("engine, both ends, message of 64 B", "engine", "speed", 64),
    ("engine, both ends, message of 4 KiB", "engine", "speed", 4096),
    ("roce, both ends, packet of 64 B", "roce", "pair_speed", 64),
    ("roce, both ends, packet of 1 KiB", "roce", "pair_speed", 1024),
];

pub(super) fn run(repo: &Repo, args: &Args) -> Result<Findings> {
    install()?;
    let mut findings =
        Findings { rounds: 1, setting: json!({ "tool": "callgrind", "messages": COUNTS }), ..Findings::default() };
    for (name, package, example, bytes) in PROGRAMS.into_iter().filter(|(name, ..)| args.wants(name)) {
        let words = ["build", "--release", "--package", package, "--example", example];
        let build = child::run_quiet(&mut repo.command("cargo", &words), BUILD_LIMIT)?;
        ensure!(build.success(), "building {example}: {}\n{}", build.describe(), build.text(Stream::Err));
        let program = repo.target.join("release/examples").join(example).display().to_string();
        let [short, long] = COUNTS;
        let (few, many) = (count(repo, &program, bytes, short)?, count(repo, &program, bytes, long)?);
        let each = many.saturating_sub(few) as f64 / (long - short) as f64;
        println!("{each:>10.0} instructions: {name}");
        findings.figures.push(json!({ "case": name, "instructions": each, "size_bytes": bytes }));
    }
    Ok(findings)
}

fn install() -> Result<()> {
    packages::install(&[("valgrind", "valgrind")]);
    ensure!(packages::is_here("valgrind"), "no valgrind here: install Debian's package of that name");
    Ok(())
}

/// Instructions of one run.
fn count(repo: &Repo, program: &str, bytes: u32, messages: u64) -> Result<u64> {
    let (bytes, messages) = (bytes.to_string(), messages.to_string());
    let words = ["--tool=callgrind", "--callgrind-out-file=/dev/null", program, &bytes, &messages];
    let ended = child::run_quiet(&mut repo.command("valgrind", &words), RUN_LIMIT)?;
    let said = ended.text(Stream::Err);
    ensure!(ended.success(), "callgrind: {}\n{said}", ended.describe());
    parse(&said).with_context(|| format!("callgrind said no count: {said}"))
}

/// The line `==1== Collected : 123456`.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_count_is_found() {
        assert_eq!(super::parse("==9== \n==9== Collected : 123456\n"), Some(123_456));
        assert_eq!(super::parse("nothing"), None);
    }
}
