//! The calls of a client that are under way.
//!
//! Owns their numbers, the window, repeats, deadlines, and the connection. No thread is needed for that: of the threads
//! that wait for responses one *leads*. It takes responses for all, and hands the lead on when it has its own. It must
//! never give a response to another call, or let a call that was sent be sent under another number.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use raas::Session;

use super::channel::{Channel, ChannelOver};
use super::dial::{Dialed, dial};
use super::ticket::{Outcome, Ticket};
use super::{ClientCounters, Settings};
use crate::choice::{Choice, Chooser};
use crate::error::{CallError, OpenError};
use crate::frame::{RequestHeader, ResponseHeader, Status, clients_of};
use crate::hello::Transport;
use crate::server::lock;

/// How long the leader waits for responses before it looks at deadlines.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How often somebody who never waits looks at the times of calls.
const CHECK: Duration = Duration::from_millis(1);
/// Most time for one attempt to connect, of a client that has lost its server.
pub(super) const DIAL_MAX: Duration = Duration::from_secs(2);
/// Time for the first connection.
const FIRST_DIAL: Duration = Duration::from_secs(30);
/// The pause between attempts to connect, the first and the longest.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Requests are repeated ever more rarely, by a factor of two up to this.
const REPEAT_SHIFT_MAX: u16 = 5;

/// How long a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Time {
    pub(crate) deadline: Option<Instant>,
    pub(crate) after: Duration,
}

impl Time {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        Self { deadline, after: timeout.unwrap_or(Duration::MAX) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|at| Instant::now() >= at)
    }
}

pub(super) struct Pending {
    pub(super) request: Arc<Vec<u8>>,
    pub(super) ticket: Arc<Ticket>,
    pub(super) time: Time,
    pub(super) attempt: u16,
    /// When the last request left.
    pub(super) sent: Option<Instant>,
}

/// The way to the server, or since when there is none.
pub(super) struct Route {
    pub(super) channel: Option<Arc<dyn Channel>>,
    pub(super) lost: Option<Instant>,
    pub(super) next_dial: Instant,
    pub(super) pause: Duration,
    pub(super) why: String,
}

pub(super) struct State {
    pub(super) next: u64,
    pub(super) calls: BTreeMap<u64, Pending>,
    pub(super) is_led: bool,
    /// Threads that wait for [`Core::changed`].
    pub(super) waiting: usize,
    /// When calls that nobody waits for are next looked at for their time.
    next_check: Instant,
    pub(super) way: Route,
    pub(super) room_wakers: Vec<(Time, Waker)>,
    pub(super) limits: (usize, usize),
    pub(super) session: Session,
    pub(super) totals: ClientCounters,
    pub(super) chooser: Chooser,
    /// The transport to which it is to be changed.
    pub(super) wanted: Option<Transport>,
}

/// See the head of this file.
pub(crate) struct Core {
    pub(crate) settings: Settings,
    pub(super) state: Mutex<State>,
    /// There is room in the window, or nobody leads, or there is a first call.
    pub(super) changed: Condvar,
    /// The way to the thread that sends for tasks, once there is one.
    pub(crate) requests: Mutex<Option<Sender<u64>>>,
}

impl Core {
    pub(crate) fn connect(session: Session, settings: Settings) -> Result<Self, OpenError> {
        let mut chooser = Chooser::new(settings.transport, Instant::now());
        let Dialed { channel, is_one_host, request_bytes_max, response_bytes_max, .. } =
            dial(&session, &settings, chooser.choice().transport, FIRST_DIAL)?;
        chooser.on_connected(is_one_host);
        let way = Route {
            channel: Some(channel),
            lost: None,
            next_dial: Instant::now(),
            pause: PAUSES.0,
            why: String::new(),
        };
        let state = State {
            next: 1,
            calls: BTreeMap::new(),
            is_led: false,
            waiting: 0,
            next_check: Instant::now(),
            way,
            room_wakers: Vec::new(),
            limits: (request_bytes_max, response_bytes_max),
            session,
            totals: ClientCounters::default(),
            chooser,
            wanted: None,
        };
        Ok(Self { settings, state: Mutex::new(state), changed: Condvar::new(), requests: Mutex::default() })
    }

    pub(super) fn wait<'a>(&self, mut state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        state.waiting -= 1;
        state
    }

    /// Tells those that wait for a change. A condition variable makes a system call also if nobody does.
    pub(super) fn tell(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    // ---- sending

    /// Sends a call's request, if there is a connection; otherwise it goes when there is one.
    pub(crate) fn transmit(&self, sequence: u64, is_repeat: bool) {
        let mut state = lock(&self.state);
        let floor = state.floor();
        let Some(channel) = state.way.channel.clone() else { return };
        let Some(call) = state.calls.get_mut(&sequence) else { return };
        if is_repeat {
            call.attempt = call.attempt.wrapping_add(1).max(1);
        }
        call.sent = Some(Instant::now());
        let header = RequestHeader {
            sequence,
            attempt: call.attempt,
            token: 0,
            floor,
            len: u32::try_from(call.request.len()).unwrap_or(u32::MAX),
            timeout_us: call.time.deadline.map_or(0, micros_left),
            flags: 0,
        };
        let request = Arc::clone(&call.request);
        state.totals.repeats += u64::from(is_repeat);
        drop(state);
        if let Err(ChannelOver(why)) = channel.send(header, &request) {
            self.lose(&channel, why);
        }
    }

    fn lose(&self, of: &Arc<dyn Channel>, why: String) {
        let mut state = lock(&self.state);
        if state.way.channel.as_ref().is_some_and(|channel| Arc::ptr_eq(channel, of)) {
            tracing::debug!(why, "the connection to the server is lost");
            of.count(&mut state.totals);
            let now = Instant::now();
            state.way = Route { channel: None, lost: Some(now), next_dial: now, pause: PAUSES.0, why };
        }
    }

    /// A call is given up. Says whether its request had left.
    pub(crate) fn abandon(&self, sequence: u64) -> bool {
        let mut state = lock(&self.state);
        let Some(call) = state.calls.remove(&sequence) else { return true };
        let (was_sent, floor, channel) = (call.sent.is_some(), state.floor().min(sequence), state.way.channel.clone());
        self.make_room(&mut state);
        drop(state);
        if let (true, Some(channel)) = (was_sent, channel) {
            channel.cancel(RequestHeader { sequence, attempt: 0, token: 0, floor, len: 0, timeout_us: 0, flags: 0 });
        }
        was_sent
    }

    pub(super) fn make_room(&self, state: &mut State) {
        self.tell(state);
        for (_, waker) in state.room_wakers.drain(..) {
            waker.wake();
        }
    }

    // ---- waiting

    /// Waits for the outcome of a call.
    pub(crate) fn wait_for(&self, ticket: &Ticket) -> Outcome {
        loop {
            if let Some(outcome) = ticket.take() {
                return outcome;
            }
            let state = lock(&self.state);
            // A call that is not under way any more was settled meanwhile.
            let deadline = match state.calls.get(&ticket.sequence) {
                Some(call) => call.time.deadline,
                None => continue,
            };
            let until = Instant::now() + TICK.min(left(deadline));
            if state.is_led {
                ticket.wait_here();
                drop(state);
                std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
                self.expire();
            } else {
                drop(state);
                self.lead(until, &|| ticket.is_settled());
            }
        }
    }

    /// Waits until somebody has to look for responses, for at most `time`; for the client's own thread.
    pub(crate) fn wait_for_work(&self, time: Duration) -> bool {
        let state = lock(&self.state);
        let is_idle = |state: &State| state.is_led || state.calls.is_empty();
        if !is_idle(&state) {
            return true;
        }
        !is_idle(&self.wait(state, time))
    }

    /// Takes responses for all calls until `until`, or until `is_done`. Does nothing if somebody else leads.
    pub(crate) fn lead(&self, until: Instant, is_done: &dyn Fn() -> bool) {
        {
            let mut state = lock(&self.state);
            if state.is_led {
                return;
            }
            state.is_led = true;
        }
        while !is_done() && Instant::now() < until {
            if let Some(to) = self.take_wanted() {
                self.change(to);
                continue;
            }
            let channel = lock(&self.state).way.channel.clone();
            match channel {
                Some(channel) => self.receive(&channel, until),
                None => self.connect_again(until),
            }
            self.expire();
        }
        self.hand_on();
    }

    /// Somebody who waits leads next.
    fn hand_on(&self) {
        let mut state = lock(&self.state);
        state.is_led = false;
        let _ = state.calls.values().any(|call| !call.ticket.is_settled() && call.ticket.wake_thread());
        self.tell(&state);
    }

    /// Whether a call has ended. Takes the responses that are there for all calls, unless somebody leads.
    pub(crate) fn look_for(&self, ticket: &Ticket) -> bool {
        if ticket.is_settled() {
            return true;
        }
        let (channel, wanted, is_check) = {
            let mut state = lock(&self.state);
            if state.is_led {
                return false;
            }
            let now = Instant::now();
            let is_check = now >= state.next_check;
            if is_check {
                state.next_check = now + CHECK;
            }
            state.is_led = true;
            let channel = state.way.channel.clone();
            let wanted = if channel.is_some() { state.wanted.take() } else { None };
            (channel, wanted, is_check)
        };
        match (wanted, channel) {
            (Some(to), _) => self.change(to),
            (None, None) => self.connect_again(Instant::now()),
            (None, Some(channel)) => {
                let looked = channel.look(&mut |header, payload| self.deliver(header, payload));
                self.ask_again(&channel, looked);
                if is_check {
                    self.repeat_late(&channel);
                }
            }
        }
        if is_check {
            self.expire();
        }
        self.hand_on();
        ticket.is_settled()
    }

    fn receive(&self, channel: &Arc<dyn Channel>, until: Instant) {
        let mut until = {
            let state = lock(&self.state);
            let deadline = state.calls.values().filter_map(|call| call.time.deadline).min();
            let until = deadline.map_or(until, |at| at.min(until));
            if state.calls.is_empty() {
                // A first call ends the wait.
                drop(self.wait(state, until.saturating_duration_since(Instant::now())));
                return;
            }
            until
        };
        if let Some(after) = channel.repeat_after() {
            until = until.min(Instant::now() + after);
        }
        let received = channel.receive(until, &mut |header, payload| self.deliver(header, payload));
        self.ask_again(channel, received);
        self.repeat_late(channel);
    }

    fn ask_again(&self, channel: &Arc<dyn Channel>, received: Result<Vec<u64>, ChannelOver>) {
        match received {
            Ok(again) => again.into_iter().for_each(|sequence| self.transmit(sequence, true)),
            Err(ChannelOver(why)) => self.lose(channel, why),
        }
    }

    fn repeat_late(&self, channel: &Arc<dyn Channel>) {
        let Some(after) = channel.repeat_after() else { return };
        let is_late = |call: &Pending| {
            let wait = after * (1 << call.attempt.min(REPEAT_SHIFT_MAX));
            call.sent.is_some_and(|sent| sent.elapsed() > wait)
        };
        let late: Vec<u64> =
            lock(&self.state).calls.iter().filter(|(_, call)| is_late(call)).map(|(sequence, _)| *sequence).collect();
        late.into_iter().for_each(|sequence| self.transmit(sequence, true));
    }

    fn deliver(&self, header: ResponseHeader, payload: Vec<u8>) {
        let mut state = lock(&self.state);
        let max = state.limits.1;
        // A response that comes again.
        let Some(call) = state.calls.remove(&header.sequence) else { return };
        self.make_room(&mut state);
        let (takes, clients) = (Duration::from_micros(header.run_us.into()), clients_of(header.clients));
        if let Some(to) = state.chooser.on_response(takes, clients, Instant::now()) {
            state.wanted = Some(to);
        }
        drop(state);
        call.ticket.settle(match header.status {
            Status::Done => Ok(payload),
            Status::Failed => Err(CallError::Failed(String::from_utf8_lossy(&payload).into_owned())),
            Status::Late => Err(CallError::DeadlineExceeded { after: call.time.after, was_sent: true }),
            Status::Panicked => Err(CallError::Panicked),
            Status::ResponseTooLong => Err(CallError::ResponseTooLong { max }),
            Status::BadRequest => Err(CallError::BadRequest),
        });
    }

    /// Calls whose time is over have ended.
    fn expire(&self) {
        let (over, wakers) = {
            let mut state = lock(&self.state);
            let over: Vec<u64> =
                state.calls.iter().filter(|(_, call)| call.time.is_over()).map(|(sequence, _)| *sequence).collect();
            let tickets: Vec<(Arc<Ticket>, Duration)> = over
                .iter()
                .filter_map(|sequence| state.calls.get(sequence))
                .map(|call| (Arc::clone(&call.ticket), call.time.after))
                .collect();
            let (late, rest) = std::mem::take(&mut state.room_wakers).into_iter().partition(|(time, _)| time.is_over());
            state.room_wakers = rest;
            let wakers: Vec<(Time, Waker)> = late;
            (tickets, wakers)
        };
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
        for (ticket, after) in over {
            let was_sent = self.abandon(ticket.sequence);
            ticket.settle(Err(CallError::DeadlineExceeded { after, was_sent }));
        }
    }

    pub(crate) fn choice(&self) -> Choice {
        lock(&self.state).chooser.choice().clone()
    }

    pub(crate) fn counters(&self) -> ClientCounters {
        let state = lock(&self.state);
        let mut counters = state.totals;
        if let Some(channel) = &state.way.channel {
            channel.count(&mut counters);
        }
        counters
    }
}

impl State {
    /// All calls below have ended here.
    fn floor(&self) -> u64 {
        self.calls.keys().next().copied().unwrap_or(self.next)
    }

    pub(super) fn has_room(&self, window: u16) -> bool {
        self.next < self.floor() + u64::from(window)
    }
}

pub(super) fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
}

/// At least 1, because 0 says that there is no deadline.
fn micros_left(deadline: Instant) -> u32 {
    u32::try_from(left(Some(deadline)).as_micros()).unwrap_or(u32::MAX).max(1)
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("settings", &self.settings).finish_non_exhaustive()
    }
}
