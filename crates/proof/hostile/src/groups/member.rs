//! A member of a group in a process of its own: it proposes whenever it leads, and says what it was told.
//!
//! Owns its machine, which keeps who proposed what, in the order in which it was applied. Lines: `leads TERM`, `done NUMBER`,
//! `unknown NUMBER`; to `tell` on its standard input it answers `applied CLIENT:NUMBER ...`, as the whole group has it.

use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use raas::{RegionKey, Session};
use raas_group::{BadSnapshot, Group, GroupBuilder, GroupError, Machine, Role};

pub(super) const NAME: &str = "judged";
const KEY: RegionKey = RegionKey::new([0x47; 16]);
/// Longer than any judge.
const DAEMON_WAIT: Duration = Duration::from_secs(3600);
/// Between two looks of one that does not lead.
const PAUSE: Duration = Duration::from_millis(2);
const COMMAND_BYTES: usize = 16;

/// Who proposed what.
#[derive(Debug, Default)]
struct Journal(Vec<(u64, u64)>);

fn pair_of(bytes: &[u8]) -> Option<(u64, u64)> {
    let (client, number) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*client), u64::from_le_bytes(*number.first_chunk()?)))
}

impl Machine for Journal {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
        self.0.extend(pair_of(command));
        Vec::new()
    }

    fn save(&self, into: &mut Vec<u8>) {
        self.0.iter().flat_map(|(client, number)| [client, number]).for_each(|word| into.extend(word.to_le_bytes()));
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        if !bytes.len().is_multiple_of(COMMAND_BYTES) {
            return Err(BadSnapshot);
        }
        self.0 = bytes.chunks(COMMAND_BYTES).filter_map(pair_of).collect();
        Ok(())
    }
}

/// Runs it until its standard input ends. Its commands are those of `client`.
pub fn run(socket: &Path, me: u8, hosts: &[IpAddr], client: u64) -> Result<()> {
    let session = Session::builder().socket(socket).daemon_wait(DAEMON_WAIT).background(true).connect()?;
    let members: Vec<(u8, IpAddr)> = (1..).zip(hosts.iter().copied()).collect();
    let builder = GroupBuilder::new(NAME, KEY).members(&members).me(me).log_lines(4096);
    let group = Arc::new(builder.open(&session, Journal::default())?);
    let is_over = Arc::new(AtomicBool::new(false));
    let proposer = {
        let (group, is_over) = (Arc::clone(&group), Arc::clone(&is_over));
        std::thread::spawn(move || propose(&group, client, &is_over))
    };
    for line in std::io::stdin().lock().lines() {
        if line? == "tell" {
            tell(&group)?;
        }
    }
    is_over.store(true, Ordering::Release);
    proposer.join().map_err(|_| anyhow!("the proposer panicked"))?
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn propose(group: &Group<Journal>, client: u64, is_over: &AtomicBool) -> Result<()> {
    let (mut number, mut leads) = (0u64, None);
    while !is_over.load(Ordering::Acquire) {
        let Role::Leader { term } = group.role() else {
            leads = None;
            std::thread::sleep(PAUSE);
            continue;
        };
        if leads != Some(term) {
            leads = Some(term);
            say(&format!("leads {term}"))?;
        }
        number += 1;
        let command = [client.to_le_bytes(), number.to_le_bytes()].concat();
        match group.propose_as(client, number, &command) {
            Ok(_) => say(&format!("done {number}"))?,
            Err(GroupError::Unknown) => say(&format!("unknown {number}"))?,
            // It was not begun.
            Err(GroupError::Refused(_)) => number -= 1,
            Err(other) => return Err(other.into()),
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Says what the group has: by a read, which only a leader can do.
fn tell(group: &Group<Journal>) -> Result<()> {
    match group.read(|journal| journal.0.clone()) {
        Ok(all) => {
            let words: Vec<String> = all.iter().map(|(client, number)| format!("{client}:{number}")).collect();
            say(&format!("applied {}", words.join(" ")))
        }
        Err(error) => say(&format!("cannot {error}")),
    }
}
