//! `raas top`: applications, connections, lanes and latencies of this host, on a terminal, until it is ended.
//!
//! Owns the terminal while it runs: whatever ends it, the terminal is as it was before anything else is said.

mod draw;
mod view;

use std::io::IsTerminal;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use monitor::Sample;
use raas::SessionError;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use terminal::{Failure, signals};
use transport::session_failure;

use view::View;

/// A key is noticed within this time.
const KEY_WAIT: Duration = Duration::from_millis(100);

/// What ends a wait.
#[derive(Debug)]
enum News {
    Sample(Box<Result<Sample, SessionError>>),
    Event(Event),
    /// The terminal cannot be read any more.
    Unreadable(String),
    Signal,
}

/// Shows the daemon at `socket`, asked every `period`.
pub(crate) fn run(socket: Option<&Path>, period: Duration) -> Result<(), Failure> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let instead = "`raas top` needs a terminal for its input and output; `raas stat --watch --json` needs none";
        return Err(Failure::Usage(instead.into()));
    }
    // Before the terminal is taken, so that a daemon that is not there is an ordinary error.
    let first = Sample::ask(socket).map_err(session_failure)?;
    let (told, news) = channel();
    let on_signal = told.clone();
    signals::watch(move |_| _ = on_signal.send(News::Signal)).map_err(|e| Failure::failed("signals", e))?;
    let asking = ask_again(socket, period, told.clone())?;
    let mut view = View::new();
    view.take(first);
    // It also restores the terminal at a panic.
    let mut terminal = ratatui::try_init().map_err(|e| Failure::failed("the terminal", e))?;
    let ended = read_keys(told).and_then(|()| show(&mut terminal, &mut view, &news));
    drop(asking);
    let restored = ratatui::try_restore().map_err(|e| Failure::failed("the terminal", e));
    ended.and(restored)
}

fn show(terminal: &mut DefaultTerminal, view: &mut View, news: &Receiver<News>) -> Result<(), Failure> {
    loop {
        terminal.draw(|frame| draw::draw(frame, view)).map_err(|e| Failure::failed("the terminal", e))?;
        let Ok(what) = news.recv() else { return Ok(()) };
        match what {
            News::Sample(sample) => view.take((*sample).map_err(session_failure)?),
            News::Event(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                if view.on_key(key) == view::Goes::Away {
                    return Ok(());
                }
            }
            News::Event(_) => {}
            News::Signal => return Ok(()),
            News::Unreadable(why) => return Err(Failure::Failed(format!("the terminal cannot be read: {why}"))),
        }
    }
}

/// Asks in a thread, since a daemon may take seconds to answer. The thread ends when what is returned is dropped, or with
/// the first error.
fn ask_again(socket: Option<&Path>, period: Duration, told: Sender<News>) -> Result<impl Drop + use<>, Failure> {
    let socket = socket.map(Path::to_path_buf);
    let (end, ended) = sync_channel::<()>(0);
    let ask = move || {
        while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
            let sample = Sample::ask(socket.as_deref());
            let is_last = sample.is_err();
            if told.send(News::Sample(Box::new(sample))).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("asks".into()).spawn(ask).map_err(|e| Failure::failed("no thread to ask", e))?;
    Ok(Ends(Some(end)))
}

/// Lets a thread go that waits for the other end.
struct Ends(Option<std::sync::mpsc::SyncSender<()>>);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

/// Reads the terminal in a thread, which ends with the process.
fn read_keys(told: Sender<News>) -> Result<(), Failure> {
    let read = move || loop {
        let read = match event::poll(KEY_WAIT) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(e) => Err(e),
        };
        let is_last = read.is_err();
        let what = read.map_or_else(|e| News::Unreadable(e.to_string()), News::Event);
        if told.send(what).is_err() || is_last {
            return;
        }
    };
    let started = std::thread::Builder::new().name("keys".into()).spawn(read);
    started.map(drop).map_err(|e| Failure::failed("no thread to read the terminal", e))
}
