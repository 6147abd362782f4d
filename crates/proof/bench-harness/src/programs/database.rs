//! The migration of a database: mariadb-backup streams it through a program that sends to another one, and that one's
//! output is unpacked. Total time and processor time (Figure 19), and processors in use over time (Figure 20).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::child::{self, Ended, Stream};
use serde_json::json;

use super::compare::{Compared, same, take_turns, words};
use super::serving::{Ready, Serving, over_raas};
use super::usage::{Ticks, Watched, by_time, seconds};
use super::{At, Measured, RUN, TCP};
use crate::figures::data::{Figure, Line, Point, Scale};
use crate::place::End;
use crate::stats::{Bar, Better, Kind};

/// Megabytes of a quick run's database, and of another's: the paper's.
const MB_QUICK: u32 = 64;
const MB: u32 = 1300;
/// Bytes of a row.
const ROW_BYTES: u32 = 1024;
const PREPARE_LIMIT: Duration = Duration::from_secs(900);
/// One migration.
const STREAM_LIMIT: Duration = Duration::from_secs(300);
/// Sides.
const SIDES: [&str; 2] = [TCP, RUN];
/// Places of Figure 19.
const TOTAL: f64 = 1.0;
const USER: f64 = 2.0;
const SYSTEM: f64 = 3.0;
/// Points of Figure 20, about.
const SLOTS: usize = 20;

/// Makes the database and stops its server in order, so that its files change no more.
const PREPARE: &str = "chown mysql $DIR
mariadb-install-db --no-defaults --user=mysql --datadir=$DIR/data --skip-test-db > $DIR/install.log 2>&1
mariadbd --no-defaults --user=mysql --datadir=$DIR/data --socket=$DIR/socket --skip-networking \\
    --innodb-flush-log-at-trx-commit=0 2> $DIR/log & server=$!
until mariadb-admin --no-defaults -S $DIR/socket ping > /dev/null 2>&1; do sleep 0.1; done
mariadb --no-defaults -S $DIR/socket -e \"create database d; use d; create table d.t (n int primary key, b blob);
    insert into d.t select seq, random_bytes($ROW) from seq_1_to_$ROWS\"
kill $server; wait $server; mkdir $DIR/tmp";
/// Serves it.
const SERVE: &str = "exec mariadbd --no-defaults --user=mysql --datadir=$DIR/data --socket=$DIR/socket \\
    --skip-networking --pid-file=$DIR/pid 2>> $DIR/log";
/// Receives a stream and unpacks it, and says how much processor time that took.
const RECEIVE: &str = "set -o pipefail; rm -rf $TO; mkdir $TO; TIMEFORMAT='used %U %S'
time { $RUN socat -u -b 65536 TCP-LISTEN:$PORT,bind=$ADDRESS,reuseaddr - | mbstream -x -C $TO; }";
/// Streams it. The password file of the user is not read.
const SEND: &str = "set -o pipefail; TIMEFORMAT='used %U %S'
time { mariadb-backup --no-defaults --backup --stream=xbstream --target-dir=$DIR/tmp --datadir=$DIR/data \\
    -S $DIR/socket 2> $DIR/backup.log | $RUN socat -u -b 65536 - TCP:$ADDRESS:$PORT; }";

/// A database with its server.
struct Database<'a> {
    at: &'a At<'a>,
    dir: PathBuf,
    _server: Serving,
}

/// What a migration took.
#[derive(Debug)]
struct Took {
    total: f64,
    user: f64,
    system: f64,
    /// Processors in use over time.
    used: Vec<f64>,
}

/// Figures 19 and 20.
pub(super) fn migrate(at: &At<'_>) -> Result<Measured> {
    let mb = at.database_mb.unwrap_or(if at.is_quick { MB_QUICK } else { MB });
    let database = Database::make(at, mb)?;
    // A run of each that does not count; what goes over RaaS must be seen there.
    database.stream(0)?;
    over_raas(at.place, || database.stream(1))?;
    let mut used: [Vec<Vec<f64>>; 2] = [vec![], vec![]];
    let lines = take_turns(at.rounds, &SIDES, &mut |side| {
        let took = database.stream(side)?;
        used[side].push(took.used);
        Ok(vec![(TOTAL, took.total), (USER, took.user), (SYSTEM, took.system), (0.0, took.user + took.system)])
    })?;
    let row = |what: &str, x: f64, bar: f64| {
        Compared {
            case: at.case(&format!("database stream, {what}")),
            unit: "s",
            better: Better::Lower,
            ours: RUN,
            rival: TCP,
            at: x,
            value: same,
            bar: at.is_one_host().then_some((Bar::RatioAtMost(bar), Kind::Goal)),
        }
        .row(&lines)
    };
    let rows = vec![row("total time", TOTAL, 1.0), row("processor time", 0.0, 0.6)];
    let beside = json!({ "database_mb": mb, "counted": "mariadb-backup, sender, receiver, mbstream, daemons" });
    let shown = |line: &Line| Line { points: line.points[..3].to_vec(), ..line.clone() };
    let times = Figure {
        number: Some(19),
        title: format!("migrating a database of {mb} MB, {}", at.host()),
        x: "what (1: total time, 2: user mode, 3: kernel mode)".to_owned(),
        y: "s".to_owned(),
        scale: Scale::Linear,
        lines: lines.iter().map(shown).collect(),
        rows: rows.clone(),
        beside: beside.clone(),
    };
    let longest = used.iter().flatten().map(Vec::len).max().unwrap_or_default();
    let over_time = |(name, rounds): (&&'static str, &Vec<Vec<f64>>)| Line {
        name: (*name).to_owned(),
        points: by_time(rounds, longest.div_ceil(SLOTS)).into_iter().map(|(x, values)| Point { x, values }).collect(),
    };
    let processors = Figure {
        number: Some(20),
        title: format!("processors in use while a database of {mb} MB is migrated, {}", at.host()),
        x: "seconds from the begin".to_owned(),
        y: "processors".to_owned(),
        scale: Scale::Linear,
        lines: SIDES.iter().zip(&used).map(over_time).collect(),
        rows: vec![],
        beside,
    };
    Ok(Measured { figures: vec![times, processors], rows, missing: vec![] })
}

impl<'a> Database<'a> {
    fn make(at: &'a At<'a>, mb: u32) -> Result<Self> {
        let dir = at.place.file("database");
        std::fs::create_dir_all(&dir)?;
        let rows = (u64::from(mb) << 20) / u64::from(ROW_BYTES);
        println!("making a database of {mb} MB");
        let mut prepare = at.repo.command("bash", &["-euo", "pipefail", "-c", PREPARE]);
        prepare.env("DIR", &dir).env("ROW", ROW_BYTES.to_string()).env("ROWS", rows.to_string());
        let ended = child::run_quiet(&mut prepare, PREPARE_LIMIT)?;
        ensure!(ended.success(), "making the database: {}\n{}", ended.describe(), ended.text(Stream::Err));
        let script = SERVE.replace("$DIR", &dir.display().to_string());
        let wait = "until mariadb-admin --no-defaults -S $DIR/socket ping > /dev/null 2>&1; do sleep 0.1; done";
        let script = format!("({}; echo ready) & {script}", wait.replace("$DIR", &dir.display().to_string()));
        let server = Serving::start(at.place, &words(&["bash", "-c", &script]), &Ready::Says("ready"))?;
        Ok(Self { at, dir, _server: server })
    }

    /// The script with its words in place.
    fn script(&self, script: &str, side: usize) -> Vec<String> {
        let run = if SIDES[side] == RUN { format!("{} run", self.at.place.program("raas")) } else { String::new() };
        let port = self.at.port(u16::from(side == 1)).to_string();
        let (dir, to) = (self.dir.display().to_string(), self.unpacked().display().to_string());
        let mut script = script.to_owned();
        let address = self.at.place.server();
        for (name, word) in [("$RUN", &*run), ("$DIR", &*dir), ("$TO", &*to), ("$PORT", &*port), ("$ADDRESS", address)]
        {
            script = script.replace(name, word);
        }
        words(&["bash", "-c", &script])
    }

    fn unpacked(&self) -> PathBuf {
        self.dir.join("unpacked")
    }

    /// One migration. The unpacked table must be the database's.
    fn stream(&self, side: usize) -> Result<Took> {
        let (at, place) = (self.at, self.at.place);
        let mut receiver =
            Serving::start(place, &self.script(RECEIVE, side), &Ready::Listens(at.port(u16::from(side == 1))))?;
        let daemons = Watched { groups: vec![], pids: place.daemon_pids() };
        let before = daemons.ticks();
        let send = self.script(SEND, side);
        let send: Vec<&str> = send.iter().map(String::as_str).collect();
        let begin = Instant::now();
        let mut sender = child::spawn(&mut place.command(End::Client, &send))?;
        let groups = vec![sender.pid(), receiver.pid()];
        let watched = Watched { groups, pids: daemons.pids.clone() };
        let (done, used) = watched.during(|| -> Result<(Ended, String, f64)> {
            let ended = sender.wait(&|took| took >= STREAM_LIMIT, &mut |_, _| {})?;
            let received = receiver.wait_line("used ", STREAM_LIMIT)?;
            Ok((ended, received, begin.elapsed().as_secs_f64()))
        });
        let (ended, received, total) = done.with_context(|| self.last_words())?;
        ensure!(
            ended.success(),
            "the sender: {}\n{}\n{}",
            ended.describe(),
            ended.text(Stream::Err),
            self.last_words()
        );
        let sent = ended.text(Stream::Err);
        let sent = sent.lines().find_map(|line| line.strip_prefix("used ")).context("the sender told no times")?;
        let after = daemons.ticks();
        let of_daemons = Ticks { user: after.user - before.user, system: after.system - before.system };
        let (sent, received) = (times(sent)?, times(&received)?);
        same_file(&self.dir.join("data/d/t.ibd"), &self.unpacked().join("d/t.ibd"))?;
        Ok(Took {
            total,
            user: sent.0 + received.0 + seconds(of_daemons.user),
            system: sent.1 + received.1 + seconds(of_daemons.system),
            used,
        })
    }

    /// What mariadb-backup said last.
    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(self.dir.join("backup.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }
}

/// Seconds in user and in kernel mode.
fn times(text: &str) -> Result<(f64, f64)> {
    let read = |word: Option<&str>| word?.parse::<f64>().ok();
    let mut words = text.split_whitespace();
    let pair = read(words.next()).zip(read(words.next()));
    pair.with_context(|| format!("no two times: {text}"))
}

fn same_file(one: &Path, other: &Path) -> Result<()> {
    let compared = std::process::Command::new("cmp").args([one, other]).output()?;
    ensure!(compared.status.success(), "the table that arrived differs: {}", String::from_utf8_lossy(&compared.stdout));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_bash_are_read() {
        assert_eq!(times("0.250 1.5").expect("two"), (0.25, 1.5));
        assert!(times("0.250").is_err());
    }
}
