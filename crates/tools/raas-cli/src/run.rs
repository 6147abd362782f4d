//! `raas run`: starts a program with the library that puts its TCP sockets over RaaS (docs/use/run.md).
//!
//! Owns what is said before the program starts. It must never start a program without saying so if its connections
//! will stay on kernel TCP.

mod library;
mod needed;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use raas::Session;
use rustix::net::AddressFamily;
use terminal::Failure;

use crate::cli::RunArgs;
use program::{NotOurs, Program};

/// Starts the program in the place of this process. It returns only if that fails.
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
            tell_of_daemon(args)?;
        }
        Err(why) => refuse_or_tell(args, &found.path, &why)?,
    }
    if let Some(socket) = args.socket.path() {
        command.env("RAAS_SOCKET", socket);
    }
    let error = command.exec();
    Err(Failure::Failed(format!("{} cannot be started: {error}", found.path.display())))
}

/// Words for the person who started the program: not where descriptor 2 is somebody's connection, as inetd starts programs.
fn tell(words: String) {
    let domain = rustix::net::sockopt::socket_domain(std::io::stderr());
    if !matches!(domain, Ok(AddressFamily::INET | AddressFamily::INET6)) {
        terminal::out::say(words);
    }
}

/// The program stays on TCP: that is an error with `--strict`, else a line on stderr.
fn refuse_or_tell(args: &RunArgs, path: &Path, why: &NotOurs) -> Result<(), Failure> {
    let words = format!("{}: {why}", path.display());
    if args.strict {
        return Err(Failure::Refused(words));
    }
    tell(format!("raas run: all connections stay on kernel TCP: {words}"));
    Ok(())
}

fn tell_of_daemon(args: &RunArgs) -> Result<(), Failure> {
    let mut builder = Session::builder().name("raas run");
    if let Some(socket) = args.socket.path() {
        builder = builder.socket(socket);
    }
    match builder.connect() {
        Ok(_) => Ok(()),
        Err(error) if args.strict => Err(transport::session_failure(error)),
        Err(error) => {
            tell(format!("raas run: connections stay on kernel TCP until there is a daemon: {error}"));
            Ok(())
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
