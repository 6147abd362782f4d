//! The thread that owns an engine and its context of the device.
//!
//! Owns the order of one round: commands, engine, events, wakes; then yielding, then sleep. It must never block while
//! there is work, never sleep longer than [`crate::sleeper::SLEEP_MAX`], and never wait for the control plane: answers
//! that do not fit its queue are held here, and no command is taken meanwhile.

pub(crate) mod load;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::BorrowedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::Reason;
use dispatch::Report;
use engine::{AppId, Engine, EngineConfig, Event, LaneAt, Load, Viewer};
use plane::LaneCommand;
use shm::{Backoff, Drained, EnginePage};
use tokio::sync::{mpsc, oneshot};
use verbs::{Provider, Time};

use crate::DaemonError;
use crate::command::{AppWake, Command, EnginePart, EngineReport, EngineStat, EngineView, FromEngine};
use crate::inspect::{LOOKS_PER_COUNT, LOOKS_PER_PAGE};
use crate::looks::{LOOKS, Looks};
use crate::shutdown::Shutdown;
use crate::sleeper::{Bell, Sleeper};
use crate::turns::Turns;
use load::{CPU_ALL, HostMemory, Meter};

/// Commands that may wait for the engine.
pub(crate) const COMMANDS_MAX: usize = 1024;
/// Answers and events that may wait for the control plane.
pub(crate) const EVENTS_MAX: usize = 4096;
/// Commands taken in one round, so that a flood of them does not stop the data path.
const COMMANDS_PER_ROUND: usize = 32;
/// After a round that moved ring data, but no more than this, the core is offered to the applications at once: what
/// they read or write next is the next work of such a load, and an idle look at the device first costs them a
/// microsecond. Rounds of streams move more, and go on.
const HAND_OVER_BYTES: u64 = 16 << 10;
/// While the engine has other work, pages of answers to questions get one in so many parts of its time.
const QUESTION_SHARE: u32 = 16;
/// Longest sleep while answers wait for room in the queue to the control plane.
const HELD_SLEEP: Duration = Duration::from_millis(1);
/// Time at the end for the last frames to leave.
const FAREWELL: Duration = Duration::from_millis(100);

/// The control plane's hold on an engine thread.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) bell: Bell,
    pub(crate) thread: JoinHandle<Result<(), DaemonError>>,
    /// Says once whether the engine started.
    pub(crate) started: oneshot::Receiver<()>,
}

/// What the engine is made of.
#[derive(Debug)]
pub(crate) struct EngineParts<P> {
    pub(crate) config: EngineConfig,
    pub(crate) device: P,
    pub(crate) page: EnginePage,
    pub(crate) entropy: [u8; 32],
    /// The queue to the control plane, which all engines share.
    pub(crate) events: mpsc::Sender<EngineReport>,
    /// Told when the thread has ended, whatever ended it.
    pub(crate) ended: Shutdown,
    /// Percent of a processor that the engine may use.
    pub(crate) cpu_max: u32,
}

/// Stops the daemon when a thread without which it is nothing has ended.
struct EndsDaemon(Shutdown);

impl Drop for EndsDaemon {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

/// Starts the thread.
pub(crate) fn spawn<P: Provider + Send + 'static>(parts: EngineParts<P>) -> Result<EngineHandle, DaemonError> {
    let sleeper = Sleeper::new().map_err(DaemonError::io("epoll"))?;
    let bell = sleeper.bell();
    let (commands, command_queue) = mpsc::channel(COMMANDS_MAX);
    let (ready, started) = oneshot::channel();
    let thread = std::thread::Builder::new()
        .name(thread_name(parts.config.number))
        .spawn(move || {
            let EngineParts { config, mut device, page, entropy, events, ended, cpu_max } = parts;
            let ending = ended.clone();
            let _ends = EndsDaemon(ended);
            let number = config.number;
            let engine = Engine::new(config, &mut device, page, entropy)?;
            let _ = ready.send(());
            let mut thread = EngineThread::new((number, engine), device, sleeper, command_queue, events);
            thread.ending = ending;
            thread.meter = Meter::new(thread.now(), cpu_max);
            thread.run()
        })
        .map_err(DaemonError::io("cannot start the engine thread"))?;
    Ok(EngineHandle { commands, bell, thread, started })
}

/// What the threads of engines are called. The kernel keeps 15 bytes.
pub(crate) const THREAD_NAME: &str = "raas-engine";

fn thread_name(engine: u32) -> String {
    if engine == 0 { THREAD_NAME.into() } else { format!("{THREAD_NAME}-{engine}") }
}

struct EngineThread<P> {
    /// Of the engine.
    number: u32,
    engine: Engine,
    device: P,
    sleeper: Sleeper,
    commands: mpsc::Receiver<Command>,
    events: mpsc::Sender<EngineReport>,
    /// What did not fit the queue to the control plane; commands wait until it is empty.
    held: VecDeque<FromEngine>,
    /// Pages that were asked for: at most one, because the control plane asks for the next when it has the answer.
    questions: VecDeque<(u64, Viewer, EnginePart)>,
    /// Not before then, while there is other work.
    question_at: Instant,
    wakes: BTreeMap<AppId, AppWake>,
    lanes: BTreeSet<LaneAt>,
    origin: Instant,
    stop: bool,
    /// Says how the daemon stops.
    ending: Shutdown,
    /// Accesses to tenants' memory that could not be served, as far as they were looked at.
    faults: u64,
    meter: Meter,
    turns: Turns,
    memory: HostMemory,
}

impl<P: Provider> EngineThread<P> {
    fn new(
        (number, engine): (u32, Engine),
        device: P,
        sleeper: Sleeper,
        commands: mpsc::Receiver<Command>,
        events: mpsc::Sender<EngineReport>,
    ) -> Self {
        Self {
            number,
            engine,
            device,
            sleeper,
            commands,
            events,
            held: VecDeque::new(),
            questions: VecDeque::new(),
            question_at: Instant::now(),
            wakes: BTreeMap::new(),
            lanes: BTreeSet::new(),
            origin: Instant::now(),
            stop: false,
            ending: Shutdown::new(),
            faults: shm::survived_faults(),
            meter: Meter::new(Time::ZERO, CPU_ALL),
            turns: Turns::new(),
            memory: HostMemory::new(),
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.origin.elapsed()
    }

    fn run(mut self) -> Result<(), DaemonError> {
        let mut backoff = Backoff::new(LOOKS);
        let mut looks = Looks::new();
        let mut to_wake = Vec::new();
        loop {
            let moved_before = self.engine.data_bytes();
            let busy = self.round(&mut to_wake);
            let moved = self.engine.data_bytes() - moved_before;
            if self.stop {
                if self.ending.hands_over() {
                    // Everything stays as it is for the daemon that comes next.
                    return Ok(());
                }
                self.farewell(&mut to_wake);
                return Ok(());
            }
            if busy {
                looks.on_work(|| self.now());
            }
            // Between two slices of a kernel others have the core.
            if busy && ((1..=HAND_OVER_BYTES).contains(&moved) || self.engine.has_kernels()) {
                backoff.hand_over();
            } else if busy {
                backoff.reset();
            } else if !looks.look_again(|| self.now()) || !backoff.snooze() {
                self.sleep().map_err(DaemonError::io("epoll_wait of the engine thread"))?;
                backoff.reset();
                looks.on_wake();
            }
        }
    }

    /// One look at everything; says whether anything was done.
    fn round(&mut self, to_wake: &mut Vec<AppId>) -> bool {
        self.turns.begin(self.now());
        let mut busy = self.take_commands();
        let now = self.now();
        busy |= self.engine.run(now, &mut self.device);
        busy |= self.check_memory();
        busy |= self.rest_connections(now);
        busy |= self.forward_events();
        self.wake_apps(to_wake);
        busy |= self.answer_question(busy);
        self.note_load(now, busy);
        busy
    }

    /// Counts a round that began at `begin`, tells the engine now and then how busy its host is, and pauses where the
    /// operator bounds the engine's share of a processor.
    fn note_load(&mut self, begin: Time, busy: bool) {
        let now = if busy { self.now() } else { begin };
        if busy {
            self.meter.on_work(now.saturating_since(begin));
            self.turns.end(now);
        }
        if let Some(cpu) = self.meter.take_load(now) {
            self.engine.set_load(Load::new(cpu, self.memory.percent(now)));
        }
        if let Some(pause) = self.meter.pause(now) {
            std::thread::sleep(pause);
        }
    }

    /// An application that gave pages of its memory back under the engine loses its session. Says whether there was
    /// one.
    fn check_memory(&mut self) -> bool {
        let faults = shm::survived_faults();
        if faults == self.faults {
            return false;
        }
        self.faults = faults;
        if let Err(error) = shm::refill_fault_reserve() {
            tracing::warn!(%error, "the system promises no memory for more accesses that it cannot serve");
        }
        self.engine.check_memory() > 0
    }

    /// Makes at most one page, after everybody else was served: a bounded number of looks, and a bounded share of the
    /// time of an engine that has other work. Says whether there was something to do.
    fn answer_question(&mut self, busy: bool) -> bool {
        if self.questions.is_empty() || !self.held.is_empty() {
            return false;
        }
        let begin = Instant::now();
        if busy && begin < self.question_at {
            return true;
        }
        let Some((number, viewer, part)) = self.questions.pop_front() else { return false };
        let view = self.view(viewer, part);
        let end = Instant::now();
        self.question_at = end + end.saturating_duration_since(begin) * (QUESTION_SHARE - 1);
        self.held.push_back(FromEngine::Inspected { number, view });
        self.flush_held();
        true
    }

    /// Gives back what memory connections at rest do not need. The barrier interrupts processors that run applications,
    /// so it is passed only for connections that were chosen.
    fn rest_connections(&mut self, now: Time) -> bool {
        let any = self.engine.begin_rests(now);
        if any {
            let barrier = shm::rest_barrier();
            self.engine.finish_rests(now, &mut self.device, barrier);
        }
        any
    }

    fn take_commands(&mut self) -> bool {
        for taken in 0..COMMANDS_PER_ROUND {
            if !self.held.is_empty() {
                return taken > 0;
            }
            match self.commands.try_recv() {
                Ok(command) => {
                    self.forward_events();
                    self.execute(command);
                    self.flush_held();
                }
                Err(mpsc::error::TryRecvError::Empty) => return taken > 0,
                // The control plane is gone, so nobody could ever ask for anything again.
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.stop = true;
                    return true;
                }
            }
        }
        true
    }

    fn execute(&mut self, command: Command) {
        let now = self.now();
        let (engine, device) = (&mut self.engine, &mut self.device);
        match command {
            Command::Attach { client, attach, wake, returned } => {
                let (sleeper, wakes) = (&mut self.sleeper, &mut self.wakes);
                let watch = |app| match sleeper.add_app(app, wake.heard.fd()) {
                    Ok(()) => {
                        wakes.insert(app, wake);
                        Ok(())
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot watch an application's wake socket");
                        Err(Reason::LocalLimit)
                    }
                };
                let report = dispatch::attach((now, engine, device), (client, attach, returned), watch);
                self.held.push_back(FromEngine::Report(report));
            }
            Command::Engine(command) => {
                let left = match &command {
                    dispatch::Command::Detach { app, .. } => Some(*app),
                    dispatch::Command::Lane { lane, command } => {
                        self.note_lane(*lane, command);
                        None
                    }
                    _ => None,
                };
                let report = command.execute(now, &mut self.engine, &mut self.device);
                self.held.extend(report.map(FromEngine::Report));
                left.into_iter().for_each(|app| self.forget_wake(app));
            }
            Command::Inspect { number, viewer, part } => self.questions.push_back((number, viewer, part)),
            Command::Stop => self.stop = true,
        }
    }

    /// Lanes are given up when the thread ends.
    fn note_lane(&mut self, lane: u32, command: &LaneCommand) {
        match *command {
            LaneCommand::Offer { peer, .. } => _ = self.lanes.insert(LaneAt::new(peer, lane)),
            LaneCommand::Lost { peer, .. } => _ = self.lanes.remove(&LaneAt::new(peer, lane)),
            _ => {}
        }
    }

    fn view(&mut self, viewer: Viewer, part: EnginePart) -> EngineView {
        let (now, engine, looks) = (self.now(), &mut self.engine, LOOKS_PER_PAGE);
        match part {
            EnginePart::Connections(from) => EngineView::Connections(engine.connections_page(viewer, from, looks)),
            EnginePart::Leased(from) => EngineView::Connections(engine.leased_page(viewer, from, looks)),
            EnginePart::Datagrams(from) => EngineView::Datagrams(engine.datagrams_page(viewer, from, looks)),
            EnginePart::Trace(from) => EngineView::Trace(engine.trace_page(viewer, from, looks)),
            EnginePart::Lanes(from) => EngineView::Lanes(engine.lanes_page(now, viewer, from, looks)),
            EnginePart::Bytes(from) => EngineView::Bytes(engine.count_bytes(from, LOOKS_PER_COUNT)),
            EnginePart::Apps(from) => EngineView::Apps(engine.apps_page(viewer, from, looks)),
            EnginePart::Totals => {
                let mut totals = self.engine.totals();
                totals.counters.push(("cpu_pauses", self.meter.pauses()));
                totals.counters.push(("engine_turn_max_us", self.turns.longest_us()));
                let (device, counters) = (self.device.device().name.clone(), self.device.counters());
                EngineView::Totals(Box::new(EngineStat { device, totals, counters }))
            }
        }
    }

    fn forget_wake(&mut self, app: AppId) {
        if let Some(wake) = self.wakes.remove(&app) {
            self.sleeper.remove_app(wake.heard.fd());
        }
    }

    /// Moves the engine's events into the queue to the control plane as long as it has room. What does not fit stays in
    /// the engine, except one event that is held here.
    fn forward_events(&mut self) -> bool {
        let mut any = false;
        while self.flush_held() {
            let Some(event) = self.engine.poll_event() else { return any };
            any = true;
            if let Event::AppFault { app, .. } = event {
                self.forget_wake(app);
            }
            self.held.push_back(FromEngine::Report(Report::Event(event)));
        }
        any
    }

    /// Sends the held events. Says whether none is held any more.
    fn flush_held(&mut self) -> bool {
        while let Some(what) = self.held.pop_front() {
            match self.events.try_send(EngineReport { engine: self.number, what }) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(back)) => {
                    self.held.push_front(back.what);
                    return false;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => self.stop = true,
            }
        }
        true
    }

    fn wake_apps(&mut self, to_wake: &mut Vec<AppId>) {
        self.engine.take_wakes(to_wake);
        for app in to_wake.drain(..) {
            // Its death is noticed at the control socket.
            let _ = self.wakes.get(&app).map(|wake| wake.told.wake());
        }
    }

    fn sleep(&mut self) -> std::io::Result<()> {
        if !self.engine.prepare_sleep(&mut self.device) {
            return Ok(());
        }
        self.sleeper.prepare();
        if !self.commands.is_empty() && self.held.is_empty() {
            self.sleeper.cancel();
            self.engine.end_sleep();
            return Ok(());
        }
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        self.device.wait_fds(&mut fds);
        self.sleeper.watch_device(&fds)?;
        drop(fds);
        let timeout = self.sleep_bound();
        let woken = self.sleeper.sleep(timeout);
        self.engine.end_sleep();
        self.device.progress();
        for app in woken?.apps {
            self.drain_wake(app);
        }
        Ok(())
    }

    fn sleep_bound(&self) -> Duration {
        let mut bound = crate::sleeper::SLEEP_MAX;
        if !self.held.is_empty() {
            bound = bound.min(HELD_SLEEP);
        }
        if let Some(deadline) = self.device.deadline() {
            bound = bound.min(deadline);
        }
        if let Some(deadline) = self.engine.deadline() {
            bound = bound.min(deadline.saturating_since(self.now()));
        }
        bound
    }

    /// An application rang: its doorbell says what for, so only the end of its socket matters here.
    fn drain_wake(&mut self, app: AppId) {
        let Some(wake) = self.wakes.get(&app) else { return };
        match wake.heard.drain(&mut Vec::new()) {
            Ok(Drained::Empty | Drained::Woken) => {}
            Ok(Drained::Hangup) | Err(_) => {
                self.forget_wake(app);
                self.held.push_back(FromEngine::WakeHangup { app });
            }
        }
    }

    /// Everyone is detached and the lanes are given up; the last frames get [`FAREWELL`] to leave.
    fn farewell(&mut self, to_wake: &mut Vec<AppId>) {
        let now = self.now();
        for app in std::mem::take(&mut self.wakes).into_keys() {
            self.engine.detach(now, &mut self.device, app, Reason::ShuttingDown);
        }
        let start = Instant::now();
        while start.elapsed() < FAREWELL {
            let busy = self.engine.run(self.now(), &mut self.device);
            while self.engine.poll_event().is_some() {}
            self.wake_apps(to_wake);
            if !busy {
                break;
            }
        }
        let now = self.now();
        for lane in std::mem::take(&mut self.lanes) {
            self.engine.lane_lost(now, &mut self.device, lane, Reason::ShuttingDown);
        }
    }
}

#[cfg(test)]
mod tests;
