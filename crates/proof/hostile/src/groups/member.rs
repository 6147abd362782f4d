//! A member of a group in a process of its own: it does what its standard input says, and says what came of it.
//!
//! Owns its machine, registers. Lines that it takes: `propose CALL CLIENT NUMBER REGISTER add|write VALUE`,
//! `read CALL CLIENT REGISTER`, `last CALL`, `add CALL MEMBER`, `remove CALL MEMBER`, `describe CALL`. Lines that it says: `found CALL VALUE`,
//! `last CALL INDEX`, `unknown CALL`, `refused CALL WHY`, `state CALL WORDS`, `role leader|candidate TERM`, `role follower`, `members ID ...`,
//! `applied INDEX`. Each client has a thread, so one that waits keeps no other waiting.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use raas::{RegionKey, Session};
use raas_group::{BadSnapshot, Group, GroupBuilder, GroupError, Machine, Role};

pub(super) const NAME: &str = "judged";
pub(super) const KEY: RegionKey = RegionKey::new([0x47; 16]);
/// Lines of the log: few, so that it is recycled often.
pub(super) const LOG_LINES: u64 = 4096;
/// Bytes of the state, at most.
pub(super) const SNAPSHOT_BYTES: u64 = 1 << 20;
/// Longer than any judge.
pub(super) const DAEMON_WAIT: Duration = Duration::from_secs(3600);
/// Between two looks at the members.
const LOOK: Duration = Duration::from_millis(20);
/// The client that changes members.
const OPERATOR: u64 = 0;
/// The client that wants to know why.
const ONLOOKER: u64 = u64::MAX;
const COMMAND_BYTES: usize = 24;

/// Registers by their numbers; one that was not written is 0. And the index of the last command.
#[derive(Debug, Default)]
struct Registers(BTreeMap<u64, u64>, u64);

fn words_of<const COUNT: usize>(bytes: &[u8]) -> Option<[u64; COUNT]> {
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.try_into().ok().filter(|_| bytes.len() == COUNT * 8)
}

/// What to do with a register.
fn command(register: u64, is_add: bool, value: u64) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([register, u64::from(is_add), value]) {
        *place = word.to_le_bytes();
    }
    bytes
}

impl Machine for Registers {
    /// The reply is what was there before.
    fn apply(&mut self, index: u64, command: &[u8]) -> Vec<u8> {
        self.1 = index;
        let Some([register, is_add, value]) = words_of(command) else { return vec![] };
        let before = self.0.get(&register).copied().unwrap_or(0);
        self.0.insert(register, if is_add == 1 { before.wrapping_add(value) } else { value });
        before.to_le_bytes().to_vec()
    }

    fn save(&self, into: &mut Vec<u8>) {
        into.extend(self.1.to_le_bytes());
        self.0.iter().flat_map(|(register, value)| [register, value]).for_each(|word| into.extend(word.to_le_bytes()));
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), BadSnapshot> {
        let (last, bytes) = bytes.split_first_chunk().ok_or(BadSnapshot)?;
        self.1 = u64::from_le_bytes(*last);
        let pair = |bytes: &[u8]| words_of::<2>(bytes).map(|[register, value]| (register, value));
        self.0 = bytes.chunks(16).map(pair).collect::<Option<_>>().ok_or(BadSnapshot)?;
        Ok(())
    }
}

/// Something to do, for one client.
#[derive(Debug, Clone, Copy)]
enum Job {
    Propose { call: u64, client: u64, number: u64, command: [u8; COMMAND_BYTES] },
    Read { call: u64, register: u64 },
    Last { call: u64 },
    Alter { call: u64, member: u8, is_added: bool },
    Describe { call: u64 },
}

impl Job {
    /// Of a line; whose it is.
    fn parse(line: &str) -> Result<(u64, Self)> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let word = |at: usize| -> Result<u64> { Ok(words.get(at).context("a word is missing")?.parse()?) };
        let call = word(1)?;
        match *words.first().context("an empty line")? {
            "propose" => {
                let is_add = words.get(5) == Some(&"add");
                let (client, number, command) = (word(2)?, word(3)?, command(word(4)?, is_add, word(6)?));
                Ok((client, Self::Propose { call, client, number, command }))
            }
            "read" => Ok((word(2)?, Self::Read { call, register: word(3)? })),
            "last" => Ok((ONLOOKER, Self::Last { call })),
            what @ ("add" | "remove") => {
                Ok((OPERATOR, Self::Alter { call, member: u8::try_from(word(2)?)?, is_added: what == "add" }))
            }
            "describe" => Ok((ONLOOKER, Self::Describe { call })),
            other => bail!("nobody knows `{other}`"),
        }
    }

    fn done(self, group: &Group<Registers>) -> Result<()> {
        let (call, result) = match self {
            Self::Propose { call, client, number, command } => {
                let result = group.propose_as(client, number, &command);
                (call, result.map(|done| words_of::<1>(&done.reply).map_or(0, |[found]| found)))
            }
            Self::Read { call, register } => {
                (call, group.read(move |registers| registers.0.get(&register).copied().unwrap_or(0)))
            }
            Self::Last { call } => match group.read(|registers| registers.1) {
                Ok(index) => return say(&format!("last {call} {index}")),
                Err(why) => (call, Err(why)),
            },
            Self::Describe { call } => return say(&format!("state {call} {}", group.describe()?)),
            Self::Alter { call, member, is_added } => {
                let result = if is_added { group.add(member) } else { group.remove(member) };
                (call, result.map(|()| 0))
            }
        };
        match result {
            Ok(found) => say(&format!("found {call} {found}")),
            Err(GroupError::Unknown) => say(&format!("unknown {call}")),
            Err(why) => say(&format!("refused {call} {why}")),
        }
    }
}

/// Runs it until its standard input ends.
pub fn run(socket: &Path, me: u8, hosts: &[IpAddr], read_lease: Duration, dir: Option<PathBuf>) -> Result<()> {
    // The group's own thread follows the session of every other member, and the session's watcher those of the others.
    let builder = Session::builder().socket(socket).daemon_wait(DAEMON_WAIT).background(true);
    let session = builder.led_elsewhere(me.is_multiple_of(2)).connect()?;
    let members: Vec<(u8, IpAddr)> = (1..).zip(hosts.iter().copied()).collect();
    let builder = GroupBuilder::new(NAME, KEY).members(&members).me(me).log_lines(LOG_LINES).read_lease(read_lease);
    let builder = match dir {
        Some(dir) => builder.synced(dir),
        None => builder,
    };
    let group = Arc::new(builder.snapshot_bytes_max(SNAPSHOT_BYTES).open(&session, Registers::default())?);
    let watched = Arc::clone(&group);
    std::thread::spawn(move || watch(&watched));
    let mut clients: BTreeMap<u64, Sender<Job>> = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let (client, job) = Job::parse(&line?)?;
        let worker = clients.entry(client).or_insert_with(|| worker(&group));
        worker.send(job).context("a client's thread has ended")?;
    }
    Ok(())
}

fn worker(group: &Arc<Group<Registers>>) -> Sender<Job> {
    let (jobs, todo) = channel::<Job>();
    let group = Arc::clone(group);
    std::thread::spawn(move || todo.into_iter().try_for_each(|job| job.done(&group)));
    jobs
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Says what this member is, and who the others are, whenever that changes.
fn watch(group: &Group<Registers>) -> Result<()> {
    let (mut role, mut members, mut applied) = (None, String::new(), 0);
    loop {
        let now = group.role();
        if role != Some(now) {
            role = Some(now);
            say(&match now {
                Role::Leader { term } => format!("role leader {term}"),
                Role::Candidate { term } => format!("role candidate {term}"),
                Role::Follower { .. } => "role follower".to_owned(),
            })?;
        }
        // First this one, so that whoever hears an index has heard the members by it, or by a later entry.
        let index = group.applied();
        let list = group.members().iter().map(|member| format!(" {}", member.id)).collect::<String>();
        if list != members {
            say(&format!("members{list}"))?;
            members = list;
        }
        if index != applied {
            say(&format!("applied {index}"))?;
            applied = index;
        }
        group.wait_role(LOOK, |role| role != now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_come_back_from_their_bytes() {
        let mut registers = Registers::default();
        assert_eq!(registers.apply(1, &command(7, true, 5)), 0u64.to_le_bytes());
        assert_eq!(registers.apply(2, &command(7, true, 5)), 5u64.to_le_bytes());
        assert_eq!(registers.apply(3, &command(9, false, 1)), 0u64.to_le_bytes());
        let (mut bytes, mut other) = (vec![], Registers::default());
        registers.save(&mut bytes);
        assert!(other.load(&bytes).is_ok() && other.0 == BTreeMap::from([(7, 10), (9, 1)]) && other.1 == 3);
        assert!(other.load(&bytes[..12]).is_err());
    }

    #[test]
    fn lines_that_nobody_knows_are_refused() {
        assert!(matches!(Job::parse("propose 1 2 3 4 add 5"), Ok((2, Job::Propose { call: 1, number: 3, .. }))));
        assert!(matches!(Job::parse("remove 1 2"), Ok((OPERATOR, Job::Alter { member: 2, is_added: false, .. }))));
        for wrong in ["", "propose", "read 1 2", "add 1 300", "sing 1"] {
            assert!(Job::parse(wrong).is_err(), "{wrong}");
        }
    }
}
