//! Strangers on the network: any bytes to the device's ports, UDP and TCP, and to the TCP port of the control links, from
//! many addresses.
//!
//! Owns what they send. A stranger may get no answer on UDP, nothing of a daemon for longer than a handshake may take
//! on TCP, and must never cost others their service.

mod datagrams;
mod streams;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use control::{CHALLENGE_BYTES, PeerMessage, WIRE_VERSION, encode, with_length};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use roce::wire::{Bth, Header, PseudoHeader, Reth};
use rustix::net::{AddressFamily, SocketType};
use verbs::{Psn, Qpn, Rkey, Wire};

use crate::held::Held;
use crate::host::{Footprint, Host, Program, WATCHDOG, address, eventually};
use crate::polite::datagrams::Exchange;
use crate::polite::{self, Transfer};
use crate::verdict::Verdict;

const HANDSHAKES_MAX: u64 = 16;
/// Links that lost their place to a newer one, and whose descriptor the daemon has not closed yet.
const ENDING_MAX: u64 = 8;
const CONFIGURATION: &str = "[limits]\nhandshakes_max = 16\nhandshake_ms = 500\n";
const UDP_PORT: u16 = verbs::ROCE_UDP_PORT;
const TCP_PORT: u16 = 4790;
/// Datagrams of the counted part. They come in bursts that any receive buffer takes.
const DATAGRAMS: usize = 4096;
const BURST: usize = 32;
/// A queue pair that is never given out.
const NO_QPN: u32 = 0xff_ffff;
/// Source addresses of strangers.
const STRANGERS: u8 = 40;
/// Strangers look after the links that they hold this often: a handshake fits in between, on any machine.
const HOLD_PACE: Duration = Duration::from_secs(1);
/// Half-open control links, several times the limit.
const HALF_OPEN: usize = 64;
/// Anonymous memory that strangers may add.
const GROWTH_MAX: u64 = 16 << 20;

/// Runs it; the seed decides the bytes.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut rng = SmallRng::seed_from_u64(seed);
    let guessed = datagrams::run(raas, dir.path(), &mut rng);
    verdict.case("UDP: datagrams with guessed queue keys and tokens reach nobody", guessed);
    let hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    // A lane, which strangers would like to hit.
    Transfer::start(&hosts[0], &hosts[1], 1)?.finish()?;
    eventually("the first transfer is over", || {
        let apps = hosts[0].stat()?.apps.len() + hosts[1].stat()?.apps.len();
        Ok(if apps == 0 { Ok(()) } else { Err(apps) })
    })?;
    verdict.case("the lane is on a wire that was asked for", hosts[0].wire(raas.wire).map(|wire| wire.to_string()));
    let before = Held::of(&hosts)?;
    let print = Footprint::of(hosts[0].pid())?;
    verdict.case("UDP: every datagram of a stranger is a counted drop, none is answered", counted(&hosts, &mut rng));
    let transfer = Transfer::start(&hosts[0], &hosts[1], 1)?;
    let exchange = Exchange::start(&hosts[0], &hosts[1])?;
    verdict.case("UDP: a flood beside a transfer", flood(&hosts, &mut rng, &transfer));
    for (name, attack) in LINKS {
        let door = Door { port: TCP_PORT, places: HANDSHAKES_MAX, also_from: stranger(0) };
        verdict.case(&format!("TCP: {name}"), links(&hosts[0], door, |link| attack(&mut rng, link)));
    }
    streams::judge(&hosts, raas.wire, &mut rng, verdict)?;
    verdict.case("TCP: a daemon gets in while strangers hold every link", locked_out(raas, dir.path()));
    if raas.wire.allows(Wire::Iwarp) {
        let held = streams::locked_out(raas, dir.path());
        verdict.case("TCP wire: a lane is made while strangers hold every place", held);
    }
    verdict.case("the polite datagrams beside it all are right, and come from nobody else", exchange.finish_alone());
    verdict.case("the transfer beside it all is whole", transfer.finish().map(|bytes| format!("{bytes} bytes")));
    verdict.case("what strangers held has returned", before.wait_for(&hosts).map(|()| "all".into()));
    verdict.case("strangers left no memory behind", grown(&hosts[0], &print));
    verdict.case("a new polite pair is served", polite::fresh(&hosts));
    hosts.into_iter().try_for_each(Host::stop)
}

fn grown(host: &Host, before: &Footprint) -> Result<String> {
    let now = Footprint::of(host.pid())?;
    let grown = now.anonymous_bytes.saturating_sub(before.anonymous_bytes);
    ensure!(grown <= GROWTH_MAX, "{grown} bytes more, the bound is {GROWTH_MAX}");
    Ok(format!("{grown} bytes more of anonymous memory, at most {GROWTH_MAX}"))
}

fn stranger(n: u8) -> IpAddr {
    let [.., b, c] = std::process::id().to_be_bytes();
    IpAddr::from([127, 200 | (b & 7), c, 1 + n % STRANGERS])
}

fn drops(host: &Host) -> Result<u64> {
    Ok(host.stat()?.drops.iter().map(|(_, n)| n).sum())
}

// ---- UDP

/// Garbage, headers without a body, packets for the lane's own queue pair with a right ICRC.
fn datagram(rng: &mut SmallRng, from: SocketAddr, to: SocketAddr, qpn: u32) -> Vec<u8> {
    let mut bytes = vec![0; rng.random_range(0..2000)];
    rng.fill_bytes(&mut bytes);
    match rng.random_range(0..4) {
        0 => bytes,
        1 => {
            bytes.truncate(rng.random_range(0..20));
            bytes
        }
        kind => {
            let bth = Bth {
                opcode: if kind == 2 { 0x0a } else { rng.random() },
                solicited: false,
                pad: 0,
                version: 0,
                pkey: 0xffff,
                dest_qpn: Qpn(if rng.random() { qpn } else { rng.random_range(0..1 << 24) }),
                ack_request: true,
                psn: Psn::new(rng.random_range(0..1 << 24)),
            };
            let reth = Reth { addr: rng.random_range(0..4096), rkey: Rkey(rng.random()), dma_len: 256 };
            let mut packet = Header::new(&bth).with_reth(reth).as_bytes().to_vec();
            packet.extend_from_slice(&[0x66; 256]);
            if let Some(route) = PseudoHeader::new(from, to) {
                packet.extend(route.icrc(&packet, 0));
            }
            packet
        }
    }
}

fn counted(hosts: &[Host; 2], rng: &mut SmallRng) -> Result<String> {
    let host = &hosts[0];
    let qpn = host.stat()?.lanes.first().and_then(|lane| lane.qpn).context("there is no lane")?;
    let to = SocketAddr::new(host.ip, UDP_PORT);
    let mut sockets = (0..STRANGERS).map(|n| UdpSocket::bind((stranger(n), 0))).collect::<std::io::Result<Vec<_>>>()?;
    // The peer's own address, but another process of it.
    sockets.push(UdpSocket::bind((hosts[1].ip, 0))?);
    let (before, mut sent) = (drops(host)?, 0);
    while sent < DATAGRAMS {
        for _ in 0..BURST {
            let socket = &sockets[rng.random_range(0..sockets.len())];
            let from = socket.local_addr()?;
            // A sender that has the peer's address, knows the queue pair and computes the ICRC is the peer, because
            // RoCEv2 has no other proof; it is answered. So this stranger does not know the queue pair.
            let known = if from.ip() == hosts[1].ip { NO_QPN } else { qpn };
            let bytes = datagram(rng, from, to, known);
            socket.send_to(&bytes, to)?;
            sent += 1;
        }
        // Small enough for any buffer, and all of it is counted before more comes.
        eventually("every datagram is counted", || {
            let found = drops(host)? - before;
            Ok(if found >= sent as u64 { Ok(()) } else { Err((found, sent)) })
        })?;
    }
    let found = drops(host)? - before;
    ensure!(found == sent as u64, "{sent} datagrams, but {found} drops");
    for socket in &sockets {
        socket.set_nonblocking(true)?;
        if let Ok((bytes, from)) = socket.recv_from(&mut [0; 2048]) {
            bail!("{bytes} bytes came back from {from}");
        }
    }
    let kinds: Vec<String> =
        host.stat()?.drops.into_iter().filter(|(_, n)| *n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    ensure!(kinds.len() >= 4, "only {kinds:?}");
    Ok(format!("{sent} datagrams: {}", kinds.join(", ")))
}

fn flood(hosts: &[Host; 2], rng: &mut SmallRng, transfer: &Transfer) -> Result<String> {
    let to = SocketAddr::new(hosts[0].ip, UDP_PORT);
    let sockets = (0..STRANGERS).map(|n| UdpSocket::bind((stranger(n), 0))).collect::<std::io::Result<Vec<_>>>()?;
    let qpn = hosts[0].stat()?.lanes.first().and_then(|lane| lane.qpn).context("there is no lane")?;
    let (start, before, mut sent) = (Instant::now(), transfer.verified(), 0u64);
    while start.elapsed() < Duration::from_secs(2) {
        let socket = &sockets[rng.random_range(0..sockets.len())];
        sent += u64::from(socket.send_to(&datagram(rng, socket.local_addr()?, to, qpn), to).is_ok());
    }
    eventually("the transfer goes on", || {
        let moved = transfer.verified() - before;
        Ok(if moved > 1 << 20 { Ok(()) } else { Err(moved) })
    })?;
    Ok(format!("{sent} datagrams in 2 s beside {} bytes", transfer.verified() - before))
}

// ---- TCP

type Attack = fn(&mut SmallRng, &mut TcpStream) -> std::io::Result<()>;

const LINKS: &[(&str, Attack)] = &[
    ("links that say nothing", |_, _| Ok(())),
    ("links that say a byte now and then", drip),
    ("garbage", |rng, link| {
        let mut bytes = [0; 300];
        rng.fill_bytes(&mut bytes);
        link.write_all(&bytes)
    }),
    ("a frame that is said to be long", |_, link| link.write_all(&[0, 0, 0xff, 0xff, 1, 2, 3])),
    ("a frame that is said to be endless", |_, link| link.write_all(&[0xff; 64])),
    ("Hello, then silence", |rng, link| link.write_all(&hello(rng, link.local_addr()?.ip()))),
    ("Hello, then a Noise message without the key", |rng, link| {
        link.write_all(&hello(rng, link.local_addr()?.ip()))?;
        let mut message = vec![0; rng.random_range(0..200)];
        rng.fill_bytes(&mut message);
        link.write_all(&framed(&PeerMessage::Noise { message }))
    }),
    ("Hello, then a sealed frame without a handshake", |rng, link| {
        link.write_all(&hello(rng, link.local_addr()?.ip()))?;
        let mut frame = [0; 64];
        rng.fill_bytes(&mut frame);
        link.write_all(&with_length(&frame))
    }),
    ("Hello, then a Noise message that is said to be long", |rng, link| {
        link.write_all(&hello(rng, link.local_addr()?.ip()))?;
        link.write_all(&framed(&PeerMessage::Noise { message: vec![7; 4200] }))
    }),
    ("Hello in the name of another", |rng, link| link.write_all(&hello(rng, IpAddr::from([127, 0, 0, 77])))),
    ("messages about lanes before Hello", |_, link| {
        link.write_all(&framed(&PeerMessage::LaneReady { lane: 0, incarnation: 1 }))
    }),
];

fn framed(message: &PeerMessage) -> Vec<u8> {
    with_length(&encode(message).unwrap_or_default())
}

fn hello(rng: &mut SmallRng, address: IpAddr) -> Vec<u8> {
    let mut challenge = [0; CHALLENGE_BYTES];
    rng.fill_bytes(&mut challenge);
    let release = "stranger".into();
    framed(&PeerMessage::Hello { version: WIRE_VERSION, release, instance: rng.random(), address, challenge })
}

/// The first bytes of a Hello, one at a time; then as slow as the reader's patience in [`links`] allows.
fn drip(rng: &mut SmallRng, link: &mut TcpStream) -> std::io::Result<()> {
    for byte in &hello(rng, link.local_addr()?.ip())[..5] {
        link.write_all(&[*byte])?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// A TCP port that strangers come to.
#[derive(Debug, Clone, Copy)]
struct Door {
    port: u16,
    /// Connections that have not shown whose they are, at a time.
    places: u64,
    /// An address from which some of them come, besides those of strangers.
    also_from: IpAddr,
}

/// Many links at a time from several addresses. The daemon must close each, and must hold no more than the limit.
fn links(host: &Host, door: Door, mut attack: impl FnMut(&mut TcpStream) -> std::io::Result<()>) -> Result<String> {
    let to = SocketAddr::new(host.ip, door.port);
    let before = Footprint::of(host.pid())?.fds;
    let (mut open, mut most) = (Vec::new(), 0);
    for n in 0..HALF_OPEN {
        let from = if n % 8 == 7 { door.also_from } else { stranger(n as u8 % 10) };
        let mut link = dial(from, to)?;
        // A link beyond the limit is closed at once, which the attack may notice.
        let _ = attack(&mut link);
        open.push(link);
        most = most.max(Footprint::of(host.pid())?.fds);
    }
    for (n, link) in open.iter_mut().enumerate() {
        link.set_read_timeout(Some(WATCHDOG))?;
        let mut said = Vec::new();
        match link.take(1 << 20).read_to_end(&mut said) {
            Ok(bytes) => ensure!(bytes < 8192, "link {n} was told {bytes} bytes"),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(e) => bail!("link {n} is still open: {e}"),
        }
    }
    // The links, those that lost their place to a newer one and are about to be closed, and what the transfer may need.
    let bound = before + door.places + ENDING_MAX + 4;
    ensure!(most <= bound, "{most} descriptors, the bound is {bound}");
    eventually("the descriptors are closed", || {
        let fds = Footprint::of(host.pid())?.fds;
        Ok(if fds <= before + 1 { Ok(()) } else { Err((fds, before)) })
    })?;
    Ok(format!("{HALF_OPEN} links, at most {} descriptors more, all closed by the daemon", most.saturating_sub(before)))
}

/// Strangers hold as many idle links as there are places, from the daemon's own address and from many others, and dial
/// again where they lose one. The daemon is served all the same.
fn locked_out(raas: Program<'_>, dir: &Path) -> Result<String> {
    let patient = CONFIGURATION.replace("handshake_ms = 500", "handshake_ms = 3600000");
    let host = &Host::start(raas, dir, address(), &patient)?;
    let (ip, to) = (address(), SocketAddr::new(host.ip, TCP_PORT));
    let sources: Vec<IpAddr> = [ip; 8].into_iter().chain((0..HALF_OPEN as u8).map(stranger)).collect();
    let held = sources.iter().map(|from| dial(*from, to)).collect::<Result<Vec<_>>>()?;
    let stop = Arc::new(AtomicBool::new(false));
    let lost = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || hold(held, &sources, to, &stop))
    };
    let late = Host::start(raas, dir, ip, "")?;
    let begun = Instant::now();
    let served = Transfer::start(&late, host, 1).and_then(Transfer::finish);
    let waited = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let lost = lost.join().map_err(|_| anyhow!("the strangers died"))??;
    served.context("a daemon was locked out")?;
    late.stop()?;
    Ok(format!("{} links held, {lost} lost and dialed again, served within {waited:?}", HALF_OPEN + 8))
}

/// Dials again for each link that the daemon closed, at most once in a while each. How many those were.
fn hold(mut held: Vec<TcpStream>, sources: &[IpAddr], to: SocketAddr, stop: &AtomicBool) -> Result<usize> {
    let mut lost = 0;
    while !stop.load(Ordering::Relaxed) {
        for (link, from) in held.iter_mut().zip(sources) {
            link.set_nonblocking(true)?;
            let open = matches!(link.read(&mut [0; 512]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
            if !open {
                (*link, lost) = (dial(*from, to)?, lost + 1);
            }
        }
        std::thread::sleep(HOLD_PACE);
    }
    Ok(lost)
}

pub(crate) fn dial(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}
