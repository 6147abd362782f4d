//! The control connection between client and server: one JSON object a line over TCP. It carries parameters before and
//! after a run, never anything while one is measured.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::case::Load;

/// Longest silence of the other side while something is due.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// How long a client tries to reach a server that is still starting.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// Longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;

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

/// One side of the connection.
#[derive(Debug)]
pub(crate) struct Control {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Control {
    /// Waits for one client.
    pub(crate) fn accept(at: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(at).with_context(|| format!("control port {at}"))?;
        let (stream, _) = listener.accept()?;
        // The client may run other devices for long before it asks again.
        Self::over(stream, None)
    }

    /// Connects to a server that may still be starting.
    pub(crate) fn connect(to: SocketAddr) -> Result<Self> {
        let start = Instant::now();
        loop {
            match TcpStream::connect_timeout(&to, Duration::from_secs(5)) {
                Ok(stream) => return Self::over(stream, Some(ANSWER_WITHIN)),
                Err(e) if start.elapsed() > CONNECT_WITHIN => return Err(e).context(format!("no server at {to}")),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn over(stream: TcpStream, timeout: Option<Duration>) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(timeout)?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), writer: stream })
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.writer.write_all(&line).context("the control connection is closed")
    }

    pub(crate) fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        use std::io::Read;
        let mut line = String::new();
        self.reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line).context("waiting for the other side")?;
        if line.is_empty() {
            bail!("the other side closed the control connection");
        }
        serde_json::from_str(&line).with_context(|| format!("not a control message: {line}"))
    }

    /// Sends a request and takes the answer; [`Answer::Failed`] is an error.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Answer> {
        self.send(request)?;
        match self.recv()? {
            Answer::Failed(why) => bail!("server: {why}"),
            answer => Ok(answer),
        }
    }

    /// Readable when a message has come, if none is buffered: true between runs, where each side waits for one line.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}
