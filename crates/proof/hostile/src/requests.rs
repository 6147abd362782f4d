//! Judge `requests`: programs and tools of several users say at the control socket whatever is drawn, beside a polite
//! pair.
//!
//! Owns the users, and what must hold whatever they say: both daemons live, the pair is answered all the time, no turn of
//! a thread that serves others is long, and nothing of them is left. The pair's worst pause is told, and not judged: the
//! machine may be busy.

pub mod asker;
mod drawn;

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use crate::host::{Host, Program, address, eventually};
use crate::pair::Pair;
use crate::polite::{self, Sink};
use crate::verdict::Verdict;

const CONFIGURATION: &str = "socket_mode = \"0666\"\n";
/// Users that nobody has: two of each half have the same names of regions.
const UIDS: [u32; 4] = [61_400, 61_401, 61_402, 61_403];
/// How long the pair is alone before.
const ALONE: Duration = Duration::from_secs(2);
/// How often is looked whether it is still answered.
const LOOK: Duration = Duration::from_millis(500);
/// What one turn may take of a processor's time: what is promised of any single request.
const TURN_MAX_US: u64 = 50_000;

/// Runs it. The seed decides what is said.
pub fn run(raas: Program<'_>, seed: u64, count: u64, verdict: &mut Verdict) -> Result<()> {
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
    let mut hosts = [
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
        Host::start(raas, dir.path(), address(), CONFIGURATION)?,
    ];
    let (pair, far) = (Pair::start(&hosts)?, Sink::start(&hosts[1])?);
    let (alone, _) = pair.worst_in(ALONE)?;
    let before = hosts[0].stat()?.apps.len();
    let of_each = count.div_ceil(UIDS.len() as u64);
    let ask = |(number, uid): (u64, u32)| Asker::start(&hosts[0], far.at, uid, seed.wrapping_add(number), of_each);
    let mut askers = (0..).zip(UIDS).map(ask).collect::<Result<Vec<_>>>()?;
    let (start, mut worst) = (Instant::now(), 0);
    let answered = loop {
        match pair.worst_in(LOOK) {
            Ok((pause, _)) => worst = pause.max(worst),
            Err(error) => break Err(error),
        }
        if askers.iter_mut().map(Asker::has_ended).collect::<Result<Vec<_>>>()?.into_iter().all(|has| has) {
            break Ok(format!("worst pause {worst} us, {alone} us alone, in {:.0?}", start.elapsed()));
        }
    };
    verdict.case("the polite pair was answered all the time", answered);
    for asker in askers {
        let uid = asker.uid;
        verdict.case(&format!("all that user {uid} had to say was said"), asker.said());
    }
    verdict.case("no turn of a thread took long", turns(&hosts[0]));
    let left = eventually("nothing of them is left", || {
        let apps = hosts[0].stat()?.apps.len();
        Ok(if apps == before { Ok(()) } else { Err((apps, before)) })
    });
    verdict.case("nothing of them is left", left.map(|()| format!("{before} programs")));
    verdict.case("the pair's messages were all answered", pair.finish().map(|()| "all".into()));
    verdict.case("a new polite pair is served as before", polite::fresh(&hosts));
    let alive = hosts.iter_mut().all(Host::is_alive);
    verdict.case("both daemons live", if alive { Ok("both".into()) } else { Err(anyhow!("{}", hosts[0].words())) });
    Ok(())
}

fn turns(host: &Host) -> Result<String> {
    let stat = host.stat()?;
    let counter = |name: &str| stat.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let engine = counter("engine_turn_max_us").context("no counter engine_turn_max_us")?;
    let control = counter("control_turn_max_us").context("no counter control_turn_max_us")?;
    ensure!(engine.max(control) <= TURN_MAX_US, "engine {engine} us, control plane {control} us, of {TURN_MAX_US}");
    Ok(format!("engine {engine} us, control plane {control} us, of {TURN_MAX_US}"))
}

/// The process of one user.
pub(crate) struct Asker {
    uid: u32,
    child: Child,
}

impl Asker {
    pub(crate) fn start(host: &Host, far: SocketAddr, uid: u32, seed: u64, count: u64) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let [uid_text, seed, count] = [u64::from(uid), seed, count].map(|number| number.to_string());
        command.args(["asker", "--uid", &uid_text, "--seed", &seed, "--count", &count]);
        command.args(["--host", &host.ip.to_string(), "--far", &far.to_string()]);
        command.arg("--socket").arg(&host.socket).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(Self { uid, child: command.spawn().context("cannot start an asker")? })
    }

    fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Its last words.
    pub(crate) fn said(mut self) -> Result<String> {
        let mut words = String::new();
        self.child.stdout.take().context("no output")?.read_to_string(&mut words)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}: {words}");
        Ok(words.trim().to_owned())
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
