//! A program under `raas run` at its end of a connection: its script over whichever way its bytes go.
//!
//! Owns what the program sees: bytes, an end, a reset.

use verbs::Time;

use super::upgraded::{Broken, Found, Stream, Upgraded};
use super::{Conn, Died, Fuse, Progress, Writing, earlier};
use crate::check::Checks;
use crate::plan::Ending;

impl Conn {
    /// As [`Conn::run`].
    pub(super) fn run_upgraded(
        &mut self,
        mut upgraded: Box<Upgraded>,
        now: Time,
        (checks, fuse): (&mut Checks, &mut Fuse),
        buf: &mut [u8],
    ) -> Result<Progress, Died> {
        let mut progress = Progress::default();
        if let Some(reason) = self.endpoint.failure().filter(|_| !upgraded.is_off_stream()) {
            checks.on_reset(now, self.record, self.side, reason);
            self.close(checks);
            return Ok(progress);
        }
        let done = self.step_upgraded(&mut upgraded, now, checks, buf, &mut progress);
        fuse.point()?;
        match done {
            Ok(()) => {}
            Err(Broken(reason)) => {
                checks.on_tcp_broken(now, (self.record, self.side), reason.or_else(|| self.endpoint.failure()));
                self.close(checks);
            }
        }
        if self.closed {
            checks.on_upgraded(upgraded.way());
            return Ok(Progress::default());
        }
        self.upgraded = Some(upgraded);
        // As a thread that is going to wait.
        self.rx.tell_room(&self.endpoint);
        fuse.point()?;
        Ok(progress)
    }

    fn step_upgraded(
        &mut self,
        upgraded: &mut Upgraded,
        now: Time,
        checks: &mut Checks,
        buf: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Broken> {
        let moved = self.sent + self.received;
        if let Some(stream) = self.stream() {
            upgraded.drive(stream, moved)?;
        }
        self.read_upgraded(upgraded, now, checks, buf, progress)?;
        if self.closed {
            return Ok(());
        }
        self.write_upgraded(upgraded, now, checks, buf, progress)?;
        let all_written = self.sent == self.script.to_write;
        if !all_written || self.script.ending == Ending::HoldOpen {
            return Ok(());
        }
        if !self.fin_said
            && let Some(stream) = self.stream()
            && upgraded.end_writing(&stream)?
        {
            self.fin_said = true;
            checks.on_fin(self.record, self.side);
        }
        if self.fin_said && self.eof && upgraded.is_at_rest() {
            self.close(checks);
        }
        Ok(())
    }

    fn stream(&mut self) -> Option<Stream<'_>> {
        match &mut self.writing {
            Writing::Free(tx) => Some(Stream { at: &self.endpoint, rx: &mut self.rx, tx }),
            Writing::Lent { .. } | Writing::Gone => None,
        }
    }

    fn read_upgraded(
        &mut self,
        upgraded: &mut Upgraded,
        now: Time,
        checks: &mut Checks,
        buf: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Broken> {
        while self.may_read(now) {
            if self.next_read > now {
                // Nobody tells of what lies there already.
                progress.again = earlier(progress.again, self.next_read);
                return Ok(());
            }
            let want = (self.script.read_max as usize).min(buf.len());
            let Some(stream) = self.stream() else { return Ok(()) };
            match upgraded.read(stream, &mut buf[..want])? {
                Found::Nothing => return Ok(()),
                Found::Bytes(count) => {
                    checks.on_read(now, self.record, self.side, &buf[..count]);
                    self.received += count as u64;
                    self.next_read = now + self.script.read_gap;
                }
                Found::End { is_tcp } if is_tcp && checks.is_other_dead(self.record, self.side) => {
                    checks.on_tcp_broken(now, (self.record, self.side), None);
                    self.close(checks);
                    return Ok(());
                }
                Found::End { .. } => {
                    self.eof = true;
                    checks.on_eof(now, self.record, self.side);
                }
            }
        }
        Ok(())
    }

    fn write_upgraded(
        &mut self,
        upgraded: &mut Upgraded,
        now: Time,
        checks: &mut Checks,
        buf: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), Broken> {
        while self.sent < self.script.to_write {
            if self.next_write > now {
                progress.again = earlier(progress.again, self.next_write);
                return Ok(());
            }
            let left = self.script.to_write - self.sent;
            let want = left.min(self.script.write_max.into()).min(buf.len() as u64) as usize;
            checks.fill(self.record, self.side, self.sent, &mut buf[..want]);
            let Some(stream) = self.stream() else { return Ok(()) };
            let count = upgraded.write(stream, &buf[..want])?;
            if count == 0 {
                return Ok(());
            }
            checks.on_written(self.record, self.side, count as u64);
            self.sent += count as u64;
            self.next_write = now + self.script.write_gap;
        }
        Ok(())
    }
}
