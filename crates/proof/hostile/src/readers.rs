//! Tools that ask the daemon for a long table again and again and read no answer.
//!
//! Owns the table that they ask for and the bound of what they may cost. The daemon's memory is the kernel's word.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::{APP_VERSION, ChannelError, Cursor, InspectQuery, PAGE_BYTES, Reply, Request, Role, send_message};
use shm::LAYOUT_VERSION;

use crate::host::{Footprint, Host, eventually};
use crate::raw::{PATIENCE, RawApp, dial, receive};

/// Programs that make the table long, and rows of each: as many as the daemon keeps of one.
const PROGRAMS: u64 = 4;
const ROWS: u64 = 4096;
/// Tools that do not read.
const SILENT: usize = 16;
/// What they may cost: a page each, and as much again and 2 MiB for the allocator. The table for one of them has more
/// than 1 MB.
const GROWTH_MAX: u64 = 2 * (SILENT * PAGE_BYTES) as u64 + (2 << 20);

/// Lets them attack a daemon. The daemon must detach each once its socket is full, and its memory must stay within the
/// bound.
pub fn silent(host: &Host) -> Result<String> {
    let programs = (0..PROGRAMS).map(|_| teller(host)).collect::<Result<Vec<_>>>()?;
    eventually("the table is as long as was told", || {
        let rows = raas::inspect::connections(Some(&host.socket))?.len() as u64;
        Ok(if rows >= PROGRAMS * ROWS { Ok(()) } else { Err(rows) })
    })?;
    let tools = (0..SILENT).map(|_| inspector(host)).collect::<Result<Vec<_>>>()?;
    let before = Footprint::of(host.pid())?.anonymous_bytes;
    let (start, mut open, mut peak, mut questions) = (Instant::now(), tools.iter().collect::<Vec<_>>(), 0, 0u64);
    while !open.is_empty() {
        questions += 1;
        let mut failed = None;
        open.retain(|tool| match ask(tool, questions) {
            Ok(stays) => stays,
            Err(e) => failed.replace(e).is_some(),
        });
        failed.map_or(Ok(()), Err).context("a question")?;
        peak = Footprint::of(host.pid())?.anonymous_bytes.max(peak);
        ensure!(start.elapsed() < PATIENCE, "{} tools ask on and are not put out", open.len());
        std::thread::sleep(Duration::from_millis(2));
    }
    let grown = peak.saturating_sub(before);
    ensure!(grown <= GROWTH_MAX, "{SILENT} tools cost {grown} bytes, more than {GROWTH_MAX}");
    drop(programs);
    Ok(format!("{SILENT} tools, {} rows, {grown} of {GROWTH_MAX} bytes", PROGRAMS * ROWS))
}

/// A program that says that it has many connections over kernel TCP: the daemon keeps a row of each.
fn teller(host: &Host) -> Result<RawApp> {
    let app = RawApp::attach(&host.socket, "tells")?;
    let (local, peer) = ("10.0.0.1:1".parse()?, "10.0.0.2:2".parse()?);
    let start = Instant::now();
    for number in 0..ROWS {
        while let Err(e) = send_message(app.socket().as_fd(), &Request::TcpOpened { number, local, peer }, &[]) {
            ensure!(matches!(e, ChannelError::WouldBlock) && start.elapsed() < PATIENCE, "row {number}: {e}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(app)
}

fn inspector(host: &Host) -> Result<OwnedFd> {
    let socket = dial(&host.socket)?;
    let hello = Request::Hello {
        version: APP_VERSION,
        layout: LAYOUT_VERSION,
        role: Role::Inspector,
        name: "does not read".into(),
    };
    send_message(socket.as_fd(), &hello, &[])?;
    let (reply, _) = receive(&socket, &mut Vec::new(), Instant::now() + PATIENCE)?;
    ensure!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
    Ok(socket)
}

/// False: the daemon has put the tool out.
fn ask(tool: &OwnedFd, request: u64) -> Result<bool, ChannelError> {
    let question = Request::Inspect { request, query: InspectQuery::Connections, from: Cursor { table: 2, at: 0 } };
    match send_message(tool.as_fd(), &question, &[]) {
        Ok(()) | Err(ChannelError::WouldBlock) => Ok(true),
        Err(ChannelError::Closed) => Ok(false),
        Err(e) => Err(e),
    }
}
