//! `raas run`: starts a program with the library that puts its TCP sockets over RaaS (docs/use/run.md).
//!
//! Owns what is said before the program starts. It must never start a program without saying so if its connections
//! will stay on kernel TCP.

mod library;
mod needed;
pub(crate) mod probe;
mod program;
mod summary;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use raas::Session;
use rustix::net::AddressFamily;
use terminal::Failure;

use crate::cli::RunArgs;
use program::{NotOurs, Program};
use summary::Summary;

/// Starts the program: in the place of this process, unless there is to be a summary.
pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    let Some((program, arguments)) = args.words.split_first() else {
        return Err(Failure::Usage("no program was given".into()));
    };
    let found = Program::find(program).map_err(|e| Failure::Usage(e.to_string()))?;
    let mut command = Command::new(&found.path);
    command.arg0(program).args(arguments);
    match found.judge() {
        Ok(()) => {
            command.env("LD_PRELOAD", preloads(&for_glibc_alone(&library::library()?), needed::sanitizer(&found.path)));
            if requires_encryption(args)? {
                command.env("RAAS_RUN_ENCRYPT", "required");
            }
        }
        Err(why) => refuse_or_tell(args, &found.path, &why)?,
    }
    if let Some(socket) = args.socket.path() {
        command.env("RAAS_SOCKET", socket);
    }
    if args.summary {
        return run_to_end(command, &found.path);
    }
    let error = command.exec();
    Err(Failure::Failed(format!("{} cannot be started: {error}", found.path.display())))
}

/// The file of a program into which a library can be preloaded.
pub(crate) fn preloadable(program: &OsStr) -> Result<PathBuf, Failure> {
    let found = Program::find(program).map_err(|e| Failure::Usage(e.to_string()))?;
    match found.judge() {
        Ok(()) => Ok(found.path),
        Err(why) => Err(Failure::Refused(format!("{}: {why}", found.path.display()))),
    }
}

/// Words for the person who started the program: not where descriptor 2 is somebody's connection, as inetd starts programs.
fn tell(words: String) {
    let domain = rustix::net::sockopt::socket_domain(std::io::stderr());
    if !matches!(domain, Ok(AddressFamily::INET | AddressFamily::INET6)) {
        terminal::out::say(words);
    }
}

/// Waits for the program's end, and says what became of its connections. Ends this process as the program ended.
fn run_to_end(mut command: Command, path: &Path) -> Result<(), Failure> {
    let failed = |what: &str, e: std::io::Error| Failure::Failed(format!("{what}: {e}"));
    let summary = Summary::new().map_err(|e| failed("no file for the summary", e))?;
    command.env("RAAS_RUN_SUMMARY", summary.path());
    let mut child = command.spawn().map_err(|e| failed(&format!("{} cannot be started", path.display()), e))?;
    let pid = rustix::process::Pid::from_child(&child);
    // A terminal sends its own to both.
    let forward = move |name| {
        let signal = match name {
            "SIGTERM" => rustix::process::Signal::TERM,
            "SIGHUP" => rustix::process::Signal::HUP,
            _ => return,
        };
        let _ = rustix::process::kill_process(pid, signal);
    };
    terminal::signals::watch(forward).map_err(|e| failed("signals", e))?;
    let status = child.wait().map_err(|e| failed("the program cannot be waited for", e))?;
    let words = summary.words().map_err(|e| failed("the summary cannot be read", e))?;
    tell(format!("raas run: {words}"));
    // As a shell says how a program ended.
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    drop(summary);
    std::process::exit(code)
}

/// The program stays on TCP: that is an error with `--strict`, else a line on stderr.
fn refuse_or_tell(args: &RunArgs, path: &Path, why: &NotOurs) -> Result<(), Failure> {
    let words = format!("{}: {why}", path.display());
    if args.strict {
        return Err(Failure::Refused(words));
    }
    if session(args).is_ok_and(|session| session.requires_encryption()) {
        return Err(Failure::Refused(format!("this host has encrypt = \"required\"; {words}")));
    }
    tell(format!("raas run: all connections stay on kernel TCP: {words}"));
    Ok(())
}

fn session(args: &RunArgs) -> Result<Session, raas::SessionError> {
    let mut builder = Session::builder().name("raas run");
    if let Some(socket) = args.socket.path() {
        builder = builder.socket(socket);
    }
    builder.connect()
}

/// Whether the daemon lets connections to other hosts be in the clear; says so if there is none to ask.
fn requires_encryption(args: &RunArgs) -> Result<bool, Failure> {
    match session(args) {
        Ok(session) => {
            if args.strict
                && let probe::Tried::Stays(reason) = probe::upgrade(&session)
            {
                let words = "a TCP connection of this network namespace would not be upgraded";
                return Err(Failure::Refused(format!("{words}: {}: {reason}", reason.key())));
            }
            Ok(session.requires_encryption())
        }
        Err(error) if args.strict => Err(transport::session_failure(error)),
        Err(error) => {
            tell(format!("raas run: connections stay on kernel TCP until there is a daemon: {error}"));
            Ok(false)
        }
    }
}

/// A path by which glibc's dynamic linker finds the library and another one finds nothing, which it passes over: what the
/// program starts later may be linked with another C library, and that one would load the library and fail. Glibc puts
/// the directory of its own libraries in the place of `$LIB`, and from there the path goes back to the root.
fn for_glibc_alone(library: &Path) -> PathBuf {
    let Some(name) = library.file_name() else { return library.to_owned() };
    let tried = ["/usr", ""].map(|root| format!("{root}/$LIB/../../../../../..{}", library.display()));
    let is_loaded = |path: &&String| {
        // What the dynamic linker would load into this very program.
        let mut trial = Command::new("/proc/self/exe");
        trial.env_clear().env("LD_TRACE_LOADED_OBJECTS", "1").env("LD_PRELOAD", path).stdin(Stdio::null());
        let said = trial.output().map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default();
        // A line is `NAME => PATH (ADDRESS)`.
        library.is_absolute() && said.lines().any(|line| line.contains(&*name.to_string_lossy()) && line.ends_with(')'))
    };
    tried.iter().find(is_loaded).map_or(library.to_owned(), PathBuf::from)
}

/// `$LD_PRELOAD` with the library before what was there, and `first` before both.
fn preloads(library: &Path, first: Option<String>) -> OsString {
    let mut all = OsString::new();
    if let Some(first) = first {
        all.push(first);
        all.push(":");
    }
    all.push(library.as_os_str());
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
