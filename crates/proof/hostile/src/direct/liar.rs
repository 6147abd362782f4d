//! An application that lies on its stream's own TCP connection, to a polite reader on another host.
//!
//! Owns the lies, and what the reader may find. A lie may spoil its own stream; what the reader gets is what was
//! written, from the beginning on, and then an end that it is told.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use raas::{Listener, Stream, StreamError};
use shm::{app_flag, engine_flag, slot_state};

use super::Bytes;
use crate::host::{Host, WATCHDOG};
use crate::polite::session;
use crate::raw::{RawApp, RawConnection};
use crate::witness::End;

const RING_BYTES: u32 = 65_536;
/// Bytes that are written to the ring at a time.
const PIECE: usize = 16 << 10;
/// A stream that is no bulk after so many bytes never will be.
const LANE_BYTES_MAX: u64 = 256 << 20;
/// What is written after the lie.
const AFTER: u64 = 1 << 20;
/// Words on such a connection (docs/inside/kernel-tcp.md).
const READY: u8 = b'Q';
const GRANT: u8 = b'G';
const SWITCH: u8 = b'W';

/// What the reader must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finds {
    /// Everything that was written, and the end in order.
    All,
    /// A reset, before which everything is right.
    Reset,
}

/// One lie.
#[derive(Debug)]
pub(super) struct Lie {
    pub(super) name: &'static str,
    finds: Finds,
    tell: fn(&mut Liar) -> Result<()>,
}

pub(super) const ALL: &[Lie] = &[
    Lie { name: "says nothing", finds: Finds::All, tell: |liar| liar.write(AFTER) },
    Lie {
        name: "closes at once",
        finds: Finds::All,
        tell: |liar| {
            liar.direct = None;
            liar.write(AFTER)
        },
    },
    Lie { name: "says another word", finds: Finds::All, tell: |liar| liar.say(b"X").and_then(|()| liar.write(AFTER)) },
    Lie {
        name: "grants before it says that it is there",
        finds: Finds::All,
        tell: |liar| liar.say(&[GRANT, READY]).and_then(|()| liar.write(AFTER)),
    },
    Lie {
        name: "closes after the first word",
        finds: Finds::All,
        tell: |liar| {
            liar.say(&[READY])?;
            liar.direct = None;
            liar.write(AFTER)
        },
    },
    Lie {
        name: "closes within the switch",
        finds: Finds::All,
        tell: |liar| {
            liar.settle()?;
            liar.say(&[SWITCH, 0, 0, 0])?;
            liar.direct = None;
            liar.write(AFTER)
        },
    },
    Lie {
        name: "says that it is there twice",
        finds: Finds::Reset,
        // A reader of a busy ring looks at this connection from time to time: the lie goes on until it was heard.
        tell: |liar| liar.say(&[READY, READY]).and_then(|()| liar.write(LANE_BYTES_MAX)),
    },
    Lie {
        name: "switches with another word",
        finds: Finds::Reset,
        tell: |liar| {
            liar.settle()?;
            liar.say(&[b'V'; 9])
        },
    },
    Lie {
        name: "switches at an offset that was passed",
        finds: Finds::Reset,
        tell: |liar| liar.switch_by(|at| at / 2),
    },
    Lie { name: "switches at the first byte", finds: Finds::Reset, tell: |liar| liar.switch_by(|_| 0) },
    Lie { name: "switches beyond what it wrote", finds: Finds::Reset, tell: |liar| liar.switch_by(|at| at + AFTER) },
    Lie { name: "switches at the last offset", finds: Finds::Reset, tell: |liar| liar.switch_by(|_| u64::MAX) },
    Lie {
        name: "switches, and ends TCP without a word on the lane",
        finds: Finds::Reset,
        tell: |liar| {
            liar.switch_by(|at| at)?;
            (liar.direct, liar.dies) = (None, true);
            Ok(())
        },
    },
];

/// The application, with a connection that the daemons have made for its stream.
pub(super) struct Liar {
    app: RawApp,
    connection: RawConnection,
    direct: Option<TcpStream>,
    bytes: Bytes,
    /// Bytes of the stream so far, by whatever way.
    written: u64,
    /// Bytes of the ring.
    tail: u64,
    /// It ends without a word.
    dies: bool,
}

impl Liar {
    /// Writes so much by the lane.
    fn write(&mut self, count: u64) -> Result<()> {
        self.write_ring(count)?;
        self.written = self.tail;
        Ok(())
    }

    fn write_ring(&mut self, count: u64) -> Result<()> {
        let mut piece = [0; PIECE];
        let end = self.tail + count;
        let start = Instant::now();
        while self.tail < end {
            let head = self.connection.words.tx_head.load(Ordering::Acquire);
            let ring = self.connection.ring_bytes;
            let len = (end - self.tail).min(ring - (self.tail - head)).min(ring - self.tail % ring).min(PIECE as u64);
            if len == 0 {
                ensure!(start.elapsed() < WATCHDOG, "the ring stays full");
                self.app.drain()?;
                if self.is_reset() {
                    // The reader was told, and went.
                    return Ok(());
                }
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            let piece = &mut piece[..len as usize];
            self.bytes.fill(self.tail, piece);
            let (region, at) = &self.connection.tx;
            region.write(at + self.tail % ring, piece).map_err(|e| anyhow!("{e}"))?;
            self.tail += len;
            self.connection.words.tx_tail.store(self.tail, Ordering::Release);
            self.app.ring(self.connection.slot);
        }
        Ok(())
    }

    fn is_reset(&self) -> bool {
        let words = &self.connection.words;
        let is_open = words.state.load(Ordering::Acquire) == slot_state::ESTABLISHED;
        !is_open || words.engine_flags.load(Ordering::Acquire) & (engine_flag::RESET | engine_flag::STOP) != 0
    }

    /// Says something on the stream's own connection. A peer that has closed it is no fault of this side.
    fn say(&mut self, words: &[u8]) -> Result<()> {
        let direct = self.direct.as_mut().context("it is closed")?;
        match direct.write_all(words) {
            Err(e) if !matches!(e.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset) => {
                Err(e.into())
            }
            _ => Ok(()),
        }
    }

    /// Does what comes before a switch, as a polite application does.
    fn settle(&mut self) -> Result<()> {
        self.say(&[READY, GRANT])?;
        let mut words = [0; 2];
        self.direct.as_mut().context("it is closed")?.read_exact(&mut words).context("the reader's words")?;
        ensure!(words == [READY, GRANT], "the reader said {words:?}");
        Ok(())
    }

    /// Switches at what it makes of the right offset, and goes on by TCP.
    fn switch_by(&mut self, offset: impl FnOnce(u64) -> u64) -> Result<()> {
        self.settle()?;
        let mut words = [SWITCH; 9];
        words[1..].copy_from_slice(&offset(self.tail).to_be_bytes());
        self.say(&words)?;
        let mut bytes = vec![0; 4096];
        self.bytes.fill(self.tail, &mut bytes);
        self.say(&bytes)?;
        self.written = self.tail + bytes.len() as u64;
        Ok(())
    }

    /// Ends the stream in order as far as the lane knows, and its TCP connection.
    fn finish(&mut self) -> Result<()> {
        if let Some(direct) = &self.direct {
            let _ = direct.shutdown(Shutdown::Write);
        }
        self.connection.words.app_flags.store(app_flag::FIN, Ordering::Release);
        self.app.ring(self.connection.slot);
        Ok(())
    }
}

/// Tells one lie from one host to a reader on another; says what the reader found.
pub(super) fn tell(lie: &Lie, from: &Host, to: &Host) -> Result<String> {
    let server = session(to, "polite-reader")?;
    let listener = Listener::bind_with(&server, (to.ip, 0))?;
    let mut app = RawApp::attach(&from.socket, "lies")?;
    let connection = app.connect(listener.local_addr()?, RING_BYTES)?;
    let (stream, _) = listener.accept_timeout(WATCHDOG)?;
    let bytes = Bytes::new(1);
    let reader = std::thread::spawn({
        let bytes = bytes.clone();
        move || read(stream, &bytes)
    });
    let mut liar = Liar { app, connection, direct: None, bytes, written: 0, tail: 0, dies: false };
    while liar.direct.is_none() {
        ensure!(liar.tail < LANE_BYTES_MAX, "the daemons make no connection");
        liar.write(PIECE as u64)?;
        liar.app.drain()?;
        let given: Option<OwnedFd> = liar.app.given_direct(liar.connection.id);
        liar.direct = given.map(TcpStream::from);
    }
    if let Some(direct) = &liar.direct {
        direct.set_nonblocking(false)?;
        direct.set_read_timeout(Some(WATCHDOG))?;
        direct.set_write_timeout(Some(WATCHDOG))?;
    }
    (lie.tell)(&mut liar)?;
    let written = liar.written;
    let still_there = if liar.dies {
        drop(liar);
        None
    } else {
        liar.finish()?;
        Some(liar)
    };
    let (read, end) = reader.join().map_err(|_| anyhow!("the reader panicked"))??;
    drop(still_there);
    let is_all = read == written && end == End::Orderly;
    let is_reset = matches!(end, End::Broken(_));
    let is_right = match lie.finds {
        Finds::All => is_all,
        Finds::Reset => is_reset,
    };
    ensure!(is_right, "{written} bytes were written, {read} were read, and then {end:?}: not {:?}", lie.finds);
    Ok(format!("{read} of {written} bytes, all right, then {end:?}"))
}

/// Reads until the end, and compares every byte.
fn read(mut stream: Stream, bytes: &Bytes) -> Result<(u64, End)> {
    stream.set_read_timeout(Some(WATCHDOG / 3))?;
    let (mut found, mut expected, mut got) = (vec![0; 64 << 10], vec![0; 64 << 10], 0);
    loop {
        match stream.read(&mut found) {
            Ok(0) => return Ok((got, End::Orderly)),
            Ok(count) => {
                bytes.fill(got, &mut expected[..count]);
                if found[..count] != expected[..count] {
                    bail!("byte {got} or one behind it is wrong");
                }
                got += count as u64;
            }
            Err(e) if matches!(e.kind(), std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock) => {
                return Ok((got, End::Silence));
            }
            Err(e) => return Ok((got, End::Broken(StreamError::reason_of(&e)))),
        }
    }
}
