//! Regions of RaaS as applications use them: what does one-sided memory through the service reach?
//!
//! READs and additions on a region of another host, or of this one: by threads with sessions of their own or with one
//! that several share, over handles that are opened like connections. It measures one point and prints it as JSON;
//! `cargo xtask bench figures` makes the figures, beside nativebench, which has the same loads.

mod client;

use std::io::Read;
use std::net::IpAddr;

use crate::pattern;
use anyhow::{Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use raas::{RegionKey, RegionOptions, Session};

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Makes a region, prints `ready KEY`, and keeps it until stdin ends.
    Server {
        /// Its name.
        #[arg(long, default_value = "figures")]
        name: String,
        #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(4096..=1 << 32))]
        region_bytes: u64,
        /// The words that READs are checked against stand in it; otherwise it is all 0, for counters.
        #[arg(long)]
        pattern: bool,
    },
    /// Runs one load and prints what it measured.
    Client(LoadArgs),
}

/// What is done to the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verb {
    /// Random blocks are read.
    Read,
    /// 1 is added to random counters.
    FetchAdd,
}

/// The load.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// The host of the region.
    #[arg(long)]
    pub(crate) host: Vec<IpAddr>,
    /// Its key there: one for each host.
    #[arg(long)]
    pub(crate) key: Vec<RegionKey>,
    /// Its name.
    #[arg(long, default_value = "figures")]
    pub(crate) name: String,
    #[arg(long, value_enum)]
    pub(crate) verb: Verb,
    /// Bytes of a READ.
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub(crate) size: u32,
    /// Operations outstanding of each thread. Additions are submitted 16 at a time if it is more.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) depth: u32,
    /// Threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    /// Threads that share a session; others have their own.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) share: u32,
    /// Handles, opened like connections and shared out to the threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    pub(crate) connections: u32,
    /// Counters of `fetch-add`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) counters: u32,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 0.3)]
    pub(crate) seconds: f64,
    /// Operations begun in a second by one thread; 0: as many as go.
    #[arg(long, default_value_t = 0)]
    pub(crate) rate: u32,
    /// Other processes whose processor time belongs to the load, such as daemons.
    #[arg(long, value_delimiter = ',')]
    pub(crate) cpu_of: Vec<u32>,
}

impl LoadArgs {
    /// What no single value shows.
    fn check(&self) -> Result<()> {
        ensure!(self.seconds > 0.0 && self.seconds <= 600.0, "--seconds is more than 0 and at most 600");
        ensure!(!self.host.is_empty() && self.host.len() == self.key.len(), "each --host has a --key");
        ensure!(self.threads.is_multiple_of(self.share), "--threads is a multiple of --share");
        ensure!(self.rate == 0 || (self.threads == 1 && self.depth == 1), "--rate is for one thread and --depth 1");
        Ok(())
    }
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.role {
        Role::Server { name, region_bytes, pattern } => serve(&name, region_bytes, pattern),
        Role::Client(load) => {
            load.check()?;
            println!("{}", client::run(&load)?);
            Ok(())
        }
    }
}

fn serve(name: &str, bytes: u64, has_pattern: bool) -> Result<()> {
    let session = Session::global()?;
    let region = RegionOptions::new().create(&session, name, bytes)?;
    if has_pattern {
        pattern::pages(bytes).try_for_each(|page| region.write(page, &pattern::word(page).to_le_bytes()))?;
    }
    println!("ready {}", region.key());
    std::io::stdin().read_to_end(&mut vec![])?;
    Ok(())
}
