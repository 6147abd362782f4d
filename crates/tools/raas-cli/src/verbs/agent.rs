//! The agent, through which several processes share the device's addresses (`softnic::share`). The library of the first
//! one starts it: a program must not become the parent of a process that it does not know, so the one that it starts hands
//! over to another, and ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use ::verbs::ROCE_UDP_PORT;
use terminal::Failure;

use crate::cli::Agent;

/// What the agent prints when members can come, or another one is there.
const READY: &str = "ready";

pub(super) fn run(what: Agent) -> Result<(), Failure> {
    match what {
        Agent::Start => start(),
        Agent::Serve => serve(),
    }
}

fn start() -> Result<(), Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::failed("the path of this program", e))?;
    let mut command = Command::new(own);
    // Its own group, so that a terminal's signals go to the program alone.
    command.args(["verbs", "--agent", "serve"]).process_group(0).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| Failure::failed("the agent cannot be started", e))?;
    let mut line = String::new();
    let said = child.stdout.take().map(|said| BufReader::new(said).read_line(&mut line));
    match said {
        Some(Ok(_)) if line.trim() == READY => Ok(()),
        _ => Err(Failure::Failed("the agent of the UDP port did not start".into())),
    }
}

fn serve() -> Result<(), Failure> {
    let ready = || {
        let _ = writeln!(std::io::stdout(), "{READY}");
    };
    let mut is_first = false;
    let served = softnic::share::serve(ROCE_UDP_PORT, || {
        is_first = true;
        ready();
    });
    if !is_first && served.is_ok() {
        ready();
    }
    served.map_err(|e| Failure::failed("the agent", e))
}
