//! Tensors on one host: what does a program take to have a tensor of another one, of any size?
//!
//! A daemon in this process, an owner of a pool, and a reader in a session of its own. A reader gets a tensor, looks at its
//! first byte and gives it back, or copies all of it as well. The sides of a case take turns in each round; a value is the
//! median time. The reader's counter must say that nothing was copied where nothing was to be. Prints JSON.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use raas::Session;
use serde_json::json;
use tensor::{DType, Layout, Pool, Reader};

const ADDRESS: &str = "127.88.6.1";
const SIZES: [(&str, u64); 4] = [("4 KiB", 4 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("256 MiB", 256 << 20)];
const POOL_BYTES: u64 = 400 << 20;
/// Times of a side at least.
const TIMES_MIN: usize = 5;

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

fn get(reader: &Reader, name: &str) -> Result<()> {
    let before = reader.counts().bytes_copied;
    let tensor = reader.get(name)?;
    std::hint::black_box(tensor.as_ptr()?);
    ensure!(tensor.is_here() && reader.counts().bytes_copied == before, "bytes were copied");
    Ok(())
}

fn get_and_copy(reader: &Reader, name: &str) -> Result<()> {
    let tensor = reader.get(name)?;
    ensure!(tensor.to_vec()?.last() == Some(&7), "the bytes are others");
    Ok(())
}

/// Median time in microseconds.
fn median_us(reader: &Reader, name: &str, seconds: f64, side: fn(&Reader, &str) -> Result<()>) -> Result<f64> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut times = vec![];
    while times.len() < TIMES_MIN || Instant::now() < end {
        let begin = Instant::now();
        side(reader, name)?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    ensure!(cli.seconds > 0.0 && cli.seconds <= 60.0, "--seconds is more than 0 and at most 60");
    let address: IpAddr = ADDRESS.parse()?;
    let host = raas_embedded::builder(address).key(&[7; 32]).start()?;
    let pool = Pool::create(host.session(), "tensors", POOL_BYTES)?;
    for (name, bytes) in SIZES {
        let draft = pool.make(Layout::new(DType::U8, &[bytes])?)?;
        let piece = vec![7; 1 << 12];
        for at in (0..bytes).step_by(piece.len()) {
            draft.write(at, &piece)?;
        }
        pool.put(name, draft)?;
    }
    let session = Session::builder().socket(host.socket()).background(true).connect()?;
    let reader = Reader::open(&session, address, "tensors", pool.key())?;
    let case = |name: &str| format!("get of {name}");
    let wanted = |(name, _): &(&str, u64)| cli.only.as_ref().is_none_or(|only| case(name).contains(only.as_str()));
    let sizes: Vec<(&str, u64)> = SIZES.into_iter().filter(wanted).collect();
    let mut values = vec![(vec![], vec![]); sizes.len()];
    for _ in 0..cli.rounds {
        for ((name, _), (mapped, copied)) in sizes.iter().zip(&mut values) {
            mapped.push(median_us(&reader, name, cli.seconds, get)?);
            copied.push(median_us(&reader, name, cli.seconds, get_and_copy)?);
        }
    }
    let cases = sizes.iter().zip(&values).map(|((name, bytes), (mapped, copied))| {
        let sides = [json!({ "side": "get", "values": mapped }), json!({ "side": "get and copy", "values": copied })];
        json!({ "case": case(name), "bytes": bytes, "unit": "us", "sides": sides })
    });
    println!("{}", json!({ "rounds": cli.rounds, "cases": cases.collect::<Vec<_>>() }));
    Ok(())
}
