//! The `raas` command. This file starts logging, runs the command and turns its failure into the exit code; nothing
//! else exits the process in order.
//!
//! Owns the command line, and exit codes. It must never have a part of the product that a program could need. May use
//! `control`, `demo`, `monitor`, `raas`, `raas-group`, `raas-preload`, `raasd`, `rdmacore`, `shm`, `softnic`,
//! `terminal`, `transport`, `verbs`. Order of calls: none: it is a program.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)] // see `terminal::out`

mod calibrate;
mod cli;
mod cluster;
mod daemon;
mod device;
mod doctor;
mod group;
mod lane;
mod log;
mod manual;
mod netcat;
mod perf;
mod policy;
mod region;
mod route;
mod run;
mod ss;
mod stat;
mod top;
mod trace;
mod verbs;
mod version;
mod web;
mod why;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use raasd::LogFormat;

use cli::{Cli, Command, FallbackTo, LaneCommand, PerfClientArgs, PerfCommand, PolicyCommand};
use terminal::{Failure, out};
use transport::{FallingBack, Raas, Tcp};

/// Message size of `raas perf lat` if none is given.
const LATENCY_BYTES: u32 = 64;
/// Write size of `raas perf bw` if none is given.
const BANDWIDTH_BYTES: u32 = 256 << 10;
/// Message size of `raas perf rate` if none is given.
const RATE_BYTES: u32 = 64;
/// What is logged by default. The commands themselves report the use of kernel TCP, once, so the library's lines about
/// it are off.
const LOG_DEFAULT: &str = "warn,raas::fallback=off,raas::bind=off";
/// The name under which this binary is the daemon.
const DAEMON_NAME: &str = "raasd";

fn main() -> ExitCode {
    let outcome = match Cli::try_parse_from(arguments(std::env::args_os().collect())) {
        Ok(cli) => run(cli),
        Err(e) => return help(&e),
    };
    exit(outcome)
}

fn exit(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            failure.exit_code()
        }
    }
}

/// Help and version go to stdout and can fail there as any result; what is wrong with a command line goes to stderr.
fn help(e: &clap::Error) -> ExitCode {
    let printed = e.print();
    if e.use_stderr() {
        return ExitCode::from(terminal::USAGE);
    }
    exit(out::written(printed).map(drop))
}

/// Called as `raasd`, this is `raas daemon`.
fn arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    let name = given.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|n| n == DAEMON_NAME) {
        given.insert(1, "daemon".into());
    }
    given
}

/// Starts logging to stderr (stdout belongs to results): by the command line, else by `$RUST_LOG`, else by `default`.
/// With a queue, a line that cannot be written holds up nobody.
fn start_log(given: Option<&str>, default: &str, format: LogFormat, queue: Option<log::Log>) -> Result<(), Failure> {
    let variable = std::env::var("RUST_LOG").ok().filter(|v| !v.is_empty());
    let filter = given.or(variable.as_deref()).unwrap_or(default);
    let filter: Targets = filter
        .parse()
        .map_err(|e| Failure::Usage(format!("log filter `{filter}`: {e}; try `info` or `raasd=debug`")))?;
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE);
    let lines = lines.with_ansi(colours).log_internal_errors(false);
    match queue {
        Some(log) if format == LogFormat::Json => lines.json().with_writer(log).finish().with(filter).init(),
        Some(log) => lines.with_writer(log).finish().with(filter).init(),
        None => lines.with_writer(std::io::stderr).finish().with(filter).init(),
    }
    Ok(())
}

fn run(cli: Cli) -> Result<(), Failure> {
    if cli.socket.path().is_some() && !cli.command.has_socket() {
        return Err(Failure::Usage("--socket: this command has nothing to do with a daemon's socket".into()));
    }
    let log = cli.log;
    // The daemon's configuration may name a filter, so it starts its log itself.
    if !matches!(cli.command, Command::Daemon(_)) {
        start_log(log.as_deref(), LOG_DEFAULT, LogFormat::Text, None)?;
    }
    match cli.command {
        Command::Daemon(args) => daemon::run(args, log.clone(), |default, format, queue| {
            start_log(log.as_deref(), default, format, Some(queue))
        }),
        Command::Demo(args) => demo::run(&demo::Demo {
            ports: args.ports(),
            path: args.path,
            connections: args.connections,
            apps: args.apps,
            hosts: args.hosts,
            wire: args.wire,
            engines: args.engines,
            seconds_max: args.seconds_max,
            json: args.json,
            log,
        }),
        Command::DemoApp(args) => demo::run_app(args.parent),
        Command::DemoEcho(args) => demo::run_echo(&demo::Echo { parent: args.parent, ip: args.ip, port: args.port }),
        Command::Send(args) => {
            let (socket, name) = (args.socket.path(), "raas send");
            let to = cli::resolve(&args.to, socket)?;
            match args.fallback.fallback {
                None => netcat::send(&Raas::attach(socket, name)?, &args.file, &to),
                Some(FallbackTo::Tcp) => netcat::send(&FallingBack::attach(socket, name)?, &args.file, &to),
            }
        }
        Command::Recv(args) => {
            let (socket, name, at) = (args.socket.path(), "raas recv", any_address(args.port));
            match args.fallback.fallback {
                None => netcat::recv(&Raas::attach(socket, name)?, at, &args.output),
                Some(FallbackTo::Tcp) => netcat::recv(&FallingBack::attach(socket, name)?, at, &args.output),
            }
        }
        Command::Ss(args) => ss::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Cluster(args) => cluster::run(&args),
        Command::Top(args) => top::run(args.socket.path(), args.interval),
        Command::Trace(args) => trace::run(&args),
        Command::Web(args) => web::run(args.socket.path(), args.listen),
        Command::Why(args) => why::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Man(args) => manual::man(args.dir.as_deref()),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Device(args) => device::run(args.listen, args.json),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Lane(LaneCommand::Reset(args)) => lane::reset(&args),
        Command::Group(command) => group::run(&command),
        Command::Region(command) => region::run(&command),
        Command::Policy(PolicyCommand::Check(args)) => policy::check(&args),
        Command::Run(args) => run::run(&args),
        Command::Verbs(args) => verbs::run(&args),
        Command::Perf(PerfCommand::Server(args)) => {
            let at = any_address(args.port);
            if args.tcp {
                return perf::serve(&Tcp, at);
            }
            let (socket, name) = (args.socket.path(), "raas perf server");
            match args.fallback.fallback {
                None => perf::serve(&Raas::attach(socket, name)?, at),
                Some(FallbackTo::Tcp) => perf::serve(&FallingBack::attach(socket, name)?, at),
            }
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
    let found = cli::resolve(&args.to, args.socket.path())?;
    let Some(&to) = found.first() else { return Err(Failure::Usage(format!("{}: no address of that name", args.to))) };
    let load = perf::Load {
        kind,
        size_bytes: args.size.unwrap_or(default_bytes),
        connections: args.connections,
        duration: Duration::from_secs_f64(args.seconds),
    };
    let (socket, name) = (args.socket.path(), "raas perf");
    let outcome = match (args.tcp, args.fallback.fallback) {
        (true, _) => perf::run_client(&Tcp, to, load)?,
        (false, None) => perf::run_client(&Raas::attach(socket, name)?, to, load)?,
        (false, Some(FallbackTo::Tcp)) => perf::run_client(&FallingBack::attach(socket, name)?, to, load)?,
    };
    perf::print(load, &outcome, args.json)
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
