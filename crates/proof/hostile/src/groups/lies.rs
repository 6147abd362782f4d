//! A member's host on which a liar is in the place of the group's program, and its end.
//!
//! Owns the liar's process. Its memory counts again as a new one, so program and daemon of the host end with the lies.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use rand::RngExt as _;

use super::liar::Lie;
use super::nemesis::{Fault, Kind};
use super::{Field, kill_now};

impl Field<'_> {
    /// A program ends, a leader's or another one's, and a liar comes. Which lie, in words.
    pub(super) fn begin_lies(&mut self) -> Result<(Fault, String)> {
        let leader = self.leader.context("nobody has led")?;
        let host = if self.rng.random_range(0..3) == 0 { leader } else { self.other_than(&[leader])? };
        // A scribbled log is judged in another way.
        let lies: Vec<Lie> = Lie::value_variants().iter().copied().filter(|lie| *lie != Lie::Log).collect();
        let lie = lies[self.rng.random_range(0..lies.len())];
        self.hit(Kind::Killed, host)?;
        let seed = self.rng.random();
        self.liar = Some(self.start_liar(host, lie, seed)?);
        Ok((Fault::Liar(host), format!(" of {lie:?}")))
    }

    pub(super) fn start_liar(&self, host: usize, lie: Lie, seed: u64) -> Result<Child> {
        let mut command = self.member_command(host, "liar")?;
        let lie = lie.to_possible_value().context("a name")?;
        command.args(["--lie", lie.get_name(), "--seed", &seed.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        ensure!(line.trim() == "lies", "the liar does not begin: {line:?}");
        Ok(child)
    }

    pub(super) fn end_lies(&mut self, host: usize) -> Result<()> {
        self.liar.take().into_iter().for_each(|mut liar| kill_now(&mut liar));
        self.daemons[host].take().context("a daemon")?.kill()?;
        self.daemons[host] = Some(self.start_daemon(host)?);
        self.members[host] = Some(self.join(host)?);
        Ok(())
    }
}
