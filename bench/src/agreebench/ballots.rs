//! What agreement by ballots costs, where no writer is fenced: each slot of a memory has a word, and a proposer swaps its
//! ballot in by compare-and-swap (Velos, arXiv 2106.08676). Owns the verbs of its two steps, and no protocol around them.
//!
//! *Accept*: a WRITE of the command and, behind it in the same queue pair, a swap of the slot's word. *Prepare*: a swap alone,
//! by which a new proposer takes a slot that is under way.

use std::net::IpAddr;
use std::time::Instant;

use anyhow::{Result, ensure};
use raas::{Batch, Completion, Region, RegionAccess, RegionKey, RegionOptions, Session};

use super::load::{COMMAND_BYTES, Load, Times};

const NAME: &str = "balloted";
const BYTES: u64 = 4096;
const WORD_AT: u64 = 0;
const COMMAND_AT: u64 = 64;

/// This host's memory.
pub(super) fn offer(session: &Session, key: RegionKey) -> Result<Region, raas::RegionError> {
    let access = RegionAccess::READ | RegionAccess::WRITE | RegionAccess::ATOMIC;
    RegionOptions::new().key(key).access(access).create(session, NAME, BYTES)
}

/// Steps at each of these hosts at a time, by one thread in a session of its own; with a command, or to prepare.
pub(super) fn steps(hosts: &[IpAddr], key: RegionKey, load: Load, has_command: bool) -> Result<Times> {
    let session = Session::builder().connect()?;
    let access = RegionAccess::READ | RegionAccess::WRITE | RegionAccess::ATOMIC;
    let open = |host: &IpAddr| {
        let region = Region::open_leased(&session, *host, NAME, key, access)?;
        let mut word = [0; 8];
        region.read(WORD_AT, &mut word)?;
        Ok::<_, raas::RegionError>((region, u64::from_le_bytes(word)))
    };
    let mut memories = hosts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut times = load.begin();
    while times.wait().is_some() {
        let begin = Instant::now();
        let step = |(region, ballot): &(Region, u64)| {
            let mut batch = Batch::new();
            if has_command {
                batch.write_as(region, COMMAND_AT, [7; COMMAND_BYTES], Completion::Acked);
            }
            let swap = batch.compare_swap(region, WORD_AT, *ballot, *ballot + 1);
            Ok::<_, raas::RegionError>((batch.submit()?, swap))
        };
        let pending = memories.iter().map(step).collect::<Result<Vec<_>, _>>()?;
        for ((pending, swap), (_, ballot)) in pending.into_iter().zip(&mut memories) {
            let ended = pending.wait()?;
            ended.check()?;
            ensure!(ended.value(swap)? == *ballot, "somebody else has a ballot here");
            *ballot += 1;
        }
        times.on_end(begin);
    }
    Ok(times)
}
