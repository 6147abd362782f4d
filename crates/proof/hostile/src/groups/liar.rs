//! A program that has a group's key and a member's memory, and uses both as no program of the group does.
//!
//! Owns the lies. It must tell none from which the model does not save the others: it never takes back a term that its
//! memory has, nor, but for one lie, what a leader wrote there (docs/inside/agree.md, "A member that misbehaves"); and it
//! never makes a sum that is right.

use std::io::{Read as _, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use agree::{LINE_BYTES, Layout, OWNER_AT};
use anyhow::Result;
use clap::ValueEnum;
use raas::{Region, RegionAccess, RegionError, RegionOptions, RegionRefusal, Session};
use raas_group::Term;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::member::{DAEMON_WAIT, KEY, LOG_LINES, NAME, SNAPSHOT_BYTES};

/// Where the term stands in a memory's head.
const TERM_AT: u64 = 8;
/// Where the word of what is committed stands, and the two marks and snapshots.
const COMMIT_AT: u64 = 16;
const MARKS_AT: u64 = 256;
const SNAPSHOTS_AT: u64 = 8192;
/// Lines of the log that are scribbled at a time.
const SCRIBBLED_LINES: u64 = 256;
/// Rounds that a term goes up by: more than leaders do meanwhile, and few enough to be believed.
const ROUNDS: std::ops::Range<u64> = 1000..5000;
/// Between two lies that end a leader's term.
const PAUSE_MS: std::ops::Range<u64> = 100..600;
/// Between two others.
const SHORT_PAUSE_MS: std::ops::Range<u64> = 0..4;
/// Until the daemon knows that the member's program has ended.
const OWNER_PAUSE: Duration = Duration::from_millis(20);

/// What it says or does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lie {
    /// Nonsense about itself: its beat, whether it leads, what it has applied.
    Words,
    /// Terms that are greater than all others, by rounds that may be.
    Terms,
    /// Terms that nobody can have.
    WildTerms,
    /// It takes over all memories, again and again.
    TakeOvers,
    /// It takes back what leaders wrote: anything stands in the log, in marks and in snapshots.
    Log,
}

/// What a liar works with.
struct Liar<'a> {
    session: &'a Session,
    region: String,
    own: Region,
    me: u8,
    hosts: &'a [IpAddr],
    rng: SmallRng,
}

/// Lies until its standard input ends. It says a line when it begins.
pub fn run(socket: &Path, me: u8, hosts: &[IpAddr], lie: Lie, seed: u64) -> Result<()> {
    let session = Session::builder().socket(socket).daemon_wait(DAEMON_WAIT).background(true).connect()?;
    let region = format!("group/{NAME}");
    let own = own_memory(&session, &region)?;
    let mut liar = Liar { session: &session, region, own, me, hosts, rng: SmallRng::seed_from_u64(seed) };
    let mut out = std::io::stdout();
    writeln!(out, "lies")?;
    out.flush()?;
    std::thread::spawn(|| {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        let pause = liar.tell(lie)?;
        std::thread::sleep(Duration::from_millis(pause));
    }
}

fn own_memory(session: &Session, region: &str) -> Result<Region> {
    let bytes = Layout::new(SNAPSHOT_BYTES, LOG_LINES)?.bytes();
    let access = RegionAccess::READ | RegionAccess::WRITE;
    let options = RegionOptions::new().key(KEY).access(access).single_writer(true).outlives(true);
    loop {
        match options.adopt(session, region, bytes, KEY) {
            Err(RegionError::Refused { why: RegionRefusal::Owned { .. }, .. }) => std::thread::sleep(OWNER_PAUSE),
            other => return Ok(other?),
        }
    }
}

impl Liar<'_> {
    /// Once; milliseconds until the next time.
    fn tell(&mut self, lie: Lie) -> Result<u64> {
        match lie {
            Lie::Words => {
                self.own.write(OWNER_AT, &self.rng.random::<[u8; 32]>())?;
                return Ok(self.rng.random_range(SHORT_PAUSE_MS));
            }
            Lie::Terms => {
                let round = self.term()?.round() + self.rng.random_range(ROUNDS);
                self.own.write(TERM_AT, &Term::new(round, self.me).bits().to_le_bytes())?;
            }
            Lie::WildTerms => {
                let wild = [u64::MAX, 1 << 62 | u64::from(self.me), Term::new(1 << 30, self.me).bits()];
                self.own.write(TERM_AT, &wild[self.rng.random_range(0..wild.len())].to_le_bytes())?;
            }
            Lie::TakeOvers => self.take_all_over()?,
            Lie::Log => {
                self.scribble()?;
                return Ok(self.rng.random_range(SHORT_PAUSE_MS));
            }
        }
        Ok(self.rng.random_range(PAUSE_MS))
    }

    /// Behind the head's term: the word of what is committed, a mark, a snapshot, or the log, where it is most.
    fn scribble(&mut self) -> Result<()> {
        let ring_lines = LOG_LINES;
        let ring_at = self.own.bytes() - ring_lines * LINE_BYTES as u64;
        let line = ring_at + self.rng.random_range(0..ring_lines) * LINE_BYTES as u64;
        match self.rng.random_range(0..16) {
            0 => self.own.write(COMMIT_AT, &self.rng.random::<[u8; 8]>())?,
            1 => self.own.write(MARKS_AT + 8 * self.rng.random_range(0..64), &self.rng.random::<[u8; 8]>())?,
            2 => self.own.write(SNAPSHOTS_AT + 8 * self.rng.random_range(0..64), &self.rng.random::<[u8; 32]>())?,
            // An entry that was whole, in a place where it was not.
            3..7 => {
                let mut old = [0; LINE_BYTES];
                self.own.read(line, &mut old)?;
                let other = ring_at + self.rng.random_range(0..ring_lines) * LINE_BYTES as u64;
                self.own.write(other, &old)?;
            }
            _ => {
                // So many that each line has its turn soon, those of the last entries too.
                let mut bytes = vec![0; SCRIBBLED_LINES as usize * LINE_BYTES];
                self.rng.fill(bytes.as_mut_slice());
                let line = self.rng.random_range(0..=ring_lines - SCRIBBLED_LINES);
                self.own.write(ring_at + line * LINE_BYTES as u64, &bytes)?;
            }
        }
        Ok(())
    }

    fn term(&self) -> Result<Term> {
        let mut word = [0; 8];
        self.own.read(TERM_AT, &mut word)?;
        Ok(Term::from_bits(u64::from_le_bytes(word)))
    }

    fn take_all_over(&mut self) -> Result<()> {
        let fence = Term::new(self.term()?.round() + self.rng.random_range(1..4), self.me).fence(0);
        for host in self.hosts {
            // One that cannot be had now is tried the next time.
            let _taken = Region::take_over(self.session, *host, &self.region, KEY, fence);
        }
        Ok(())
    }
}
