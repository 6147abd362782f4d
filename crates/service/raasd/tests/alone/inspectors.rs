//! Programs that ask for tables of tens of thousands of rows, and do not read the answers or read them in a loop: the
//! daemon's memory stays within a bound, and others are served.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use control::{
    APP_VERSION, ChannelError, Cursor, InspectQuery, PAGE_BYTES, Reply, Request, Role, recv_message, send_message,
};
use raas::{Session, Stream};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// Rows of the table: each kernel TCP connection that a program reports costs the daemon a row.
const PROGRAMS: u64 = 8;
const ROWS_OF_ONE: u64 = 4096;
const ROWS: u64 = PROGRAMS * ROWS_OF_ONE;
const SILENT: usize = 64;
/// What the daemon may grow by for readers that do not read: a page for each, and as much again for the allocator and
/// for what the test itself keeps. The whole table for one of them would be more than 4 MB.
const GROWTH_MAX: u64 = 2 * (SILENT * PAGE_BYTES) as u64 + (2 << 20);

/// A program at the control socket, with what it was handed.
struct Program {
    socket: OwnedFd,
    _fds: Vec<OwnedFd>,
}

fn attach(host: &Host, role: Role) -> Program {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(&host.config.socket).unwrap()).unwrap();
    let hello = Request::Hello { version: APP_VERSION, layout: shm::LAYOUT_VERSION, role, name: "inspector".into() };
    send_message(socket.as_fd(), &hello, &[]).unwrap();
    let Some((Reply::Welcome { .. }, fds)) = receive(&socket) else { panic!("not attached") };
    Program { socket, _fds: fds }
}

fn receive(socket: &OwnedFd) -> Option<(Reply, Vec<OwnedFd>)> {
    let start = Instant::now();
    let mut buffer = Vec::new();
    while start.elapsed() < PATIENCE {
        match recv_message(socket.as_fd(), &mut buffer) {
            Ok(message) => return Some(message),
            Err(ChannelError::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
            Err(_) => return None,
        }
    }
    panic!("no answer");
}

/// False: the daemon has closed.
fn ask(program: &Program, request: u64, from: Cursor) -> bool {
    let question = Request::Inspect { request, query: InspectQuery::Connections, from };
    match send_message(program.socket.as_fd(), &question, &[]) {
        Ok(()) | Err(ChannelError::WouldBlock) => true,
        Err(ChannelError::Closed) => false,
        Err(e) => panic!("{e}"),
    }
}

/// Anonymous memory of this process in bytes.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn fill(host: &Host) -> Vec<Program> {
    let programs: Vec<_> = (0..PROGRAMS).map(|_| attach(host, Role::Application)).collect();
    let (local, peer) = ("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    for program in &programs {
        for number in 0..ROWS_OF_ONE {
            let opened = Request::TcpOpened { number, local, peer };
            while let Err(error) = send_message(program.socket.as_fd(), &opened, &[]) {
                assert!(matches!(error, ChannelError::WouldBlock), "{error}");
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    let rows = || raas::inspect::connections(Some(&host.config.socket)).unwrap().len() as u64;
    eventually("all rows are there", || rows() == ROWS);
    programs
}

/// What a daemon that still serves does.
fn serves(host: &Host) {
    let session = host.session();
    let port = host.echo(&session);
    Stream::connect_with(&session, (host.address(), port)).unwrap();
}

#[test]
fn readers_that_do_not_read_cost_a_page_each() {
    let _alone = crate::alone();
    bounded(|| {
        let host = Host::started();
        let programs = fill(&host);
        let silent: Vec<_> = (0..SILENT).map(|_| attach(&host, Role::Inspector)).collect();
        let before = anonymous_bytes();
        let third = Cursor { table: 2, at: 0 };
        let mut peak = 0;
        // When the socket of one takes no more answers, its next question ends the session.
        let (start, mut open) = (Instant::now(), silent.iter().collect::<Vec<_>>());
        for request in 0.. {
            open.retain(|program| ask(program, request, third));
            peak = anonymous_bytes().max(peak);
            if open.is_empty() {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "who asks on without reading is not detached");
            std::thread::sleep(Duration::from_millis(2));
        }
        serves(&host);
        let grown = peak.saturating_sub(before);
        eprintln!("{SILENT} silent readers cost {grown} bytes, up to {GROWTH_MAX} are allowed");
        assert!(grown <= GROWTH_MAX, "{SILENT} silent readers cost {grown} bytes, more than {GROWTH_MAX}");
        drop((programs, silent));
    });
}

#[test]
fn readers_in_a_loop_hold_nobody_up() {
    let _alone = crate::alone();
    bounded(|| {
        let (host, far) = (Host::started(), Host::started());
        let programs = fill(&host);
        let far_session = far.session();
        let port = far.echo(&far_session);
        let stop = std::sync::atomic::AtomicBool::new(false);
        let pages = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let program = attach(&host, Role::Inspector);
                    let mut from = Cursor::default();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        assert!(ask(&program, 1, from));
                        let Some((Reply::Inspected { answer, next, .. }, _)) = receive(&program.socket) else {
                            panic!("detached")
                        };
                        let bytes = control::encode(&answer).unwrap().len();
                        assert!(bytes <= PAGE_BYTES + 64, "a page of {bytes} bytes");
                        from = next.unwrap_or_default();
                        pages.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            // Every connect and every byte gets through between the pages.
            for _ in 0..20 {
                use std::io::{Read, Write};
                let session = Session::connect(&host.config.socket).unwrap();
                let mut stream = Stream::connect_with(&session, (far.address(), port)).unwrap();
                let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
                let mut got = vec![0; sent.len()];
                for (piece, back) in sent.chunks(20_000).zip(got.chunks_mut(20_000)) {
                    stream.write_all(piece).unwrap();
                    stream.read_exact(back).unwrap();
                }
                assert_eq!(got, sent);
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(pages.into_inner() > 100, "the readers read");
        drop(programs);
    });
}
