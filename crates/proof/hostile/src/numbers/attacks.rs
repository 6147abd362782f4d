//! The requests, each with the largest numbers that it can have.
//!
//! Owns the list: docs/inside/threat-model.md says of each request what its work is. An attack does its work again and
//! again while it is told to.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use control::{APP_VERSION, ChannelError, Reply, Request, Role, send_message};
use raas::{Region, RegionAccess, RegionOptions};
use shm::{Segment, Session, SessionShape, Sharing};

use crate::host::Host;
use crate::polite::session;
use crate::raw::{PATIENCE, RawApp, RawError, dial, mark, receive};

/// Where an attack takes place.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    /// The daemon that is attacked.
    pub(super) here: &'a Host,
    /// That of another host.
    pub(super) far: &'a Host,
    pub(super) on: &'a AtomicBool,
    pub(super) over: &'a AtomicBool,
    pub(super) done: &'a AtomicU64,
}

/// An attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    /// Programs that do it at a time.
    pub(super) programs: usize,
    pub(super) run: fn(Field<'_>, usize) -> Result<()>,
}

pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "sessions come back with all of their slots used", programs: 3, run: sessions_return },
    Attack { name: "kernels call functions of 15,000 locals", programs: 2, run: kernels_with_frames },
    Attack { name: "kernels begin with as many parts as may be", programs: 2, run: kernels_with_parts },
    Attack { name: "a region of 512 MiB ends", programs: 1, run: regions_end },
    Attack { name: "a region of 4 GiB of holes is revoked", programs: 1, run: regions_are_revoked },
    Attack { name: "a program with 1,000 connections leaves", programs: 1, run: crowds_leave },
    Attack { name: "a listener with 1,000 connections is closed", programs: 1, run: listeners_close },
    Attack { name: "64 programs ring for all of their slots", programs: 1, run: all_bells_ring },
];

/// Connections of one program.
const CROWD: usize = 1_000;
/// Of these so many are asked for at a time, which the control socket takes.
const CROWD_AT_ONCE: usize = 20;
/// Programs that ring.
const RINGERS: usize = 64;

impl Field<'_> {
    /// Does something whenever it is to be done, until all is over.
    fn whenever(&self, mut deed: impl FnMut() -> Result<()>) -> Result<()> {
        while !self.over.load(Ordering::Acquire) {
            if self.on.load(Ordering::Acquire) {
                deed()?;
                self.done.fetch_add(1, Ordering::Relaxed);
            } else {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }
}

fn sessions_return(field: Field<'_>, _: usize) -> Result<()> {
    let socket = &field.here.socket;
    let SessionShape { slots, engines } = RawApp::attach(socket, "shape")?.session.shape();
    let shape = SessionShape { slots, engines };
    field.whenever(|| {
        let segment = Segment::create("returns", Session::bytes(shape), Sharing::ReadWrite)?;
        let fd = segment.fd().try_clone_to_owned()?;
        Session::format(segment.into_region(), shape, 1)?;
        let stream = dial(socket)?;
        let say = |request: &Request, fds: &[BorrowedFd<'_>]| say(stream.as_fd(), request, fds);
        let (version, layout, name) = (APP_VERSION, shm::LAYOUT_VERSION, "returns".into());
        say(&Request::Hello { version, layout, role: Role::Returning, name }, &[])?;
        let used = vec![0xff; slots as usize / 8];
        let session_bytes = Session::bytes(shape);
        say(&Request::Return { slots, engines, session_bytes, next_chunk: 0, used }, &[fd.as_fd()])?;
        say(&Request::ReturnEnd, &[])?;
        // It is welcomed when all of its slots have been looked at.
        match receive(&stream, &mut Vec::new(), Instant::now() + PATIENCE)?.0 {
            Reply::Welcome { .. } => Ok(()),
            other => bail!("it does not come back: {other:?}"),
        }
    })
}

/// Says something, as soon as the daemon hears it. The kernel refuses descriptors to a program that is not known yet.
fn say(to: BorrowedFd<'_>, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<()> {
    let start = Instant::now();
    loop {
        match send_message(to, request, fds) {
            Err(ChannelError::Io(error)) if error.raw_os_error() == Some(nix::libc::EPERM) => {}
            Err(ChannelError::WouldBlock) => {}
            other => return Ok(other?),
        }
        ensure!(start.elapsed() < PATIENCE, "the daemon does not hear {request:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A region at which a module runs.
fn kernel(field: Field<'_>, number: usize, text: &str) -> Result<(raas::Session, Region)> {
    let session = session(field.here, "hostile-kernel")?;
    let access = RegionAccess::ALL | RegionAccess::EXECUTE;
    let region = RegionOptions::new().access(access).create(&session, &format!("kernel-{number}"), 4096)?;
    region.install_kernel("mine", &wat::parse_str(text)?)?;
    Ok((session, region))
}

fn kernels_with_frames(field: Field<'_>, number: usize) -> Result<()> {
    let text = format!(
        r#"(module (memory (export "memory") 1) (func $f (local {}))
            (func (export "run") (loop $l (call $f) (br $l))))"#,
        "i64 ".repeat(15_000)
    );
    let (_session, region) = kernel(field, number, &text)?;
    field.whenever(|| {
        ensure!(region.run("mine", &[]).is_err(), "it loops, and has an answer");
        Ok(())
    })
}

fn kernels_with_parts(field: Field<'_>, number: usize) -> Result<()> {
    let globals = "(global i64 (i64.const 1))".repeat(1_000);
    let text = format!(r#"(module (memory (export "memory") 4) {globals} (func (export "run")))"#);
    let (_session, region) = kernel(field, number, &text)?;
    field.whenever(|| region.run("mine", &[]).map(drop).map_err(Into::into))
}

fn regions_end(field: Field<'_>, number: usize) -> Result<()> {
    const BYTES: u64 = 512 << 20;
    let session = session(field.here, "hostile-owner")?;
    let far = crate::polite::session(field.far, "hostile-opener")?;
    let mut rounds = 0;
    field.whenever(|| {
        rounds += 1;
        let name = format!("dense-{number}-{rounds}");
        let region = RegionOptions::new().create(&session, &name, BYTES)?;
        // The daemon has it mapped, too, for the other host.
        let there = Region::open(&far, field.here.ip, &name, region.key())?;
        (0..BYTES / 4096).try_for_each(|page| region.store(page * 4096, 1))?;
        there.write(0, &[1; 8])?;
        Ok(())
    })
}

fn regions_are_revoked(field: Field<'_>, number: usize) -> Result<()> {
    const BYTES: u64 = 4 << 30;
    let session = session(field.here, "hostile-owner")?;
    let region = RegionOptions::new().create(&session, &format!("holes-{number}"), BYTES)?;
    (0..16).try_for_each(|piece| region.store(piece * (BYTES / 16), 1))?;
    field.whenever(|| {
        region.revoke(None)?;
        let taken = crate::host::Footprint::of(std::process::id())?.shared_bytes;
        ensure!(taken < BYTES / 2, "the region has become dense: {taken} bytes are resident");
        Ok(())
    })
}

/// A program with many connections to a listener of another host.
fn crowd(from: &Host, to: &Host) -> Result<(RawApp, RawApp, SocketAddr)> {
    let mut listener = RawApp::attach(&to.socket, "crowded")?;
    let at = listener.listen(u32::try_from(CROWD)?)?;
    let mut program = RawApp::attach(&from.socket, "crowd")?;
    for _ in 0..CROWD / CROWD_AT_ONCE {
        let asked = (0..CROWD_AT_ONCE).map(|_| program.ask(at, 4096)).collect::<Result<Vec<_>, RawError>>()?;
        for request in asked {
            program.connected(request)?;
        }
        // They wait, but what is said of them is taken.
        listener.drain()?;
    }
    Ok((program, listener, at))
}

fn crowds_leave(field: Field<'_>, _: usize) -> Result<()> {
    field.whenever(|| {
        let (program, listener, _) = crowd(field.here, field.far)?;
        drop(program);
        drop(listener);
        Ok(())
    })
}

fn listeners_close(field: Field<'_>, _: usize) -> Result<()> {
    field.whenever(|| {
        let (_program, mut listener, at) = crowd(field.far, field.here)?;
        listener.send(&Request::Unlisten { port: at.port() }, &[])?;
        // Its answer comes after the end of those that waited has begun.
        listener.listen(1)?;
        Ok(())
    })
}

fn all_bells_ring(field: Field<'_>, _: usize) -> Result<()> {
    let attach = |number| RawApp::attach(&field.here.socket, &format!("rings-{number}"));
    let programs = (0..RINGERS).map(attach).collect::<Result<Vec<_>, RawError>>()?;
    field.whenever(|| {
        for program in &programs {
            (0..program.session.slots()).for_each(|slot| mark(&program.session, slot));
            program.ring(0);
        }
        Ok(())
    })
}
