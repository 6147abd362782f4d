//! The command line as types: every command, option, unit and limit. Parsing only; the commands lie in other modules.

mod group;
mod inspect;
mod policy;
mod region;
mod run;
mod values;
mod verbs;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

pub(crate) use group::{GroupCommand, GroupStatusArgs};
pub(crate) use inspect::{ClusterArgs, SsArgs, StatArgs, TopArgs, TraceArgs, WebArgs};
#[cfg(test)]
pub(crate) use inspect::{PATHS, STATES};
pub(crate) use policy::{PolicyCheckArgs, PolicyCommand};
pub(crate) use region::{KeyArgs, RegionCommand, RegionCreateArgs, RegionLsArgs, RegionOpenArgs, RegionRevokeArgs};
pub(crate) use run::RunArgs;
pub(crate) use values::resolve;
use values::{seconds, size_bytes, two_addresses};
pub(crate) use verbs::{Agent, VerbsArgs};

/// Port of `raas perf server` if none is given.
pub(crate) const PERF_PORT: u16 = 4800;
/// Connections of a demo at most.
const DEMO_CONNECTIONS_MAX: u32 = 20_000;
/// Application processes of a demo host at most.
const DEMO_APPS_MAX: u32 = 64;
/// Connections of a perf client at most.
const PERF_CONNECTIONS_MAX: u32 = 4096;

/// RDMA as a Service: one daemon per host owns the RDMA device; applications see sockets.
#[derive(Debug, Parser)]
#[command(
    name = "raas",
    version,
    long_version = crate::version::LONG.as_str(),
    propagate_version = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// What to log on stderr, such as `info` or `raasd=debug` [default: $RUST_LOG, else warn; info for the daemon]
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// Before or after the command.
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what RaaS gives and what it survives: small messages, a TCP program under `raas run`, 1,000 connections
    /// between two hosts on this machine, deaths, files; every byte verified, beside TCP
    Demo(DemoArgs),
    /// Serve this host: own its RDMA device and share it among all applications
    Daemon(DaemonArgs),
    /// Send a file to `raas recv` on another host
    Send(SendArgs),
    /// Receive a file from `raas send`
    Recv(RecvArgs),
    /// List the connections of this host, all or those that fit the options
    Ss(SsArgs),
    /// Show device, lanes, resources, counters and applications of this host
    Stat(StatArgs),
    /// List the hosts of the cluster, the names that they serve, and where the daemon learned of them
    Cluster(ClusterArgs),
    /// Show applications, connections, lanes and rates of this host on the terminal, live
    Top(TopArgs),
    /// Show where the time of messages went, stage by stage, as a table and as a file for Perfetto
    Trace(TraceArgs),
    /// Serve a page about this host on a loopback address: lanes as a picture, connections, plots; it changes nothing
    Web(WebArgs),
    /// Explain which path a connection takes, or a connection to an address would take, and why not another
    Why(WhyArgs),
    /// Look for what stands in the way: device, addresses, MTU, limits, kernel, daemon, key, peers; each with its fix
    Doctor(DoctorArgs),
    /// List the devices of this machine, and explain which one an address would get
    Device(DeviceArgs),
    /// Measure from where on to register instead of copying, and which verb is better, for the daemon on this machine
    Calibrate(CalibrateArgs),
    /// Act on the lanes of this host
    #[command(subcommand)]
    Lane(LaneCommand),
    /// Make, look at, list and revoke regions: memory that programs share by name
    #[command(subcommand)]
    Region(RegionCommand),
    /// Look at replicated groups
    #[command(subcommand)]
    Group(GroupCommand),
    /// Look at a policy: which programs may do what
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Start a program with its TCP sockets over RaaS where both ends have it, and over kernel TCP where not
    Run(RunArgs),
    /// Start a program that uses verbs on a software device, `soft0`: no RDMA hardware, kernel module or root is needed
    Verbs(VerbsArgs),
    /// Measure latency, throughput and message rate between two hosts
    #[command(subcommand)]
    Perf(PerfCommand),
    /// Print the manual page raas(1), or write one page for each command
    Man(ManArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// An application process of the demo; only the demo starts it
    #[command(hide = true)]
    DemoApp(DemoAppArgs),
    /// One end of the demo's TCP program, which the demo starts itself
    #[command(hide = true)]
    DemoEcho(DemoEchoArgs),
}

/// Which daemon to talk to.
#[derive(Debug, Clone, Args)]
pub(crate) struct SocketArgs {
    /// Control socket of this host's daemon [default: $RAAS_SOCKET, else the first that is served of
    /// $XDG_RUNTIME_DIR/raas/raasd.sock, /tmp/raas-$UID/raasd.sock (not for root) and /run/raas/raasd.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

impl Command {
    /// Whether it has to do with a daemon's socket.
    pub(crate) fn has_socket(&self) -> bool {
        use Command as C;
        !matches!(
            self,
            C::Demo(_)
                | C::Device(_)
                | C::Calibrate(_)
                | C::Policy(_)
                | C::Verbs(_)
                | C::Man(_)
                | C::Completions(_)
                | C::DemoApp(_)
                | C::DemoEcho(_)
        )
    }
}

/// Whether something is done.
fn auto_or_off(word: &str) -> Result<bool, String> {
    match word {
        "auto" => Ok(true),
        "off" => Ok(false),
        _ => Err("`auto` or `off`".to_owned()),
    }
}

/// A number of engines.
fn engines() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(shm::ENGINES_MAX))
}

impl SocketArgs {
    /// The socket, if it was named.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.socket.as_deref()
    }
}

/// What to do where no daemon can carry a connection.
#[derive(Debug, Clone, Args)]
pub(crate) struct FallbackArgs {
    /// Use this if there is no daemon on this host, or none at the peer, and report it; both ends need it
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) fallback: Option<FallbackTo>,
}

/// What carries a connection instead of a daemon.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum FallbackTo {
    /// Kernel TCP, to the same address and port
    Tcp,
}

/// `raas device`.
#[derive(Debug, Args)]
pub(crate) struct DeviceArgs {
    /// Address of this host; also show what `auto` and `rdma-core` would take for it, and why
    #[arg(long, value_name = "IP")]
    pub(crate) listen: Option<IpAddr>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// `raas calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Device: `auto`, `softnic`, `rdma-core` or `rdma-core:NAME`
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(crate) device: String,
    /// Address of this host that the device has
    #[arg(long, default_value = "127.0.0.1", value_name = "IP")]
    pub(crate) listen: IpAddr,
    /// Write the result to a file that the daemon reads (`calibration` in its configuration)
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Rounds, of which the medians count
    #[arg(long, default_value_t = 51, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rounds: u32,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// `raas why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Number of a connection as in `raas ss`, or the host of a connection to be made
    #[arg(value_name = "ID|HOST[:PORT]")]
    pub(crate) what: String,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Also probe this host; may be given several times [default: the hosts that this one has a lane to]
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Vec<String>,
    /// Configuration of the daemon [default: that of the running daemon, from its command line]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command to this directory (made if it does not exist), and print their names
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// `raas completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// `raas demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory with the files to send [default: files of the Rust toolchain and of /usr, about 400 MB]
    #[arg(long, value_name = "DIR")]
    pub(crate) path: Option<PathBuf>,
    /// Connections between the two hosts, half of them begun by each
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEMO_CONNECTIONS_MAX)))]
    pub(crate) connections: u32,
    /// Application processes on each host
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(DEMO_APPS_MAX)))]
    pub(crate) apps: u32,
    /// Time limit of the whole run, in seconds
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds_max: u64,
    /// Addresses of the two hosts: any two of 127.0.0.0/8
    #[arg(long, value_name = "A,B", default_value = "127.0.0.1,127.0.0.2", value_parser = two_addresses)]
    pub(crate) hosts: [IpAddr; 2],
    /// UDP (RoCEv2) and TCP port (iWARP) of the software NICs of both hosts, if the usual one is taken [default: 4791]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(2..))]
    pub(crate) listen_port: Option<u16>,
    /// TCP port on which the two daemons reach each other [default: the port before --listen-port: 4790]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) peer_port: Option<u16>,
    /// What may carry the connections between the two hosts: roce (UDP), iwarp (TCP), or auto for what the daemons choose
    #[arg(long, value_name = "WIRE", default_value_t)]
    pub(crate) wire: ::verbs::WirePolicy,
    /// Engines of each daemon: threads that move data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = engines())]
    pub(crate) engines: u32,
    /// Print one JSON object on stdout; progress stays on stderr
    #[arg(long)]
    pub(crate) json: bool,
}

impl DemoArgs {
    /// UDP and TCP port of the software NICs, and TCP port between the daemons.
    pub(crate) fn ports(&self) -> (u16, u16) {
        let nic = self.listen_port.unwrap_or(::verbs::ROCE_UDP_PORT);
        let before = self.listen_port.map_or(raasd::PEER_PORT, |port| port - 1);
        (nic, self.peer_port.unwrap_or(before))
    }
}

/// `raas demo-app`.
#[derive(Debug, Args)]
pub(crate) struct DemoAppArgs {
    /// Process of the demo.
    #[arg(long)]
    pub(crate) parent: u32,
}

/// `raas demo-echo`.
#[derive(Debug, Args)]
pub(crate) struct DemoEchoArgs {
    /// Process of the demo.
    #[arg(long)]
    pub(crate) parent: u32,
    /// Address of the server.
    #[arg(long)]
    pub(crate) ip: IpAddr,
    /// Port of the server; without it this is the server.
    #[arg(long)]
    pub(crate) port: Option<u16>,
}

/// `raas daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Configuration file (TOML, docs/operate/configuration.md); options on the command line take precedence
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of this host that peers use
    #[arg(long, value_name = "IP")]
    pub(crate) listen: Option<IpAddr>,
    /// Which device: `auto` (usable RDMA hardware with the address, else softnic), `softnic` (over UDP, needs nothing)
    /// or `rdma-core[:NAME]` [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<String>,
    /// What may carry lanes: `auto`, `roce` (UDP) or `iwarp` (TCP, between software NICs) [default: auto]
    #[arg(long, value_name = "WIRE")]
    pub(crate) wire: Option<String>,
    /// Whether lanes are encrypted: `off`, `preferred` (where both hosts can) or `required` [default: off]
    #[arg(long, value_name = "WHEN")]
    pub(crate) encrypt: Option<String>,
    /// Whether bulk streams and conversations get their own TCP connection between software NICs: `auto` or `off` [default: auto]
    #[arg(long, value_name = "WHEN", value_parser = auto_or_off)]
    pub(crate) tcp_direct: Option<bool>,
    /// Which connections of programs under `raas run` go over lanes to other hosts: `auto` (those to which a lane gives
    /// something: RDMA hardware, encryption, a second path) or `always` [default: auto]
    #[arg(long, value_name = "WHICH")]
    pub(crate) run_lanes: Option<String>,
    /// Engines: threads that move data, each with a lane to each other host [default: 1]
    #[arg(long, value_name = "N", value_parser = engines())]
    pub(crate) engines: Option<u32>,
    /// TCP port on which daemons reach each other
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) peer_port: Option<u16>,
    /// UDP port of the software NIC, and TCP port of its other wire [default: 4791, that of RoCEv2]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) udp_port: Option<u16>,
    /// File with the key that all daemons of the cluster share
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Write every packet to this file (pcap)
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    /// Whether the daemon is held to the system calls and files that it needs: `auto`, `required` or `off` [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub(crate) sandbox: Option<raasd::Sandbox>,
    /// Confine this process as the daemon, try what must be refused, print the answers as JSON, and start nothing
    #[arg(long, value_name = "WHAT", num_args = 0..=1, default_missing_value = "all", hide = true)]
    pub(crate) sandbox_probe: Option<String>,
    /// Check the configuration, print the result, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Take the place of the daemon that serves the socket: check the configuration, tell it to make way, and go on with its
    /// programs, whose connections see a pause. Where anything speaks against it the old daemon stays
    #[arg(long, conflicts_with_all = ["check", "sandbox_probe"])]
    pub(crate) replace: bool,
    /// End in order when stdin is closed, for instance because the parent process ended
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
    /// Control socket to serve [default: $RAAS_SOCKET, else $XDG_RUNTIME_DIR/raas/raasd.sock, else /run/raas/raasd.sock
    /// for root and /tmp/raas-$UID/raasd.sock for others]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

/// `raas send`.
#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// File to send, or `-` for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where `raas recv` listens; a host may be named by a service of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) fallback: FallbackArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas recv`.
#[derive(Debug, Args)]
pub(crate) struct RecvArgs {
    /// Port to listen on
    #[arg(value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// File to write, or `-` for stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) fallback: FallbackArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas lane`.
#[derive(Debug, Subcommand)]
pub(crate) enum LaneCommand {
    /// Break the queue pair of a lane; both daemons make a new one, and its connections see a pause
    Reset(LaneResetArgs),
}

/// `raas lane reset`.
#[derive(Debug, Args)]
pub(crate) struct LaneResetArgs {
    /// Host at the other end of the lane [default: all lanes]
    #[arg(value_name = "PEER")]
    pub(crate) peer: Option<String>,
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas perf`.
#[derive(Debug, Subcommand)]
pub(crate) enum PerfCommand {
    /// Serve tests until ended
    Server(PerfServerArgs),
    /// Ping-pong: half round trips in microseconds
    Lat(PerfClientArgs),
    /// Stream of large writes: Gbit/s
    Bw(PerfClientArgs),
    /// Stream of small messages, one write each: messages per second
    Rate(PerfClientArgs),
}

/// `raas perf server`.
#[derive(Debug, Args)]
pub(crate) struct PerfServerArgs {
    /// Port to listen on
    #[arg(value_name = "PORT", default_value_t = PERF_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Serve over kernel TCP instead of RaaS, for comparison
    #[arg(long, conflicts_with = "fallback")]
    pub(crate) tcp: bool,
    #[command(flatten)]
    pub(crate) fallback: FallbackArgs,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas perf lat`, `bw` and `rate`.
#[derive(Debug, Args)]
pub(crate) struct PerfClientArgs {
    /// Where `raas perf server` listens; a host may be named by a service of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub(crate) to: String,
    /// Bytes of a message; K and M (1024) may follow [default: lat 64, bw 256K, rate 64]
    #[arg(long, value_name = "B", value_parser = size_bytes)]
    pub(crate) size: Option<u32>,
    /// Connections at once, each with a thread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(PERF_CONNECTIONS_MAX)))]
    pub(crate) connections: u32,
    /// Time of the test, in seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Use kernel TCP (cubic, no delay) instead of RaaS; the server needs it too
    #[arg(long, conflicts_with = "fallback")]
    pub(crate) tcp: bool,
    #[command(flatten)]
    pub(crate) fallback: FallbackArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Of every command that has to do with a daemon, also of a command of a command.
    #[test]
    fn the_socket_is_named_before_or_after_the_command() {
        let parsed = |words: &[&str]| Cli::try_parse_from(words).unwrap_or_else(|e| panic!("{words:?}: {e}"));
        let given = |cli: Cli| {
            assert_eq!(cli.socket.path(), Some(Path::new("/s")));
            let own = match cli.command {
                Command::Daemon(args) => args.socket,
                Command::Ss(args) => args.socket.socket,
                Command::Run(args) => args.socket.socket,
                Command::Perf(PerfCommand::Lat(args)) => args.socket.socket,
                Command::Region(RegionCommand::Ls(args)) => args.socket.socket,
                other => panic!("{other:?}"),
            };
            assert_eq!(own.as_deref(), Some(Path::new("/s")));
        };
        for command in [&["daemon"][..], &["ss"], &["perf", "lat", "h:1"], &["region", "ls"]] {
            for at in 0..=command.len() {
                let mut words = vec!["raas"];
                words.extend(&command[..at]);
                words.extend(["--socket", "/s"]);
                words.extend(&command[at..]);
                given(parsed(&words));
            }
        }
        given(parsed(&["raas", "--socket", "/s", "run", "ls", "--socket", "/other"]));
        given(parsed(&["raas", "run", "--socket=/s", "ls", "-l"]));
        assert!(!parsed(&["raas", "--socket", "/s", "device"]).command.has_socket());
    }
}
