//! Structures and locks of `rmem` between two hosts: what do they reach beside simpler ones on the same device?
//!
//! Two daemons in this process are two hosts on loopback, each with a node of a pool. Threads of both hosts work with
//! the tutorial's list set, and with locks: ALock, and beside it a plain compare-and-swap spin lock and an MCS lock. All
//! sides of a case take turns in each round. Prints JSON.

mod locks;
mod set;
mod simple;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use raas::{Region, RegionKey, RegionOptions, Session};
use raas_embedded::Embedded;
use rmem::{Client, Pool, Wait, format};
use serde_json::json;

const ADDRESSES: [&str; 2] = ["127.88.4.1", "127.88.4.2"];
const NAME: &str = "remus";
const KEY: RegionKey = RegionKey::new([3; 16]);
const NODE_BYTES: u64 = 64 << 20;
const LEASE: Duration = Duration::from_secs(10);
/// Longer than anything takes; only a fault reaches it.
pub(crate) const PATIENCE_US: u64 = 60_000_000;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Rounds, in each of which every side of every case runs once.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one side in one round.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Threads of each host.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    threads: u32,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Both hosts, each with its node.
pub(crate) struct Hosts {
    hosts: Vec<Embedded>,
    /// A node ends with its owner's handle.
    _nodes: Vec<Region>,
    /// One for each thread, of both hosts in turn.
    clients: Vec<Mutex<Client<Pool>>>,
    seconds: f64,
}

impl Hosts {
    fn start(cli: &Cli) -> Result<Self> {
        let addresses: Vec<IpAddr> = ADDRESSES.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
        let start = |address: &IpAddr| raas_embedded::builder(*address).key(&[7; 32]).start();
        let hosts = addresses.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let make = |host: &Embedded| RegionOptions::new().key(KEY).create(host.session(), NAME, NODE_BYTES);
        let nodes = hosts.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let mut this = Self { hosts, _nodes: nodes, clients: vec![], seconds: cli.seconds };
        for node in 0..ADDRESSES.len() {
            format(&this.pool(node)?, node as u8, LEASE).wait()?;
        }
        for number in 0..2 * cli.threads as usize {
            this.clients.push(Mutex::new(this.client(number % 2)?));
        }
        Ok(this)
    }

    /// Both nodes as a program of that host reaches them, with a session of its own.
    fn pool(&self, host: usize) -> Result<Pool> {
        let session = Session::connect(self.hosts[host].session().socket())?;
        let open = |address: &&str| -> Result<Region> { Ok(Region::open(&session, address.parse()?, NAME, KEY)?) };
        Ok(Pool::new(ADDRESSES.iter().map(open).collect::<Result<_>>()?)?)
    }

    pub(crate) fn client(&self, host: usize) -> Result<Client<Pool>> {
        Ok(Client::join(self.pool(host)?).wait()?)
    }

    /// Operations a second of all threads together. `work` makes a thread's part, of which a call is one operation; it
    /// gets the thread's client, host and number.
    pub(crate) fn rate<W>(&self, work: impl Fn(&mut Client<Pool>, usize, u64) -> Result<W> + Sync) -> Result<f64>
    where
        W: FnMut(&mut Client<Pool>) -> Result<()>,
    {
        let (start, is_over) = (Barrier::new(self.clients.len() + 1), AtomicBool::new(false));
        let run = |number: usize, client: &Mutex<Client<Pool>>| -> Result<u64> {
            let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
            let made = work(&mut client, number % 2, number as u64);
            // Also after a failure, so that nobody waits for ever.
            start.wait();
            let (mut act, mut count) = (made?, 0);
            while !is_over.load(Ordering::Relaxed) {
                act(&mut client)?;
                count += 1;
            }
            Ok(count)
        };
        std::thread::scope(|scope| {
            let run = &run;
            let threads = self.clients.iter().enumerate();
            let threads: Vec<_> = threads.map(|(number, client)| scope.spawn(move || run(number, client))).collect();
            start.wait();
            let begin = Instant::now();
            std::thread::sleep(Duration::from_secs_f64(self.seconds));
            is_over.store(true, Ordering::Relaxed);
            let mut operations = 0;
            for thread in threads {
                operations += thread.join().ok().context("a thread panicked")??;
            }
            // Those that were under way at the end count, and so does the time that they took.
            Ok(operations as f64 / begin.elapsed().as_secs_f64())
        })
    }
}

/// A side of a case: what it is called, and what it measures in a round.
pub(crate) type Side<'a> = (&'static str, Box<dyn Fn() -> Result<f64> + 'a>);

/// A case with its sides, ours first.
pub(crate) struct Case<'a> {
    pub(crate) name: String,
    pub(crate) sides: Vec<Side<'a>>,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    ensure!(cli.seconds > 0.0 && cli.seconds <= 60.0, "--seconds is more than 0 and at most 60");
    let hosts = Hosts::start(&cli)?;
    let cases = [set::cases(&hosts)?, locks::cases(&hosts)?].into_iter().flatten();
    let wanted = |case: &Case<'_>| cli.only.as_ref().is_none_or(|only| case.name.contains(only.as_str()));
    let mut found = vec![];
    for case in cases.filter(wanted) {
        let mut values = vec![vec![]; case.sides.len()];
        for _ in 0..cli.rounds {
            for (values, (_, side)) in values.iter_mut().zip(&case.sides) {
                values.push(side()?);
            }
        }
        let sides = case.sides.iter().zip(values);
        let sides: Vec<_> = sides.map(|((side, _), values)| json!({ "side": side, "values": values })).collect();
        eprintln!("{}: {}", case.name, json!(sides));
        found.push(json!({ "case": case.name, "unit": "ops/s", "sides": sides }));
    }
    println!("{}", json!({ "rounds": cli.rounds, "threads_of_each_host": cli.threads, "cases": found }));
    Ok(())
}
