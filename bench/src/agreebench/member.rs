//! A member of a group of `raas-group`.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use raas::{Batch, Completion, Region, RegionAccess, RegionKey, RegionOptions, Session};
use raas_group::{BadSnapshot, Group, GroupBuilder, Machine, Role};
use serde_json::json;

use super::ballots;
use super::load::{COMMAND_BYTES, Load, Times, now_ns};
use crate::load::median_us;

const KEY: RegionKey = RegionKey::new([0x61; 16]);
/// Longer than any bench.
const DAEMON_WAIT: Duration = Duration::from_secs(3600);
/// A region of each host that is fenced beside the group.
const FENCED: &str = "fenced";
const FENCED_BYTES: u64 = 4096;

/// How many commands there were.
#[derive(Debug, Default)]
struct Count(u64);

impl Machine for Count {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
        self.0 += u64::from(!command.is_empty());
        self.0.to_le_bytes().to_vec()
    }

    fn save(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.0.to_le_bytes());
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        self.0 = u64::from_le_bytes(bytes.try_into().map_err(|_| BadSnapshot)?);
        Ok(())
    }
}

/// Runs it until its standard input ends.
pub(super) fn run(name: &str, me: u8, hosts: &[IpAddr]) -> Result<()> {
    // The group follows it.
    let session = Session::builder().daemon_wait(DAEMON_WAIT).led_elsewhere(true).connect()?;
    let access = RegionAccess::READ | RegionAccess::WRITE;
    let fenced = RegionOptions::new().key(KEY).access(access).single_writer(true);
    // Another program of this host may have made it.
    let _fenced = fenced.create(&session, FENCED, FENCED_BYTES);
    let _balloted = ballots::offer(&session, KEY);
    let members: Vec<(u8, IpAddr)> = (1..).zip(hosts.iter().copied()).collect();
    let group = Arc::new(GroupBuilder::new(name, KEY).members(&members).me(me).open(&session, Count::default())?);
    println!("ready");
    let asked = Arc::new(AtomicU64::new(0));
    for line in std::io::stdin().lines() {
        let line = line?;
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match what {
            "role" => println!("role {}", if leads(&group) { "leader" } else { "follower" }),
            "load" => {
                let load = Load::parse(rest)?;
                println!("loaded {}", load.told(commits(&group, load)?));
            }
            "first" => {
                let token = rest.parse()?;
                asked.store(token, Ordering::Release);
                let (group, asked) = (Arc::clone(&group), Arc::clone(&asked));
                std::thread::spawn(move || first(&group, token, &asked));
            }
            "fence" => {
                let (host, count) = rest.split_once(' ').context("`fence` takes a host and a count")?;
                println!("fenced {}", json!({ "p50_us": fence(host.parse()?, count.parse()?)? }));
            }
            "write" | "accept" | "prepare" => {
                let (seconds, hosts) =
                    rest.split_once(' ').with_context(|| format!("`{what}` takes seconds and hosts"))?;
                let hosts = hosts.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
                let load = Load::parse(&format!("1 {seconds} 0"))?;
                let times = match what {
                    "write" => write(&hosts, load)?,
                    _ => ballots::steps(&hosts, KEY, load, what == "accept")?,
                };
                println!("ended {}", load.told(vec![times]));
            }
            _ => anyhow::bail!("no such order: {line}"),
        }
    }
    Ok(())
}

fn leads(group: &Group<Count>) -> bool {
    matches!(group.role(), Role::Leader { .. })
}

fn commits(group: &Arc<Group<Count>>, load: Load) -> Result<Vec<Times>> {
    if load.clients == 1 {
        return Ok(vec![commit(group, load)?]);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clients: Vec<_> =
            (0..load.clients).map(|_| tokio::spawn(commit_as_task(Arc::clone(group), load))).collect();
        let mut all = Vec::new();
        for client in clients {
            all.push(client.await??);
        }
        Ok(all)
    })
}

async fn commit_as_task(group: Arc<Group<Count>>, load: Load) -> Result<Times> {
    let mut times = load.begin();
    while let Some(wait) = times.wait() {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let begin = Instant::now();
        let committed = group.propose_async(&[7; COMMAND_BYTES]).await?;
        ensure!(committed.reply.len() == 8, "a reply that no machine gives");
        times.on_end(begin);
    }
    Ok(times)
}

fn commit(group: &Group<Count>, load: Load) -> Result<Times> {
    let mut times = load.begin();
    while let Some(wait) = times.wait() {
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        let begin = Instant::now();
        let committed = group.propose(&[7; COMMAND_BYTES])?;
        ensure!(committed.reply.len() == 8, "a reply that no machine gives");
        times.on_end(begin);
    }
    Ok(times)
}

/// When this member leads, its first commit; unless something else was asked for since.
fn first(group: &Group<Count>, token: u64, asked: &AtomicU64) {
    while asked.load(Ordering::Acquire) == token {
        let leads = group.wait_role(Duration::from_millis(50), |role| matches!(role, Role::Leader { .. }));
        if leads && group.propose(&[7; COMMAND_BYTES]).is_ok() {
            println!("first {token} {}", now_ns());
            return;
        }
    }
}

/// Acknowledged WRITEs of a command's bytes by one thread in a session of its own, one at each of these hosts at a time.
fn write(hosts: &[IpAddr], load: Load) -> Result<Times> {
    let session = Session::builder().connect()?;
    let term = u64::try_from(now_ns())?;
    let open = |host: &IpAddr| Region::take_over(&session, *host, FENCED, KEY, term).map(|(region, _)| region);
    let regions = hosts.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut times = load.begin();
    while times.wait().is_some() {
        let begin = Instant::now();
        let write = |region| {
            let mut batch = Batch::new();
            batch.write_as(region, 0, [7; COMMAND_BYTES], Completion::Acked);
            batch.submit()
        };
        let pending = regions.iter().map(write).collect::<Result<Vec<_>, _>>()?;
        pending.into_iter().try_for_each(|pending| pending.wait()?.check())?;
        times.on_end(begin);
    }
    Ok(times)
}

/// Two sessions take a region of another host from each other, and write it.
fn fence(host: IpAddr, count: u32) -> Result<f64> {
    let sessions = [Session::builder().connect()?, Session::builder().connect()?];
    let mut held: [Option<Region>; 2] = [None, None];
    let mut times = Vec::new();
    for number in 0..count {
        let which = usize::try_from(number % 2)?;
        let term = u64::try_from(now_ns())?;
        let begin = Instant::now();
        let (region, _) = Region::take_over(&sessions[which], host, FENCED, KEY, term)?;
        times.push(begin.elapsed());
        region.write(0, &term.to_le_bytes())?;
        let older = held[1 - which].take();
        held[which] = Some(region);
        ensure!(older.is_none_or(|older| older.write(0, &[0; 8]).is_err()), "a fenced writer writes");
    }
    Ok(median_us(times))
}
