//! What client and server say to each other before and after a run.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::case::Load;
use crate::control::Control;

/// How long a client tries to reach a server that is still starting.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);

/// What one end sends to the other about its queue pair and memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Card {
    pub(crate) address: SocketAddr,
    pub(crate) qpn: u32,
    pub(crate) rkey: u32,
    /// Path MTU in bytes.
    pub(crate) mtu: usize,
    /// READs and atomics that it takes at once.
    pub(crate) max_rd_atomic: u8,
    /// Receive budget of a software NIC.
    pub(crate) rx_budget_bytes: u32,
    /// Bits of [`verbs::Capabilities`].
    pub(crate) capabilities: u32,
}

/// One run of a case.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) load: Load,
    pub(crate) bytes: u32,
    pub(crate) depth: u32,
    /// Messages.
    pub(crate) count: u32,
    /// Byte that fills the payload of this run, so that old data cannot pass for new.
    pub(crate) mark: u8,
}

/// Client to server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Make a new queue pair, connected to this one.
    Connect(Card),
    /// Prepare a run, answer [`Answer::Ready`], then do the server's part.
    Run(Run),
    /// The run is over: answer [`Answer::Report`].
    Done,
    /// Nothing more.
    End,
}

/// Server to client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Card(Card),
    Ready,
    /// What is wrong with the data that arrived, if anything, and the device's counters that are not 0.
    Report {
        wrong: Option<String>,
        counters: Vec<(String, u64)>,
    },
    /// The server cannot go on with this queue pair.
    Failed(String),
}

/// Waits for one client.
pub(crate) fn accept(at: SocketAddr) -> Result<Control> {
    let listener = TcpListener::bind(at).with_context(|| format!("control port {at}"))?;
    // The client may run other devices for long before it asks again.
    Control::patient(listener.accept()?.0)
}

/// Connects to a server that may still be starting.
pub(crate) fn connect(to: SocketAddr) -> Result<Control> {
    let start = Instant::now();
    loop {
        match TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
            Ok(stream) => return Control::new(stream),
            Err(e) if start.elapsed() > CONNECT_WITHIN => return Err(e).context(format!("no server at {to}")),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Sends a request and takes the answer; [`Answer::Failed`] is an error.
pub(crate) fn ask(control: &mut Control, request: &Request) -> Result<Answer> {
    control.send(request)?;
    match control.recv()? {
        Answer::Failed(why) => bail!("server: {why}"),
        answer => Ok(answer),
    }
}
