//! `raas daemon`: configuration, log and end of the daemon; its work lies in the crate `raasd`.

mod replace;
mod service;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use monitor::Metrics;
use raasd::{Config, Confinement, DaemonError, Flags, LogFormat, Shutdown};
use serde_json::json;

use crate::cli::DaemonArgs;
use crate::log::Log;
use terminal::Failure;
use terminal::out;

/// How long the daemon may take to end after stdin was closed, before the process ends anyway.
const END_LIMIT: Duration = Duration::from_secs(8);
/// Bytes read from stdin at once; their content means nothing.
const STDIN_BYTES: usize = 256;

/// Runs the daemon until it is told to end; `log` is the filter of the command line, and `start_log` starts logging.
pub(crate) fn run(
    args: DaemonArgs,
    log: Option<String>,
    start_log: impl FnOnce(&str, LogFormat, Log) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let flags = Flags {
        listen: args.listen,
        socket: args.socket,
        device: args.device,
        wire: args.wire,
        encrypt: args.encrypt,
        tcp_direct: args.tcp_direct,
        run_lanes: args.run_lanes,
        engines: args.engines,
        pcap: args.pcap,
        peer_port: args.peer_port,
        udp_port: args.udp_port,
        key_file: args.key_file,
        sandbox: args.sandbox,
        log,
    };
    let mut config = Config::load(args.config.as_deref(), &flags).map_err(|e| Failure::Configuration(e.to_string()))?;
    raasd::raise_descriptor_limit();
    let metrics = metrics(&config)?;
    let starts = !args.check && args.sandbox_probe.is_none();
    if starts {
        let service::Given { socket, kept } = service::given()?;
        config.given_socket = socket.map(Arc::new);
        config.kept = kept.map(Arc::new);
    }
    // Before there is a second thread. What the lines above read and take may be root's alone.
    config.confinement = raasd::confine(&config, starts).map_err(failure)?;
    if let Some(what) = &args.sandbox_probe {
        return probe(&config, what);
    }
    let is_json = config.log_format == LogFormat::Json;
    let queue = Log::to_stderr(is_json).map_err(|e| Failure::failed("no thread to write the log", e))?;
    start_log(&config.log, config.log_format, queue.clone())?;
    if args.check {
        let report = raasd::check(&config).map_err(failure)?;
        let said = format!("configuration ok: host {}, socket {}", config.listen, config.socket.display());
        let lines = report_lines(&report).into_iter().chain(confinement_lines(&config.confinement));
        return out::line(format!("{said}\n{}", lines.collect::<Vec<_>>().join("\n"))).map(drop);
    }
    config.confinement.words.iter().for_each(|words| tracing::info!("{words}"));
    config.confinement.warnings.iter().for_each(|words| tracing::warn!("{words}"));
    raasd::survive_faults().map_err(|e| Failure::failed("cannot prepare for memory that its tenants give back", e))?;
    raasd::take_down_elsewhere().map_err(|e| Failure::failed("no thread to take memory down", e))?;
    queue.take_panics();
    if args.replace {
        config.place_wait = replace::make_way(&config)?;
    }
    let shutdown = Shutdown::on_signals();
    if args.until_stdin_closes {
        end_with_stdin(shutdown.clone(), queue.clone())?;
    }
    let ended = raasd::run(config, shutdown, |socket| {
        say_ready(socket);
        if let Err(error) = service::ready(socket) {
            tracing::error!(%error, "the service manager's watchdog");
        }
        if let Some(metrics) = metrics
            && let Err(error) = monitor::serve_metrics(metrics)
        {
            tracing::error!(%error, "no thread to serve metrics");
        }
    });
    service::stopping();
    let ended = ended.map_err(|e| {
        let failure = failure(e);
        queue.say(&failure.words());
        Failure::Logged(failure.code())
    });
    queue.flush();
    ended
}

/// What the configuration says of metrics, with the token that its file has.
fn metrics(config: &Config) -> Result<Option<Metrics>, Failure> {
    let Some(listen) = config.metrics else { return Ok(None) };
    let token = config.metrics_token_file.as_ref().map(|path| {
        let cannot =
            |why: &dyn std::fmt::Display| Failure::Usage(format!("metrics_token_file {}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| cannot(&e))?;
        let token = text.trim().to_owned();
        if token.is_empty() { Err(cannot(&"it is empty; put a token of your choice there")) } else { Ok(token) }
    });
    Ok(Some(Metrics { listen, socket: config.socket.clone(), token: token.transpose()? }))
}

/// What the daemon would choose by itself, and why.
fn report_lines(report: &raasd::Report) -> Vec<String> {
    let mut lines = vec![format!("device {}: {}", report.decision.device, report.decision.reason)];
    lines.extend(report.decision.alternatives.iter().map(|other| format!("  not: {other}")));
    lines.push(report.keys.clone());
    lines.extend(report.fit.words.iter().cloned());
    lines.extend(report.fit.too_much.iter().chain(&report.served).map(|words| format!("warning: {words}")));
    lines
}

/// What holds the daemon, and what does not.
fn confinement_lines(confinement: &Confinement) -> impl Iterator<Item = String> {
    let warnings = confinement.warnings.iter().map(|words| format!("warning: {words}"));
    confinement.words.iter().cloned().chain(warnings)
}

/// Tries what the daemon must not do; fails if anything of it is done.
fn probe(config: &Config, what: &str) -> Result<(), Failure> {
    let only = (what != "all").then_some(what);
    let unknown = || Failure::Usage(format!("--sandbox-probe: nothing is called `{what}`"));
    let tried = raasd::sandbox_attempts(only).ok_or_else(unknown)?;
    let held = &config.confinement;
    let answer = |a: &raasd::Attempt| json!({ "name": a.name, "refused": a.refused, "answer": a.answer });
    out::line(json!({
        "schema": "raas.sandbox-probe/1",
        "calls_filtered": held.calls_filtered,
        "landlock_abi": held.landlock_abi,
        "words": held.words,
        "warnings": held.warnings,
        "attempts": tried.iter().map(answer).collect::<Vec<_>>(),
    }))?;
    let done: Vec<_> = tried.iter().filter(|a| !a.refused).map(|a| a.name).collect();
    if done.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("nothing refused: {}", done.join(", ")))) }
}

fn say_ready(socket: &Path) {
    let mut out = std::io::stdout().lock();
    // The process that started the daemon may not read its output; the daemon serves all the same.
    let _ = writeln!(out, "ready socket={}", socket.display()).and_then(|()| out.flush());
}

/// Ends the daemon when stdin does, and the process if the daemon does not.
fn end_with_stdin(shutdown: Shutdown, queue: Log) -> Result<(), Failure> {
    let watch = move || {
        let mut ignored = [0; STDIN_BYTES];
        let mut stdin = std::io::stdin().lock();
        loop {
            match stdin.read(&mut ignored) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        shutdown.trigger();
        std::thread::sleep(END_LIMIT);
        queue.say("raas: the daemon did not end in order");
        queue.flush();
        std::process::exit(1);
    };
    let thread = std::thread::Builder::new().name("stdin".into()).spawn(watch);
    thread.map(drop).map_err(|e| Failure::failed("no thread to watch stdin", e))
}

fn failure(e: DaemonError) -> Failure {
    match e {
        DaemonError::Config(e) => Failure::Configuration(e.to_string()),
        DaemonError::Key { .. }
        | DaemonError::Group { .. }
        | DaemonError::User { .. }
        | DaemonError::Sandbox { .. } => Failure::Usage(e.to_string()),
        DaemonError::ForeignPlace { .. } => Failure::Refused(e.to_string()),
        e => Failure::Failed(e.to_string()),
    }
}
