//! Somebody between two daemons: control links pass, and what comes for an offer of a TCP connection is meddled with.
//!
//! Owns the bytes on their way. It has no key: what it may cost is the TCP connection of one stream, which then stays
//! on its lane.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use control::{PeerMessage, decode, encode, with_length};

use crate::host::WATCHDOG;
use crate::network;

/// How long an offer stands (`plane::OFFER_TIME`), and a little more.
const LATER_THAN_AN_OFFER: Duration = Duration::from_millis(5500);
/// Longest first message of a connection.
const FIRST_BYTES_MAX: usize = 4096;
/// Where the daemons' port is.
const PORT: u16 = 4790;
/// Where the relay listens.
pub(super) const RELAY_PORT: u16 = 4794;

/// What is done to a connection that comes for an offer.
#[derive(Debug)]
pub(super) struct Meddling {
    pub(super) name: &'static str,
    /// Whether the stream gets its TCP connection all the same.
    pub(super) switches: bool,
    meddle: fn(Passage) -> Result<()>,
}

pub(super) const ALL: &[Meddling] = &[
    Meddling { name: "a wrong proof comes before the right one", switches: true, meddle: wrong_first },
    Meddling { name: "another offer's number comes with the right proof", switches: true, meddle: other_number },
    Meddling { name: "a hello is repeated while it is served, and later", switches: true, meddle: repeated },
    Meddling { name: "a hello comes too late", switches: false, meddle: late },
    Meddling { name: "nobody comes", switches: false, meddle: never },
    Meddling { name: "the hello ends in its middle", switches: false, meddle: cut },
    Meddling { name: "the hello comes twice on one connection", switches: false, meddle: twice },
    Meddling { name: "the answer is not the right proof", switches: false, meddle: wrong_answer },
];

/// A connection on its way, of which the first message was read.
struct Passage {
    dialer: TcpStream,
    /// That message, with its length.
    hello: Vec<u8>,
    from: IpAddr,
    to: SocketAddr,
}

impl Passage {
    fn dial(&self) -> Result<TcpStream> {
        let server = network::dial(self.from, self.to)?;
        server.set_read_timeout(Some(WATCHDOG))?;
        Ok(server)
    }

    /// Says it to the daemon that offered, and goes on between the two.
    fn pass(self) -> Result<()> {
        let mut server = self.dial()?;
        server.write_all(&self.hello)?;
        join(self.dialer, server)
    }

    /// Somebody else says something to the daemon that offered; he may get no proof.
    fn is_refused(&self, said: &[u8]) -> Result<()> {
        let mut stranger = self.dial()?;
        stranger.write_all(said)?;
        let mut answer = Vec::new();
        match stranger.read_to_end(&mut answer) {
            Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => bail!("the connection stays open: {e}"),
            _ => {}
        }
        let is_proof = matches!(answer.get(4..).map(decode), Some(Ok(PeerMessage::DirectProof { .. })));
        ensure!(!is_proof && answer.len() < 200, "a stranger got {answer:?}");
        Ok(())
    }

    /// The hello with something else in it.
    fn altered(&self, alter: impl FnOnce(&mut u64, &mut [u8; 32])) -> Result<Vec<u8>> {
        let message = decode(&self.hello[4..]).context("the hello")?;
        let PeerMessage::DirectHello { mut number, nonce, mut mac } = message else { bail!("it is no hello") };
        alter(&mut number, &mut mac);
        Ok(with_length(&encode(&PeerMessage::DirectHello { number, nonce, mac })?))
    }
}

fn wrong_first(passage: Passage) -> Result<()> {
    for bit in [0, 7, 100, 255] {
        passage.is_refused(&passage.altered(|_, mac| mac[bit / 8] ^= 1 << (bit % 8))?)?;
    }
    passage.pass()
}

fn other_number(passage: Passage) -> Result<()> {
    for by in [1, 1 << 32, u64::MAX] {
        passage.is_refused(&passage.altered(|number, _| *number = number.wrapping_add(by))?)?;
    }
    passage.pass()
}

fn repeated(mut passage: Passage) -> Result<()> {
    let mut server = passage.dial()?;
    server.write_all(&passage.hello)?;
    let answer = read_frame(&mut server)?;
    ensure!(matches!(decode(&answer[4..]), Ok(PeerMessage::DirectProof { .. })), "the first one got no proof");
    // Before the dialer knows that it was met, and while the two use it.
    passage.is_refused(&passage.hello)?;
    passage.dialer.write_all(&answer)?;
    passage.is_refused(&passage.hello)?;
    join(passage.dialer.try_clone()?, server)?;
    std::thread::sleep(LATER_THAN_AN_OFFER);
    passage.is_refused(&passage.hello)
}

fn late(passage: Passage) -> Result<()> {
    std::thread::sleep(LATER_THAN_AN_OFFER);
    passage.is_refused(&passage.hello)
}

fn never(passage: Passage) -> Result<()> {
    std::thread::sleep(LATER_THAN_AN_OFFER);
    drop(passage);
    Ok(())
}

fn cut(passage: Passage) -> Result<()> {
    let mut server = passage.dial()?;
    server.write_all(&passage.hello[..passage.hello.len() / 2])?;
    server.shutdown(Shutdown::Both)?;
    passage.dialer.shutdown(Shutdown::Both)?;
    Ok(())
}

fn twice(mut passage: Passage) -> Result<()> {
    passage.hello = passage.hello.repeat(2);
    passage.pass()
}

fn wrong_answer(mut passage: Passage) -> Result<()> {
    let mut server = passage.dial()?;
    server.write_all(&passage.hello)?;
    read_frame(&mut server)?;
    passage.dialer.write_all(&with_length(&encode(&PeerMessage::DirectProof { mac: [7; 32] })?))?;
    join(passage.dialer, server)
}

/// Listens in the place of a daemon, for one other daemon.
#[derive(Debug)]
pub(super) struct Relay {
    armed: Arc<Mutex<Option<&'static Meddling>>>,
    done: Receiver<(&'static str, Result<()>)>,
}

impl Relay {
    /// Between the daemon of `from` and that of `to`. It ends with the process.
    pub(super) fn start(from: IpAddr, to: IpAddr) -> Result<Self> {
        let listener = TcpListener::bind((to, RELAY_PORT))?;
        let (armed, (tell, done)) = (Arc::new(Mutex::new(None)), channel());
        let shared = Arc::clone(&armed);
        std::thread::spawn(move || {
            for dialer in listener.incoming().flatten() {
                let (shared, tell) = (Arc::clone(&shared), tell.clone());
                std::thread::spawn(move || carry(dialer, (from, SocketAddr::new(to, PORT)), &shared, &tell));
            }
        });
        Ok(Self { armed, done })
    }

    /// The next connection that comes for an offer is meddled with.
    pub(super) fn arm(&self, meddling: &'static Meddling) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some(meddling);
    }

    /// Waits until what was armed is done.
    pub(super) fn done(&self) -> Result<&'static str> {
        let (name, result) = self.done.recv_timeout(WATCHDOG).context("no daemon came for an offer")?;
        result.map(|()| name)
    }
}

/// One connection. What is wrong with one that was not meddled with shows at the daemons.
fn carry(
    mut dialer: TcpStream,
    (from, to): (IpAddr, SocketAddr),
    armed: &Mutex<Option<&'static Meddling>>,
    tell: &Sender<(&'static str, Result<()>)>,
) {
    let Ok(hello) = read_frame(&mut dialer) else { return };
    let is_for_offer = matches!(decode(&hello[4..]), Ok(PeerMessage::DirectHello { .. }));
    let passage = Passage { dialer, hello, from, to };
    let meddling = is_for_offer.then(|| armed.lock().unwrap_or_else(PoisonError::into_inner).take()).flatten();
    match meddling {
        Some(Meddling { name, meddle, .. }) => {
            let _ = tell.send((name, meddle(passage)));
        }
        None => {
            let _ = passage.pass();
        }
    }
}

/// One message with its length.
fn read_frame(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let len = u32::from_be_bytes(prefix) as usize;
    ensure!(len <= FIRST_BYTES_MAX, "a message of {len} bytes");
    let mut frame = vec![0; 4 + len];
    frame[..4].copy_from_slice(&prefix);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// Carries both directions from here on, each to its end, by two threads.
fn join(a: TcpStream, b: TcpStream) -> Result<()> {
    b.set_read_timeout(None)?;
    for (mut from, mut to) in [(a.try_clone()?, b.try_clone()?), (b, a)] {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}
