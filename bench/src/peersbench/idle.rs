//! Lanes over which nothing goes: what one costs the daemon in the middle, up and at rest, and how long a lane at rest
//! takes to carry a message.

use std::fs::read_to_string;
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use raas::{Listener, Stream};
use serde_json::{Value, json};

use super::PATIENCE;
use super::cluster::{Cluster, Host};
use super::cost::Used;

/// A lane of these daemons rests after this long: after its credits went back, which takes two seconds.
const CONFIG: &str = "ring_bytes = 4096\n[limits]\nlane_rest_ms = 24000\n";
/// From the last use to the look at lanes that are idle and not yet at rest.
const IDLE: Duration = Duration::from_millis(9000);
/// Messages that each connection carries each way: so many that the lane's credits grow.
const MESSAGES: usize = 100;
const MESSAGE: [u8; 64] = [0x5a; 64];
/// Messages of a quarter of a ring each, so that each brings a frame, and more of them than the receives of one lane and
/// those that belong to none: every page of these has been touched before anything is compared.
const WARM_UP: usize = 2000;
const WARM_UP_MESSAGE: [u8; 1024] = [0x5a; 1024];
/// How long the processor time of links is looked at: some heartbeats.
const LOOK: Duration = Duration::from_secs(3);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Bytes of memory for an idle and for a resting lane, milliseconds of a wake, and the share of a core that one peer
/// takes whose lane rests: heartbeats both ways. At most three rounds.
pub(crate) fn measure(raas: &Path, peers: usize, rounds: u32) -> Result<Value> {
    let (mut idle, mut resting, mut wakes, mut cores) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds.min(3) {
        let cluster = Cluster::start(raas, 0, peers, CONFIG)?;
        let mut pairs = Vec::new();
        // What the first lane makes is not of a lane.
        let (first, others) = cluster.peers.split_first().context("no peers")?;
        pairs.push(pair(&cluster.center, first)?);
        carry(&mut pairs, &WARM_UP_MESSAGE, WARM_UP)?;
        std::thread::sleep(IDLE);
        let before = memory(cluster.center.pid())?;
        for peer in others {
            pairs.push(pair(&cluster.center, peer)?);
        }
        // The first of them may rest meanwhile.
        carry(&mut pairs, &MESSAGE, MESSAGES)?;
        std::thread::sleep(IDLE);
        wait_for(&cluster.center, "up", peers)?;
        let each = |after: f64| ((after - before) / others.len() as f64).max(1.0);
        idle.push(each(memory(cluster.center.pid())?));
        wait_for(&cluster.center, "resting", peers)?;
        resting.push(each(memory(cluster.center.pid())?));
        let (used, begin) = (Used::of(cluster.center.pid())?.seconds, Instant::now());
        std::thread::sleep(LOOK);
        let used = Used::of(cluster.center.pid())?.seconds - used;
        cores.push(used / begin.elapsed().as_secs_f64() / peers as f64);
        for (near, far) in &mut pairs {
            let begin = Instant::now();
            near.write_all(&MESSAGE)?;
            far.read_exact(&mut [0; MESSAGE.len()])?;
            wakes.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
    }
    Ok(json!({ "peers": peers, "idle_bytes": idle, "resting_bytes": resting, "wake_ms": wakes, "cores": cores }))
}

fn pair(center: &Host, peer: &Host) -> Result<(Stream, Stream)> {
    let listener = Listener::bind_with(&peer.session, (peer.address, 0))?;
    let near = Stream::connect_with(&center.session, listener.local_addr()?)?;
    let (far, _) = listener.accept_timeout(PATIENCE)?;
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
    }
    let mut pairs = [(near, far)];
    carry(&mut pairs, &MESSAGE, MESSAGES)?;
    let [pair] = pairs;
    Ok(pair)
}

/// So many messages each way.
fn carry(pairs: &mut [(Stream, Stream)], message: &[u8], messages: usize) -> Result<()> {
    let mut read = message.to_vec();
    for (near, far) in pairs {
        for _ in 0..messages {
            near.write_all(message)?;
            far.read_exact(&mut read)?;
            far.write_all(&read)?;
            near.read_exact(&mut read)?;
            ensure!(read == message, "other bytes came back");
        }
    }
    Ok(())
}

/// Waits until so many lanes of a daemon are in a state, and all of them.
fn wait_for(host: &Host, state: &str, lanes: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        let stat = raas::inspect::stat(Some(&host.socket))?;
        let fitting = stat.lanes.iter().filter(|lane| lane.state == state).count();
        if (fitting, stat.lanes.len()) == (lanes, lanes) {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            bail!("{fitting} of {lanes} lanes are {state} after {PATIENCE:?}");
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Memory of a process that is its own, and the page tables for it.
fn memory(pid: u32) -> Result<f64> {
    let value = |text: &str, name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? * 1024.0)
    };
    let rollup = read_to_string(format!("/proc/{pid}/smaps_rollup")).context("a daemon's memory")?;
    let status = read_to_string(format!("/proc/{pid}/status"))?;
    Ok(value(&rollup, "Pss_Anon:")? + value(&rollup, "Pss_Shmem:")? + value(&status, "VmPTE:")?)
}
