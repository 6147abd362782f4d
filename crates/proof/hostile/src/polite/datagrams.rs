//! Well-behaved datagram sockets on both hosts: one asks, the other answers, and every byte is checked at both.
//!
//! Datagrams may be lost, so a question that is not answered in time is asked again. What must never come is one from
//! the other's address that it did not send, or that is another than it sent. Those from elsewhere are anybody's, and
//! thrown away.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use raas::{DatagramSocket, Session};

use super::{content, session};
use crate::host::{Host, WATCHDOG};

/// Port of both sockets, on each host. Port spaces of datagrams and listeners are apart.
pub const PORT: u16 = 4000;
/// A question is asked again after this long.
const AGAIN: Duration = Duration::from_millis(20);
/// Number and length in front of the content.
const HEADER_BYTES: usize = 10;
/// Stride between the content of one datagram and the next.
const STRIDE: usize = 6151;
/// Content of both directions, apart from that of streams.
const CONTENT: u64 = 0xd9;

/// Both ends, until they are stopped.
#[derive(Debug)]
pub struct Exchange {
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    rest: Arc<AtomicBool>,
    asking: JoinHandle<Result<Asked>>,
    answering: JoinHandle<Result<u64>>,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    answered: u64,
    again: u64,
    /// Datagrams of others.
    others: u64,
}

/// One end.
#[derive(Debug)]
struct Party {
    socket: DatagramSocket,
    base: Vec<u8>,
    peer: SocketAddr,
    max: usize,
    // The socket lives as long as its session.
    _session: Session,
}

impl Party {
    fn new(own: &Host, peer: &Host, name: &str) -> Result<Self> {
        let session = session(own, name)?;
        let socket = DatagramSocket::bind_with(&session, (own.ip, PORT)).context("no datagram socket")?;
        socket.set_read_timeout(Some(AGAIN))?;
        socket.set_write_timeout(Some(WATCHDOG))?;
        let peer = SocketAddr::new(peer.ip, PORT);
        let max = socket.max_payload(peer).context("no path for datagrams")?;
        Ok(Self { socket, base: content(CONTENT), peer, max, _session: session })
    }

    /// The datagram of a number: its length follows from the number too.
    fn datagram(&self, number: u64) -> Vec<u8> {
        let lengths = self.max - HEADER_BYTES + 1;
        let body = (number as usize).wrapping_mul(STRIDE) % lengths;
        let at = (number as usize).wrapping_mul(STRIDE) % (self.base.len() - body);
        let mut out = number.to_le_bytes().to_vec();
        out.extend_from_slice(&(body as u16).to_le_bytes());
        out.extend_from_slice(&self.base[at..at + body]);
        out
    }

    /// The number of the peer's next datagram, if one comes in time. Says how many of others came before.
    fn receive(&self, others: &mut u64) -> Result<Option<u64>> {
        let mut buffer = [0; 4096];
        loop {
            let (bytes, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => return Ok(None),
                Err(e) => return Err(e).context("receiving a datagram"),
            };
            if from != self.peer {
                *others += 1;
                continue;
            }
            let found = &buffer[..bytes];
            let number = found.first_chunk::<8>().map(|n| u64::from_le_bytes(*n));
            let number = number.ok_or_else(|| anyhow!("{bytes} bytes from {from}, which sends no such datagram"))?;
            ensure!(found == self.datagram(number), "datagram {number} from {from} is wrong, {bytes} bytes long");
            return Ok(Some(number));
        }
    }

    fn send(&self, number: u64) -> Result<()> {
        self.socket.send_to(&self.datagram(number), self.peer).with_context(|| format!("sending datagram {number}"))?;
        Ok(())
    }
}

impl Exchange {
    /// Begins, between the two hosts.
    pub fn start(from: &Host, to: &Host) -> Result<Self> {
        let (asks, answers) =
            (Party::new(from, to, "polite-datagrams")?, Party::new(to, from, "polite-datagrams-there")?);
        let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let rest = Arc::new(AtomicBool::new(false));
        let (count, told, rests) = (Arc::clone(&answered), Arc::clone(&stop), Arc::clone(&rest));
        let asking = std::thread::spawn(move || ask(&asks, &count, &told, &rests));
        let told = Arc::clone(&stop);
        let answering = std::thread::spawn(move || answer(&answers, &told));
        Ok(Self { answered, stop, rest, asking, answering })
    }

    /// Questions that were answered, both right.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Nothing is asked for a while; what comes is looked at all the same.
    pub fn rest(&self, rest: bool) {
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// Ends it; says what came of it.
    pub fn finish(self) -> Result<String> {
        self.join().map(|(said, _)| said)
    }

    /// As [`Self::finish`], where nobody else has a socket: all that came is the other's.
    pub fn finish_alone(self) -> Result<String> {
        let (said, others) = self.join()?;
        ensure!(others == 0, "{others} datagrams from nobody: {said}");
        Ok(said)
    }

    fn join(self) -> Result<(String, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let asked = self.asking.join().map_err(|_| anyhow!("a polite thread panicked"))??;
        let others = self.answering.join().map_err(|_| anyhow!("a polite thread panicked"))??;
        ensure!(asked.answered > 0, "no question was answered");
        let Asked { answered, again, others: more } = asked;
        let others = others + more;
        Ok((format!("{answered} questions answered, {again} asked again, {others} datagrams of others"), others))
    }
}

fn ask(party: &Party, count: &AtomicU64, stop: &AtomicBool, rest: &AtomicBool) -> Result<Asked> {
    let mut asked = Asked { answered: 0, again: 0, others: 0 };
    while !stop.load(Ordering::Relaxed) {
        let number = asked.answered;
        let asks = !rest.load(Ordering::Relaxed);
        if asks {
            party.send(number)?;
        }
        loop {
            match party.receive(&mut asked.others)? {
                // Of a question that was asked twice.
                Some(earlier) if earlier < number => {}
                Some(found) => {
                    ensure!(found == number, "an answer to question {found}, which was not asked");
                    asked.answered += 1;
                    count.store(asked.answered, Ordering::Relaxed);
                    break;
                }
                None => {
                    asked.again += u64::from(asks);
                    break;
                }
            }
        }
    }
    Ok(asked)
}

fn answer(party: &Party, stop: &AtomicBool) -> Result<u64> {
    let (mut others, mut last) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let Some(number) = party.receive(&mut others)? else { continue };
        ensure!(number <= last + 1, "question {number} came, where {} is the next", last + 1);
        last = last.max(number);
        party.send(number)?;
    }
    Ok(others)
}
