//! Bare relays in a star: one in the middle carries messages out of a bare ring to the TCP connections of many leaves, and
//! each leaf carries what comes into a bare ring of its own. With as many of them as there are daemons, they are the limit
//! of a service with a daemon on each host: what so many processes, wakes and sockets cost that do nothing else.
//! docs/proof/benchmarks.md lists what it leaves out.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::bare::{BareRing, BareSegment, Wait};
use crate::star;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use rustix::net::sockopt;

/// Bytes that a leaf takes with one call.
const PIECE_BYTES: usize = 64 << 10;
/// It does not pace, which over loopback only costs.
const CONGESTION_CONTROL: &str = "cubic";

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Bytes of each ring, a power of two.
    #[arg(long)]
    ring_bytes: u64,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// One of many: a TCP connection, which it waits for in the kernel, and a ring.
    Leaf {
        /// Address and port (0: any free one).
        #[arg(long)]
        listen: SocketAddr,
    },
    /// The one in the middle.
    Center {
        /// The leaves, in the order of the messages' numbers.
        #[arg(long, required = true)]
        to: Vec<SocketAddr>,
    },
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    // The loops below have no end of their own: the program ends with the process that started it.
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(0);
    });
    let segment = BareSegment::create(cli.ring_bytes)?;
    let ring = segment.end(false, Wait::Yield)?;
    match cli.role {
        Role::Leaf { listen } => leaf(listen, &segment, &ring),
        Role::Center { to } => center(&to, &segment, &ring),
    }
}

fn leaf(listen: SocketAddr, segment: &BareSegment, ring: &BareRing) -> Result<()> {
    let listener = TcpListener::bind(listen).with_context(|| format!("binding TCP {listen}"))?;
    println!("bound {}", listener.local_addr()?);
    println!("ready {}", segment.path());
    let (mut stream, _) = listener.accept()?;
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the relay in the middle has ended");
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            rest = &rest[ring.write(rest)?..];
        }
    }
}

fn center(to: &[SocketAddr], segment: &BareSegment, ring: &BareRing) -> Result<()> {
    let connect = |to: &SocketAddr| -> Result<TcpStream> {
        let stream = TcpStream::connect(to).with_context(|| format!("connecting to {to}"))?;
        stream.set_nodelay(true)?;
        sockopt::set_tcp_congestion(&stream, CONGESTION_CONTROL)?;
        Ok(stream)
    };
    let mut leaves: Vec<TcpStream> = to.iter().map(connect).collect::<Result<_>>()?;
    println!("ready {}", segment.path());
    let mut message = Vec::new();
    loop {
        let mut head = [0; star::HEAD_BYTES];
        fill(ring, &mut head)?;
        let (leaf, bytes) = star::parse_head(head);
        message.resize(bytes, 0);
        fill(ring, &mut message)?;
        let Some(stream) = leaves.get_mut(leaf) else { bail!("a message for leaf {leaf} of {}", to.len()) };
        stream.write_all(&message)?;
    }
}

/// Waits for all of it.
fn fill(ring: &BareRing, mut into: &mut [u8]) -> Result<()> {
    while !into.is_empty() {
        // Between two turns the application may be silent for longer than a ring waits.
        match ring.read(into) {
            Ok(0) => bail!("the application has ended"),
            Ok(count) => into = &mut into[count..],
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
