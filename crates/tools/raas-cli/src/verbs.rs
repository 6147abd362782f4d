//! `raas verbs`: starts a program with a libibverbs that is a software NIC (docs/use/verbs.md).
//!
//! Owns what the program finds in its environment, and the report at its end. It must never start a program without saying
//! so if it would not get the library.

mod agent;
mod library;
mod report;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use terminal::Failure;

use crate::cli::VerbsArgs;
use report::Report;

/// Environment variables that the library reads.
const ADDRESSES: &str = "RAAS_VERBS_ADDRESSES";
const AGENT: &str = "RAAS_VERBS_AGENT";
const LOG: &str = "RAAS_VERBS_LOG";
const REPORT: &str = "RAAS_VERBS_REPORT";

/// Starts the program: in the place of this process, unless there is to be a report.
pub(crate) fn run(args: &VerbsArgs) -> Result<(), Failure> {
    if let Some(agent) = args.agent {
        return agent::run(agent);
    }
    let Some((program, arguments)) = args.words.split_first() else {
        return Err(Failure::Usage("no program was given".into()));
    };
    let path = crate::run::preloadable(program)?;
    let own = std::env::current_exe().map_err(|e| Failure::failed("the path of this program", e))?;
    let library = library::find(&own)?;
    let mut command = Command::new(&path);
    command.arg0(program).args(arguments);
    command.env("LD_PRELOAD", before(library.file.as_os_str(), "LD_PRELOAD"));
    command.env("LD_LIBRARY_PATH", before(library.names.as_os_str(), "LD_LIBRARY_PATH"));
    command.env(AGENT, &own);
    if !args.address.is_empty() {
        let named: Vec<_> = args.address.iter().map(ToString::to_string).collect();
        command.env(ADDRESSES, named.join(","));
    }
    if args.why {
        command.env(LOG, "1");
    }
    if args.json {
        return to_end(command, &path.display());
    }
    let error = command.exec();
    Err(Failure::Failed(format!("{} cannot be started: {error}", path.display())))
}

/// A list with `first` before what the variable has.
fn before(first: &OsStr, variable: &str) -> OsString {
    let mut all = first.to_owned();
    if let Some(there) = std::env::var_os(variable).filter(|there| !there.is_empty()) {
        all.push(":");
        all.push(there);
    }
    all
}

/// Waits for the program's end, and reports. Ends this process as the program ended.
fn to_end(mut command: Command, name: &dyn std::fmt::Display) -> Result<(), Failure> {
    let report = Report::new().map_err(|e| Failure::failed("no file for the report", e))?;
    command.env(REPORT, report.path());
    // Standard output is the report's alone.
    let err = rustix::io::dup(std::io::stderr()).map_err(|e| Failure::failed("dup", e))?;
    command.stdout(Stdio::from(err));
    let mut child = command.spawn().map_err(|e| Failure::Failed(format!("{name} cannot be started: {e}")))?;
    let pid = rustix::process::Pid::from_child(&child);
    let forward = move |signal| {
        let signal = match signal {
            "SIGTERM" => rustix::process::Signal::TERM,
            "SIGHUP" => rustix::process::Signal::HUP,
            _ => return,
        };
        let _ = rustix::process::kill_process(pid, signal);
    };
    terminal::signals::watch(forward).map_err(|e| Failure::failed("signals", e))?;
    let status = child.wait().map_err(|e| Failure::failed("the program cannot be waited for", e))?;
    terminal::out::line(report.json().map_err(|e| Failure::failed("the report cannot be read", e))?)?;
    // As a shell says how a program ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    drop(report);
    std::process::exit(code)
}
