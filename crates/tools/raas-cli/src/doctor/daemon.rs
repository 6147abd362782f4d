//! The daemon of this host: whether it serves, with which configuration, and whether its limits and key will do.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Parser;
use control::{LaneRow, Stat};
use raas::SessionError;
use raasd::{Config, DeviceChoice, Flags, KEY_FILE_NAME, read_cluster_key};
use serde_json::Value;

use super::finding::{Code, Findings};
use crate::cli::{Cli, Command, DaemonArgs, DoctorArgs};
use crate::stat;
use terminal::Failure;
use terminal::table;
use transport::{Raas, Transport};

/// Descriptors that a daemon with some hundred programs needs.
const DESCRIPTORS_MIN: u64 = 4096;
/// Memory that rings of some hundred connections need registered.
const MEMLOCK_BYTES_MIN: u64 = 256 << 20;
/// Longest command line that is read.
const ARGUMENTS_MAX: usize = 256;

/// What is known of the daemon.
#[derive(Debug)]
pub(super) struct Serving {
    /// As its command line or `--config` says, else the defaults.
    pub(super) config: Config,
    /// Where the configuration comes from.
    pub(super) known: bool,
    /// Its address for others.
    pub(super) listen: IpAddr,
    /// Its lanes.
    pub(super) lanes: Vec<LaneRow>,
    pid: Option<u32>,
    stat: Option<Stat>,
}

/// Says what is at each place where programs of this user look for the daemon.
fn places(socket: Option<&Path>, findings: &mut Findings) {
    let mut found = false;
    for (path, seen) in raas::inspect::places(socket) {
        let at = path.display().to_string();
        match seen {
            Ok(()) if found => {
                let detail = format!("{at}: another daemon serves there; programs take the first one");
                findings.warn("socket", at, detail, "stop one of them, or name the right one in RAAS_SOCKET");
            }
            Ok(()) => {
                found = true;
                findings.ok("socket", at.as_str(), format!("{at}: a daemon serves there"));
            }
            Err(SessionError::NoDaemon { cause, .. }) => {
                findings.ok("socket", at.as_str(), format!("{at}: nobody serves there ({cause})"));
            }
            Err(e) => {
                let fix = match e {
                    SessionError::Denied { .. } => {
                        "join the socket's group, or have socket_mode and socket_group changed"
                    }
                    SessionError::Impostor { .. } => "ask its user what it is; RAAS_SOCKET names another place",
                    _ => "see whether that daemon runs, and its log",
                };
                findings.warn("socket", at, e.to_string(), fix);
            }
        }
    }
}

/// Attaches to the daemon, and says whether that works.
pub(super) fn attach(socket: Option<&Path>, findings: &mut Findings) -> Option<Raas> {
    places(socket, findings);
    match Raas::attach(socket, "raas doctor") {
        Ok(raas) => {
            let (release, at) = (raas.session().release().to_owned(), raas.session().socket().display().to_string());
            let versions = format!("wire {}, control and layout as here", control::WIRE_VERSION);
            let same = release == env!("CARGO_PKG_VERSION");
            let detail = format!("release {release} ({versions}) serves {at}");
            match same {
                true => findings.ok("daemon", release, detail),
                false => findings.warn("daemon", release, detail, "install one release of command, library and daemon"),
            }
            Some(raas)
        }
        Err(e) => {
            let (code, fix) = match e {
                Failure::Refused(_) => (Code::Refused, "what is said above of its socket, or one release for all"),
                _ => (Code::NoDaemon, "start one: raas daemon --listen IP --key-file FILE"),
            };
            findings.fail("daemon", code, Value::Null, e.to_string(), fix);
            None
        }
    }
}

impl Serving {
    /// The configuration by `--config`, by the daemon's own command line, or by default.
    pub(super) fn find(args: &DoctorArgs, raas: Option<&Raas>) -> Result<Self, Failure> {
        let pid = raas.and_then(Transport::daemon_pid);
        let flags = Flags { socket: args.socket.socket.clone(), ..Flags::default() };
        let named = match &args.config {
            Some(file) => {
                let config = Config::load(Some(file), &flags);
                Some(config.map_err(|e| Failure::Configuration(e.to_string()))?)
            }
            None => pid.and_then(running_config),
        };
        let known = named.is_some();
        let mut config = named.unwrap_or_else(|| Config::new(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let stat = raas.and_then(|raas| raas::inspect::stat(Some(raas.session().socket())).ok());
        // The running daemon knows best.
        if let Some(raas) = raas {
            config.socket = raas.session().socket().to_path_buf();
            config.listen = raas.session().addresses().first().copied().unwrap_or(config.listen);
        }
        if let Some(stat) = stat.as_ref().filter(|_| !known) {
            let rdma = || DeviceChoice::RdmaCore(Some(stat.device.clone()));
            config.device = stat.device.parse().unwrap_or_else(|_| rdma());
        }
        let lanes = stat.as_ref().map(|s| s.lanes.clone()).unwrap_or_default();
        Ok(Self { listen: config.listen, known, config, lanes, pid, stat })
    }

    /// The device of the running daemon, and why it has that one.
    pub(super) fn device(&self) -> Option<(String, String)> {
        self.stat.as_ref().map(|s| (s.device.clone(), s.device_reason.clone()))
    }

    /// Whether the device is the software NIC, as far as this side can know.
    pub(super) fn is_software(&self) -> bool {
        match (&self.config.device, &self.stat) {
            (DeviceChoice::SoftNic, _) => true,
            (DeviceChoice::Auto, stat) => stat.as_ref().is_none_or(|s| s.device == DeviceChoice::SoftNic.to_string()),
            (DeviceChoice::RdmaCore(_), _) => false,
        }
    }

    fn key_file(&self) -> Option<PathBuf> {
        let beside = || Some(self.config.socket.parent()?.join(KEY_FILE_NAME));
        self.config.key_file.clone().or_else(beside)
    }
}

/// The configuration of a running daemon, from its command line; none if this user may not read that.
fn running_config(pid: u32) -> Option<Config> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = text.split(|b| *b == 0).filter(|word| !word.is_empty()).take(ARGUMENTS_MAX);
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let arguments = crate::arguments(words.into_iter().map(Into::into).collect());
    let Ok(Cli { command: Command::Daemon(args), .. }) = Cli::try_parse_from(arguments) else { return None };
    let place = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    load(args, &place)
}

fn load(args: DaemonArgs, place: &Path) -> Option<Config> {
    let flags = Flags {
        listen: args.listen,
        socket: args.socket,
        device: args.device,
        wire: args.wire,
        encrypt: args.encrypt,
        tcp_direct: args.tcp_direct,
        run_lanes: args.run_lanes,
        engines: args.engines,
        pcap: None,
        peer_port: args.peer_port,
        udp_port: args.udp_port,
        key_file: args.key_file.map(|path| place.join(path)),
        sandbox: args.sandbox,
        log: None,
    };
    let file = args.config.map(|path| place.join(path));
    Config::load(file.as_deref(), &flags).ok()
}

/// Limits and key.
pub(super) fn look(serving: &Serving, raas: Option<&Raas>, findings: &mut Findings) {
    if raas.is_some() && !serving.known {
        findings.warn(
            "config",
            Value::Null,
            "the running daemon's configuration cannot be read by this user",
            "name it with --config, or run this as the daemon's user; what follows takes the defaults for it",
        );
    }
    sandbox(serving, findings);
    descriptors(serving, findings);
    limits(serving, findings);
    memlock(serving, findings);
    calibration(serving, findings);
    key(serving, findings);
}

/// Whether the verbs are chosen by what was measured on this machine and this device.
fn calibration(serving: &Serving, findings: &mut Findings) {
    let Some((file, measured)) = serving.config.calibration.as_ref().zip(serving.config.calibrated()) else {
        return findings.ok("calibration", Value::Null, "none: verbs are chosen by the paper's thresholds");
    };
    let at = file.display().to_string();
    let device = serving.stat.as_ref().map(|stat| stat.device.as_str());
    let is_same = |device: &str| measured.device == device || measured.device.ends_with(&format!(":{device}"));
    match device.filter(|device| !is_same(device)) {
        Some(device) => {
            let detail = format!("{at} was measured on {}, and the daemon has {device}", measured.device);
            findings.warn(
                "calibration",
                at.as_str(),
                detail,
                "raas calibrate --device DEVICE --output FILE, and restart",
            );
        }
        None => findings.ok("calibration", at.as_str(), format!("{at}, measured on {}", measured.device)),
    }
}

/// Whether the daemon is an ordinary user, and the kernel holds it to what it needs. Without an answer of the daemon the
/// kernel's word for the process counts, which says nothing of files.
fn sandbox(serving: &Serving, findings: &mut Findings) {
    let Some(pid) = serving.pid else { return };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let number = |key: &str, place: usize| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_ascii_whitespace().nth(place)?.parse::<u32>().ok()
    };
    match number("Uid:", 1) {
        Some(0) => findings.warn(
            "user",
            0,
            "the daemon runs as root, and needs no right of root",
            "user = \"raas\" in its configuration (docs/operate/configuration.md)",
        ),
        Some(uid) => findings.ok("user", uid, format!("the daemon runs as user {uid}")),
        None => {}
    }
    let filtered = number("Seccomp:", 0).map(|mode| mode == 2);
    let fix = "sandbox = \"auto\" in its configuration, and what its log says of it; raas daemon --check says it too";
    match (serving.stat.as_ref().and_then(stat::sandbox), filtered) {
        (Some(held), Some(true)) if held.calls_filtered && held.landlock_abi > 0 => {
            findings.ok("sandbox", held.landlock_abi, held.to_string());
        }
        (Some(held), Some(false)) if held.calls_filtered => {
            findings.warn("sandbox", 0, "the daemon says that its calls are filtered, the kernel denies it", fix);
        }
        (Some(held), _) => findings.warn("sandbox", held.landlock_abi, held.to_string(), fix),
        (None, Some(true)) => {
            findings.ok(
                "sandbox",
                Value::Null,
                "system calls are filtered; of files the daemon tells its user and root",
            );
        }
        (None, Some(false)) => findings.warn("sandbox", 0, "system calls are NOT filtered", fix),
        (None, None) => {}
    }
}

/// How many programs there is room for, and why.
fn limits(serving: &Serving, findings: &mut Findings) {
    let Some(descriptors) = limit(serving.pid, "Max open files") else { return };
    let machine = raasd::Machine::of_process(serving.pid, descriptors);
    let (_, fit) = serving.config.clone().fitted(machine);
    let detail = fit.words.join("; ");
    if fit.too_much.is_empty() {
        findings.ok("limits", fit.apps_max, detail);
    } else {
        findings.warn("limits", fit.apps_max, detail, &fit.too_much.join("; "));
    }
}

/// A soft limit of the daemon, else of this process; `u64::MAX` is none.
fn limit(pid: Option<u32>, name: &str) -> Option<u64> {
    let of = |who: String| std::fs::read_to_string(format!("/proc/{who}/limits")).ok();
    let text = pid.and_then(|pid| of(pid.to_string())).or_else(|| of("self".into()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let soft = line.split_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

fn descriptors(serving: &Serving, findings: &mut Findings) {
    let Some(soft) = limit(serving.pid, "Max open files") else { return };
    let used = serving.stat.as_ref().map_or(0, |s| u64::from(s.fds));
    let detail = format!("{used} of {soft} descriptors in use");
    let fix = "LimitNOFILE=65536 in the daemon's unit, or ulimit -Hn 65536 before it starts, which needs root";
    if used > soft - soft / 8 {
        findings.fail("descriptors", Code::Failed, soft, format!("{detail}: the next programs will be refused"), fix);
    } else if soft < DESCRIPTORS_MIN {
        findings.warn("descriptors", soft, format!("{detail}: a program needs several"), fix);
    } else {
        findings.ok("descriptors", soft, detail);
    }
}

fn memlock(serving: &Serving, findings: &mut Findings) {
    let Some(bytes) = limit(serving.pid, "Max locked memory") else { return };
    let said = if bytes == u64::MAX { "unlimited".to_owned() } else { table::bytes(bytes) };
    let fix = "ulimit -l unlimited before the daemon starts, or LimitMEMLOCK=infinity in its unit";
    if serving.is_software() {
        findings.ok("memlock", bytes, format!("{said}; the software NIC locks no memory"));
        return;
    }
    let pinned = serving.stat.as_ref().map_or(0, |s| s.pinned_bytes);
    if bytes < pinned.saturating_mul(2).max(MEMLOCK_BYTES_MIN) {
        let detail =
            format!("{said}, {} registered now: the device cannot register many more rings", table::bytes(pinned));
        findings.warn("memlock", bytes, detail, fix);
    } else {
        findings.ok("memlock", bytes, format!("{said}, {} registered now", table::bytes(pinned)));
    }
}

fn key(serving: &Serving, findings: &mut Findings) {
    let Some(path) = serving.key_file() else { return };
    let at = path.display().to_string();
    let fix =
        format!("chmod 600 {at}; chown it to the daemon's user; head -c 32 /dev/urandom makes a new one for all hosts");
    let owner = serving.pid.and_then(|pid| std::fs::metadata(format!("/proc/{pid}")).ok()).map(|m| m.uid());
    let own = rustix::process::geteuid().as_raw();
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && serving.config.key_file.is_none() => {
            let detail = format!("no {at} yet: the daemon makes one at its first start; peers need a copy");
            findings.warn("key", at.as_str(), detail, "make one and give it to every host, with --key-file");
        }
        Ok(meta) if meta.mode() & 0o077 == 0 && owner.is_some_and(|of| of != own && (own != 0 || of == meta.uid())) => {
            let detail = format!("{at} is closed to others; its content is for the daemon's user to judge");
            findings.ok("key", at.as_str(), detail);
        }
        _ => match read_cluster_key(&path) {
            Ok(_) => findings.ok("key", at.as_str(), format!("{at} is a key and closed to others")),
            Err(e) => findings.fail("key", Code::Failed, at.as_str(), e.to_string(), &fix),
        },
    }
}
