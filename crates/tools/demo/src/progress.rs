//! Live progress of the demo on stderr: a bar on a terminal, a plain line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use terminal::out;
use terminal::table;

/// How often a line is printed where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(1);

/// Tells a person what the demo does.
#[derive(Debug)]
pub(crate) struct Progress {
    is_terminal: bool,
    bar: Option<ProgressBar>,
    phase: String,
    total_bytes: u64,
    begin: Instant,
    last_line: Instant,
}

impl Progress {
    /// For this process's stderr.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, bar: None, phase: String::new(), total_bytes: 0, begin: now, last_line: now }
    }

    /// One line.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => out::say(text),
        }
    }

    /// Bytes begin to move.
    pub(crate) fn begin(&mut self, phase: &str, total_bytes: u64) {
        phase.clone_into(&mut self.phase);
        self.total_bytes = total_bytes;
        self.begin = Instant::now();
        self.last_line = self.begin;
        if self.is_terminal {
            let bar = ProgressBar::new(total_bytes);
            let template = "{msg:>10} [{bar:12}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_message(self.phase.clone());
            self.bar = Some(bar);
        }
    }

    /// So many bytes have arrived.
    pub(crate) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes.min(self.total_bytes));
        } else if self.last_line.elapsed() >= LINE_PERIOD {
            self.last_line = Instant::now();
            let rate = bytes as f64 * 8.0 / 1e9 / self.begin.elapsed().as_secs_f64().max(1e-9);
            let (done, total) = (table::bytes(bytes), table::bytes(self.total_bytes));
            out::say(format_args!("{:>12}: {done} of {total}, {rate:.2} Gbit/s", self.phase));
        }
    }

    /// Takes away what a bar has left on the terminal.
    pub(crate) fn clear() {
        if std::io::stderr().is_terminal() {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), b"\r\x1b[2K");
        }
    }

    /// They all have, or will not any more.
    pub(crate) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
