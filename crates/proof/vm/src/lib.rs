//! `cargo xtask vm`: runs a command in one or two guests that boot the distribution's stock kernel on the host's own
//! root file system, with kernel soft-RoCE up as `rxe0` or software iWARP as `siw0`. Owns the command line; how to use it stands in docs/proof/guests.md.
//!
//! It must never change the machine: what it needs is unpacked, never installed. May use `harness`. Order of calls:
//! parts are prepared, then guests boot, then judges look at what they left.

#![forbid(unsafe_code)]

mod apt;
mod artifacts;
mod bzimage;
mod guest;
mod initramfs;
mod modules;
mod programs;
mod registry;
mod siw;
mod sources;
mod suite;

pub use registry::Stage;
pub use suite::{prepare_ahead, run as run_stage};

use anyhow::{Result, bail};
use artifacts::Device;
use harness::child::Stream;
use harness::repo::Repo;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What `cargo xtask vm` takes.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Guests to boot; two share a private network.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    guests: u32,
    /// Kernel series.
    #[arg(long, default_value = "6.1", value_parser = ["6.1", "6.12"])]
    kernel: String,
    /// The kernel's software RDMA device on eth0; siw is built from the kernel's source package first.
    #[arg(long, value_enum, default_value = "rxe")]
    device: Device,
    /// Processors per guest.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory per guest.
    #[arg(long, default_value_t = 1536)]
    memory_mib: u32,
    /// MTU of the guests' network; 4096-byte RDMA packets need 4200 or more.
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Seconds from start to the end of the guests; then the exit code is 124.
    #[arg(long, default_value_t = 900)]
    timeout_s: u64,
    /// Directory that the guests see, writable, at $VM_RESULTS.
    #[arg(long)]
    results: Option<PathBuf>,
    /// More Debian packages for the guest (they are unpacked for it, not installed here).
    #[arg(long, value_delimiter = ',')]
    packages: Vec<String>,
    /// Only fetch and unpack what a boot needs.
    #[arg(long)]
    prepare: bool,
    /// Run one suite of the test stages `vm` and `packaging`.
    #[arg(long, conflicts_with = "command")]
    suite: Option<String>,
    /// The command, run in the repository's root in every guest; its exit code (the first that is not 0) is returned.
    #[arg(last = true)]
    command: Vec<String>,
}

/// Runs the command and returns its exit code; 124 if it took too long, 125 if a guest gave none.
pub fn run(args: &Args) -> Result<ExitCode> {
    let repo = Repo::open()?;
    if let Some(name) = &args.suite {
        let tally = suite::run_named(&repo, name)?;
        println!("{tally}");
        return Ok(if tally.failed + tally.skipped == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let cache = repo.target.join("vm");
    let packages: Vec<&str> = args.packages.iter().map(String::as_str).collect();
    let artifacts = artifacts::prepare(&cache, &args.kernel, &packages, args.device)?;
    if args.prepare {
        println!("vm: ready, {}", artifacts.kernel.package);
        return Ok(ExitCode::SUCCESS);
    }
    if args.command.is_empty() {
        bail!("no command; write it after --, as in: cargo xtask vm -- ibv_devinfo");
    }
    let boot = guest::Boot {
        guests: args.guests,
        device: args.device,
        cpus: args.cpus,
        memory_mib: args.memory_mib,
        mtu: args.mtu,
        timeout: Duration::from_secs(args.timeout_s),
        results: match &args.results {
            Some(results) => results.clone(),
            None => suite::fresh(cache.join("results").join("last"))?,
        },
        command: args.command.clone(),
    };
    let outcomes = guest::run(&artifacts, &boot, &repo.root, &cache.join("runs"), |index, stream, line| {
        let line = suite::labelled(boot.guests, index, line);
        match stream {
            Stream::Out => println!("{line}"),
            Stream::Err => eprintln!("{line}"),
        }
    })?;
    let code = outcomes.iter().map(|outcome| outcome.code).find(|code| *code != 0).unwrap_or(0);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}
