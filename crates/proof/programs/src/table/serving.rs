//! A server while its client runs: its process group, its words, and what the daemons say of its connections meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::tail;
use crate::place::{End, Place};

/// How long a server has to end by itself.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(5);
/// Between two looks at the daemon's connections.
const LOOK: Duration = Duration::from_millis(10);
/// What the daemon told of connections that have carried bytes.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Programs with one over RaaS, as they call themselves; empty where that is not known.
    pub(super) over: BTreeSet<String>,
    /// Why others were on TCP.
    pub(super) reasons: BTreeSet<String>,
}

/// The path of a connection that is not over RaaS.
const TCP: &str = "tcp";

/// A started server; it ends with its owner.
#[derive(Debug)]
pub(super) struct Serving {
    child: Child,
    log: PathBuf,
}

impl Serving {
    pub(super) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn last_words(&self) -> String {
        tail(&self.log)
    }
}

impl Drop for Serving {
    /// Politely, then for certain. The group is its leader's, who is not waited for before.
    fn drop(&mut self) {
        let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        for signal in [Signal::TERM, Signal::KILL] {
            if self.has_ended() {
                break;
            }
            // It is gone already if this fails, which is what is wanted.
            let _ = kill_process_group(group, signal);
            let sent = Instant::now();
            while sent.elapsed() < GRACE && !self.has_ended() {
                std::thread::sleep(POLL);
            }
        }
    }
}

/// A thread that asks a place's daemons for their connections until it is ended.
#[derive(Debug)]
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Seen>>,
}

/// Watches the place, if its connections are to go over RaaS.
pub(super) fn watch(place: &Place) -> Watch {
    let stop = Arc::new(AtomicBool::new(false));
    let command = place.raas(End::Server, &["ss", "--json"]).filter(|_| place.way.is_raas());
    let thread = command.map(|mut command| {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut seen = Seen::default();
            while !stop.load(Ordering::Relaxed) {
                look(&mut command, &mut seen);
                std::thread::sleep(LOOK);
            }
            seen
        })
    });
    Watch { stop, thread }
}

fn look(command: &mut Command, seen: &mut Seen) {
    let Ok(output) = command.stderr(Stdio::null()).output() else { return };
    let Ok(told) = serde_json::from_slice::<Value>(&output.stdout) else { return };
    let carried = |row: &Value| ["tx_bytes", "rx_bytes"].iter().any(|key| row[*key].as_u64().is_some_and(|n| n > 0));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for row in told["connections"].as_array().into_iter().flatten() {
        match row["path"].as_str() {
            Some(TCP) => _ = seen.reasons.insert(text(&row["reason"])),
            Some(_) if carried(row) => _ = seen.over.insert(text(&row["program"])),
            _ => {}
        }
    }
}

impl Watch {
    /// What was seen.
    pub(super) fn end(mut self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
