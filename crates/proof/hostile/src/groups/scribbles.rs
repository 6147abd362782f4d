//! A member's host on which a program with the key scribbles the memory's log, and what is judged of that.
//!
//! The leader counts a WRITE to that memory as any other, so what only that memory and too few others hold may be lost with
//! the next leader: no member could tell. What a majority of the honest memories hold must never be. So calls that are
//! under way are let end, and it is waited until every honest program has learnt, from its own memory, all that was
//! acknowledged: from then on all of it is judged. If somebody else came to lead before that, what was asked for
//! meanwhile is judged by nobody, and counted. That the group goes on, that nobody crashes and that no two lead in a term
//! holds always.
//!
//! Owns the order: no call is under way while a leader is ended.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::RngExt as _;

use super::liar::Lie;
use super::nemesis::Kind;
use super::{ASK_AGAIN, Field};

/// How long calls go on beside a scribbler beyond what is waited for, at most.
const LONGER_MS_MAX: u64 = 300;

impl Field<'_> {
    /// One program ends, a scribbler comes in its place; calls end beside it. Then the leader ends, and whoever follows him
    /// finds that log. How it went, in words.
    pub(super) fn scribbles(&mut self) -> Result<String> {
        let leader = self.leader.context("nobody has led")?;
        let host = if self.rng.random_range(0..3) == 0 { leader } else { self.other_than(&[leader])? };
        self.hit(Kind::Killed, host)?;
        self.go_on()?;
        self.rest(host)?;
        let seed = self.rng.random();
        self.liar = Some(self.start_liar(host, Lie::Log, seed)?);
        let mut judged = u32::from(self.ask_beside(host)?);
        let terms = self.terms.len();
        let led = self.leader.filter(|led| *led != host).context("an honest leader")?;
        self.hit(Kind::Killed, led)?;
        // Nobody asks anything, so what is acknowledged is what was.
        self.until("somebody else leads", |field| field.terms.len() > terms)?;
        let joined = self.join(led)?;
        self.members[led] = Some(joined);
        judged += u32::from(self.ask_beside(host)?);
        self.end_lies(host)?;
        if judged < 2 {
            // What one has applied another leader may not have.
            for at in (0..self.place.ips.len()).filter(|at| *at != host) {
                self.hit(Kind::Killed, at)?;
                let joined = self.join(at)?;
                self.members[at] = Some(joined);
            }
        }
        self.clients.hold(false);
        self.go_on().and_then(|()| self.become_whole()).context("behind the scribbles")?;
        Ok(format!(" with {judged} of 2 times judged"))
    }

    /// Calls end, and then all rests. Whether nobody else came to lead meanwhile, so that they are judged.
    fn ask_beside(&mut self, host: usize) -> Result<bool> {
        let (terms, from) = (self.terms.len(), self.clients.turn());
        self.clients.hold(false);
        self.go_on().context("beside a scribbled log")?;
        let longer = Duration::from_millis(self.rng.random_range(0..LONGER_MS_MAX));
        self.pass(longer)?;
        self.rest(host)?;
        let is_judged = self.terms.len() == terms;
        if !is_judged {
            self.clients.excuse_from(from);
        }
        Ok(is_judged)
    }

    /// No call is under way, and every program but that one's has learnt all that was acknowledged.
    fn rest(&mut self, but: usize) -> Result<()> {
        self.clients.hold(true);
        self.until("calls end", |field| field.clients.are_idle())?;
        let mut asked: Option<Instant> = None;
        (self.last_command, self.last_asked_behind) = (None, self.request);
        self.until("somebody says what the last command is", |field| {
            if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                asked = Some(Instant::now());
                field.request += 1;
                let line = format!("last {}", field.request);
                (0..field.members.len()).for_each(|member| field.tell(member, &line));
            }
            field.last_command.is_some()
        })?;
        let last = self.last_command.unwrap_or(0);
        self.until("all honest members have the same", |field| {
            let honest = |member: &usize| *member != but && field.members[*member].is_some();
            (0..field.members.len()).filter(honest).all(|member| field.applied[member].0 >= last)
        })
    }
}
