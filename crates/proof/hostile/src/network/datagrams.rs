//! Strangers who send datagrams: packets with a right ICRC to the UD queue pair, with guessed queue keys and tokens.
//!
//! A stranger does not see the packets of two hosts. This one is given more than he could have, out of a capture: the
//! number of the queue pair, and in turn its key or the peer's token. As long as he has to guess one of them, or sends
//! from another address than the peer's, all that he sends must be dropped, by a reason that is counted, and reach no
//! socket.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};
use roce::wire::{Bth, Deth, Header, PseudoHeader};
use verbs::{Psn, Qkey, Qpn};

use super::{BURST, STRANGERS, UDP_PORT, drops, stranger};
use crate::host::{Host, Program, address, eventually};
use crate::polite::datagrams::{Exchange, PORT};

/// Opcode of a datagram without immediate (IBTA 9.2.1).
const UD_SEND_ONLY: u8 = 0x64;
/// Packets.
const GUESSES: usize = 4096;
/// Keys that are not random where others give them out: the one of many examples, and that of the general services.
const WELL_KNOWN_KEYS: [u32; 2] = [0x1111_1111, 0x8001_0000];
/// Headers of a capture file and of each packet in it; packets begin with their IPv4 header.
const CAPTURE_HEADER_BYTES: usize = 24;
const CAPTURED_HEADER_BYTES: usize = 16;
const IP_AND_UDP_BYTES: usize = 28;
/// A capture of the first questions and answers is enough.
const QUESTIONS: u64 = 20;

/// What stands in the datagrams that the peer sends to the host that is attacked.
#[derive(Debug, Clone, Copy)]
struct Known {
    qpn: u32,
    qkey: u32,
    source_qpn: u32,
    token: u64,
}

impl Known {
    /// Out of the first captured datagram from `from`.
    fn of_capture(file: &[u8], from: SocketAddr) -> Option<Self> {
        let word = |b: &[u8], at: usize| Some(u32::from_be_bytes(b.get(at..at + 4)?.try_into().ok()?));
        let mut rest = file.get(CAPTURE_HEADER_BYTES..)?;
        loop {
            let bytes = u32::from_ne_bytes(rest.get(8..12)?.try_into().ok()?) as usize;
            let packet = rest.get(CAPTURED_HEADER_BYTES..CAPTURED_HEADER_BYTES + bytes)?;
            rest = &rest[CAPTURED_HEADER_BYTES + bytes..];
            let source = packet.get(12..16)?;
            let payload = packet.get(IP_AND_UDP_BYTES..)?;
            if payload.first() != Some(&UD_SEND_ONLY)
                || from.ip() != std::net::IpAddr::from(<[u8; 4]>::try_from(source).ok()?)
            {
                continue;
            }
            // BTH, DETH, then the datagram's header (docs/inside/wire.md).
            return Some(Self {
                qpn: word(payload, 4)? & 0xff_ffff,
                qkey: word(payload, 12)?,
                source_qpn: word(payload, 16)? & 0xff_ffff,
                token: u64::from_be_bytes(payload.get(28..36)?.try_into().ok()?),
            });
        }
    }
}

/// A datagram as a daemon sends it, except for what the stranger has to guess.
fn guess(rng: &mut SmallRng, from: SocketAddr, to: SocketAddr, known: Known, is_peer: bool) -> Vec<u8> {
    // A sender that knows both and has the peer's address cannot be distinguished from the peer.
    let (knows_key, knows_token) = match rng.random_range(0..3) {
        0 => (true, false),
        1 => (false, true),
        _ => (!is_peer, !is_peer),
    };
    let guessed_key = match rng.random_range(0..8) {
        0 => WELL_KNOWN_KEYS[rng.random_range(0..WELL_KNOWN_KEYS.len())],
        _ => rng.random::<u32>() >> 1,
    };
    let qkey = if knows_key { known.qkey } else { guessed_key };
    let token = if knows_token { known.token } else { rng.random() };
    let mut payload = vec![0; rng.random_range(0..64) * 4];
    rng.fill_bytes(&mut payload);
    let told = if rng.random_bool(0.8) { payload.len() as u16 } else { rng.random() };
    let port = if rng.random_bool(0.8) { PORT } else { rng.random() };
    let mut header = Vec::with_capacity(16);
    header.extend(PORT.to_be_bytes());
    header.extend(port.to_be_bytes());
    header.extend([if rng.random_bool(0.9) { 1 } else { rng.random() }, 0]);
    header.extend(told.to_be_bytes());
    header.extend(token.to_be_bytes());
    let bth = Bth {
        opcode: UD_SEND_ONLY,
        solicited: false,
        pad: 0,
        version: 0,
        pkey: 0xffff,
        dest_qpn: Qpn(known.qpn),
        ack_request: false,
        psn: Psn::new(rng.random_range(0..1 << 24)),
    };
    let deth = Deth { qkey: Qkey(qkey), src_qpn: Qpn(known.source_qpn) };
    let mut packet = Header::new(&bth).with_deth(deth).as_bytes().to_vec();
    packet.extend(header);
    packet.extend(payload);
    if let Some(route) = PseudoHeader::new(from, to) {
        packet.extend(route.icrc(&packet, 0));
    }
    packet
}

/// Drops of a host for a reason.
fn dropped(host: &Host, reason: &str) -> Result<u64> {
    Ok(host.stat()?.drops.iter().filter(|(name, _)| name == reason).map(|(_, n)| n).sum())
}

/// Two daemons of its own, one of which writes a capture; then guesses beside polite datagrams.
pub(super) fn run(raas: Program<'_>, dir: &Path, rng: &mut SmallRng) -> Result<String> {
    let (file, flag) = (dir.join("datagrams.pcap"), std::ffi::OsStr::new("--pcap"));
    let hosts = [
        Host::start_with(raas, dir, address(), "", &[flag, file.as_os_str()])?,
        Host::start(raas, dir, address(), "")?,
    ];
    let peer = SocketAddr::new(hosts[1].ip, UDP_PORT);
    let exchange = Exchange::start(&hosts[0], &hosts[1])?;
    eventually("the first questions are answered", || {
        let answered = exchange.answered();
        Ok(if answered >= QUESTIONS { Ok(()) } else { Err(answered) })
    })?;
    let mut known = None;
    eventually("the capture shows a datagram", || {
        known = Known::of_capture(&std::fs::read(&file)?, peer);
        Ok(known.map(|_| ()).ok_or("none yet"))
    })?;
    let known = known.context("nothing was captured")?;
    // Fewer other packets to be counted beside, and to be captured.
    exchange.rest(true);
    let said = guesses(&hosts, rng, known);
    exchange.rest(false);
    let asked = exchange.finish_alone()?;
    hosts.into_iter().try_for_each(Host::stop)?;
    Ok(format!("{}; {asked}", said?))
}

fn guesses(hosts: &[Host; 2], rng: &mut SmallRng, known: Known) -> Result<String> {
    let host = &hosts[0];
    let to = SocketAddr::new(host.ip, UDP_PORT);
    let mut sockets = (0..STRANGERS).map(|n| UdpSocket::bind((stranger(n), 0))).collect::<std::io::Result<Vec<_>>>()?;
    // The peer's own address, but another process of it.
    sockets.push(UdpSocket::bind((hosts[1].ip, 0))?);
    let (before, mut sent) = (drops(host)?, 0);
    while sent < GUESSES {
        for _ in 0..BURST {
            // Half of them from the peer's address.
            let at = if rng.random() { sockets.len() - 1 } else { rng.random_range(0..sockets.len() - 1) };
            let is_peer = at == sockets.len() - 1;
            let socket = &sockets[at];
            socket.send_to(&guess(rng, socket.local_addr()?, to, known, is_peer), to)?;
            sent += 1;
        }
        eventually("every guess is counted", || {
            let found = drops(host)? - before;
            Ok(if found >= sent as u64 { Ok(()) } else { Err((found, sent)) })
        })?;
    }
    let found = drops(host)? - before;
    ensure!(found == sent as u64, "{sent} guesses, but {found} drops");
    let mut kinds = Vec::new();
    for reason in ["wrong_qkey", "datagram_stranger", "datagram_malformed"] {
        let count = dropped(host, reason)?;
        ensure!(count > 0, "none was dropped as {reason}: {:?}", host.stat()?.drops);
        kinds.push(format!("{reason} {count}"));
    }
    for socket in &sockets {
        socket.set_nonblocking(true)?;
        ensure!(socket.recv_from(&mut [0; 2048]).is_err(), "a guess was answered");
    }
    Ok(format!("{sent} guesses: {}", kinds.join(", ")))
}
