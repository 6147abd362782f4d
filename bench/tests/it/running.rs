//! Programs of a test, and what they print.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// The measuring programs.
pub(crate) const BENCH: &str = env!("CARGO_BIN_EXE_bench");
/// Nothing here takes longer unless it hangs.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

/// A running program, killed when dropped.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    /// A measuring program: its name, and its own words.
    pub(crate) fn bench(words: &[&str]) -> Self {
        Self::start(BENCH, words)
    }

    pub(crate) fn start(program: &str, words: &[&str]) -> Self {
        let mut child =
            Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, out }
    }

    /// The rest of its next line, which begins with `prefix`.
    pub(crate) fn line(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim().strip_prefix(prefix).unwrap_or_else(|| panic!("not `{prefix}`: `{line}`")).to_owned()
    }

    /// Writes a line to its stdin.
    pub(crate) fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("stdin is piped"), "{line}").expect("it listens");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes its stdin, waits for its end in order, and gives what else it printed.
    pub(crate) fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                assert!(status.success(), "{status}: {rest}");
                return rest;
            }
            assert!(begin.elapsed() < WATCHDOG, "hangs: {rest}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
