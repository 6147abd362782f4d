//! `raas ss`, `raas stat`, `raas cluster`, `raas top`, `raas trace` and `raas web`: which rows, how often, in which form.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::SocketArgs;
use super::values::{period, seconds};

/// What `--state` takes, in the order of a connection's life.
pub(crate) const STATES: [&str; 6] = ["connecting", "backlog", "established", "fin-sent", "fin-received", "closing"];
/// What `--path` takes.
pub(crate) const PATHS: [&str; 5] = ["shm", "lane", "leased", "tcp", "tcp-direct"];

/// `raas ss`. Options of different kinds must all fit; one that is given several times fits if any of its values does.
#[derive(Debug, Args)]
pub(crate) struct SsArgs {
    /// Only connections to this host, or to this port of it
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) peer: Vec<String>,
    /// Only with this port, here or at the peer
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Vec<u16>,
    /// Only in this state
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    pub(crate) state: Vec<String>,
    /// Only by this path
    #[arg(long, value_name = "PATH", value_parser = PATHS)]
    pub(crate) path: Vec<String>,
    /// Only of this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Vec<u32>,
    /// Only of the program of this name, as in `raas stat`
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Print one JSON object; with --watch one a line, again and again
    #[arg(long)]
    pub(crate) json: bool,
    /// Print again every S seconds, with what happened in between, until ended
    #[arg(long, value_name = "S", num_args = 0..=1, default_missing_value = "1", value_parser = period)]
    pub(crate) watch: Option<Duration>,
    /// Show the tenants of the policy instead, with what they have and may have
    #[arg(long, conflicts_with = "watch")]
    pub(crate) tenant: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas cluster`.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Only hosts that have or serve this name
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Ask the daemon every S seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = period)]
    pub(crate) interval: Duration,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas web`.
#[derive(Debug, Args)]
pub(crate) struct WebArgs {
    /// Loopback address and port of the page; port 0 takes any that is free
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:4793")]
    pub(crate) listen: SocketAddr,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}

/// `raas trace`.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Only messages of this connection, by its number in `raas ss`
    #[arg(value_name = "ID")]
    pub(crate) id: Option<u64>,
    /// Messages of the next S seconds; without it, the last ones that the daemon has kept
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Also write all messages to this file, for Perfetto (ui.perfetto.dev) or Chrome's about:tracing
    #[arg(long, value_name = "FILE")]
    pub(crate) perfetto: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}
