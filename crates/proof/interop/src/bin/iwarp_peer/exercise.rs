//! The exercise that tests/vm/siw-app describes, with our TCP wire at this end.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Result, bail, ensure};
use iwarp::Ending;
use verbs::{RemoteAddr, Rkey};

use crate::host::{Answer, Host, Memory, Setup};

const REGION: usize = 1 << 18;
const RECEIVE_MAX: usize = 1 << 18;
const SETUP: Setup =
    Setup { wants_crc: false, receives: 4, receive_bytes: RECEIVE_MAX, scratch_bytes: RECEIVE_MAX + 8 };
const OFFER_BYTES: usize = 20;
const COMMAND_BYTES: usize = 16;
/// Around the padding of an FPDU, one Ethernet segment, and the longest FPDU.
const SENDS: &[usize] = &[1, 2, 3, 4, 31, 64, 1447, 1448, 4096, 65535, 200_001];
const WRITES: &[usize] = &[1, 5, 1400, 1500, 65536, 200_003];
const READS: &[usize] = &[1, 7, 1428, 4096, 65537, 200_002];
/// By their number in the command `E`.
const RULES: &[&str] = &["write-stag", "write-bounds", "read-stag", "read-bounds", "send-long"];
const REFUSAL: &[u8] = b"not today";

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..251).map(|at| ((seed * 31 + at) % 251) as u8).cycle().take(len).collect()
}

fn wrong_bytes(seen: &[u8], wanted: &[u8]) -> u32 {
    seen.iter().zip(wanted).filter(|(a, b)| a != b).count() as u32
}

fn ensure_pattern(seen: &[u8], seed: u64, what: &str) -> Result<()> {
    let wanted = pattern(seed, seen.len());
    ensure!(seen == wanted, "{what} of {} bytes has {} wrong", seen.len(), wrong_bytes(seen, &wanted));
    Ok(())
}

/// One end.
struct End {
    host: Host,
    region: Memory,
    remote: RemoteAddr,
}

impl End {
    fn new(kind: &str) -> Result<Self> {
        let wants_crc = kind.contains("crc");
        let mut host = Host::new(&Setup { wants_crc, ..SETUP })?;
        let region = host.offered(REGION)?;
        Ok(Self { host, region, remote: RemoteAddr { addr: 0, rkey: Rkey(0) } })
    }

    fn offer(&self) -> Vec<u8> {
        let mut offer = b"RaaS".to_vec();
        offer.extend(self.region.mr.rkey.0.to_be_bytes());
        offer.extend(0u64.to_be_bytes());
        offer.extend((REGION as u32).to_be_bytes());
        offer
    }

    fn learn(&mut self, offer: &[u8]) -> Result<()> {
        self.remote = learned(offer)?;
        Ok(())
    }

    fn command(&mut self, op: u8, len: u32, seed: u64) -> Result<()> {
        let mut bytes = vec![op, 0, 0, 0];
        bytes.extend(len.to_be_bytes());
        bytes.extend(seed.to_be_bytes());
        self.host.send(&bytes)
    }

    fn commanded(&mut self) -> Result<(u8, u32, u64)> {
        let bytes = self.host.receive()?;
        ensure!(bytes.len() == COMMAND_BYTES, "a command of {} bytes", bytes.len());
        let (len, seed) = (bytes[4..8].try_into()?, bytes[8..16].try_into()?);
        Ok((bytes[0], u32::from_be_bytes(len), u64::from_be_bytes(seed)))
    }

    fn answered(&mut self, op: u8, what: &str, len: usize) -> Result<()> {
        let (seen, wrong, _) = self.commanded()?;
        ensure!(seen == op && wrong == 0, "{what} of {len} bytes: answer {seen}, {wrong} wrong bytes");
        Ok(())
    }

    /// Sends, writes and reads of all sizes, then the end in order.
    fn exercise(&mut self) -> Result<()> {
        let mut seed = 1;
        for &len in SENDS {
            seed += 2;
            self.command(b'S', len as u32, seed)?;
            self.host.send(&pattern(seed, len))?;
            let back = self.host.receive()?;
            ensure!(back.len() == len, "{} bytes came back for {len}", back.len());
            ensure_pattern(&back, seed + 1, "the answer to a SEND")?;
        }
        for &len in WRITES {
            seed += 2;
            self.host.write(&pattern(seed, len), self.remote)?;
            self.command(b'W', len as u32, seed)?;
            self.answered(b'w', "WRITE", len)?;
            ensure_pattern(&self.region.bytes(len)?, seed + 1, "the server's WRITE")?;
        }
        for &len in READS {
            seed += 2;
            self.region.fill(&pattern(seed, len))?;
            self.command(b'R', len as u32, seed)?;
            self.answered(b'r', "the server's READ", len)?;
            ensure_pattern(&self.host.read(len, self.remote)?, seed + 1, "READ")?;
        }
        self.command(b'Q', 0, 0)?;
        self.host.close()
    }

    /// One message there and back before a rule is broken. siw's passive end brings the kernel down (iwcm.c, a BUG in
    /// `cm_close_handler`) if the first bytes that it gets after a peer-to-peer set-up hold a broken rule too.
    fn greet(&mut self) -> Result<()> {
        self.command(b'S', 1, 0)?;
        self.host.send(&pattern(0, 1))?;
        ensure_pattern(&self.host.receive()?, 1, "the answer to the greeting")
    }

    /// Answers commands until the connection ends.
    fn answer(&mut self, kind: &str) -> Result<String> {
        loop {
            let (op, len, seed) = self.commanded()?;
            let size = len as usize;
            match op {
                b'S' => {
                    let bytes = self.host.receive()?;
                    ensure!(bytes.len() == size, "a SEND of {} bytes for {len}", bytes.len());
                    ensure_pattern(&bytes, seed, "a SEND")?;
                    self.host.send(&pattern(seed + 1, size))?;
                    if kind.starts_with("drive-") {
                        return self.must_find_fault();
                    }
                }
                b'W' => {
                    let wrong = wrong_bytes(&self.region.bytes(size)?, &pattern(seed, size));
                    self.host.write(&pattern(seed + 1, size), self.remote)?;
                    self.command(b'w', wrong, 0)?;
                }
                b'R' => {
                    let wrong = wrong_bytes(&self.host.read(size, self.remote)?, &pattern(seed, size));
                    self.region.fill(&pattern(seed + 1, size))?;
                    self.command(b'r', wrong, 0)?;
                }
                b'E' => return self.break_rule(RULES.get(size).copied().unwrap_or_default()),
                b'Q' => {
                    return match self.host.end()? {
                        end @ Ending::ClosedByPeer => Ok(end.to_string()),
                        other => bail!("the end is no orderly one: {other}"),
                    };
                }
                other => bail!("command {other}"),
            }
        }
    }

    /// Breaks a rule. Whether the work request itself fails depends on who sees it first; siw must end the connection.
    fn break_rule(&mut self, rule: &str) -> Result<String> {
        let RemoteAddr { addr, rkey } = self.remote;
        let wrong_key = RemoteAddr { addr, rkey: Rkey(rkey.0 ^ 0x0001_0000) };
        let beyond = RemoteAddr { addr: addr + REGION as u64 - 511, rkey };
        // What the work request says is told by the end of the connection too.
        let _ = match rule {
            "write-stag" => self.host.write(&pattern(1, 512), wrong_key),
            "write-bounds" => self.host.write(&pattern(1, 512), beyond),
            "read-stag" => self.host.read(512, wrong_key).map(drop),
            "read-bounds" => self.host.read(512, beyond).map(drop),
            "send-long" => self.host.send(&pattern(1, RECEIVE_MAX + 8)),
            "bad-crc" => {
                self.host.break_crc();
                self.host.send(&pattern(1, 512))
            }
            _ => bail!("no rule {rule}"),
        };
        match self.host.end()? {
            end @ (Ending::TerminatedByPeer(_) | Ending::Broken) => Ok(end.to_string()),
            other => bail!("the broken rule {rule} ended with: {other}"),
        }
    }

    /// The peer breaks a rule, which must end the connection with a Terminate message from here.
    fn must_find_fault(&mut self) -> Result<String> {
        match self.host.end()? {
            end @ Ending::Violated(_) => Ok(end.to_string()),
            other => bail!("the peer's broken rule ended with: {other}"),
        }
    }
}

fn learned(offer: &[u8]) -> Result<RemoteAddr> {
    ensure!(offer.len() >= OFFER_BYTES && offer.starts_with(b"RaaS"), "private data {offer:02x?}");
    let (stag, addr, len) = (offer[4..8].try_into()?, offer[8..16].try_into()?, offer[16..20].try_into()?);
    ensure!(u32::from_be_bytes(len) == REGION as u32, "a region of {} bytes", u32::from_be_bytes(len));
    Ok(RemoteAddr { addr: u64::from_be_bytes(addr), rkey: Rkey(u32::from_be_bytes(stag)) })
}

/// Plays the driver in one case.
pub(crate) fn drive(address: SocketAddr, kind: &str) -> Result<String> {
    let mut end = End::new(kind)?;
    let offer = end.offer();
    if kind == "reject" {
        let refused = end.host.connect(address, &offer);
        ensure!(refused.is_err(), "the refused connection stands");
        return match end.host.end()? {
            Ending::Rejected { private_data } if private_data.starts_with(REFUSAL) => Ok("refused".to_owned()),
            other => bail!("the refusal came as: {other:?}"),
        };
    }
    let answer = end.host.connect(address, &offer)?;
    end.learn(&answer)?;
    if let Some(rule) = kind.strip_prefix("drive-") {
        end.greet()?;
        end.break_rule(rule)
    } else if let Some(rule) = kind.strip_prefix("serve-") {
        let number = RULES.iter().position(|known| *known == rule);
        let Some(number) = number else { bail!("no rule {rule}") };
        end.command(b'E', number as u32, 0)?;
        end.must_find_fault()
    } else {
        end.exercise().map(|()| "closed in order".to_owned())
    }
}

/// Plays the server in one case.
pub(crate) fn serve(listener: &TcpListener, kind: &str) -> Result<String> {
    let mut end = End::new(kind)?;
    let offer = end.offer();
    let mut remote = None;
    end.host.accept(listener, |theirs| {
        remote = Some(learned(theirs)?);
        Ok(if kind == "reject" { Answer::Refuse(REFUSAL.to_vec()) } else { Answer::Accept(offer) })
    })?;
    if kind == "reject" {
        return Ok("refused".to_owned());
    }
    let Some(remote) = remote else { bail!("no request") };
    end.remote = remote;
    end.answer(kind)
}
