//! A process of one user that takes of everything as much as a daemon gives it, and keeps it.
//!
//! Owns the ways to take, each of which must end with a refusal: what has no end is what the judge looks for.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use control::{
    APP_VERSION, ChannelError, Reason, RegionAccess, RegionKey, RegionRefusal, RegionSpec, Reply, Request, Role,
    send_message,
};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::PATIENCE;
use crate::raw::{RawApp, RawConnection, RawError, dial, receive};

/// What the process says when it gets nothing more.
pub const FILLED: &str = "filled";

const KEY: RegionKey = RegionKey::new([0x55; 16]);
/// More than any of the shares has.
const TRIES_MAX: usize = 20_000;
/// Times that it begins with a thing when one of its programs was put out.
const TRIES_OF_A_THING: u32 = 5;
/// A quarter of the handles that the judge's daemon gives, and as many leases.
const HANDLES_OF_USER: usize = 2000;
/// Programs that do not read.
const SILENT: usize = 6;
/// Runs whose answers one of them does not read: fewer than would end it by their number.
const UNREAD: usize = 1600;
/// Runs of a program that may wait at a time, and a little less.
const AT_ONCE: usize = 200;

/// A module with so many calls of 32 results, which cost more than all else that a module can have.
fn dear(calls: usize) -> Result<Vec<u8>> {
    let (i32s, args) = ("i32 ".repeat(32), "(local.get 0)".repeat(32));
    let text = format!(
        r#"(module (type $t (func (param {i32s}) (result {i32s}))) (func $g (type $t) unreachable)
           (memory (export "memory") 4)
           (func (export "run") (local i32) {args} {} unreachable))"#,
        "(call $g)".repeat(calls)
    );
    Ok(wat::parse_str(text)?)
}

/// Answers with as many bytes as there may be.
const SPEAKS: &str = r#"(module (import "region" "answer" (func $answer (param i32 i32))) (memory (export "memory") 4)
    (func (export "run") (call $answer (i32.const 0) (i32.const 890))))"#;
/// Fills all of its memory, and does not end.
const LOOPS: &str = r#"(module (memory (export "memory") 4)
    (func (export "run") (memory.fill (i32.const 0) (i32.const 7) (i32.const 262144)) (loop $l (br $l))))"#;

struct Hoard<'a> {
    socket: &'a Path,
    host: IpAddr,
    /// Marks the names of its regions.
    uid: u32,
    apps: Vec<RawApp>,
    regions: usize,
}

/// What it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Kernels,
    Regions,
    Messages,
    Runs,
    Handles,
    Rings,
    Rows,
    Listeners,
    Datagrams,
    Queues,
    Leases,
}

use Thing::{Datagrams, Handles, Kernels, Leases, Listeners, Messages, Queues, Regions, Rings, Rows, Runs};

impl Thing {
    const ALL: [Self; 11] =
        [Kernels, Regions, Messages, Runs, Handles, Rings, Rows, Listeners, Datagrams, Queues, Leases];

    /// What it needs of a share must not be taken by others before: kernels need regions, all of these need handles, and
    /// messages are made by runs. Who has all messages that he may have gets little else.
    fn comes_after(self) -> &'static [Self] {
        match self {
            Regions | Messages => &[Kernels],
            Runs => &[Messages],
            Handles => &[Messages, Runs, Kernels, Regions, Leases],
            _ => &[],
        }
    }

    /// Kernels and messages always, most of the others, in an order.
    fn drawn(seed: u64) -> Vec<Self> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let is_there = |thing: &Self| matches!(thing, Kernels | Messages) || rng.random_bool(0.8);
        let mut left: Vec<Self> = Self::ALL.into_iter().filter(is_there).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let may = |thing: &Self| !thing.comes_after().iter().any(|before| left.contains(before));
            let next: Vec<Self> = left.iter().copied().filter(may).collect();
            let next = next[rng.random_range(0..next.len())];
            left.retain(|thing| *thing != next);
            order.push(next);
        }
        order
    }
}

/// Becomes the user, takes everything that the seed names, says so, and waits for its input.
pub fn run(socket: &Path, uid: u32, (host, far): (IpAddr, SocketAddr), seed: u64) -> Result<()> {
    nix::unistd::setgid(uid.into())?;
    nix::unistd::setuid(uid.into())?;
    let mut hoard = Hoard { socket, host, uid, apps: Vec::new(), regions: 0 };
    let small = hoard.small_kernels().context("small kernels")?;
    let mut taken = String::new();
    for thing in Thing::drawn(seed) {
        let mut tries = 0;
        let count = loop {
            let count = match thing {
                Kernels => hoard.kernels(),
                Regions => hoard.regions(),
                Messages => hoard.silent(&small),
                Runs => hoard.runs(&small),
                Handles => hoard.handles(&small),
                Rings => hoard.rings(far),
                Rows => hoard.rows(),
                Listeners => hoard.listeners(),
                Datagrams => hoard.ends(|app| app.bind(0, 4096)),
                Queues => hoard.ends(|app| app.open_operations(4096)),
                Leases => hoard.leases(&small, far.ip()),
            };
            tries += 1;
            match count {
                // What its own programs do not read is its user's: another one of them may be put out for it.
                Err(error) if tries < TRIES_OF_A_THING && is_end(&error) => {}
                // Its user's messages are all that it may have.
                Err(error) if is_full(&error) && taken.contains("Messages") => break 0,
                other => break other.with_context(|| format!("{thing:?} behind{taken}"))?,
            }
        };
        taken += &format!(" {thing:?} {count},");
    }
    let programs = match hoard.programs() {
        Err(error) if is_full(&error) && taken.contains("Messages") => 0,
        other => other.context("programs")?,
    };
    let tools = hoard.tools();
    println!("{FILLED}{taken} {programs} programs, {} tools", tools.len());
    std::io::stdout().flush()?;
    let _ = std::io::stdin().read(&mut [0; 1]);
    Ok(())
}

/// Whether the daemon has put a program out.
fn is_end(error: &anyhow::Error) -> bool {
    error.downcast_ref::<RawError>().is_some_and(RawError::is_end)
}

/// Whether that, or the daemon reads nothing more of it for now.
fn is_full(error: &anyhow::Error) -> bool {
    let is_blocked = |e: &RawError| matches!(e, RawError::Channel(ChannelError::WouldBlock));
    is_end(error) || error.downcast_ref::<RawError>().is_some_and(is_blocked)
}

impl Hoard<'_> {
    fn app(&mut self) -> Result<&mut RawApp> {
        self.apps.push(RawApp::attach(self.socket, "hoarder")?);
        self.apps.last_mut().context("a program")
    }

    /// Makes a region of the last program; its handle, or why not.
    fn region(&mut self, bytes: u64) -> Result<Result<u64, RegionRefusal>> {
        self.regions += 1;
        let name = format!("hoard-{}-{}", self.uid, self.regions);
        let access = RegionAccess::ALL | RegionAccess::EXECUTE;
        let (huge_pages, outlives, other_users, single_writer) = (false, false, false, false);
        let key = KEY;
        let spec = RegionSpec { name, bytes, access, key, huge_pages, outlives, other_users, single_writer };
        let app = self.apps.last_mut().context("a program")?;
        let request = app.number();
        app.send(&Request::RegionCreate { request, spec }, &[])?;
        opened(app, request)
    }

    /// Modules until there is no room for the least of them.
    fn kernels(&mut self) -> Result<usize> {
        self.app()?;
        let sizes = [dear(20_000)?, dear(2_000)?, dear(100)?, dear(0)?];
        let mut installed = 0;
        for module in sizes {
            loop {
                ensure!(installed < TRIES_MAX, "{installed} kernels, and no end");
                let open = match self.region(4096)? {
                    Ok(open) => open,
                    Err(RegionRefusal::TooMany { .. }) => return Ok(installed),
                    Err(other) => bail!("{other}"),
                };
                let mut full = false;
                for n in 0..16 {
                    match self.install(open, &format!("k{n}"), module.clone())? {
                        Ok(()) => installed += 1,
                        Err(RegionRefusal::TooMany { .. }) => {
                            full = true;
                            break;
                        }
                        Err(other) => bail!("{other}"),
                    }
                }
                if full {
                    break;
                }
            }
        }
        Ok(installed)
    }

    fn install(&mut self, open: u64, kernel: &str, module: Vec<u8>) -> Result<Result<(), RegionRefusal>> {
        let app = self.apps.last_mut().context("a program")?;
        let request = app.number();
        app.send(&Request::RegionInstall { request, open, kernel: kernel.into(), module }, &[])?;
        Ok(app.wait_for(|reply| match reply {
            Reply::RegionInstalled { request: r, result } if *r == request => Some(result.clone()),
            _ => None,
        })?)
    }

    /// A region with the kernels that others of its programs run; its name.
    fn small_kernels(&mut self) -> Result<String> {
        self.app()?;
        let open = self.region(4096)?.map_err(|why| anyhow!("{why}"))?;
        for (name, text) in [("speaks", SPEAKS), ("loops", LOOPS)] {
            self.install(open, name, wat::parse_str(text)?)?.map_err(|why| anyhow!("{why}"))?;
        }
        Ok(format!("hoard-{}-{}", self.uid, self.regions))
    }

    fn regions(&mut self) -> Result<usize> {
        for made in 0..TRIES_MAX {
            match self.region(4 << 20)? {
                Ok(_) => {}
                Err(RegionRefusal::Quota { .. } | RegionRefusal::TooMany { .. }) => return Ok(made),
                Err(other) => bail!("{other}"),
            }
        }
        bail!("no end")
    }

    /// Programs that ask and do not read. Some of them are detached, which frees what they had.
    fn silent(&mut self, region: &str) -> Result<usize> {
        let mut alive = 0;
        for _ in 0..SILENT {
            let host = self.host;
            let app = self.app()?;
            let open = open(app, host, region)?.map_err(|why| anyhow!("{why}"))?;
            let asked = (0..UNREAD).try_for_each(|n| {
                if n % AT_ONCE == 0 {
                    std::thread::sleep(Duration::from_millis(30));
                }
                speak(app, open, "speaks")
            });
            match asked {
                Ok(()) => alive += 1,
                Err(error) if error.is_end() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(alive)
    }

    fn handles(&mut self, region: &str) -> Result<usize> {
        let host = self.host;
        let app = self.app()?;
        for opened in 0..TRIES_MAX {
            match open(app, host, region)? {
                Ok(_) => {}
                Err(RegionRefusal::TooMany { .. }) => return Ok(opened),
                Err(other) => bail!("{other}"),
            }
        }
        bail!("no end")
    }

    /// Connections with rings in which it has written every byte.
    fn rings(&mut self, far: SocketAddr) -> Result<usize> {
        let app = self.app()?;
        for made in 0..TRIES_MAX {
            match app.connect(far, 1 << 20) {
                Ok(connection) => {
                    let (region, at) = &connection.tx;
                    region.write(*at, &vec![7; connection.ring_bytes as usize])?;
                }
                Err(RawError::No(Reason::LocalLimit)) => return Ok(made),
                Err(other) => return Err(other.into()),
            }
        }
        bail!("no end")
    }

    /// Of two programs, each with a few more than are kept of one.
    fn rows(&mut self) -> Result<usize> {
        const ROWS: u64 = 4_100;
        const PROGRAMS: usize = 2;
        for _ in 0..PROGRAMS {
            let app = self.app()?;
            for number in 0..ROWS {
                let (local, peer) = (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 2)));
                patient(|| app.send(&Request::TcpOpened { number, local, peer }, &[]))?;
            }
        }
        Ok(PROGRAMS * ROWS as usize)
    }

    fn listeners(&mut self) -> Result<usize> {
        let app = self.app()?;
        for listens in 0..TRIES_MAX {
            match app.listen(16) {
                Ok(_) => {}
                Err(RawError::No(Reason::UserListeners)) => return Ok(listens),
                Err(other) => return Err(other.into()),
            }
        }
        bail!("no end")
    }

    /// Datagram sockets, or queues for operations, of two programs.
    fn ends(&mut self, open: impl Fn(&mut RawApp) -> Result<RawConnection, RawError>) -> Result<usize> {
        let mut opened = 0;
        for _ in 0..2 {
            let app = self.app()?;
            loop {
                ensure!(opened < TRIES_MAX, "no end");
                match open(app) {
                    Ok(_) => opened += 1,
                    Err(RawError::No(_)) => break,
                    Err(other) => return Err(other.into()),
                }
            }
        }
        Ok(opened)
    }

    /// A region is lent to another host again and again, by two programs.
    fn leases(&mut self, region: &str, to: IpAddr) -> Result<usize> {
        let mut lent = 0;
        for _ in 0..2 {
            let host = self.host;
            let app = self.app()?;
            let open = open(app, host, region)?.map_err(|why| anyhow!("{why}"))?;
            loop {
                ensure!(lent < TRIES_MAX, "no end");
                let request = app.number();
                app.send(&Request::RegionLend { request, open, connection: 0, host: to, key: KEY }, &[])?;
                let answer = app.wait_for(|reply| match reply {
                    Reply::RegionLent { request: r, result } if *r == request => Some(result.clone()),
                    _ => None,
                })?;
                match answer {
                    Ok(_) => lent += 1,
                    Err(RegionRefusal::TooMany { .. }) => break,
                    Err(other) => bail!("{other}"),
                }
            }
        }
        ensure!(lent <= HANDLES_OF_USER, "a user has {lent} leases, more than its share of {HANDLES_OF_USER}");
        Ok(lent)
    }

    /// Runs that do not end, of more programs than may begin one at a time.
    fn runs(&mut self, region: &str) -> Result<usize> {
        const PROGRAMS: usize = 10;
        const RUNS: usize = 20;
        let host = self.host;
        for _ in 0..PROGRAMS {
            let app = self.app()?;
            let open = open(app, host, region)?.map_err(|why| anyhow!("{why}"))?;
            (0..RUNS).try_for_each(|_| speak(app, open, "loops"))?;
        }
        Ok(PROGRAMS * RUNS)
    }

    fn programs(&mut self) -> Result<usize> {
        for _ in 0..TRIES_MAX {
            match RawApp::attach(self.socket, "hoarder") {
                Ok(app) => self.apps.push(app),
                Err(RawError::Refused(Reason::UserPrograms)) => return Ok(self.apps.len()),
                Err(other) => return Err(other.into()),
            }
        }
        bail!("no end")
    }

    /// Tools that have asked nothing.
    fn tools(&self) -> Vec<OwnedFd> {
        let hello = Request::Hello {
            version: APP_VERSION,
            layout: shm::LAYOUT_VERSION,
            role: Role::Inspector,
            name: String::new(),
        };
        let enter = || {
            let socket = dial(self.socket).ok()?;
            send_message(socket.as_fd(), &hello, &[]).ok()?;
            let welcome = receive(&socket, &mut Vec::new(), Instant::now() + PATIENCE).ok()?.0;
            matches!(welcome, Reply::Welcome { .. }).then_some(socket)
        };
        (0..TRIES_MAX).map_while(|_| enter()).collect()
    }
}

fn opened(app: &mut RawApp, request: u64) -> Result<Result<u64, RegionRefusal>> {
    let result = app.wait_for(|reply| match reply {
        Reply::RegionOpened { request: r, result } if *r == request => Some(result.clone()),
        _ => None,
    })?;
    Ok(result.map(|opened| opened.open))
}

fn open(app: &mut RawApp, host: IpAddr, name: &str) -> Result<Result<u64, RegionRefusal>> {
    let request = app.number();
    let access = RegionAccess::ALL | RegionAccess::EXECUTE;
    let (name, leased_lane) = (name.to_owned(), false);
    app.send(&Request::RegionOpen { request, host, name, key: KEY, access, lease: None, leased_lane }, &[])?;
    opened(app, request)
}

/// Has a kernel run whose answer nobody waits for.
fn speak(app: &mut RawApp, open: u64, kernel: &str) -> Result<(), RawError> {
    let request = app.number();
    let bytes = [&[kernel.len() as u8], kernel.as_bytes()].concat();
    patient(|| app.send(&Request::RegionRun { request, open, others: Vec::new(), bytes: bytes.clone() }, &[]))
}

/// Sends when the daemon has taken what was sent before.
fn patient(mut send: impl FnMut() -> Result<(), RawError>) -> Result<(), RawError> {
    let start = Instant::now();
    loop {
        match send() {
            Err(RawError::Channel(ChannelError::WouldBlock)) if start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_what_is_taken_and_in_which_order() {
        let drawn: Vec<_> = (0..200).map(Thing::drawn).collect();
        assert_eq!(drawn[7], Thing::drawn(7));
        assert!(drawn.iter().any(|order| *order != drawn[0]) && drawn.iter().any(|order| order.len() < 11));
        for order in drawn {
            let place = |thing: Thing| order.iter().position(|other| *other == thing);
            assert!(place(Kernels).is_some() && place(Messages).is_some(), "{order:?}");
            for thing in &order {
                assert!(thing.comes_after().iter().all(|before| place(*before) < place(*thing)), "{order:?}");
            }
        }
    }
}
