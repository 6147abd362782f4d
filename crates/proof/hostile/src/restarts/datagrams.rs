//! Datagrams through daemons that die: some are lost, and none comes twice or torn.
//!
//! Owns what a datagram of the judge is. The end is said again until it was heard, after the last death: so sockets of both
//! sides are shown to go on.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use raas::{DatagramError, DatagramSocket, Session};
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _};
use sha2::{Digest as _, Sha256};

use super::{CONNECTED, DAEMON_WAIT};

/// Bytes of a number.
const NUMBER_BYTES: usize = 8;
/// Most bytes behind it, so that each fits the path.
const PAYLOAD_BYTES_MAX: usize = 900;
/// Bytes of a digest.
const DIGEST_BYTES: usize = 32;
/// In the place of the number: nothing more comes.
const END: u64 = u64::MAX;
/// The answer to that.
const SEEN: &[u8] = b"seen";
/// Between two datagrams.
const PACE: Duration = Duration::from_micros(300);
/// Between two looks whether to stop.
const LOOK: Duration = Duration::from_millis(20);

fn letter(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend_from_slice(payload);
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

/// The number of a datagram that is whole.
fn number_of(bytes: &[u8]) -> Result<u64> {
    let (rest, digest) = bytes.split_at_checked(bytes.len().saturating_sub(DIGEST_BYTES)).context("too short")?;
    ensure!(Sha256::digest(rest).as_slice() == digest, "a datagram of {} bytes is torn", bytes.len());
    let number = rest.first_chunk::<NUMBER_BYTES>().context("a datagram without a number")?;
    Ok(u64::from_be_bytes(*number))
}

fn is_stopped(stopped: &Receiver<()>) -> bool {
    stopped.try_recv() != Err(TryRecvError::Empty)
}

/// Whether it may fail so while daemons die: then it was not sent.
fn is_passing(error: &std::io::Error) -> bool {
    let is_no_way =
        error.get_ref().is_some_and(|e| matches!(e.downcast_ref(), Some(DatagramError::Unreachable { .. })));
    is_no_way || matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Sends until it is to stop, and then until the other end has seen the end.
pub(super) fn send(session: &Session, to: SocketAddr, rng: &mut SmallRng, stopped: &Receiver<()>) -> Result<String> {
    let any = if to.ip().is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = DatagramSocket::bind_with(session, (any, 0))?;
    socket.set_write_timeout(Some(DAEMON_WAIT))?;
    socket.set_read_timeout(Some(LOOK))?;
    println!("{CONNECTED}");
    let mut sent = 0_u64;
    while !is_stopped(stopped) {
        let mut payload = vec![0; rng.random_range(0..PAYLOAD_BYTES_MAX)];
        rng.fill_bytes(&mut payload);
        match socket.send_to(&letter(sent, &payload), to) {
            Ok(_) => sent += 1,
            // It may have a number again: nothing of this one was sent.
            Err(error) => ensure!(is_passing(&error), "a datagram could not be sent: {error}"),
        }
        std::thread::sleep(PACE);
    }
    let stop = Instant::now();
    while stop.elapsed() < DAEMON_WAIT {
        if let Err(error) = socket.send_to(&letter(END, b""), to) {
            ensure!(is_passing(&error), "the end could not be sent: {error}");
        }
        let mut answer = [0; SEEN.len()];
        match socket.recv_from(&mut answer) {
            Ok(_) => {
                ensure!(answer == SEEN, "an answer of other bytes");
                return Ok(sent.to_string());
            }
            Err(error) => ensure!(is_passing(&error), "no answer can be received: {error}"),
        }
    }
    Err(anyhow!("the end was not answered in {DAEMON_WAIT:?}, after {sent} datagrams"))
}

/// Receives until it is to stop; says what came when the end is seen.
pub(super) fn receive(session: &Session, ip: IpAddr, stopped: &Receiver<()>) -> Result<()> {
    let socket = DatagramSocket::bind_with(session, (ip, 0))?;
    socket.set_read_timeout(Some(LOOK))?;
    println!("at {}", socket.local_addr()?);
    let (mut numbers, mut is_told) = (BTreeSet::new(), false);
    let mut buffer = [0; NUMBER_BYTES + PAYLOAD_BYTES_MAX + DIGEST_BYTES];
    while !is_stopped(stopped) {
        let (len, from) = match socket.recv_from(&mut buffer) {
            Ok(came) => came,
            Err(error) if is_passing(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        let number = number_of(&buffer[..len])?;
        if number != END {
            ensure!(numbers.insert(number), "datagram {number} came twice");
            continue;
        }
        if !is_told {
            println!("{}", numbers.len());
            is_told = true;
        }
        if let Err(error) = socket.send_to(SEEN, from) {
            ensure!(is_passing(&error), "the answer could not be sent: {error}");
        }
    }
    Ok(())
}

/// What both said.
pub(super) fn judge(sent: &str, got: &str) -> Result<String> {
    let (sent, got): (u64, u64) = (sent.parse()?, got.parse()?);
    ensure!(0 < got && got <= sent, "{sent} were sent, and {got} came");
    Ok(format!("{got} of {sent} came, none of them twice or torn"))
}
