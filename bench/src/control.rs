//! The control connection between the two sides of a measuring program: one JSON value a line over TCP. It carries
//! parameters before and after a run, never anything while one is measured.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

/// Longest silence of the other side while something is due.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// One side.
#[derive(Debug)]
pub(crate) struct Control(BufReader<TcpStream>);

impl Control {
    /// Over a connection that was made.
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Self::patient(stream)
    }

    /// The same, with another side that may be silent for as long as it likes.
    pub(crate) fn patient(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a value.
    pub(crate) fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line).context("the control connection is closed")
    }

    /// Takes the next value.
    pub(crate) fn recv<T: for<'d> Deserialize<'d>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.0.read_line(&mut line).context("waiting for the other side")?;
        ensure!(!line.is_empty(), "the other side closed the control connection");
        serde_json::from_str(&line).with_context(|| format!("not a control message: `{line}`"))
    }

    /// Whether the other side has said something, or has closed.
    pub(crate) fn has_more(&self) -> Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), PollFlags::IN)];
        Ok(!self.0.buffer().is_empty() || poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? > 0)
    }

    /// Readable when the other side has said something that was not read yet.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
