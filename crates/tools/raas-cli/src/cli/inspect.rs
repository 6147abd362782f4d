//! `raas ss` and `raas stat`: which rows, how often, in which form.

use std::time::Duration;

use clap::Args;

use super::SocketArgs;
use super::values::period;

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
    #[command(flatten)]
    pub(crate) socket: SocketArgs,
}
