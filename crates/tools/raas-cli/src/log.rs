//! The log of a process that must outlive it: lines go through a bounded queue to a thread that alone writes stderr.
//!
//! Owns stderr of the daemon. It must never fail, panic or wait for a reader in the thread that logs: what does not fit
//! the queue, or cannot be written (a full disk, a closed pipe), is counted, and the count is written as soon as it can
//! be.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::json;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer as Text;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Bytes of lines that may wait for stderr.
const QUEUE_BYTES_MAX: usize = 256 << 10;
/// Bytes of one line; the rest is cut off.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Bytes of text in a line of JSON that is made here: each may become six.
const SAID_BYTES_MAX: usize = LINE_BYTES_MAX / 8;
/// While lines are lost and none comes, stderr is tried again this often.
const RETRY: Duration = Duration::from_secs(2);
/// How long the end of the process waits for lines that stderr has not taken.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The queue to the thread that writes. Clones are the same queue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log {
    shared: Arc<Shared>,
    is_json: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that were lost and are not reported yet.
    lost: u64,
    /// A line was taken out and is being written.
    writing: bool,
}

impl Log {
    /// A log whose thread writes to `out`, which may block or fail. `is_json`: each line is an object.
    pub(crate) fn start(out: impl Write + Send + 'static, is_json: bool) -> io::Result<Self> {
        let log = Self { is_json, ..Self::default() };
        let shared = Arc::clone(&log.shared);
        let writer = Writer { shared, out, torn: false, is_json };
        std::thread::Builder::new().name("log".into()).spawn(move || writer.run())?;
        Ok(log)
    }

    /// As [`Self::start`], to this process's stderr.
    pub(crate) fn to_stderr(is_json: bool) -> io::Result<Self> {
        Self::start(Stderr, is_json)
    }

    /// Queues what this process has to say beside its events.
    pub(crate) fn say(&self, text: &str) {
        self.line(said(text, self.is_json).as_bytes());
    }

    /// Queues one line, with its line feed; never waits, never fails.
    pub(crate) fn line(&self, line: &[u8]) {
        let mut queue = lock(&self.shared);
        let cut = line.len().min(LINE_BYTES_MAX);
        if queue.bytes + cut + 1 > QUEUE_BYTES_MAX {
            queue.lost += 1;
            return;
        }
        let mut line = line[..cut].to_vec();
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        queue.bytes += line.len();
        queue.lines.push_back(line);
        self.shared.changed.notify_all();
    }

    /// Waits until all is written, [`FLUSH_LIMIT`] at most: a reader that stands still does not hold up the end.
    pub(crate) fn flush(&self) {
        let end = Instant::now() + FLUSH_LIMIT;
        let mut queue = lock(&self.shared);
        while queue.writing || !queue.lines.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            queue = self.shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Panics are lines of this log, and written before the hook returns, if stderr takes them: a panic may end the
    /// process.
    pub(crate) fn take_panics(&self) {
        let log = self.clone();
        std::panic::set_hook(Box::new(move |info| {
            log.say(&panic_line(info));
            log.flush();
        }));
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Queue> {
    // The queue is consistent between statements, whichever thread panicked.
    shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_line(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let place = info.location().map(|l| format!(" at {}:{}:{}", l.file(), l.line(), l.column())).unwrap_or_default();
    let payload = info.payload();
    let words =
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let words = words.unwrap_or("no words");
    let mut line = format!("thread '{}' panicked{place}: {words}\n", thread.name().unwrap_or("unnamed"));
    let backtrace = Backtrace::capture();
    match backtrace.status() {
        BacktraceStatus::Captured => line.push_str(&backtrace.to_string()),
        BacktraceStatus::Disabled => {
            line.push_str("with RUST_BACKTRACE=1 in its environment it would say where it was\n")
        }
        _ => {}
    }
    line
}

/// One event of `tracing`: its bytes are one line of the log, queued when it is dropped.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    log: &'a Log,
    bytes: Vec<u8>,
}

impl Write for Event<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One byte more than is kept shows that something was cut off.
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if self.log.is_json && self.bytes.len() > LINE_BYTES_MAX {
            // Cut off it would be no object.
            let begin = String::from_utf8_lossy(&self.bytes[..SAID_BYTES_MAX / 2]);
            self.log.say(&format!("a line of the log had more than {LINE_BYTES_MAX} bytes; it began: {begin}"));
        } else if !self.bytes.is_empty() {
            self.log.line(&self.bytes);
        }
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Event { log: self, bytes: Vec::new() }
    }
}

/// A line with what this process says beside its events, in the form of these.
fn said(text: &str, is_json: bool) -> String {
    if !is_json {
        return text.to_owned();
    }
    let mut timestamp = String::new();
    // It fails for times that no calendar has.
    let _ = SystemTime.format_time(&mut Text::new(&mut timestamp));
    let text = text.trim_end();
    let mut end = text.len().min(SAID_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let message = &text[..end];
    let line = json!({ "timestamp": timestamp, "level": "ERROR", "fields": { "message": message }, "target": "raas" });
    line.to_string()
}

/// The thread's side.
struct Writer<W> {
    shared: Arc<Shared>,
    out: W,
    /// A line was written in part.
    torn: bool,
    is_json: bool,
}

impl<W: Write> Writer<W> {
    fn run(mut self) {
        loop {
            let (line, lost) = self.next();
            let told = if lost == 0 { Ok(()) } else { self.tell(lost) };
            let written = told.is_ok() && line.as_ref().is_none_or(|line| self.put(line).is_ok());
            let mut queue = lock(&self.shared);
            if told.is_ok() {
                queue.lost -= lost;
            }
            if let Some(line) = line {
                queue.bytes -= line.len();
                queue.lost += u64::from(!written);
            }
            queue.writing = false;
            self.shared.changed.notify_all();
        }
    }

    /// The next line, and how many were lost before it. There is no line if only the loss is to be reported.
    fn next(&self) -> (Option<Vec<u8>>, u64) {
        let idle = |queue: &mut Queue| queue.lines.is_empty();
        let queue = lock(&self.shared);
        let news = self.shared.changed.wait_while(queue, |q| idle(q) && q.lost == 0);
        let queue = news.unwrap_or_else(PoisonError::into_inner);
        let waited = self.shared.changed.wait_timeout_while(queue, RETRY, idle);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        queue.writing = true;
        (queue.lines.pop_front(), queue.lost)
    }

    fn tell(&mut self, lost: u64) -> io::Result<()> {
        let text = format!("raas: {lost} lines of the log were lost: stderr was full, closed or not read\n");
        let mut line = said(&text, self.is_json);
        if !line.ends_with('\n') {
            line.push('\n');
        }
        self.put(line.as_bytes())
    }

    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn {
            self.out.write_all(b"\n")?;
            self.torn = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => rest = &rest[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            self.torn = !rest.is_empty();
        }
        Ok(())
    }
}

/// Descriptor 2 without the lock of [`std::io::Stderr`], so that a write that waits holds up nobody else.
#[derive(Debug)]
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match rustix::io::write(stderr.as_fd(), bytes) {
                // Another process made the open file non-blocking.
                Err(rustix::io::Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None)?;
                }
                done => return Ok(done?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Takes bytes while it has leave for so many, fails without leave, and blocks while the gate is shut.
    #[derive(Debug, Clone, Default)]
    struct Sink {
        state: Arc<(Mutex<SinkState>, Condvar)>,
    }

    #[derive(Debug, Default)]
    struct SinkState {
        taken: Vec<u8>,
        leave: usize,
        shut: bool,
        waits: bool,
    }

    impl Sink {
        fn with(&self, change: impl FnOnce(&mut SinkState)) {
            change(&mut self.state.0.lock().unwrap());
            self.state.1.notify_all();
        }

        fn wait_for(&self, done: impl Fn(&SinkState) -> bool) -> String {
            let limit = Duration::from_secs(60);
            let held = self.state.0.lock().unwrap();
            let (held, late) = self.state.1.wait_timeout_while(held, limit, |s| !done(s)).unwrap();
            let text = String::from_utf8_lossy(&held.taken).into_owned();
            assert!(!late.timed_out(), "{text}");
            text
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.state.0.lock().unwrap();
            state.waits = state.shut;
            self.state.1.notify_all();
            let mut state = self.state.1.wait_while(state, |s| s.shut).unwrap();
            let n = bytes.len().min(state.leave);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.leave -= n;
            state.taken.extend_from_slice(&bytes[..n]);
            self.state.1.notify_all();
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_told_when_they_can() {
        let sink = Sink::default();
        sink.with(|s| s.leave = 10);
        let log = Log::start(sink.clone(), false).unwrap();
        log.line(b"first\n");
        log.line(b"second");
        log.line(b"third\n");
        log.flush();
        assert_eq!(sink.wait_for(|_| true), "first\nseco", "the disk is full");
        sink.with(|s| s.leave = 1 << 20);
        // Nothing is logged: the thread tries again by itself.
        let text = sink.wait_for(|s| s.taken.ends_with(b"read\n"));
        assert_eq!(text, "first\nseco\nraas: 2 lines of the log were lost: stderr was full, closed or not read\n");
        log.line(b"fourth\n");
        assert!(sink.wait_for(|s| s.taken.ends_with(b"fourth\n")).ends_with("read\nfourth\n"));
    }

    #[test]
    fn nobody_waits_for_a_reader_that_stands_still() {
        let sink = Sink::default();
        sink.with(|s| (s.leave, s.shut) = (1 << 30, true));
        let log = Log::start(sink.clone(), false).unwrap();
        log.line(b"held\n");
        sink.wait_for(|s| s.waits);
        let line = vec![b'x'; LINE_BYTES_MAX];
        for _ in 0..1000 {
            log.line(&line);
        }
        let (ended, end) = mpsc::channel();
        let flushing = log.clone();
        std::thread::spawn(move || {
            flushing.flush();
            let _ = ended.send(());
        });
        end.recv_timeout(Duration::from_secs(60)).expect("flush is bounded");
        let held = lock(&log.shared).bytes;
        assert!(held <= QUEUE_BYTES_MAX, "{held}");
        sink.with(|s| s.shut = false);
        log.flush();
        let text = sink.wait_for(|s| s.taken.ends_with(b"x\n"));
        let mut lines = text.lines().skip(1);
        let told: usize = lines.next().and_then(|lost| lost.split(' ').nth(1)?.parse().ok()).expect("a number");
        assert_eq!(lines.count() + told, 1000);
    }

    #[test]
    fn a_panic_is_a_line_even_where_nothing_can_be_written() {
        let (full, sink) = (Sink::default(), Sink::default());
        sink.with(|s| s.leave = 1 << 20);
        for sink in [&full, &sink] {
            let log = Log::start(sink.clone(), false).unwrap();
            log.take_panics();
            let died =
                std::thread::Builder::new().name("victim".into()).spawn(|| panic!("a {}", "bug")).unwrap().join();
            drop(std::panic::take_hook());
            assert!(died.is_err());
        }
        let text = sink.wait_for(|s| !s.taken.is_empty());
        assert!(text.contains("thread 'victim' panicked at") && text.contains(": a bug\n"), "{text}");
        assert_eq!(full.wait_for(|_| true), "");
    }

    #[test]
    fn a_line_is_bounded() {
        let sink = Sink::default();
        sink.with(|s| s.leave = 1 << 20);
        let log = Log::start(sink.clone(), false).unwrap();
        let mut event = log.make_writer();
        event.write_all(&vec![b'y'; 10 * LINE_BYTES_MAX]).unwrap();
        drop(event);
        log.flush();
        assert_eq!(sink.wait_for(|_| true).len(), LINE_BYTES_MAX + 1);
    }

    #[test]
    fn in_json_every_line_is_an_object() {
        let sink = Sink::default();
        sink.with(|s| s.leave = 10);
        let log = Log::start(sink.clone(), true).unwrap();
        log.say("lost, since nothing is taken");
        log.flush();
        sink.with(|s| s.leave = 1 << 20);
        sink.wait_for(|s| s.taken.ends_with(b"}\n"));
        log.take_panics();
        let died = std::thread::Builder::new().spawn(|| panic!("a \"quoted\"\nbug")).unwrap().join();
        drop(std::panic::take_hook());
        assert!(died.is_err());
        let mut event = log.make_writer();
        event.write_all(&vec![b'"'; 10 * LINE_BYTES_MAX]).unwrap();
        drop(event);
        log.flush();
        let text = sink.wait_for(|s| s.taken.iter().filter(|b| **b == b'\n').count() >= 4);
        let mut lines = text.lines().skip(1).map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(value["timestamp"].as_str().is_some_and(|t| t.starts_with("20") && t.ends_with('Z')), "{line}");
            value["fields"]["message"].as_str().unwrap().to_owned()
        });
        assert!(lines.next().unwrap().contains("1 lines of the log were lost"));
        assert!(lines.next().unwrap().contains("a \"quoted\"\nbug"));
        assert!(lines.next().unwrap().contains("more than 16384 bytes"));
    }
}
