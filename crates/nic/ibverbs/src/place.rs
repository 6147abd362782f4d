//! The place of this process among those of its host that share the device's addresses.
//!
//! Owns the start of the agent that lends places (`softnic::share`): the first process that opens the device starts it.

use std::ffi::OsString;
use std::net::IpAddr;
use std::process::{Command, Stdio};

use softnic::Share;
use softnic::share::{ShareError, join};
use verbs::ROCE_UDP_PORT;

/// The command that starts the agent; `raas verbs` sets it to itself. Without it the process has its addresses for itself.
const AGENT: &str = "RAAS_VERBS_AGENT";
/// Tries: an agent whose last member is gone ends, and may do so while this process asks.
const TRIES: usize = 5;

/// A place, from the agent that is there or is started for it; none where nobody said how to start one.
pub(crate) fn find(addresses: &[IpAddr]) -> Result<Option<Share>, ShareError> {
    let agent = std::env::var_os(AGENT);
    for _ in 0..TRIES {
        if let Some(share) = join(ROCE_UDP_PORT, addresses)? {
            return Ok(Some(share));
        }
        let Some(agent) = &agent else { return Ok(None) };
        start(agent)?;
    }
    let gone = std::io::Error::other("it ended each time that it was asked");
    Err(ShareError::Os(gone))
}

/// Starts the agent, and waits until it serves.
fn start(agent: &OsString) -> Result<(), ShareError> {
    let mut command = Command::new(agent);
    command.args(["verbs", "--agent", "start"]).stdin(Stdio::null()).stdout(Stdio::null());
    // It is none of the programs that this library is for.
    command.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH").env_remove(AGENT);
    match command.status() {
        Ok(ended) if !ended.success() => {
            Err(std::io::Error::other(format!("{} could not start it: {ended}", agent.display())).into())
        }
        // A program that has its children collected for it leaves no end to be seen.
        Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(error.into()),
        _ => Ok(()),
    }
}
