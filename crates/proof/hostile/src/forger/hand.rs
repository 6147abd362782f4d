//! The forger itself: an ordinary program of the peer's host. Lines on its standard input order it what to send.
//!
//! Owns the packets. Each has a right ICRC. The forger is given what it does not know, so that only the daemon under
//! attack decides what becomes of them.

use std::fmt;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use roce::wire::{Aeth, Bth, CREDITS_UNLIMITED, DEFAULT_PKEY, Header, Opcode, PseudoHeader, Reth, Syndrome};
use socket2::{Domain, MsgHdr, Protocol, SockAddr, Socket, Type};
use verbs::{Psn, Qpn, ROCE_UDP_PORT, Rkey};

/// Units that an immediate may claim at most, 4 KiB each, above the route id.
const CLAIM: u32 = 15 << 27;
/// Bytes of a garbage SEND.
const GARBAGE_BYTES: usize = 64;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A SEND of garbage, which ends a lane that believes it.
    Garbage,
    /// A WRITE of no bytes, which eats a packet sequence number.
    Empty,
    /// A WRITE with immediate of no bytes that claims 61,440 for a connection.
    Claim,
    /// An acknowledgement of all up to there.
    Ack,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Garbage, Self::Empty, Self::Claim, Self::Ack];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Garbage => "garbage",
            Self::Empty => "empty",
            Self::Claim => "claim",
            Self::Ack => "ack",
        })
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == word).ok_or_else(|| anyhow!("no kind of packet: {word}"))
    }
}

/// Packets to send.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// Which.
    pub kind: Kind,
    /// The queue pair.
    pub qpn: u32,
    /// Number of the first.
    pub psn: u32,
    /// From one to the next.
    pub step: u32,
    /// How many.
    pub count: u32,
    /// Route id, for claims.
    pub route: u32,
}

// ---- the program

/// Runs it until its input ends: from an address of this host to `to`, with as many sockets as the orders say.
pub fn run(from: Ipv4Addr, to: SocketAddr, seed: u64) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut sender = Sender::at(from, 0, from)?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split(' ').collect();
        let said = match words[..] {
            ["port", port] => Sender::at(from, port.parse()?, from).map(|s| sender = s),
            ["borrow", address] => Sender::at(address.parse()?, ROCE_UDP_PORT, from).map(|s| sender = s),
            ["send", kind, qpn, psn, step, count, route] => {
                let order = Order {
                    kind: kind.parse()?,
                    qpn: qpn.parse()?,
                    psn: psn.parse()?,
                    step: step.parse()?,
                    count: count.parse()?,
                    route: route.parse()?,
                };
                sender.send(&order, to, &mut rng)
            }
            _ => bail!("not understood: {line}"),
        };
        let mut out = std::io::stdout().lock();
        match said {
            Ok(()) => writeln!(out, "ok")?,
            Err(error) => writeln!(out, "no {}", format!("{error:#}").replace('\n', " "))?,
        }
        out.flush()?;
    }
    Ok(())
}

/// A socket and the name in which it speaks.
#[derive(Debug)]
struct Sender {
    socket: Socket,
    name: SocketAddr,
    /// Control message that makes the kernel write that name, where the socket is bound elsewhere.
    control: Vec<u8>,
}

impl Sender {
    /// A socket that is bound to `bound`:`port` and speaks in the name of `from`, by every means that an ordinary user
    /// has.
    fn at(bound: Ipv4Addr, port: u16, from: Ipv4Addr) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.set_freebind_v4(true)?;
        socket.bind(&SocketAddr::new(bound.into(), port).into())?;
        let port = socket.local_addr()?.as_socket().context("no address")?.port();
        let control = if bound == from { vec![] } else { packet_info(from) };
        Ok(Self { socket, name: SocketAddr::new(from.into(), port), control })
    }

    fn send(&self, order: &Order, to: SocketAddr, rng: &mut SmallRng) -> Result<()> {
        let route = PseudoHeader::new(self.name, to).context("two IP versions")?;
        let destination = SockAddr::from(to);
        let mut psn = Psn::new(order.psn);
        for _ in 0..order.count {
            let packet = packet(order, psn, rng);
            let icrc = route.icrc(&packet, 0);
            let parts = [IoSlice::new(&packet), IoSlice::new(&icrc)];
            let message = MsgHdr::new().with_addr(&destination).with_buffers(&parts).with_control(&self.control);
            self.socket.sendmsg(&message, 0)?;
            psn = psn.plus(order.step);
        }
        Ok(())
    }
}

/// `IP_PKTINFO` with a source address (`struct cmsghdr`, `struct in_pktinfo` of Linux).
fn packet_info(source: Ipv4Addr) -> Vec<u8> {
    const SOL_IP: i32 = 0;
    const IP_PKTINFO: i32 = 8;
    const HEADER_BYTES: usize = 16;
    const INFO_BYTES: usize = 12;
    let mut control = (HEADER_BYTES + INFO_BYTES).to_ne_bytes().to_vec();
    control.extend(SOL_IP.to_ne_bytes());
    control.extend(IP_PKTINFO.to_ne_bytes());
    // Any interface, the source, nothing.
    control.extend([0; 4]);
    control.extend(source.octets());
    control.extend([0; 4]);
    control.resize(control.len().next_multiple_of(size_of::<usize>()), 0);
    control
}

/// From BTH to payload.
fn packet(order: &Order, psn: Psn, rng: &mut SmallRng) -> Vec<u8> {
    let opcode = match order.kind {
        Kind::Garbage => Opcode::SendOnly,
        Kind::Empty => Opcode::WriteOnly,
        Kind::Claim => Opcode::WriteOnlyImm,
        Kind::Ack => Opcode::Acknowledge,
    };
    let bth = Bth {
        opcode: opcode.byte(),
        solicited: true,
        pad: 0,
        version: 0,
        pkey: DEFAULT_PKEY,
        dest_qpn: Qpn(order.qpn),
        ack_request: order.kind != Kind::Ack,
        psn,
    };
    let header = Header::new(&bth);
    let nowhere = Reth { addr: 0, rkey: Rkey(rng.random()), dma_len: 0 };
    let mut bytes = match order.kind {
        Kind::Garbage => header.as_bytes().to_vec(),
        Kind::Empty => header.with_reth(nowhere).as_bytes().to_vec(),
        Kind::Claim => header.with_reth(nowhere).with_imm(order.route | CLAIM).as_bytes().to_vec(),
        Kind::Ack => header.with_aeth(Aeth { syndrome: Syndrome::Ack(CREDITS_UNLIMITED), msn: 0 }).as_bytes().to_vec(),
    };
    if order.kind == Kind::Garbage {
        let at = bytes.len();
        bytes.resize(at + GARBAGE_BYTES, 0);
        rng.fill_bytes(&mut bytes[at..]);
    }
    bytes
}

// ---- seen from the judge

/// The running program.
#[derive(Debug)]
pub(super) struct Hand {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Hand {
    /// Starts it by a command that ends with its own path.
    pub(super) fn start(mut command: Command, from: IpAddr, to: IpAddr, seed: u64) -> Result<Self> {
        let to = SocketAddr::new(to, ROCE_UDP_PORT);
        command.args(["forge", "--from", &from.to_string(), "--to", &to.to_string(), "--seed", &seed.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start the forger")?;
        let answers = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, answers })
    }

    /// Sends an order. `Ok(Err)`: the system refused what the forger was ordered to do.
    fn say(&mut self, line: &str) -> Result<std::result::Result<(), String>> {
        let stdin = self.child.stdin.as_mut().context("no input")?;
        writeln!(stdin, "{line}").context("the forger is gone")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim().split_once(' ') {
            None if answer.trim() == "ok" => Ok(Ok(())),
            Some(("no", why)) => Ok(Err(why.to_owned())),
            _ => bail!("the forger ended at `{line}`"),
        }
    }

    /// From now on it sends from this port of the peer's address; 0: any.
    pub(super) fn port(&mut self, port: u16) -> Result<std::result::Result<(), String>> {
        self.say(&format!("port {port}"))
    }

    /// From now on it sends in the name of the peer's address from the peer's port, which it has at another address.
    pub(super) fn borrow_port(&mut self, at: Ipv4Addr) -> Result<std::result::Result<(), String>> {
        self.say(&format!("borrow {at}"))
    }

    /// Sends.
    pub(super) fn send(&mut self, order: &Order) -> Result<()> {
        let Order { kind, qpn, psn, step, count, route } = order;
        let sent = self.say(&format!("send {kind} {qpn} {psn} {step} {count} {route}"))?;
        ensure!(sent.is_ok(), "the forger cannot send: {sent:?}");
        Ok(())
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
