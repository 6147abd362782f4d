//! `raas run`: starts a program with the library that puts its TCP sockets over RaaS (docs/use/run.md).
//!
//! Owns what is said before the program starts. It must never start a program without saying so if its connections
//! will stay on kernel TCP.

mod library;
mod program;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use raas::Session;
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
            command.env("LD_PRELOAD", preloads(&library::library()?));
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

/// The program stays on TCP: that is an error with `--strict`, else a line on stderr.
fn refuse_or_tell(args: &RunArgs, path: &Path, why: &NotOurs) -> Result<(), Failure> {
    let words = format!("{}: {why}", path.display());
    if args.strict {
        return Err(Failure::Refused(words));
    }
    terminal::out::say(format!("raas run: all connections stay on kernel TCP: {words}"));
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
            terminal::out::say(format!("raas run: connections stay on kernel TCP until there is a daemon: {error}"));
            Ok(())
        }
    }
}

/// `$LD_PRELOAD` with the library before what was there.
fn preloads(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}
