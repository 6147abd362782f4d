//! The protocol of librdmacm's rping, from its source (librdmacm/examples/rping.c): the client offers a buffer, the server
//! READs it; the client offers another one, the server WRITEs what it has read there. Each step is a message of 16 bytes.

use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::{Result, bail, ensure};
use iwarp::Ending;
use verbs::{RemoteAddr, Rkey};

use crate::host::{Answer, Host, Memory, Setup};

/// Bytes of a message: address (64 bits), key (32), size (32), big endian.
const INFO_BYTES: usize = 16;
const SIZE_MAX: usize = 1 << 16;
const SETUP: Setup = Setup { wants_crc: false, receives: 4, receive_bytes: 64, scratch_bytes: SIZE_MAX };

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address of the server.
    address: IpAddr,
    /// Its port.
    port: u16,
    /// Pings.
    #[arg(long, default_value_t = 20)]
    count: u32,
    /// Bytes of a ping (client).
    #[arg(long, default_value_t = 3000)]
    size: usize,
}

struct Info {
    remote: RemoteAddr,
    size: usize,
}

fn parse(bytes: &[u8]) -> Result<Info> {
    ensure!(bytes.len() == INFO_BYTES, "a message of {} bytes", bytes.len());
    let (addr, rkey, size) = (bytes[..8].try_into()?, bytes[8..12].try_into()?, bytes[12..].try_into()?);
    let remote = RemoteAddr { addr: u64::from_be_bytes(addr), rkey: Rkey(u32::from_be_bytes(rkey)) };
    let size = u32::from_be_bytes(size) as usize;
    ensure!(size <= SIZE_MAX, "a buffer of {size} bytes");
    Ok(Info { remote, size })
}

fn info(memory: &Memory, size: usize) -> Vec<u8> {
    let mut bytes = 0u64.to_be_bytes().to_vec();
    bytes.extend(memory.mr.rkey.0.to_be_bytes());
    bytes.extend((size as u32).to_be_bytes());
    bytes
}

/// Serves one client until it goes.
pub(crate) fn serve(options: &Options) -> Result<String> {
    let mut host = Host::new(&SETUP)?;
    let listener = TcpListener::bind((options.address, options.port))?;
    println!("listening {}", options.port);
    host.accept(&listener, |_| Ok(Answer::Accept(vec![])))?;
    for _ in 0..options.count {
        let source = parse(&host.receive()?)?;
        let data = host.read(source.size, source.remote)?;
        host.send(&[0; INFO_BYTES])?;
        let sink = parse(&host.receive()?)?;
        ensure!(sink.size == data.len(), "{} bytes were offered, then {}", data.len(), sink.size);
        host.write(&data, sink.remote)?;
        host.send(&[0; INFO_BYTES])?;
    }
    match host.end()? {
        Ending::ClosedByPeer => Ok(format!("{} pings", options.count)),
        other => bail!("after {} pings: {other}", options.count),
    }
}

/// Pings a server.
pub(crate) fn drive(options: &Options) -> Result<String> {
    ensure!(options.size <= SIZE_MAX, "at most {SIZE_MAX} bytes a ping");
    let mut host = Host::new(&SETUP)?;
    let (source, sink) = (host.offered(SIZE_MAX)?, host.offered(SIZE_MAX)?);
    host.connect(SocketAddr::new(options.address, options.port), &[])?;
    for number in 0..options.count {
        // rping sends the string back that it has read, up to its end.
        let mut ping: Vec<u8> = (0..options.size).map(|at| b'!' + ((at as u32 + number) % 90) as u8).collect();
        if let Some(last) = ping.last_mut() {
            *last = 0;
        }
        source.fill(&ping)?;
        host.send(&info(&source, options.size))?;
        ensure!(host.receive()?.len() == INFO_BYTES, "no answer to the offer");
        host.send(&info(&sink, options.size))?;
        ensure!(host.receive()?.len() == INFO_BYTES, "no answer to the second offer");
        ensure!(sink.bytes(options.size)? == ping, "ping {number} came back wrong");
    }
    host.close()?;
    Ok(format!("{} pings of {} bytes", options.count, options.size))
}
