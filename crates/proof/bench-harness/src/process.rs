//! Processes of a bench that run beside the measured one: servers, daemons, a second network namespace. Each ends with
//! its guard.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a started program may take to say that it is ready.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a program has to end by itself.
const END_WITHIN: Duration = Duration::from_secs(10);
/// Lines of a program kept for an error message.
const LINES_MAX: usize = 1000;

/// A running program.
#[derive(Debug)]
pub(crate) struct Beside {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Beside {
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let (sender, lines) = channel();
        let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] =
            [child.stdout.take().map(|o| Box::new(o) as _), child.stderr.take().map(|o| Box::new(o) as _)];
        for output in outputs.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let stdin = child.stdin.take();
        Ok(Self { child, stdin, lines, said: vec![] })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Writes a line to its stdin.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("a program whose stdin is closed hears nothing")?;
        writeln!(stdin, "{line}").with_context(|| format!("it has ended before `{line}`: {}", self.said.join("\n")))
    }

    /// The rest of the first line that begins with `prefix`.
    pub(crate) fn wait_line(&mut self, prefix: &str, within: Duration) -> Result<String> {
        let begin = Instant::now();
        loop {
            let left = within.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return Ok(rest.trim().to_owned());
                    }
                    if self.said.len() < LINES_MAX {
                        self.said.push(line);
                    }
                }
                Err(RecvTimeoutError::Timeout) => bail!("no `{prefix}` within {within:?}: {}", self.said.join("\n")),
                Err(RecvTimeoutError::Disconnected) => bail!("ended before `{prefix}`: {}", self.said.join("\n")),
            }
        }
    }

    /// Closes its stdin and waits for its end, which must be in order.
    pub(crate) fn finish(mut self, within: Duration) -> Result<()> {
        drop(self.stdin.take());
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if begin.elapsed() > within => bail!("it did not end within {within:?}: {}", self.said.join("\n")),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        self.said.extend(self.lines.iter().take(LINES_MAX));
        anyhow::ensure!(status.success(), "{status}: {}", self.said.join("\n"));
        Ok(())
    }

    /// Closes its stdin and waits for its end.
    pub(crate) fn end(mut self) {
        drop(self.stdin.take());
        let begin = Instant::now();
        while begin.elapsed() < END_WITHIN {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // It has ended already if this fails.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_waited_for_and_an_early_end_is_told() -> Result<()> {
        let mut cat = Beside::start(Command::new("sh").args(["-c", "echo noise; echo ready 7; cat"]))?;
        assert_eq!(cat.wait_line("ready ", READY_WITHIN)?, "7");
        cat.end();
        let mut echo = Beside::start(&mut Command::new("cat"))?;
        echo.say("again 8")?;
        assert_eq!(echo.wait_line("again ", READY_WITHIN)?, "8");
        echo.finish(READY_WITHIN)?;
        let failing = Beside::start(Command::new("sh").args(["-c", "cat; echo why; exit 1"]))?;
        let told = failing.finish(READY_WITHIN).expect_err("it fails").to_string();
        assert!(told.contains("why"), "{told}");
        let mut short = Beside::start(Command::new("sh").args(["-c", "echo why; exit 1"]))?;
        let told = short.wait_line("ready ", READY_WITHIN).expect_err("it never gets ready").to_string();
        assert!(told.contains("why"), "{told}");
        Ok(())
    }
}
