//! TCP connections of their own for streams of bulk (docs/inside/kernel-tcp.md), under strangers who come for them, somebody
//! between the daemons, and applications that lie on them.
//!
//! Owns the polite streams beside them: each says what it sent and got by length and SHA-256, and those that nobody
//! meddled with must have switched. A misdeed may cost one stream its connection, never a byte of a polite one.

mod liar;
mod relay;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use raas::{Listener, PathKind, Stream};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};

use crate::held::Held;
use crate::host::{Host, Program, WATCHDOG, address, eventually};
use crate::polite::{self, session};
use crate::verdict::Verdict;
use relay::{Meddling, RELAY_PORT, Relay};

const TCP_DIRECT: &str = "tcp_direct = \"auto\"\n";
/// Bytes of a polite write: more than any ring, because a program hears of its connection while it waits.
const WRITE_BYTES: usize = 8 << 20;
/// Bytes of a polite read at most.
const READ_BYTES: usize = 64 << 10;
/// After each write the writer rests, so that streams last as long as misdeeds do and the machine has time for these.
const REST: Duration = Duration::from_millis(20);
/// Bytes that a stream's content repeats after.
const CONTENT_BYTES: usize = (1 << 20) - 3;

/// Runs it; the seed decides the bytes.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (ip, from) = (address(), address());
    let to = Host::start(raas, dir.path(), ip, TCP_DIRECT)?;
    let relay = Relay::start(from, ip)?;
    let by_relay = format!("{TCP_DIRECT}[[peer]]\naddress = \"{ip}\"\nport = {RELAY_PORT}\n");
    let from = Host::start(raas, dir.path(), from, &by_relay)?;
    // The lane comes first: what it takes stays.
    Pair::start(&from, &to, seed)?.finish()?;
    verdict.case("the lane is on a wire that was asked for", from.wire(raas.wire).map(|wire| wire.to_string()));
    let hosts = [from, to];
    no_connections(&hosts)?;
    let before = Held::of(&hosts)?;
    let mut done = BTreeSet::new();
    for meddling in relay::ALL {
        let found = meddled(&relay, meddling, &hosts, seed, &mut done);
        verdict.case(&format!("tcp-direct: {}", meddling.name), found);
    }
    let beside = Pair::start(&hosts[0], &hosts[1], seed ^ 1)?;
    for lie in liar::ALL {
        let found = liar::tell(lie, &hosts[0], &hosts[1]);
        done.extend(found.is_ok().then_some(lie.name));
        verdict.case(&format!("tcp-direct: an application {}", lie.name), found);
    }
    let kept = beside.is_direct().then_some(()).context("it is on the lane").and_then(|()| beside.finish());
    verdict.case("a polite stream beside the liars has switched, and every byte of it came", kept);
    verdict.case("every misdeed was done", every_one(&done));
    verdict.case("the connections that were made are given back", no_connections(&hosts));
    verdict.case("what was held has returned", before.wait_for(&hosts).map(|()| "all".into()));
    verdict.case("no lane failed, which others share", lanes_held(&hosts));
    verdict.case("a new polite pair is served", polite::fresh(&hosts));
    let panics: usize = hosts.iter().map(|h| h.lines(|l| l.contains("panick") || l.contains("ERROR"))).sum();
    let words = hosts[0].words();
    verdict.case(
        "the daemons end in order, no panic and no error in their logs",
        (|| {
            ensure!(panics == 0, "{panics} lines: {words}");
            hosts.into_iter().try_for_each(Host::stop)?;
            Ok("exit codes 0".into())
        })(),
    );
    Ok(())
}

fn every_one(done: &BTreeSet<&'static str>) -> Result<String> {
    let names = || relay::ALL.iter().map(|m| m.name).chain(liar::ALL.iter().map(|lie| lie.name));
    let missing: Vec<_> = names().filter(|name| !done.contains(name)).collect();
    ensure!(missing.is_empty(), "not done: {missing:?}");
    Ok(format!("{} of them", names().count()))
}

fn lanes_held(hosts: &[Host; 2]) -> Result<String> {
    let failed = hosts.iter().find_map(|host| host.first_line("the lane failed"));
    failed.map_or_else(|| Ok("none".into()), |line| Err(anyhow!("{line}")))
}

fn counter(host: &Host, name: &str) -> Result<u64> {
    let stat = host.stat()?;
    let found = stat.counters.iter().find(|(n, _)| n == name);
    Ok(found.with_context(|| format!("there is no counter {name}"))?.1)
}

/// Waits until no stream has a TCP connection of its own any more, and none waits for one.
fn no_connections(hosts: &[Host; 2]) -> Result<String> {
    eventually("no stream has a connection of its own", || {
        let open = counter(&hosts[0], "direct_streams")? + counter(&hosts[1], "direct_streams")?;
        Ok(if open == 0 { Ok(()) } else { Err(open) })
    })?;
    Ok(format!("{} were made", counter(&hosts[0], "directs_made")?))
}

/// Two polite streams, of which one is meddled with.
fn meddled(
    relay: &Relay,
    meddling: &'static Meddling,
    hosts: &[Host; 2],
    seed: u64,
    done: &mut BTreeSet<&'static str>,
) -> Result<String> {
    relay.arm(meddling);
    let pairs = [2, 3].map(|n| Pair::start(&hosts[0], &hosts[1], seed ^ n));
    let [a, b] = pairs;
    let pairs = [a?, b?];
    done.insert(relay.done()?);
    let wanted = if meddling.switches { 2 } else { 1 };
    let direct = || pairs.iter().filter(|pair| pair.is_direct()).count();
    eventually("the streams that nobody meddled with have switched", || {
        Ok(if direct() >= wanted { Ok(()) } else { Err(direct()) })
    })?;
    // Whoever will switch at all does with one of the next writes.
    std::thread::sleep(REST * 25);
    let found = direct();
    let said = pairs.into_iter().map(Pair::finish).collect::<Result<Vec<_>>>()?;
    ensure!(found == wanted, "{found} of 2 streams have switched, and not {wanted}");
    no_connections(hosts)?;
    Ok(format!("{found} of 2 streams switched; {}", said.join("; ")))
}

/// The content of a stream at any offset.
#[derive(Debug, Clone)]
struct Bytes(Arc<[u8]>);

impl Bytes {
    fn new(seed: u64) -> Self {
        let mut content = vec![0; CONTENT_BYTES];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut content);
        Self(content.into())
    }

    fn fill(&self, at: u64, out: &mut [u8]) {
        let mut at = (at % CONTENT_BYTES as u64) as usize;
        let mut done = 0;
        while done < out.len() {
            let part = &self.0[at..];
            let len = part.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&part[..len]);
            (done, at) = (done + len, 0);
        }
    }
}

/// Stops a writer, also when its judge goes on without it.
#[derive(Debug)]
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Told = (u64, Vec<u8>);

/// A polite stream that goes on until it is stopped.
#[derive(Debug)]
struct Pair {
    near: Arc<Stream>,
    stop: Stop,
    writer: JoinHandle<Result<Told>>,
    reader: JoinHandle<Result<Told>>,
}

impl Pair {
    fn start(from: &Host, to: &Host, seed: u64) -> Result<Self> {
        let (client, server) = (session(from, "polite-sender")?, session(to, "polite-receiver")?);
        let listener = Listener::bind_with(&server, (to.ip, 0))?;
        let near = Arc::new(Stream::connect_with(&client, listener.local_addr()?)?);
        let (far, _) = listener.accept_timeout(WATCHDOG)?;
        near.set_write_timeout(Some(WATCHDOG))?;
        near.set_read_timeout(Some(WATCHDOG))?;
        far.set_read_timeout(Some(WATCHDOG))?;
        let stop = Arc::new(AtomicBool::new(false));
        let writer = std::thread::spawn({
            let (near, stop) = (Arc::clone(&near), Arc::clone(&stop));
            move || send(&near, &Bytes::new(seed), &stop)
        });
        Ok(Self { near, stop: Stop(stop), writer, reader: std::thread::spawn(move || receive(&far)) })
    }

    fn is_direct(&self) -> bool {
        self.near.path() == PathKind::TcpDirect
    }

    /// Ends it in order; what was sent must have come.
    fn finish(self) -> Result<String> {
        drop(self.stop);
        let join = |t: JoinHandle<Result<Told>>| t.join().map_err(|_| anyhow!("a polite thread panicked"))?;
        let (sent, got) = (join(self.writer)?, join(self.reader)?);
        ensure!(sent == got, "{} bytes were sent and {} arrived, or other ones", sent.0, got.0);
        let digest: String = got.1[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{} bytes, SHA-256 {digest}...", got.0))
    }
}

fn send(mut stream: &Stream, bytes: &Bytes, stop: &AtomicBool) -> Result<Told> {
    let (mut piece, mut sent, mut hash) = (vec![0; WRITE_BYTES], 0, Sha256::new());
    while !stop.load(Ordering::Relaxed) {
        bytes.fill(sent, &mut piece);
        stream.write_all(&piece).with_context(|| format!("after {sent} bytes"))?;
        hash.update(&piece);
        sent += piece.len() as u64;
        std::thread::sleep(REST);
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0; 1])? == 0, "the receiver has nothing to say");
    Ok((sent, hash.finalize().to_vec()))
}

fn receive(mut stream: &Stream) -> Result<Told> {
    let (mut piece, mut got, mut hash) = (vec![0; READ_BYTES], 0, Sha256::new());
    loop {
        let count = stream.read(&mut piece).with_context(|| format!("after {got} bytes"))?;
        if count == 0 {
            return Ok((got, hash.finalize().to_vec()));
        }
        hash.update(&piece[..count]);
        got += count as u64;
    }
}
