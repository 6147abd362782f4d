//! The hosts of the figures with their daemons, and runs of the measured programs on them. Hosts are made when a figure
//! first needs so many, and stay until one needs another number.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use harness::repo::Repo;
use serde_json::Value;

use super::device::Device;
use crate::Args;
use crate::loads::{self, stream_server};
use crate::place::{End, Place};
use crate::process::Beside;
use crate::rivals::any_port;

/// Beyond its own time a run is given this long, on a machine that is busy too: thousands of connections are opened.
const SLACK: Duration = Duration::from_secs(120);

/// Words of a command that were made for it.
pub(super) type Words = Vec<String>;

/// Joins what stays and what was made.
pub(super) fn words(fixed: &[&str], made: &[(&str, String)]) -> Words {
    let mut all: Words = fixed.iter().map(|word| (*word).to_owned()).collect();
    made.iter().for_each(|(name, value)| all.extend([format!("--{name}"), value.clone()]));
    all
}

/// See the head of this file.
pub(super) struct Hosts<'r> {
    repo: &'r Repo,
    mtu: u32,
    wire: &'static str,
    device: Device,
    programs: Option<PathBuf>,
    now: Option<Cluster>,
}

/// Hosts, daemons, and a region on each server.
pub(super) struct Cluster {
    pub(super) place: Place,
    wire: &'static str,
    device: Device,
    /// Regions by their servers, in the order of the ends.
    regions: Vec<Region>,
}

/// A program that owns regions.
struct Region {
    end: End,
    name: &'static str,
    key: String,
    _owner: Beside,
}

/// The region with the words that READs are checked against.
pub(super) const BLOCKS: &str = "blocks";
/// The region of counters.
pub(super) const COUNTERS: &str = "counters";
/// Bytes of a region of blocks.
pub(super) const REGION_BYTES: u64 = 64 << 20;

impl<'r> Hosts<'r> {
    pub(super) fn new(repo: &'r Repo, args: &Args, wire: &'static str) -> Result<Self> {
        // Programs are started from other directories.
        let programs = args.figures.programs.as_ref().map(std::fs::canonicalize).transpose()?;
        Ok(Self { repo, mtu: args.mtu, wire, device: args.figures.device, programs, now: None })
    }

    /// So many hosts.
    pub(super) fn cluster(&mut self, count: usize) -> Result<&Cluster> {
        if self.now.as_ref().is_none_or(|cluster| cluster.place.ends().len() != count) {
            // The old ones end first: their addresses are the same.
            self.now = None;
            let mut place = match (self.device, self.programs.as_deref()) {
                (Device::Softnic, programs) => Place::hosts(self.repo, "figures", self.mtu, count, programs)?,
                (Device::Rxe, Some(programs)) => Place::kernel_devices(self.repo, "figures", self.mtu, programs)?,
                (Device::Rxe, None) => bail!("figures on rxe need --programs in the guest"),
            };
            place.start_daemons(&self.device.configuration(self.wire))?;
            let mut cluster = Cluster { place, wire: self.wire, device: self.device, regions: vec![] };
            for end in cluster.place.ends() {
                if end != End::Client {
                    cluster.make_region(end, BLOCKS, REGION_BYTES)?;
                }
                cluster.make_region(end, COUNTERS, 4096)?;
            }
            self.now = Some(cluster);
        }
        self.now.as_ref().context("there are no hosts")
    }
}

impl Cluster {
    fn make_region(&mut self, end: End, name: &'static str, bytes: u64) -> Result<()> {
        let bytes = bytes.to_string();
        let mut words = vec!["regionbench", "server", "--name", name, "--region-bytes", &bytes];
        if name == BLOCKS {
            words.push("--pattern");
        }
        let (owner, key) = loads::serve(&self.place, end, &words)?;
        self.regions.push(Region { end, name, key, _owner: owner });
        Ok(())
    }

    /// A program to its end, at the client's host; the JSON that it printed.
    fn run(&self, words: &Words, seconds: f64) -> Result<Value> {
        let all: Vec<&str> = words.iter().map(String::as_str).collect();
        let limit = Duration::from_secs_f64(seconds) + SLACK;
        loads::report(&mut loads::command(&self.place, End::Client, &all), limit)
    }

    // ---- native verbs

    /// A server of native verbs.
    pub(super) fn native_server(&self, end: End) -> Result<(Beside, String)> {
        let (device, address) = (self.device.native(), self.place.address(end));
        let words = ["nativebench", "server", "--device", device, "--wire", self.wire, "--address", address];
        loads::serve(&self.place, end, &words)
    }

    /// The words of a client of native verbs.
    pub(super) fn native_words(&self, to: &str, load: &[(&str, String)]) -> Words {
        let (device, own) = (self.device.native(), self.place.address(End::Client));
        let fixed = ["nativebench", "client", "--device", device, "--wire", self.wire, "--address", own, "--to", to];
        words(&fixed, load)
    }

    /// A load of native verbs toward all servers.
    pub(super) fn native(&self, load: &[(&str, String)], seconds: f64) -> Result<Value> {
        let others = self.place.ends().into_iter().filter(|end| *end != End::Client);
        let servers = others.map(|end| self.native_server(end)).collect::<Result<Vec<_>>>()?;
        let to = servers.iter().map(|(_, to)| to.as_str()).collect::<Vec<_>>().join(",");
        let mut words = self.native_words(&to, load);
        words.extend(["--seconds".to_owned(), seconds.to_string()]);
        let report = self.run(&words, seconds)?;
        servers.into_iter().for_each(|(server, _)| server.end());
        Ok(report)
    }

    // ---- RaaS

    /// The words of a client of regions.
    pub(super) fn region_words(&self, name: &str, here: bool, load: &[(&str, String)]) -> Words {
        let mut all = words(&["regionbench", "client", "--name", name], load);
        for region in self.regions.iter().filter(|r| r.name == name && (r.end == End::Client) == here) {
            let address = self.place.address(region.end);
            all.extend(["--host", address, "--key", &region.key].map(str::to_owned));
        }
        all
    }

    /// A load on the regions of that name: those of all servers, or that of the client's own host.
    pub(super) fn region(&self, name: &str, here: bool, load: &[(&str, String)], seconds: f64) -> Result<Value> {
        let mut words = self.region_words(name, here, load);
        words.extend(["--seconds".to_owned(), seconds.to_string()]);
        self.run(&words, seconds)
    }

    /// A load of streams over RaaS.
    pub(super) fn stream(&self, load: &[(&str, String)], seconds: f64) -> Result<Value> {
        let (server, to) = stream_server(&self.place, "raas", &any_port(&self.place))?;
        let fixed = ["sockbench", "client", "--transport", "raas", "--to", &to];
        let mut words = words(&fixed, load);
        words.extend(["--seconds".to_owned(), seconds.to_string()]);
        let report = self.run(&words, seconds)?;
        server.end();
        Ok(report)
    }

    /// Half a round trip of 64 bytes over the bare relay, in microseconds: the limit of a service with a process on each
    /// host.
    pub(super) fn bare_relay_us(&self, seconds: f64) -> Result<f64> {
        let relays = crate::matrix::Relays::start(&self.place)?;
        let (server, _) = stream_server(&self.place, "bare", &relays.server_ring)?;
        let fixed = ["sockbench", "client", "--transport", "bare", "--to", &relays.client_ring, "--test", "lat"];
        let load = [("size", "64".to_owned()), ("seconds", seconds.to_string())];
        let report = self.run(&words(&fixed, &load), seconds)?;
        drop(server);
        value(&report, "half_rtt_us")
    }
}

/// A number of a report.
pub(super) fn value(report: &Value, key: &str) -> Result<f64> {
    report[key].as_f64().with_context(|| format!("there is no {key} in {report}"))
}
