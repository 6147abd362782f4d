//! Kernels between two hosts: what does a lookup in a chain take beside READs of its nodes?
//!
//! Two daemons in this process are two hosts on loopback. One has a region with lists of several lengths, and a program
//! of the other looks for the last node: by one kernel, and by one READ for the head and for each node. The sides of a
//! case take turns in each round; a value is the median time of a lookup. Prints JSON.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use raas::kernels::Chain;
use raas::{Region, RegionAccess, RegionKey, RegionOptions};
use serde_json::json;

const ADDRESSES: [&str; 2] = ["127.88.5.1", "127.88.5.2"];
const NAME: &str = "kernels";
const KEY: RegionKey = RegionKey::new([3; 16]);
const REGION_BYTES: u64 = 16 << 20;
/// Bytes from one node of a list to the next: each is in a page of its own.
const NODE_APART: u64 = 4096 + 64;
/// Nodes of the lists.
const LENGTHS: [u64; 5] = [1, 2, 4, 16, 64];
/// Bytes of a node: next, key, value.
const NODE_BYTES: usize = 24;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Rounds, in each of which every side of every case runs once.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Seconds of one side in one round.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Where the pointer to the first node of a list is.
fn head(length: u64) -> u64 {
    8 * length
}

fn write_list(region: &Region, length: u64, from: u64) -> Result<()> {
    let at = |node: u64| from + node * NODE_APART;
    region.store(head(length), at(0))?;
    for node in 0..length {
        region.store(at(node), if node + 1 < length { at(node + 1) } else { 0 })?;
        region.store(at(node) + 8, node + 1)?;
        region.store(at(node) + 16, 1000 + node)?;
    }
    Ok(())
}

fn by_kernel(region: &Region, length: u64) -> Result<u64> {
    let found = region.call(&Chain::list(head(length)).equal(8, &length.to_ne_bytes()).value(16, 8))?;
    Ok(found.value.try_into().map_or(0, u64::from_ne_bytes))
}

fn by_reads(region: &Region, length: u64) -> Result<u64> {
    let mut at = region.load(head(length))?;
    let word = |node: &[u8; NODE_BYTES], word: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&node[8 * word..8 * word + 8]);
        u64::from_ne_bytes(bytes)
    };
    while at != 0 {
        let mut node = [0; NODE_BYTES];
        region.read(at, &mut node)?;
        if word(&node, 1) == length {
            return Ok(word(&node, 2));
        }
        at = word(&node, 0);
    }
    Ok(0)
}

/// Median time of a lookup in microseconds.
fn median_us(region: &Region, length: u64, seconds: f64, lookup: fn(&Region, u64) -> Result<u64>) -> Result<f64> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut times = vec![];
    while times.len() < 16 || Instant::now() < end {
        let begin = Instant::now();
        let value = lookup(region, length)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
        ensure!(value == 999 + length, "a list of {length} nodes ends with {value}");
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    ensure!(cli.seconds > 0.0 && cli.seconds <= 60.0, "--seconds is more than 0 and at most 60");
    let addresses: Vec<IpAddr> = ADDRESSES.iter().map(|a| a.parse()).collect::<Result<_, _>>()?;
    let start = |address: &IpAddr| raas_embedded::builder(*address).key(&[7; 32]).start();
    let hosts = addresses.iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let access = RegionAccess::ALL | RegionAccess::EXECUTE;
    let own = RegionOptions::new().key(KEY).access(access).create(hosts[0].session(), NAME, REGION_BYTES)?;
    for (number, length) in LENGTHS.into_iter().enumerate() {
        write_list(&own, length, 4096 + number as u64 * (1 << 20))?;
    }
    let far = Region::open_for(hosts[1].session(), addresses[0], NAME, KEY, access)?;
    let case = |length: u64| format!("chain of {length}");
    let wanted = |length: &u64| cli.only.as_ref().is_none_or(|only| case(*length).contains(only.as_str()));
    let lengths: Vec<u64> = LENGTHS.into_iter().filter(wanted).collect();
    let mut values = vec![(vec![], vec![]); lengths.len()];
    for _ in 0..cli.rounds {
        for (length, (kernel, reads)) in lengths.iter().zip(&mut values) {
            kernel.push(median_us(&far, *length, cli.seconds, by_kernel)?);
            reads.push(median_us(&far, *length, cli.seconds, by_reads)?);
        }
    }
    let cases = lengths.iter().zip(&values).map(|(length, (kernel, reads))| {
        let sides = [json!({ "side": "kernel", "values": kernel }), json!({ "side": "READs", "values": reads })];
        json!({ "case": case(*length), "length": length, "unit": "us", "sides": sides })
    });
    println!("{}", json!({ "rounds": cli.rounds, "cases": cases.collect::<Vec<_>>() }));
    Ok(())
}
