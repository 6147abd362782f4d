//! A bare relay: carries bytes between a bare ring of this host and a UDP socket, and does nothing else. With two of
//! them and two applications it is the limit of a service with a daemon on each host. docs/proof/benchmarks.md lists what it
//! leaves out: what is lost stays lost, so only loads with little under way fit it.

use std::io::{self, Read};
use std::net::{SocketAddr, UdpSocket};

use crate::bare::{BareRing, BareSegment, Wait};
use anyhow::{Context, Result};
use clap::Args;

/// Most bytes of a datagram: what a frame of Ethernet's usual size holds.
const DATAGRAM_BYTES: usize = 1024;
/// Bytes of the ring toward the application.
const RING_BYTES: u64 = 64 << 10;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    /// Address and port (0: any free one) of this relay's socket.
    #[arg(long)]
    local: SocketAddr,
    /// The other relay; without it, the sender of the first datagram.
    #[arg(long)]
    peer: Option<SocketAddr>,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    let socket = UdpSocket::bind(cli.local).with_context(|| format!("binding UDP {}", cli.local))?;
    if let Some(peer) = cli.peer {
        socket.connect(peer).with_context(|| format!("toward {peer}"))?;
    }
    socket.set_nonblocking(true)?;
    let segment = BareSegment::create(RING_BYTES)?;
    // The loop below has no end of its own: the program ends with the process that started it.
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        std::process::exit(0);
    });
    println!("bound {}", socket.local_addr()?);
    println!("ready {}", segment.path());
    relay(&segment.end(false, Wait::Yield)?, &socket, cli.peer.is_some())
}

fn relay(ring: &BareRing, socket: &UdpSocket, mut connected: bool) -> Result<()> {
    let mut buffer = [0; DATAGRAM_BYTES];
    loop {
        let mut idle = true;
        // Without a peer the application's bytes wait in the ring.
        if connected {
            let count = ring.try_read(&mut buffer);
            if count > 0 {
                idle = false;
                send(socket, &buffer[..count])?;
            }
        }
        match socket.recv_from(&mut buffer) {
            Ok((count, from)) => {
                idle = false;
                if !connected {
                    socket.connect(from)?;
                    connected = true;
                }
                let mut rest = &buffer[..count];
                while !rest.is_empty() {
                    rest = &rest[ring.write(rest)?..];
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // The other relay has ended: the next one that starts is connected again.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e).context("receiving"),
        }
        if idle {
            std::thread::yield_now();
        }
    }
}

fn send(socket: &UdpSocket, bytes: &[u8]) -> Result<()> {
    loop {
        match socket.send(bytes) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => std::thread::yield_now(),
            // The error belongs to an earlier datagram, and this one was not sent.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(e) => return Err(e).context("sending"),
        }
    }
}
