//! Judge `storm`: programs and tools of one user come and go as fast as they can, many at a time, beside programs of
//! others that attach and ask.
//!
//! Owns what must hold: between another user's wish, to attach or to have a question answered, and its answer few of the
//! storm come. That is counted in
//! programs of the storm and not in time, so that it says the same on a busy machine; times are told.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use control::{APP_VERSION, ChannelError, Cursor, InspectQuery, Kind, RegionKey, Reply, Request, Role, send_message};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use shm::LAYOUT_VERSION;

use crate::host::{Host, Program, address, eventually};
use crate::polite::{self, Transfer};
use crate::pulse::Pulse;
use crate::raw::{PATIENCE, RawApp, RawError, dial, receive};
use crate::verdict::Verdict;

const CONFIGURATION: &str = "socket_mode = \"0666\"\n";
/// A user that nobody has.
const UID: u32 = 61_200;
/// Programs of the storm that are on their way in, of all of its threads together.
const ON_THEIR_WAY: u64 = 384;
/// Wishes of another user, of each kind.
const WISHES: usize = 30;
/// Programs of the storm that may come while another program attaches, in the middle: a quarter of those on their way in.
const BETWEEN_MAX: u64 = ON_THEIR_WAY / 4;
/// The same while a tool attaches, asks and has an answer that names all those of the storm.
const BETWEEN_ANSWER_MAX: u64 = ON_THEIR_WAY;

/// What those of the storm do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// Attach, and go.
    Attach,
    /// Attach, listen, and go.
    Listen,
    /// Say Hello, and go before the answer.
    Leave,
    /// Come as a tool, ask, and go.
    Ask,
    /// Come as a tool, and go before the answer.
    AskAndLeave,
}

const DEEDS: [Deed; 5] = [Deed::Attach, Deed::Listen, Deed::Leave, Deed::Ask, Deed::AskAndLeave];

/// The storm as the seed has it.
#[derive(Debug)]
struct Shape {
    threads: u64,
    at_once: usize,
    /// What the threads do in turn: attaching at least.
    deeds: Vec<Deed>,
}

impl Shape {
    fn drawn(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let threads = [1, 2, 4, 8][rng.random_range(0..4)];
        let mut deeds: Vec<Deed> = DEEDS.into_iter().filter(|deed| *deed == Deed::Attach || rng.random()).collect();
        deeds.shuffle(&mut rng);
        Self { threads, at_once: usize::try_from(ON_THEIR_WAY / threads).unwrap_or(1), deeds }
    }
}

/// Runs it. The seed decides what the storm is made of.
pub fn run(raas: Program<'_>, seed: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let mut hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    let transfer = Transfer::start(&hosts[0], &hosts[1], 1)?;
    let pulse = Pulse::default();
    let socket = hosts[0].socket.clone();
    let count = dir.path().join("count");
    File::create(&count)?.set_permissions(std::fs::Permissions::from_mode(0o666))?;
    std::thread::scope(|scope| {
        scope.spawn(|| pulse.beat(&socket));
        println!("     the storm: {:?}", Shape::drawn(seed));
        let judged = Storm::begin(&socket, &count, seed).and_then(|mut storm| {
            for (what, may_come, wish) in WISH {
                let name = format!("few of the storm come between others' wish to {what} and its answer");
                verdict.case(&name, between(&storm, may_come, || wish(&socket)));
            }
            verdict.case("the storm went on all the time", storm.goes_on());
            pulse.goes_on()?;
            verdict.case("loans given back without waiting close nothing", loans_back(&hosts[0]));
            storm.child.kill()?;
            Ok(())
        });
        pulse.end();
        judged
    })?;
    verdict.case("the daemon answered others all the time", pulse.said());
    verdict.case("the polite bytes are all there and right", transfer.finish().map(|bytes| format!("{bytes} bytes")));
    verdict.case("a new polite pair is served as before", polite::fresh(&hosts));
    let apps = || {
        eventually("nothing of the storm is left", || {
            let apps = hosts[0].stat()?.apps.len();
            Ok(if apps == 0 { Ok(()) } else { Err(apps) })
        })?;
        Ok("no program".to_owned())
    };
    verdict.case("nothing of the storm is left", apps());
    let alive = hosts.iter_mut().all(Host::is_alive);
    verdict.case("both daemons live", if alive { Ok("both".into()) } else { Err(anyhow!("{}", hosts[0].words())) });
    Ok(())
}

/// What another user wants, with its name: each is a tool, or a program, of its own, from its begin on.
type Wish = (&'static str, u64, fn(&Path) -> Result<()>);

const WISH: [Wish; 4] = [
    ("attach", BETWEEN_MAX, |socket| RawApp::attach(socket, "polite").map(drop).map_err(Into::into)),
    ("know the host's state", BETWEEN_ANSWER_MAX, |socket| {
        raas::inspect::stat(Some(socket)).map(drop).map_err(Into::into)
    }),
    ("see connections", BETWEEN_ANSWER_MAX, |socket| {
        raas::inspect::connections(Some(socket)).map(drop).map_err(Into::into)
    }),
    ("see regions", BETWEEN_ANSWER_MAX, |socket| raas::inspect::regions(Some(socket)).map(drop).map_err(Into::into)),
];

fn between(storm: &Storm, may_come: u64, wish: impl Fn() -> Result<()>) -> Result<String> {
    let (mut came, mut worst) = (Vec::new(), Duration::ZERO);
    let (start, first) = (Instant::now(), storm.count()?);
    for _ in 0..WISHES {
        let (start, before) = (Instant::now(), storm.count()?);
        wish()?;
        came.push(storm.count()? - before);
        worst = worst.max(start.elapsed());
        std::thread::sleep(Duration::from_millis(3));
    }
    let rate = (storm.count()? - first) as f64 / start.elapsed().as_secs_f64();
    came.sort_unstable();
    let (middle, most) = (came[came.len() / 2], came[came.len() - 1]);
    ensure!(middle <= may_come, "{middle} in the middle, {most} at most, and {may_come} may come");
    Ok(format!("{middle} in the middle, {most} at most; {rate:.0} attaches a second, the slowest answer in {worst:?}"))
}

/// A program gives back what it was not lent, 20,000 times, and is served afterwards.
fn loans_back(host: &Host) -> Result<String> {
    const TIMES: u64 = 20_000;
    let mut app = RawApp::attach(&host.socket, "gives-back")?;
    let start = Instant::now();
    for lease in 0..TIMES {
        let request = Request::RegionLoansBack { host: host.ip, lease, key: RegionKey::new([1; 16]), loans: u64::MAX };
        // The storm has its turns too: how long all of them take says nothing, but each must get through.
        let patience = Instant::now() + PATIENCE;
        loop {
            match app.send(&request, &[]) {
                Err(RawError::Channel(ChannelError::WouldBlock)) if Instant::now() < patience => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => break other?,
            }
        }
    }
    app.listen(1)?;
    Ok(format!("{TIMES} in {:?}", start.elapsed()))
}

/// The storm's process, and what it counts.
struct Storm {
    child: Child,
    count: File,
    threads: u64,
}

impl Storm {
    fn begin(socket: &Path, count: &Path, seed: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["stormer", "--uid", &UID.to_string(), "--seed", &seed.to_string()])
            .arg("--socket")
            .arg(socket)
            .arg("--count")
            .arg(count);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()?;
        let storm = Self { child, count: File::open(count)?, threads: Shape::drawn(seed).threads };
        eventually("the storm begins", || {
            let count = storm.count()?;
            Ok(if count > ON_THEIR_WAY { Ok(()) } else { Err(count) })
        })?;
        Ok(storm)
    }

    /// Programs that came in.
    fn count(&self) -> Result<u64> {
        let mut sum = 0;
        for thread in 0..self.threads {
            let mut bytes = [0; 8];
            let n = self.count.read_at(&mut bytes, thread * 8)?;
            sum += if n == 8 { u64::from_le_bytes(bytes) } else { 0 };
        }
        Ok(sum)
    }

    fn goes_on(&mut self) -> Result<String> {
        let before = self.count()?;
        eventually("more of the storm come", || Ok(if self.count()? > before { Ok(()) } else { Err(before) }))?;
        ensure!(self.child.try_wait()?.is_none(), "it ended");
        Ok(format!("{before} programs"))
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The storm: becomes the user, and attaches and goes until it is killed. How many of each thread came in stands in a file.
pub fn storm(socket: &Path, uid: u32, count: &Path, seed: u64) -> Result<()> {
    nix::unistd::setgid(uid.into())?;
    nix::unistd::setuid(uid.into())?;
    let count = File::options().write(true).open(count)?;
    let (failed, shape) = (AtomicU64::new(0), Shape::drawn(seed));
    std::thread::scope(|scope| {
        for thread in 0..shape.threads {
            let (count, failed, shape) = (&count, &failed, &shape);
            scope.spawn(move || {
                let (mut came, first): (u64, _) = (0, usize::try_from(thread).unwrap_or(0));
                for deed in shape.deeds.iter().cycle().skip(first) {
                    if failed.load(Ordering::Relaxed) >= 1000 {
                        return;
                    }
                    match gust(socket, (*deed, shape.at_once), || {
                        came += 1;
                        let _ = count.write_at(&came.to_le_bytes(), thread * 8);
                    }) {
                        Ok(()) => failed.store(0, Ordering::Relaxed),
                        Err(_) => _ = failed.fetch_add(1, Ordering::Relaxed),
                    }
                }
            });
        }
    });
    Err(anyhow!("none comes in any more"))
}

/// So many at once. All have said Hello before the first is answered.
fn gust(socket: &Path, (deed, at_once): (Deed, usize), mut came: impl FnMut()) -> Result<(), RawError> {
    let role = if matches!(deed, Deed::Ask | Deed::AskAndLeave) { Role::Inspector } else { Role::Application };
    let (version, layout) = (APP_VERSION, LAYOUT_VERSION);
    let hello = Request::Hello { version, layout, role, name: "storm".into() };
    let mut sockets = Vec::with_capacity(at_once);
    for _ in 0..at_once {
        let socket = dial(socket)?;
        send_message(socket.as_fd(), &hello, &[])?;
        sockets.push(socket);
    }
    let mut buffer = Vec::new();
    for socket in sockets {
        if matches!(deed, Deed::Leave | Deed::AskAndLeave) {
            came();
            continue;
        }
        // What comes with a Welcome is kept while it is here, as a program does.
        let (reply, _fds) = receive(&socket, &mut buffer, Instant::now() + PATIENCE)?;
        match reply {
            Reply::Welcome { .. } => came(),
            Reply::Refused { reason, .. } => return Err(RawError::Refused(reason)),
            other => return Err(RawError::Unexpected(format!("{other:?}"))),
        }
        let said = match deed {
            Deed::Listen => Request::Listen { request: 1, port: 0, backlog: 16, ring_bytes: 0, kind: Kind::Stream },
            Deed::Ask => Request::Inspect { request: 1, query: InspectQuery::Stat, from: Cursor::default() },
            _ => continue,
        };
        send_message(socket.as_fd(), &said, &[])?;
        receive(&socket, &mut buffer, Instant::now() + PATIENCE)?;
    }
    Ok(())
}
