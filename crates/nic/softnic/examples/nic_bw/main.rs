//! Throughput and latency of two software NICs in two processes, on loopback addresses or through a network.
//!
//! `nic_bw [write|write_imm|read|send|lat|mem_lat|tcp|udp_lat] [KEY=VALUE]...`
//!
//! The first process is the requester; it starts a second one, the responder, and talks to it over its standard input
//! and output. `lat` WRITEs to and fro, each side spinning on memory with `sched_yield` while it polls; `mem_lat` does
//! so without polling, so that the background thread has to make progress. `tcp` and `udp_lat` are the same without
//! RDMA, as yardsticks.
//!
//! Keys: `bytes` of a message (65536; 64 for latencies), `count` of messages (50000), `depth` outstanding (32), `batch`
//! posted in one call (1), `mtu` (what the interface allows), `encrypt=on`, `gso=off`, `helper=on` (background
//! threads), `port` (UDP, default chosen by the system), `yields` (idle polls before a side sleeps until its device
//! wants it, 50; latencies never sleep), `window_packets` and `window_bytes`, `slots` (message buffers used in turn,
//! 16), `rcvbuf` bytes, `pcap=FILE` (capture of the requester), `at` and `peer` (addresses, 127.0.0.1 and 127.0.0.2),
//! `via` (command that starts the responder, such as `ip netns exec NAME`). With `NIC_BW_COUNTERS` in the environment
//! both sides print their counters.

mod bare;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Gso, Progress, SoftNic, SoftNicConfig};
use verbs::*;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A run without progress for so long has failed.
const STALL_MAX: Duration = Duration::from_secs(10);
const REGION_BYTES: u64 = 64 << 20;
const REQUESTER: &str = "127.0.0.1";
const RESPONDER: &str = "127.0.0.2";
const WARM_UP: u64 = 500;

/// What to do, the same in both processes.
#[derive(Debug)]
struct Plan {
    verb: String,
    keys: BTreeMap<String, String>,
}

impl Plan {
    fn from_args(args: &[String]) -> Outcome<Self> {
        let mut plan = Self { verb: "write_imm".into(), keys: BTreeMap::new() };
        for arg in args {
            match arg.split_once('=') {
                Some((key, value)) => {
                    plan.keys.insert(key.into(), value.into());
                }
                None => plan.verb.clone_from(arg),
            }
        }
        Ok(plan)
    }

    fn number(&self, key: &str, default: u64) -> Outcome<u64> {
        self.keys.get(key).map_or(Ok(default), |v| v.parse().map_err(|e| format!("{key}={v}: {e}").into()))
    }

    fn bytes(&self) -> Outcome<u32> {
        Ok(self.number("bytes", if self.is_latency() { 64 } else { 65_536 })? as u32)
    }

    fn count(&self) -> Outcome<u64> {
        self.number("count", 50_000)
    }

    fn address<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.keys.get(key).map_or(default, |address| address)
    }

    /// The command that starts the responder.
    fn responder(&self) -> Outcome<Command> {
        let program = std::env::current_exe()?;
        let mut prefix = self.keys.get("via").map_or("", |via| via).split_whitespace();
        let Some(first) = prefix.next() else { return Ok(Command::new(program)) };
        let mut command = Command::new(first);
        command.args(prefix).arg(program);
        Ok(command)
    }

    fn is_latency(&self) -> bool {
        self.verb.ends_with("lat")
    }

    fn is_bare(&self) -> bool {
        matches!(self.verb.as_str(), "tcp" | "udp_lat")
    }
}

struct End {
    nic: SoftNic,
    cq: CqId,
    qpn: Qpn,
    endpoint: Endpoint,
    region: Region,
    mr: Mr,
    slots: u64,
}

impl End {
    fn open(plan: &Plan, address: &str) -> Outcome<Self> {
        let mut config = SoftNicConfig::new(address.parse()?);
        config.udp_port = plan.number("port", 0)? as u16;
        config.mtu = match plan.number("mtu", 0)? {
            0 => None,
            bytes => Some(PathMtu::from_bytes(bytes as usize).ok_or("no such path MTU")?),
        };
        if plan.keys.get("gso").is_some_and(|v| v == "off") {
            config.gso = Gso::Off;
        }
        config.rcvbuf_bytes = plan.number("rcvbuf", config.rcvbuf_bytes as u64)? as usize;
        if address == plan.address("at", REQUESTER) {
            config.pcap = plan.keys.get("pcap").map(Into::into);
        }
        if plan.keys.get("helper").is_some_and(|v| v == "on") {
            config.progress = Progress::Helper;
        }
        config.limits.window_packets = plan.number("window_packets", config.limits.window_packets.into())? as u32;
        config.limits.window_bytes = plan.number("window_bytes", config.limits.window_bytes.into())? as u32;
        let mut nic = SoftNic::open(config)?;
        let cq = nic.create_cq(16_384)?;
        let qpn = nic.create_qp(&QpInit {
            pd: verbs::PdId::default(),
            qp_type: QpType::Rc,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 8_192,
            max_recv_wr: 8_192,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 64,
            sq_sig_all: false,
        })?;
        let region = Region::anonymous(REGION_BYTES as usize)?;
        // Touched once, so that page faults are not measured.
        for page in (0..REGION_BYTES).step_by(4096) {
            region.write(page, &[0])?;
        }
        let mr = nic.reg_mr(&region, 0, REGION_BYTES, Access::all())?;
        let slots = plan.number("slots", 16)?.max(1);
        let encrypt = plan.keys.get("encrypt").is_some_and(|v| v == "on");
        let offer = OfferAttr {
            access: Access::all(),
            mtu_max: PathMtu::Mtu4096,
            entropy: 1,
            wire: WirePolicy::Auto,
            peer: None,
            encrypt: if encrypt { Encrypt::Required } else { Encrypt::Off },
            local: None,
        };
        let endpoint = nic.offer(qpn, &offer)?;
        Ok(Self { nic, cq, qpn, endpoint, region, mr, slots })
    }

    /// What the other process must know: memory key and endpoint.
    fn card(&self) -> String {
        let endpoint: Vec<String> = self.endpoint.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{} {}", self.mr.rkey.0, endpoint.concat())
    }

    fn connect(&mut self, card: &str) -> Outcome<Rkey> {
        let (rkey, hex) = card.trim().split_once(' ').ok_or_else(|| format!("bad card {card:?}"))?;
        let digits = hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap_or(""), 16));
        let peer = Endpoint::new(digits.collect::<Result<_, _>>()?)?;
        // A busy machine may keep a process waiting for tenths of a second: about a second before each retry.
        let attr =
            AcceptAttr { peer: Capabilities::SOFTWARE_NIC, timeout: 18, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 1 };
        self.nic.accept(self.qpn, &self.endpoint.clone(), &peer, &attr)?;
        Ok(Rkey(rkey.parse()?))
    }

    fn sge(&self, slot: u64, bytes: u32) -> Sge {
        let slots = REGION_BYTES / u64::from(bytes.max(1));
        Sge { addr: (slot % slots.clamp(1, self.slots)) * u64::from(bytes), len: bytes, lkey: self.mr.lkey }
    }

    /// Waits until the device wants progress, at most a tenth of a second.
    fn sleep(&self) -> Outcome<()> {
        let mut fds = Vec::new();
        self.nic.wait_fds(&mut fds);
        let mut fds: Vec<_> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let most = self.nic.deadline().unwrap_or(Duration::MAX).min(Duration::from_millis(100));
        let timeout = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        poll(&mut fds, Some(&timeout))?;
        Ok(())
    }

    fn report(&self, who: &str) {
        let counters: BTreeMap<_, _> = self.nic.counters().into_iter().filter(|(_, v)| *v != 0).collect();
        let per = |a: &str, b: &str| {
            let get = |n: &str| counters.get(n).copied().unwrap_or(0) as f64;
            get(a) / get(b).max(1.0)
        };
        eprintln!(
            "{who}: {:.1} packets/tx syscall, {:.1} packets/rx syscall, {:.1} packets/received batch",
            per("tx_packets", "tx_syscalls"),
            per("rx_packets", "rx_syscalls"),
            per("rx_packets", "gro_batches"),
        );
        if std::env::var_os("NIC_BW_COUNTERS").is_some() {
            eprintln!("{who}: {counters:?}");
        }
    }
}

/// Fails when nothing has happened for too long.
struct Watchdog(Instant);

impl Watchdog {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn check(&mut self, worked: bool) -> Outcome<()> {
        if worked {
            self.0 = Instant::now();
        } else if self.0.elapsed() > STALL_MAX {
            return Err("no progress".into());
        }
        Ok(())
    }
}

/// Polls, yields while there is nothing, and after enough of that sleeps as [`Provider`] says.
struct Poller {
    yields: u64,
    idle: u64,
    completions: Vec<Completion>,
}

impl Poller {
    fn new(plan: &Plan) -> Outcome<Self> {
        let yields = plan.number("yields", 50)?;
        Ok(Self { yields, idle: 0, completions: Vec::new() })
    }

    /// Completions, all successful; none if there were none for a while.
    fn poll(&mut self, end: &mut End) -> Outcome<usize> {
        self.completions.clear();
        let asleep = self.idle > self.yields;
        if asleep {
            end.nic.req_notify_cq(end.cq, false)?;
        }
        let n = end.nic.poll_cq(end.cq, &mut self.completions, 64)?;
        self.completions.iter().try_for_each(failed)?;
        self.idle = if n > 0 { 0 } else { self.idle + 1 };
        if n == 0 && asleep {
            end.sleep()?;
            end.nic.progress();
        } else if n == 0 {
            std::thread::yield_now();
        }
        Ok(n)
    }
}

fn failed(c: &Completion) -> Outcome<()> {
    if c.status == Status::Success { Ok(()) } else { Err(format!("{c:?}").into()) }
}

fn main() -> Outcome<()> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "--respond") {
        args.remove(0);
        return respond(&Plan::from_args(&args)?);
    }
    let plan = Plan::from_args(&args)?;
    let mut child =
        plan.responder()?.arg("--respond").args(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let outcome = request(&plan, &mut child);
    if outcome.is_err() {
        child.kill()?;
    }
    child.wait()?;
    outcome
}

fn request(plan: &Plan, child: &mut Child) -> Outcome<()> {
    if plan.is_bare() {
        let mut at = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut at)?;
        return bare::request(plan, &at);
    }
    let mut end = End::open(plan, plan.address("at", REQUESTER))?;
    let mut to_child = child.stdin.take().ok_or("no standard input")?;
    let mut from_child = BufReader::new(child.stdout.take().ok_or("no standard output")?);
    writeln!(to_child, "{}", end.card())?;
    let mut card = String::new();
    from_child.read_line(&mut card)?;
    let rkey = end.connect(&card)?;
    writeln!(to_child, "go")?;
    let mut ready = String::new();
    from_child.read_line(&mut ready)?;
    let outcome = measure(&mut end, rkey, plan);
    end.report("requester");
    drop(to_child);
    outcome
}

fn measure(end: &mut End, rkey: Rkey, plan: &Plan) -> Outcome<()> {
    if plan.is_latency() {
        let rounds = plan.count()?;
        let mut times = Vec::with_capacity(rounds as usize);
        bounce(end, rkey, plan, true, |t| times.push(t))?;
        print_times("WRITE", plan.bytes()?, &mut times);
    } else {
        stream(end, rkey, plan)?;
    }
    // The responder may still wait for an answer to its last message.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        end.nic.progress();
    }
    Ok(())
}

fn print_times(what: &str, bytes: u32, round_trips_ns: &mut [u64]) {
    round_trips_ns.sort_unstable();
    let at = |p: usize| round_trips_ns[(round_trips_ns.len() - 1) * p / 1000] as f64 / 2000.0;
    let [median, p99, p999] = [at(500), at(990), at(999)];
    println!("{what} of {bytes} B, half round trip: median {median:.2} us, p99 {p99:.2} us, p99.9 {p999:.2} us");
}

fn stream(end: &mut End, rkey: Rkey, plan: &Plan) -> Outcome<()> {
    let (bytes, count) = (plan.bytes()?, plan.count()?);
    let (depth, batch) = (plan.number("depth", 32)?, plan.number("batch", 1)?);
    let (mut posted, mut done) = (0, 0);
    let mut poller = Poller::new(plan)?;
    let mut watchdog = Watchdog::start();
    let begin = Instant::now();
    while done < count {
        while posted < count && posted - done + batch <= depth.max(batch) {
            let sges: Vec<_> = (0..batch).map(|i| [end.sge(posted + i, bytes)]).collect();
            let wrs: Vec<_> = sges
                .iter()
                .map(|sges| {
                    let remote = RemoteAddr { addr: sges[0].addr, rkey };
                    let op = match plan.verb.as_str() {
                        "write" => SendOp::Write(remote),
                        "read" => SendOp::Read(remote),
                        "send" => SendOp::Send,
                        _ => SendOp::WriteImm(remote, 7),
                    };
                    SendWr { wr_id: 0, op, payload: Payload::Sges(sges), flags: SendFlags::SIGNALED, dest: None }
                })
                .collect();
            end.nic.post_send(end.qpn, &wrs)?;
            posted += batch;
        }
        let n = poller.poll(end)?;
        done += n as u64;
        watchdog.check(n > 0)?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{} of {bytes} B, depth {depth}, batch {batch}: {:.2} Gbit/s, {:.3} M messages/s",
        plan.verb,
        done as f64 * f64::from(bytes) * 8.0 / seconds / 1e9,
        done as f64 / seconds / 1e6,
    );
    Ok(())
}

/// WRITEs `count` messages to and fro; `first` begins and measures each round trip in nanoseconds.
///
/// `lat` polls while it waits for the peer's message. `mem_lat` polls for the completion of its own message alone and
/// then looks at memory, as perftest's ib_write_lat does: it needs `helper=on`.
fn bounce(end: &mut End, rkey: Rkey, plan: &Plan, first: bool, mut took: impl FnMut(u64)) -> Outcome<()> {
    let polls = plan.verb != "mem_lat";
    let bytes = plan.bytes()?.max(8).next_multiple_of(8);
    // The last word of the message is written last, since packets are placed in order.
    let flag = end.region.word64(REGION_BYTES / 2 + u64::from(bytes) - 8)?;
    let mut completions = Vec::new();
    for round in 1..=plan.count()? + WARM_UP {
        let begin = Instant::now();
        if first {
            write_flag(end, rkey, bytes, round, polls)?;
        }
        let mut watchdog = Watchdog::start();
        while flag.load(Ordering::Acquire) != round {
            if polls {
                completions.clear();
                end.nic.poll_cq(end.cq, &mut completions, 16)?;
                completions.iter().try_for_each(failed)?;
            }
            let arrived = flag.load(Ordering::Acquire) == round;
            watchdog.check(arrived)?;
            if !arrived {
                std::thread::yield_now();
            }
        }
        if !first {
            write_flag(end, rkey, bytes, round, polls)?;
        } else if round > WARM_UP {
            took(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok(())
}

fn write_flag(end: &mut End, rkey: Rkey, bytes: u32, round: u64, polls: bool) -> Outcome<()> {
    end.region.write(u64::from(bytes) - 8, &round.to_ne_bytes())?;
    let sges = [end.sge(0, bytes)];
    // Where waiting polls anyway most are not signalled; some are, so that the send queue does not fill up.
    let signaled = !polls || round.is_multiple_of(64);
    let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let op = SendOp::Write(RemoteAddr { addr: REGION_BYTES / 2, rkey });
    end.nic.post_send(end.qpn, &[SendWr { wr_id: 0, op, payload: Payload::Sges(&sges), flags, dest: None }])?;
    let mut completions = Vec::new();
    let mut watchdog = Watchdog::start();
    while !polls && completions.is_empty() {
        let n = end.nic.poll_cq(end.cq, &mut completions, 16)?;
        watchdog.check(n > 0)?;
        if n == 0 {
            std::thread::yield_now();
        }
    }
    completions.iter().try_for_each(failed)
}

fn respond(plan: &Plan) -> Outcome<()> {
    if plan.is_bare() {
        return bare::respond(plan);
    }
    let mut end = End::open(plan, plan.address("peer", RESPONDER))?;
    println!("{}", end.card());
    let mut lines = std::io::stdin().lock().lines();
    let card = lines.next().ok_or("no card")??;
    let rkey = end.connect(&card)?;
    let consumes = matches!(plan.verb.as_str(), "write_imm" | "send");
    let bytes = plan.bytes()?;
    let mut posted = 0;
    let slots = if consumes { 2 * plan.number("depth", 32)?.max(plan.number("batch", 1)?) } else { 0 };
    while posted < slots {
        post_recv(&mut end, posted, bytes)?;
        posted += 1;
    }
    lines.next().ok_or("no start")??;
    println!("ready");
    // The requester closes our input when it is done.
    drop(lines);
    let closed = std::thread::spawn(|| std::io::stdin().lines().for_each(drop));
    let outcome = serve(&mut end, rkey, plan, posted, || closed.is_finished());
    end.report("responder");
    outcome
}

fn serve(end: &mut End, rkey: Rkey, plan: &Plan, mut posted: u64, closed: impl Fn() -> bool) -> Outcome<()> {
    if plan.is_latency() {
        bounce(end, rkey, plan, false, |_| ())?;
    }
    let mut poller = Poller::new(plan)?;
    while !closed() {
        for _ in 0..poller.poll(end)? {
            post_recv(end, posted, plan.bytes()?)?;
            posted += 1;
        }
    }
    Ok(())
}

fn post_recv(end: &mut End, slot: u64, bytes: u32) -> Outcome<()> {
    let sges = [end.sge(slot, bytes)];
    end.nic.post_recv(end.qpn, &[RecvWr { wr_id: slot, sges: &sges }])?;
    Ok(())
}
