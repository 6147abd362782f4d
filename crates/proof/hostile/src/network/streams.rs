//! Strangers at the TCP port of a software NIC, where its wire over TCP listens (RFC 5044, 7.1): connections that say
//! nothing, anything, or the truth up to the token of a queue pair.
//!
//! What they may cost is a place among those that have shown no token, for a short time. No lane may notice them.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt};
use verbs::{Wire, WirePolicy};

use super::{Door, GROWTH_MAX, HALF_OPEN, dial, hold, links, stranger};
use crate::host::{Footprint, Host, Program, address};
use crate::polite::Transfer;
use crate::verdict::Verdict;

/// TCP port of the software NIC.
const PORT: u16 = verbs::ROCE_UDP_PORT;
/// Connections without a token at a time (`softnic::tcp::strangers`).
const PLACES: u64 = 64;
/// Key, flags, revision and length of an MPA request.
const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
/// Flags of RFC 6581 with revision 2.
const ENHANCED: [u8; 2] = [0x10, 2];
/// IRD and ORD words: peer-to-peer, the first message is a Write.
const IRD_ORD: [u8; 4] = [0x80, 16, 0x80, 16];
/// Number and token of the queue pair that is meant, and of the one that speaks.
const HELLO_BYTES: usize = 40;

/// An MPA request with this private data.
fn request(private_data: &[u8]) -> Vec<u8> {
    let length = (IRD_ORD.len() + private_data.len()) as u16;
    [&REQUEST[..], &ENHANCED, &length.to_be_bytes(), &IRD_ORD, private_data].concat()
}

/// A request for a queue pair that exists, with tokens that are guessed.
fn guess(rng: &mut SmallRng, qpn: u32) -> Vec<u8> {
    let mut hello = [0; HELLO_BYTES];
    rng.fill_bytes(&mut hello);
    hello[..4].copy_from_slice(&qpn.to_be_bytes());
    if rng.random() {
        // A token of zeros, as memory that nobody wrote has it.
        hello[4..20].fill(0);
    }
    request(&hello)
}

type Attack = fn(&mut SmallRng, &mut TcpStream, u32) -> std::io::Result<()>;

const ATTACKS: &[(&str, Attack)] = &[
    ("nothing is said", |_, _, _| Ok(())),
    ("garbage", |rng, link, _| {
        let mut bytes = [0; 300];
        rng.fill_bytes(&mut bytes);
        link.write_all(&bytes)
    }),
    ("a request that is cut", |rng, link, qpn| {
        let whole = guess(rng, qpn);
        link.write_all(&whole[..rng.random_range(1..whole.len())])
    }),
    ("a request that is said to be long", |_, link, _| {
        link.write_all(&[&REQUEST[..], &ENHANCED, &[0xff; 2], &[0; 400]].concat())
    }),
    ("a queue pair that exists, and a guessed token", |rng, link, qpn| link.write_all(&guess(rng, qpn))),
    ("a guessed token, and frames behind it", |rng, link, qpn| {
        link.write_all(&guess(rng, qpn))?;
        // Headers of Writes without a right CRC or key: nobody may look at them.
        let mut frames = [0; 4096];
        rng.fill_bytes(&mut frames);
        frames[..4].copy_from_slice(&[0, 200, 0xc1, 0x40]);
        link.write_all(&frames)
    }),
];

/// All attacks on a host whose lane is up, some of them from the peer's own address.
pub(super) fn judge(hosts: &[Host; 2], wire: WirePolicy, rng: &mut SmallRng, verdict: &mut Verdict) -> Result<()> {
    let at = SocketAddr::new(hosts[0].ip, PORT);
    if !wire.allows(Wire::Iwarp) {
        let closed = match TcpStream::connect(at) {
            Ok(_) => Err(anyhow!("somebody listens at {at}")),
            Err(error) => Ok(error.to_string()),
        };
        verdict.case("TCP wire: it is not allowed, and nobody listens", closed);
        return Ok(());
    }
    let qpn = hosts[0].stat()?.lanes.first().and_then(|lane| lane.qpn).context("there is no lane")?;
    let door = Door { port: PORT, places: PLACES, also_from: hosts[1].ip };
    for (name, attack) in ATTACKS {
        let before = refused(&hosts[0])?;
        let print = Footprint::of(hosts[0].pid())?;
        let said = links(&hosts[0], door, |link| attack(rng, link, qpn)).and_then(|said| {
            let counted = refused(&hosts[0])? - before;
            ensure!(counted == HALF_OPEN as u64, "{HALF_OPEN} connections, but {counted} are counted");
            let grown = Footprint::of(hosts[0].pid())?.anonymous_bytes.saturating_sub(print.anonymous_bytes);
            ensure!(grown <= GROWTH_MAX, "{grown} bytes more");
            Ok(said)
        });
        verdict.case(&format!("TCP wire: {name}"), said);
    }
    Ok(())
}

/// Connections that the device closed because they showed no token.
fn refused(host: &Host) -> Result<u64> {
    let names = ["tcp_refused", "tcp_strangers_dropped"];
    Ok(host.stat()?.counters.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(_, n)| n).sum())
}

/// Strangers hold every place at the devices of both hosts, and dial again where they lose one. A lane is made all the
/// same.
pub(super) fn locked_out(raas: Program<'_>, dir: &Path) -> Result<String> {
    let hosts = [Host::start(raas, dir, address(), "")?, Host::start(raas, dir, address(), "")?];
    let stop = Arc::new(AtomicBool::new(false));
    let mut holders = Vec::new();
    for (host, peer) in [(&hosts[0], &hosts[1]), (&hosts[1], &hosts[0])] {
        let to = SocketAddr::new(host.ip, PORT);
        let sources: Vec<_> = [peer.ip; 8].into_iter().chain((0..HALF_OPEN as u8).map(stranger)).collect();
        let held = sources.iter().map(|from| dial(*from, to)).collect::<Result<Vec<_>>>()?;
        let stop = Arc::clone(&stop);
        holders.push(std::thread::spawn(move || hold(held, &sources, to, &stop)));
    }
    let served = Transfer::start(&hosts[0], &hosts[1], 1).and_then(Transfer::finish);
    let wire = hosts[0].wire(raas.wire);
    stop.store(true, Ordering::Relaxed);
    let mut lost = 0;
    for holder in holders {
        lost += holder.join().map_err(|_| anyhow!("the strangers died"))??;
    }
    served.context("a lane was locked out")?;
    hosts.into_iter().try_for_each(Host::stop)?;
    Ok(format!("{} connections held at each, {lost} lost and dialed again, the lane is on {}", HALF_OPEN + 8, wire?))
}
