//! An application that goes to a named step of connect, transfer or close, says so, and waits for its end.
//!
//! Owns the list of steps. It must never go on by itself: the process that started it kills it.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control::{Reply, Request, send_message};
use raas::{Listener, Session, Stream};
use shm::app_flag;

use crate::breach::Target;
use crate::raw::{RawApp, RawConnection, dial, hello};

/// What the witness at the other end must be told of a death at the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeathNotice {
    /// There is no connection that a witness could have taken, or it may go either way.
    Nothing,
    /// The connection breaks.
    Break,
    /// The other side had said its last byte: an orderly end.
    Orderly,
}

/// A step: its name, which witness is told of the death, and how.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Its name.
    pub name: &'static str,
    /// Whether the connection is one to a process of this host.
    pub is_near: bool,
    /// Whether the witness writes rather than reads.
    pub is_reading: bool,
    /// What the witness is told.
    pub notice: DeathNotice,
}

const fn step(name: &'static str, notice: DeathNotice) -> Step {
    Step { name, is_near: false, is_reading: false, notice }
}

const fn near(name: &'static str, notice: DeathNotice) -> Step {
    Step { name, is_near: true, is_reading: false, notice }
}

/// Every step.
pub const STEPS: &[Step] = &[
    step("dialled", DeathNotice::Nothing),
    step("hello-said", DeathNotice::Nothing),
    step("attached", DeathNotice::Nothing),
    step("listening", DeathNotice::Nothing),
    step("connect-asked", DeathNotice::Nothing),
    step("connect-cancelled", DeathNotice::Nothing),
    step("connected-slot-untouched", DeathNotice::Break),
    step("slot-taken", DeathNotice::Break),
    step("bytes-written-tail-old", DeathNotice::Break),
    step("tail-stored-not-rung", DeathNotice::Break),
    step("rung", DeathNotice::Break),
    step("transferring", DeathNotice::Break),
    Step { name: "reading", is_near: false, is_reading: true, notice: DeathNotice::Break },
    step("fin-stored-not-rung", DeathNotice::Nothing),
    step("fin-rung", DeathNotice::Orderly),
    step("stopped-reading", DeathNotice::Break),
    step("aborted", DeathNotice::Break),
    step("closed-not-rung", DeathNotice::Nothing),
    step("closed-and-rung", DeathNotice::Orderly),
    near("near-connect-asked", DeathNotice::Nothing),
    near("near-segment-wanted", DeathNotice::Nothing),
    near("near-connected", DeathNotice::Break),
    near("near-transferring", DeathNotice::Break),
    Step { name: "near-reading", is_near: true, is_reading: true, notice: DeathNotice::Break },
    near("near-fin", DeathNotice::Orderly),
    near("near-listening-with-backlog", DeathNotice::Nothing),
];

/// How long a victim waits for its end.
const LONGEST_LIFE: Duration = Duration::from_secs(120);

/// Goes to the step, prints `at STEP`, and waits. `cycle` never stops by itself: connects, sends, closes, again and
/// again.
pub fn run(name: &str, target: Target<'_>) -> Result<()> {
    if name == "cycle" {
        return cycle(target);
    }
    let held = if name.starts_with("near-") { near_step(name, target)? } else { raw_step(name, target)? };
    println!("at {name}");
    std::io::stdout().flush()?;
    std::thread::sleep(LONGEST_LIFE);
    drop(held);
    bail!("nobody ended this victim")
}

/// Whatever must stay open while the victim waits.
type Held = Box<dyn std::any::Any>;

fn raw_step(name: &str, target: Target<'_>) -> Result<Held> {
    let socket = dial(target.socket)?;
    if name == "dialled" {
        return Ok(Box::new(socket));
    }
    send_message(socket.as_fd(), &hello("victim"), &[])?;
    if name == "hello-said" {
        return Ok(Box::new(socket));
    }
    let mut app = RawApp::welcomed(socket)?;
    match name {
        "attached" => return Ok(Box::new(app)),
        "listening" => {
            app.listen(16)?;
            return Ok(Box::new(app));
        }
        _ => {}
    }
    let request = app.ask(target.far, 65_536)?;
    match name {
        "connect-asked" => return Ok(Box::new(app)),
        "connect-cancelled" => {
            app.send(&Request::CancelConnect { request }, &[])?;
            return Ok(Box::new(app));
        }
        "connected-slot-untouched" => {
            app.wait_for(|r| matches!(r, Reply::Connected { .. }).then_some(()))?;
            return Ok(Box::new(app));
        }
        _ => {}
    }
    let connection = app.connected(request)?;
    at_slot(name, &mut app, &connection)?;
    Ok(Box::new(app))
}

fn at_slot(name: &str, app: &mut RawApp, connection: &RawConnection) -> Result<()> {
    let words = &connection.words;
    let send = |app: &RawApp, bytes: u64| -> Result<()> {
        connection.tx.0.write(connection.tx.1, &vec![7; bytes as usize])?;
        words.tx_tail.store(bytes, Ordering::Release);
        app.ring(connection.slot);
        Ok(())
    };
    let flag = |app: &RawApp, flags: u32, rings: bool| {
        words.app_flags.store(flags, Ordering::Release);
        if rings {
            app.ring(connection.slot);
        }
    };
    let closed = app_flag::FIN | app_flag::STOP | app_flag::CLOSED;
    match name {
        "slot-taken" => {}
        "bytes-written-tail-old" => connection.tx.0.write(connection.tx.1, &[7; 1000])?,
        "tail-stored-not-rung" => words.tx_tail.store(1000, Ordering::Release),
        "rung" => {
            words.tx_tail.store(1000, Ordering::Release);
            crate::raw::mark(&app.session, connection.slot);
        }
        "transferring" => stream_on(app.session.clone(), connection.clone()),
        "reading" => {
            let start = Instant::now();
            while words.rx_tail.load(Ordering::Acquire) < connection.ring_bytes / 2 {
                if start.elapsed() > crate::raw::PATIENCE {
                    bail!("nothing to read");
                }
                std::thread::yield_now();
            }
        }
        "fin-stored-not-rung" => flag(app, app_flag::FIN, false),
        "fin-rung" => {
            send(app, 1000)?;
            flag(app, app_flag::FIN, true);
            settle(words, 1000)?;
        }
        "stopped-reading" => flag(app, app_flag::STOP, true),
        "aborted" => {
            send(app, 1000)?;
            flag(app, app_flag::ABORT | closed, true);
        }
        "closed-not-rung" => flag(app, closed, false),
        "closed-and-rung" => {
            send(app, 1000)?;
            settle(words, 1000)?;
            flag(app, closed, true);
        }
        other => bail!("no step {other}"),
    }
    Ok(())
}

/// Waits until the peer has consumed what was sent.
fn settle(words: &shm::SlotWords, bytes: u64) -> Result<()> {
    let start = Instant::now();
    while words.tx_head.load(Ordering::Acquire) < bytes {
        if start.elapsed() > crate::raw::PATIENCE {
            bail!("the peer does not read");
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Keeps the ring full from a thread of its own.
fn stream_on(session: shm::Session, connection: RawConnection) {
    std::thread::spawn(move || {
        loop {
            let head = connection.words.tx_head.load(Ordering::Acquire);
            connection.words.tx_tail.store(head.wrapping_add(connection.ring_bytes), Ordering::Release);
            crate::raw::mark(&session, connection.slot);
            std::thread::sleep(Duration::from_micros(50));
        }
    });
}

fn near_step(name: &str, target: Target<'_>) -> Result<Held> {
    if matches!(name, "near-connect-asked" | "near-segment-wanted") {
        let mut app = RawApp::attach(target.socket, "victim")?;
        app.ask(target.near, 0)?;
        if name == "near-segment-wanted" {
            app.wait_for(|r| matches!(r, Reply::PairSegmentWanted { .. }).then_some(()))?;
        }
        return Ok(Box::new(app));
    }
    let session = Session::builder().socket(target.socket).name("victim").connect()?;
    if name == "near-listening-with-backlog" {
        let listener = Listener::bind_with(&session, (target.near.ip(), 0))?;
        let at = listener.local_addr()?;
        let other = Session::builder().socket(target.socket).name("victim-too").connect()?;
        let waiting = std::thread::spawn(move || Stream::connect_with(&other, at));
        let (first, _) = listener.accept_timeout(crate::raw::PATIENCE)?;
        let second = waiting.join().map_err(|_| anyhow::anyhow!("the connecting thread panicked"))??;
        return Ok(Box::new((session, listener, first, second)));
    }
    let mut stream = Stream::connect_with(&session, target.near)?;
    match name {
        "near-connected" => {}
        "near-transferring" => {
            let mut writer = stream;
            std::thread::spawn(move || while writer.write_all(&[7; 4096]).is_ok() {});
            std::thread::sleep(Duration::from_millis(5));
            return Ok(Box::new(session));
        }
        "near-reading" => stream.read_exact(&mut [0; 100_000])?,
        "near-fin" => {
            stream.write_all(b"last words")?;
            stream.shutdown(std::net::Shutdown::Write)?;
        }
        other => bail!("no step {other}"),
    }
    Ok(Box::new((session, stream)))
}

/// Connects, sends and closes, to the other host and to this one in turn.
fn cycle(target: Target<'_>) -> Result<()> {
    println!("at cycle");
    std::io::stdout().flush()?;
    let end = Instant::now() + LONGEST_LIFE;
    while Instant::now() < end {
        let session = Session::builder().socket(target.socket).name("victim").connect().context("session")?;
        for to in [target.far, target.near] {
            let mut stream = Stream::connect_with(&session, to).context("connect")?;
            stream.write_all(&[7; 30_000]).context("write")?;
            stream.shutdown(std::net::Shutdown::Write).context("shutdown")?;
        }
    }
    bail!("nobody ended this victim")
}
