//! The `raas` command. This file starts logging, runs the command and turns its failure into the exit code; nothing
//! else exits the process in order.
#![forbid(unsafe_code)]

mod cli;
mod demo;
mod exit;
mod netcat;
mod perf;
mod process;
mod signals;
mod ss;
mod stat;
mod table;
mod transport;

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command, PerfClientArgs, PerfCommand};
use exit::Failure;
use transport::{Raas, Tcp};

/// Message size of `raas perf lat` if none is given.
const LATENCY_BYTES: u32 = 64;
/// Write size of `raas perf bw` if none is given.
const BANDWIDTH_BYTES: u32 = 256 << 10;
/// Message size of `raas perf rate` if none is given.
const RATE_BYTES: u32 = 64;
/// The name under which this binary is the daemon.
const DAEMON_NAME: &str = "raasd";

fn main() -> ExitCode {
    let cli = Cli::parse_from(arguments(std::env::args_os().collect()));
    if let Err(failure) = start_log(&cli).and_then(|()| run(cli.command)) {
        eprintln!("raas: {failure}");
        return failure.exit_code();
    }
    ExitCode::SUCCESS
}

/// Called as `raasd`, this is `raas daemon`.
fn arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    let name = given.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|n| n == DAEMON_NAME) {
        given.insert(1, "daemon".into());
    }
    given
}

/// Logs go to stderr; stdout belongs to results.
fn start_log(cli: &Cli) -> Result<(), Failure> {
    let default = if matches!(cli.command, Command::Daemon(_)) { "info" } else { "warn" };
    let given = cli.log.clone().or_else(|| std::env::var("RUST_LOG").ok().filter(|v| !v.is_empty()));
    let filter = EnvFilter::try_new(given.as_deref().unwrap_or(default))
        .map_err(|e| Failure::Usage(format!("log filter: {e}; try `info` or `raasd=debug`")))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    Ok(())
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(&demo::Demo {
            path: args.path,
            connections: args.connections,
            apps: args.apps,
            hosts: args.hosts,
            peer_port: args.peer_port,
            seconds_max: args.seconds_max,
            json: args.json,
        }),
        Command::DemoApp(args) => demo::run_app(args.parent),
        Command::Daemon(_) => Err(Failure::Failed("this build contains no daemon".into())),
        Command::Send(args) => {
            let to = cli::resolve(&args.to)?;
            netcat::send(&Raas::attach(args.socket.path(), "raas send")?, &args.file, to)
        }
        Command::Recv(args) => {
            netcat::recv(&Raas::attach(args.socket.path(), "raas recv")?, any_address(args.port), &args.output)
        }
        Command::Ss(args) => ss::run(args.socket.path(), args.json),
        Command::Stat(args) => stat::run(args.socket.path(), args.json),
        Command::Perf(PerfCommand::Server(args)) => {
            let at = any_address(args.port);
            if args.tcp {
                return perf::serve(&Tcp, at);
            }
            perf::serve(&Raas::attach(args.socket.path(), "raas perf server")?, at)
        }
        Command::Perf(PerfCommand::Lat(args)) => measure(&args, perf::Kind::Latency, LATENCY_BYTES),
        Command::Perf(PerfCommand::Bw(args)) => measure(&args, perf::Kind::Bandwidth, BANDWIDTH_BYTES),
        Command::Perf(PerfCommand::Rate(args)) => measure(&args, perf::Kind::Rate, RATE_BYTES),
    }
}

fn any_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

fn measure(args: &PerfClientArgs, kind: perf::Kind, default_bytes: u32) -> Result<(), Failure> {
    let to = cli::resolve(&args.to)?;
    let load = perf::Load {
        kind,
        size_bytes: args.size.unwrap_or(default_bytes),
        connections: args.connections,
        duration: Duration::from_secs_f64(args.seconds),
    };
    let outcome = if args.tcp {
        perf::run_client(&Tcp, to, load)?
    } else {
        perf::run_client(&Raas::attach(args.socket.path(), "raas perf")?, to, load)?
    };
    perf::print(load, &outcome, args.json);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::arguments;

    #[test]
    fn called_as_raasd_it_is_the_daemon() {
        let daemon = arguments(vec!["/usr/sbin/raasd".into(), "--check".into()]);
        assert_eq!(daemon, ["/usr/sbin/raasd", "daemon", "--check"]);
        assert_eq!(arguments(vec!["target/raas".into(), "ss".into()]), ["target/raas", "ss"]);
        assert!(arguments(vec![]).is_empty());
    }
}
