//! The requests, each with the largest numbers that it can have, or some that are near.
//!
//! Owns the list: docs/inside/threat-model.md says of each request what its work is. An attack does its work again and
//! again while it is told to.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use control::{APP_VERSION, ChannelError, RegionKey, RegionSpec, Reply, Request, Role, send_message};
use raas::{Region, RegionAccess, RegionOptions};
use rand::RngExt as _;
use rand::rngs::SmallRng;
use rustix::fs::{FallocateFlags, fallocate};
use shm::{Segment, Session, SessionShape, Sharing};

use crate::host::Host;
use crate::polite::session;
use crate::raw::{PATIENCE, RawApp, RawError, dial, mark, receive};
use crate::requests::Asker;

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
    pub(super) run: fn(Field<'_>, usize, &mut SmallRng) -> Result<()>,
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
    Attack { name: "holes are punched where another host writes", programs: 1, run: holes_are_punched },
    Attack { name: "memory of 1 GiB comes with a message, and goes", programs: 1, run: memory_is_passed },
    Attack { name: "two users say what is drawn", programs: 2, run: anything_is_said },
];

/// Connections of one program.
const CROWD: u64 = 1_000;
/// Of these so many are asked for at a time, which the control socket takes.
const CROWD_AT_ONCE: u64 = 20;
/// Programs that ring.
const RINGERS: usize = 64;

/// The largest number, one or two less, or a good deal less.
fn near(largest: u64, rng: &mut SmallRng) -> u64 {
    largest - [0, 1, 2, rng.random_range(0..=largest / 4)][rng.random_range(0..4)]
}

/// The largest size, a byte or a page less, or one that is no whole page.
fn near_bytes(largest: u64, rng: &mut SmallRng) -> u64 {
    largest - [0, 1, 4095, 4096, rng.random_range(0..=largest / 4)][rng.random_range(0..5)]
}

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

fn sessions_return(field: Field<'_>, _: usize, rng: &mut SmallRng) -> Result<()> {
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
        let session_bytes = Session::bytes(shape);
        let (used, is_beyond) = slots_in_use(slots, rng);
        let next_chunk = near(u32::MAX.into(), rng) as u32;
        say(&Request::Return { slots, engines, session_bytes, next_chunk, used }, &[fd.as_fd()])?;
        let ended = say(&Request::ReturnEnd, &[]);
        if !is_beyond {
            ended?;
        }
        // It is welcomed when all of its slots have been looked at.
        match (receive(&stream, &mut Vec::new(), Instant::now() + PATIENCE)?.0, is_beyond) {
            (Reply::Welcome { .. }, false) | (Reply::Detached { .. }, true) => Ok(()),
            (other, _) => bail!("it comes back, one slot beyond {is_beyond}: {other:?}"),
        }
    })
}

/// All, all but the last, the last alone, some; and now and then one that is not there.
fn slots_in_use(slots: u32, rng: &mut SmallRng) -> (Vec<u8>, bool) {
    let bytes = slots as usize / 8;
    let (mut used, last) = (vec![0xff; bytes], bytes - 1);
    match rng.random_range(0..5) {
        0 => used[last] = 0x7f,
        1 => (0..bytes).for_each(|at| used[at] = if at == last { 0x80 } else { 0 }),
        2 => used.fill_with(|| rng.random()),
        _ => {}
    }
    let is_beyond = rng.random_range(0..8) == 0;
    used.extend(is_beyond.then_some(1));
    (used, is_beyond)
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

fn kernels_with_frames(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    let text = format!(
        r#"(module (memory (export "memory") 1) (func $f (local {}))
            (func (export "run") (loop $l (call $f) (br $l))))"#,
        "i64 ".repeat(usize::try_from(near(15_000, rng))?)
    );
    let (_session, region) = kernel(field, number, &text)?;
    field.whenever(|| {
        ensure!(region.run("mine", &[]).is_err(), "it loops, and has an answer");
        Ok(())
    })
}

fn kernels_with_parts(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    let globals = "(global i64 (i64.const 1))".repeat(usize::try_from(near(1_000, rng))?);
    let text = format!(r#"(module (memory (export "memory") 4) {globals} (func (export "run")))"#);
    let (_session, region) = kernel(field, number, &text)?;
    field.whenever(|| region.run("mine", &[]).map(drop).map_err(Into::into))
}

fn regions_end(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    let session = session(field.here, "hostile-owner")?;
    let far = crate::polite::session(field.far, "hostile-opener")?;
    let mut rounds = 0;
    field.whenever(|| {
        rounds += 1;
        let name = format!("dense-{number}-{rounds}");
        let bytes = near_bytes(512 << 20, rng);
        let region = RegionOptions::new().create(&session, &name, bytes)?;
        // The daemon has it mapped, too, for the other host.
        let there = Region::open(&far, field.here.ip, &name, region.key())?;
        (0..bytes / 4096).try_for_each(|page| region.store(page * 4096, 1))?;
        there.write(0, &[1; 8])?;
        Ok(())
    })
}

fn regions_are_revoked(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    let bytes = near_bytes(4 << 30, rng);
    let session = session(field.here, "hostile-owner")?;
    let region = RegionOptions::new().create(&session, &format!("holes-{number}"), bytes)?;
    (0..16).try_for_each(|_| region.store(rng.random_range(0..bytes / 8) * 8, 1))?;
    field.whenever(|| {
        region.revoke(None)?;
        let taken = crate::host::Footprint::of(std::process::id())?.shared_bytes;
        ensure!(taken < bytes / 2, "the region has become dense: {taken} bytes are resident");
        Ok(())
    })
}

/// A program with many connections to a listener of another host.
fn crowd(from: &Host, to: &Host, rng: &mut SmallRng) -> Result<(RawApp, RawApp, SocketAddr)> {
    let count = near(CROWD, rng);
    let mut listener = RawApp::attach(&to.socket, "crowded")?;
    let at = listener.listen(u32::try_from(count)?)?;
    let mut program = RawApp::attach(&from.socket, "crowd")?;
    for first in (0..count).step_by(usize::try_from(CROWD_AT_ONCE)?) {
        let asked = (first..count.min(first + CROWD_AT_ONCE))
            .map(|_| program.ask(at, 4096))
            .collect::<Result<Vec<_>, RawError>>()?;
        for request in asked {
            program.connected(request)?;
        }
        // They wait, but what is said of them is taken.
        listener.drain()?;
    }
    Ok((program, listener, at))
}

fn crowds_leave(field: Field<'_>, _: usize, rng: &mut SmallRng) -> Result<()> {
    field.whenever(|| {
        let (program, listener, _) = crowd(field.here, field.far, rng)?;
        drop(program);
        drop(listener);
        Ok(())
    })
}

fn listeners_close(field: Field<'_>, _: usize, rng: &mut SmallRng) -> Result<()> {
    field.whenever(|| {
        let (_program, mut listener, at) = crowd(field.far, field.here, rng)?;
        listener.send(&Request::Unlisten { port: at.port() }, &[])?;
        // Its answer comes after the end of those that waited has begun.
        listener.listen(1)?;
        Ok(())
    })
}

fn all_bells_ring(field: Field<'_>, _: usize, rng: &mut SmallRng) -> Result<()> {
    let attach = |number| RawApp::attach(&field.here.socket, &format!("rings-{number}"));
    let programs = (0..RINGERS).map(attach).collect::<Result<Vec<_>, RawError>>()?;
    field.whenever(|| {
        for program in &programs {
            let (slots, step) = (program.session.slots(), [1, 1, 2, 63, 64][rng.random_range(0..5)]);
            (0..slots).step_by(step).for_each(|slot| mark(&program.session, slots - 1 - slot));
            program.ring(0);
        }
        Ok(())
    })
}

/// What touches a page of a hole waits until all of its pages are free, so a daemon forbids holes where it may.
fn holes_are_punched(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    let bytes = near_bytes(1 << 30, rng);
    let (name, key) = (format!("punched-{number}"), RegionKey::new([0x11; 16]));
    let mut owner = RawApp::attach(&field.here.socket, "punches")?;
    let (access, spec_name) = (RegionAccess::ALL, name.clone());
    let (name_of, huge_pages, outlives, other_users, single_writer) = (spec_name, false, false, false, false);
    let spec = RegionSpec { name: name_of, bytes, access, key, huge_pages, outlives, other_users, single_writer };
    let (_, memory) = owner.create_region(spec)?;
    let far = session(field.far, "hostile-opener")?;
    let there = Region::open(&far, field.here.ip, &name, key)?;
    std::thread::scope(|scope| {
        let writes = scope.spawn(|| -> Result<()> {
            while !field.over.load(Ordering::Acquire) {
                there.write(0, &[1; 8])?;
            }
            Ok(())
        });
        let allowed = |done| if done == Err(rustix::io::Errno::PERM) { Ok(()) } else { done };
        let punched = field.whenever(|| {
            allowed(fallocate(&memory, FallocateFlags::empty(), 0, bytes))?;
            allowed(fallocate(&memory, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes))?;
            Ok(())
        });
        punched.and(writes.join().map_err(|_| anyhow!("a writer panicked"))?)
    })
}

/// Who closes the last descriptor of memory frees its pages.
fn memory_is_passed(field: Field<'_>, _: usize, rng: &mut SmallRng) -> Result<()> {
    field.whenever(|| {
        let bytes = near_bytes(1 << 30, rng);
        let segment = Segment::create("passed", bytes, Sharing::ReadWrite)?;
        segment.allocate(bytes)?;
        let fd = segment.into_parts().1;
        let mut app = RawApp::attach(&field.here.socket, "passes")?;
        let request = match rng.random_range(0..2) {
            0 => Request::PairSegment { pair: near(u64::MAX, rng), index: 0, slots: 64, ring_bytes: 1 << 20 },
            _ => Request::ReturnChunk { chunk: 0, kind: control::ChunkKind::Tx, bytes },
        };
        app.send(&request, &[fd.as_fd()])?;
        drop(fd);
        app.wait_for_end()?;
        Ok(())
    })
}

/// As judge `requests` has it, from one process after the other.
fn anything_is_said(field: Field<'_>, number: usize, rng: &mut SmallRng) -> Result<()> {
    const UID: u32 = 61_410;
    const AT_ONCE: u64 = 500;
    let far = SocketAddr::new(field.far.ip, 7_001);
    let uid = UID + u32::try_from(number)?;
    field.whenever(|| Asker::start(field.here, far, uid, rng.random(), AT_ONCE)?.said().map(drop))
}
