//! What the same two processes reach without RDMA: kernel TCP for throughput, a bare UDP ping-pong for latency. Run
//! beside the software NIC, they say how fast the machine is at the moment.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use super::{Outcome, Plan, Watchdog};

/// The responder of `tcp` and `udp_lat`; prints where it listens.
pub(crate) fn respond(plan: &Plan) -> Outcome<()> {
    if plan.verb == "tcp" {
        let listener = TcpListener::bind((plan.address("peer", super::RESPONDER), 0))?;
        println!("{}", listener.local_addr()?);
        let (mut stream, _) = listener.accept()?;
        let mut buffer = vec![0; plan.bytes()? as usize];
        while stream.read(&mut buffer)? > 0 {}
        return Ok(());
    }
    let socket = UdpSocket::bind((plan.address("peer", super::RESPONDER), 0))?;
    socket.set_nonblocking(true)?;
    println!("{}", socket.local_addr()?);
    let mut buffer = [0; 2048];
    for _ in 0..plan.count()? {
        let (len, from) = spin(|| socket.recv_from(&mut buffer))?;
        socket.send_to(&buffer[..len], from)?;
    }
    Ok(())
}

/// The requester, towards the address that the responder printed.
pub(crate) fn request(plan: &Plan, at: &str) -> Outcome<()> {
    let (bytes, count) = (plan.bytes()?, plan.count()?);
    if plan.verb == "tcp" {
        let mut stream = TcpStream::connect(at.trim())?;
        let buffer = vec![7; bytes as usize];
        let begin = Instant::now();
        for _ in 0..count {
            stream.write_all(&buffer)?;
        }
        let gbit = count as f64 * f64::from(bytes) * 8.0 / 1e9;
        println!("kernel TCP, {bytes} B writes: {:.2} Gbit/s", gbit / begin.elapsed().as_secs_f64());
        return Ok(());
    }
    let socket = UdpSocket::bind((plan.address("at", super::REQUESTER), 0))?;
    socket.set_nonblocking(true)?;
    // As long as a WRITE of these bytes: BTH, RETH, ICRC.
    let packet = vec![7; bytes as usize + 32];
    let mut buffer = [0; 2048];
    let mut times = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        socket.send_to(&packet, at.trim())?;
        spin(|| socket.recv_from(&mut buffer))?;
        times.push(begin.elapsed().as_nanos() as u64);
    }
    super::print_times("bare UDP", packet.len() as u32, &mut times);
    Ok(())
}

/// Tries again, yielding, while the call would block.
fn spin<T>(mut call: impl FnMut() -> std::io::Result<T>) -> Outcome<T> {
    let mut watchdog = Watchdog::start();
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                watchdog.check(false)?;
                std::thread::yield_now();
            }
            Err(e) => return Err(e.into()),
        }
    }
}
