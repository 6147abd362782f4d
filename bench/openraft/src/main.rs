//! A member of an openraft group over TCP, with log and state in memory: the rival of bench `agree`. It does what it is
//! told on its standard input, a line each, as `bench agreebench member` does.
#![forbid(unsafe_code)]

#[path = "../../src/agreebench/load.rs"]
mod load;
mod network;
mod store;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use openraft::{BasicNode, Config};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::load::{COMMAND_BYTES, Load};
use crate::store::{Command, Log, Machine};

openraft::declare_raft_types!(
    /// Commands are bytes; the answer is how many there were.
    pub(crate) Types: D = Command, R = u64
);
type Raft = openraft::Raft<Types>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [threads, me, members @ ..] = &words[..] else {
        anyhow::bail!("openraft-member THREADS ME ADDRESS...: 0 threads is one that does everything");
    };
    let members = members.iter().map(|at| Ok(at.parse()?)).collect::<Result<Vec<SocketAddr>>>()?;
    let mut builder = match threads.parse()? {
        0 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    builder.enable_all().build()?.block_on(run(me.parse()?, members))
}

async fn run(me: u64, members: Vec<SocketAddr>) -> Result<()> {
    let own = usize::try_from(me)?.checked_sub(1).and_then(|at| members.get(at)).context("members count from 1")?;
    // Its times and sizes are the defaults.
    let config = Arc::new(Config::default().validate()?);
    let raft = Raft::new(me, config, network::Network, Log::default(), Machine::default()).await?;
    network::serve(*own, raft.clone()).await?;
    println!("ready");
    let asked = Arc::new(AtomicU64::new(0));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match what {
            "found" => {
                let nodes = (1..).zip(members.iter().map(|at| BasicNode::new(at)));
                raft.initialize(nodes.collect::<BTreeMap<_, _>>()).await?;
            }
            "role" => println!("role {}", if is_leader(&raft, me) { "leader" } else { "follower" }),
            "load" => {
                let load = Load::parse(rest)?;
                let clients = (0..load.clients).map(|_| tokio::spawn(commit(raft.clone(), load)));
                let mut all = Vec::new();
                for client in clients.collect::<Vec<_>>() {
                    all.push(client.await??);
                }
                println!("loaded {}", load.told(all));
            }
            "first" => {
                let token = rest.parse()?;
                asked.store(token, Ordering::Release);
                tokio::spawn(first(raft.clone(), me, token, Arc::clone(&asked)));
            }
            _ => anyhow::bail!("no such order: {line}"),
        }
    }
    Ok(())
}

fn is_leader(raft: &Raft, me: u64) -> bool {
    raft.metrics().borrow().current_leader == Some(me)
}

async fn commit(raft: Raft, load: Load) -> Result<load::Times> {
    let mut times = load.begin();
    while let Some(wait) = times.wait() {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let begin = Instant::now();
        let answer = raft.client_write(Command(vec![7; COMMAND_BYTES])).await?;
        ensure!(answer.data > 0, "an answer that no machine gives");
        times.on_end(begin);
    }
    Ok(times)
}

/// When this member leads, its first commit; unless something else was asked for since.
async fn first(raft: Raft, me: u64, token: u64, asked: Arc<AtomicU64>) {
    let mut metrics = raft.metrics();
    while asked.load(Ordering::Acquire) == token {
        // It looks again after a while, whatever becomes of the group.
        let _ =
            tokio::time::timeout(Duration::from_millis(50), metrics.wait_for(|m| m.current_leader == Some(me))).await;
        if is_leader(&raft, me) && raft.client_write(Command(vec![7; COMMAND_BYTES])).await.is_ok() {
            println!("first {token} {}", load::now_ns());
            return;
        }
    }
}
