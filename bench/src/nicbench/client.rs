//! The measuring side: every device of the comparison opened once, and the rounds in which they take turns.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::CONTROL_PORT;
use super::case::{Case, Sample};
use super::control::{Answer, Request, ask, connect};
use super::end::{DeviceKind, DeviceOptions, End, place, run_of};
use super::{flow, latency};
use crate::control::Control;

/// Messages of the first run, which only shows how many fit the time.
const FIRST_COUNT: u32 = 200;
/// Most messages of one run.
const COUNT_MAX: u32 = 1_000_000;

/// What came of one case.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) case: String,
    unit: &'static str,
    bytes: u32,
    depth: u32,
    /// By device: one value a round.
    values: BTreeMap<&'static str, Vec<f64>>,
    /// By device, of latencies: the 99th percentile of each round.
    p99_us: BTreeMap<&'static str, Vec<f64>>,
    /// By device and side: counters at the end of the case.
    counters: BTreeMap<String, BTreeMap<String, u64>>,
    /// Why the case is not complete.
    pub(crate) error: Option<String>,
}

/// One device with its server.
struct Side {
    device: DeviceKind,
    end: End,
    control: Control,
    /// Messages of a run.
    count: u32,
    runs: u8,
}

/// All devices.
pub(crate) struct Client {
    sides: Vec<Side>,
    options: DeviceOptions,
}

impl Client {
    pub(crate) fn connect(devices: &[DeviceKind], own: IpAddr, peer: IpAddr, options: &DeviceOptions) -> Result<Self> {
        let mut sides = vec![];
        for (device, port) in devices.iter().zip(CONTROL_PORT..) {
            let control = connect(SocketAddr::new(peer, port))?;
            let end = End::open(*device, own)?;
            sides.push(Side { device: *device, end, control, count: FIRST_COUNT, runs: 0 });
        }
        Ok(Self { sides, options: options.clone() })
    }

    /// All rounds of a case. The result has what failed in it; only a lost server is an error.
    pub(crate) fn case(&mut self, case: &Case, note: &str, rounds: u32, seconds: f64) -> Result<Measured> {
        let packets = if case.is_throughput() { self.packets() } else { String::new() };
        let mut measured = Measured {
            case: format!("{}{packets}{note}", case.name),
            unit: case.unit,
            bytes: case.bytes,
            depth: case.depth,
            values: BTreeMap::new(),
            p99_us: BTreeMap::new(),
            counters: BTreeMap::new(),
            error: None,
        };
        let outcome = self.rounds(case, rounds, seconds, &mut measured);
        measured.error = outcome.err().map(|e| format!("{e:#}"));
        Ok(measured)
    }

    /// The packets of the link, in words.
    fn packets(&self) -> String {
        let mtu = self.sides.iter().map(|side| side.end.nic.device().mtu.bytes()).min().unwrap_or_default();
        format!(", packets of {mtu} B")
    }

    fn rounds(&mut self, case: &Case, rounds: u32, seconds: f64, measured: &mut Measured) -> Result<()> {
        let is_ping_pong = case.load.is_ping_pong();
        let wait = if is_ping_pong { self.options.lat_wait } else { self.options.bw_wait };
        place(0, !is_ping_pong)?;
        for side in &mut self.sides {
            side.connect()?;
            side.calibrate(case, seconds, wait)?;
        }
        for round in 0..rounds as usize {
            let count = self.sides.len();
            for turn in 0..count {
                // The first side changes, so that a drift of the machine favours neither.
                let side = &mut self.sides[(round + turn) % count];
                let (sample, counters) =
                    side.run(case, wait).with_context(|| format!("{} in round {round}", side.device.name()))?;
                let (name, value) = (side.device.name(), sample.value(case));
                measured.values.entry(name).or_default().push(value);
                let mut shown = format!("{}: round {round} {name} {value:.3} {}", measured.case, case.unit);
                if case.unit == "us" {
                    let p99 = sample.half_round_trip_us(99);
                    measured.p99_us.entry(name).or_default().push(p99);
                    shown += &format!(" (p99 {p99:.1})");
                }
                println!("{shown}");
                measured.counters.insert(format!("{name} server"), counters.into_iter().collect());
                let own = side.end.counters();
                measured.counters.insert(format!("{name} client"), own.into_iter().collect());
            }
        }
        Ok(())
    }

    pub(crate) fn end(mut self) -> Result<()> {
        // Servers that are started next inherit where this process may run.
        place(0, false)?;
        self.sides.iter_mut().try_for_each(|side| side.control.send(&Request::End))
    }
}

impl Side {
    fn connect(&mut self) -> Result<()> {
        let own = self.end.new_qp()?;
        match ask(&mut self.control, &Request::Connect(own))? {
            Answer::Card(peer) => self.end.connect(&peer),
            other => bail!("{other:?} instead of a card"),
        }
    }

    /// Chooses how many messages fill the time. The second, longer run is nearer to the steady state.
    fn calibrate(&mut self, case: &Case, seconds: f64, wait: super::waiting::Wait) -> Result<()> {
        self.count = FIRST_COUNT;
        for share in [0.3, 1.0] {
            let each = self.run(case, wait)?.0.seconds_each().max(1e-9);
            self.count = ((seconds * share / each) as u32).clamp(case.depth * 2, COUNT_MAX);
        }
        Ok(())
    }

    /// One run, checked on both sides; with the server's counters.
    fn run(&mut self, case: &Case, wait: super::waiting::Wait) -> Result<(Sample, Vec<(String, u64)>)> {
        self.runs = self.runs % 250 + 1;
        let run = run_of(case, self.count, self.runs);
        let latency = case.load.is_ping_pong();
        if latency {
            latency::prepare(&mut self.end, &run)?;
        } else {
            flow::prepare(&self.end, &run, true)?;
        }
        match ask(&mut self.control, &Request::Run(run))? {
            Answer::Ready => {}
            other => bail!("{other:?} instead of ready"),
        }
        let sample = if latency {
            Sample::RoundTrips(latency::ping(&mut self.end, &run, wait)?)
        } else {
            flow::request(&mut self.end, &run, wait)?
        };
        self.end.settle();
        let Answer::Report { wrong, counters } = ask(&mut self.control, &Request::Done)? else {
            bail!("no report after the run");
        };
        if let Some(wrong) = wrong.or(flow::verify(&self.end, &run, true)?) {
            bail!("the data is wrong: {wrong}");
        }
        Ok((sample, counters))
    }
}
