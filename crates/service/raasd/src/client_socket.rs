//! The control socket: accepting programs, their first message, then messages both ways.
//!
//! Owns the sockets to programs of this host. It must never block on one of them, never take a descriptor itself
//! (`receiving`), and never let a program that does not read cost more than its queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::{
    APP_VERSION, Bare, ChannelError, PeerCredentials, Reason, Reply, Request, Role, receive_bare, send_frame,
    send_message,
};
use plane::{ClientId, ProgramFacts};
use receivers::{Kind, Verdict};
use shm::{ClosedElsewhere, LAYOUT_VERSION};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client_inputs::ClientQueue;
use crate::limits::{DaemonLimits, count};
use crate::link_queue::TURNS;
use crate::program_facts::{ProcessName, facts_of};
use crate::questions::QuestionPlace;
use crate::receiving::{NotReceived, Receivers, SocketAtReceiver, With};
use crate::shares::{Memory, Share, Shares};
use crate::shutdown::Shutdown;
use crate::user_turns::Rooms;

/// Bytes of a program's name that are kept.
const NAME_BYTES_MAX: usize = 64;
/// Time for the last messages to a program that is being detached.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long a program whose wake socket is closed is still heard: its control socket ends in a moment, or never.
const LEAVING: Duration = Duration::from_secs(5);
/// Messages that are read of a program that is over: more than its socket holds.
const LAST_WORDS_MAX: usize = 4096;
/// Pause after accepting failed, mostly for want of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of answers that may lie in the socket of an inspector that does not read (the kernel counts them twice).
const INSPECTOR_SEND_BYTES: usize = 2 * control::PAGE_BYTES;

/// A message to a program, with its descriptors.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Encoded: what lies in a queue has a known size.
    frame: Vec<u8>,
    /// Shared, so that what many programs wait for costs the daemon one descriptor.
    pub(crate) fds: Vec<Arc<OwnedFd>>,
    /// The same, where they may be of strangers' memory; dropped behind `fds`.
    _of_strangers: Vec<ClosedElsewhere>,
    /// It answers the program's only question; dropped when the socket has taken it.
    question: Option<QuestionPlace>,
    /// What another program is told when the socket has taken it.
    _next: Option<Next>,
    /// What it takes of its user's memory.
    share: Option<Share>,
}

/// Why a message is not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotQueued {
    /// The program has more unread messages than its user may have.
    Unread,
    /// It has ended.
    Ended,
}

impl Outgoing {
    pub(crate) fn new(reply: &Reply, fds: Vec<OwnedFd>) -> Self {
        Self::shared(reply, fds.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn shared(reply: &Reply, fds: Vec<Arc<OwnedFd>>) -> Self {
        // A reply that does not fit a frame is a mistake in this program; an empty frame ends the session at the other end.
        let frame = control::encode(reply).inspect_err(|error| tracing::error!(%error, "a reply cannot be sent"));
        Self {
            frame: frame.unwrap_or_default(),
            fds,
            _of_strangers: Vec::new(),
            question: None,
            _next: None,
            share: None,
        }
    }

    /// With descriptors that programs gave the daemon.
    pub(crate) fn of_strangers(reply: &Reply, fds: Vec<ClosedElsewhere>) -> Self {
        let shared = fds.iter().map(ClosedElsewhere::shared).collect();
        Self { _of_strangers: fds, ..Self::shared(reply, shared) }
    }

    /// The answer to a program's only question.
    pub(crate) fn answer(reply: &Reply, question: QuestionPlace) -> Self {
        Self { question: Some(question), ..Self::new(reply, Vec::new()) }
    }

    /// A message that its program is to have before another one is told.
    pub(crate) fn before(reply: &Reply, next: Option<Next>) -> Self {
        Self { _next: next, ..Self::new(reply, Vec::new()) }
    }

    /// Bytes of the daemon's memory that it takes while it waits.
    fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.frame.capacity()) as u64
    }
}

/// What waits for a program that reads.
#[derive(Debug, Clone)]
pub(crate) struct OutQueue {
    out: mpsc::Sender<Outgoing>,
    uid: u32,
    unread: Shares,
}

impl OutQueue {
    /// Queues a message, with the bytes that it takes of the user's share.
    pub(crate) fn send(&self, outgoing: Outgoing) -> Result<(), NotQueued> {
        self.out.try_send(self.counted(outgoing)?).map_err(|error| match error {
            TrySendError::Full(_) => NotQueued::Unread,
            TrySendError::Closed(_) => NotQueued::Ended,
        })
    }

    /// A message that is queued later. Its bytes count from now on, so that they cannot be missing then.
    pub(crate) fn later(&self, outgoing: Outgoing) -> Result<Next, NotQueued> {
        Ok(Next { to: self.out.downgrade(), message: Some(Box::new(self.counted(outgoing)?)) })
    }

    fn counted(&self, mut outgoing: Outgoing) -> Result<Outgoing, NotQueued> {
        outgoing.share = Some(self.unread.try_take(self.uid, outgoing.bytes()).map_err(|_| NotQueued::Unread)?);
        Ok(outgoing)
    }

    /// Queues the last message, whatever waits before it.
    pub(crate) fn send_last(&self, outgoing: Outgoing) {
        let _ = self.out.try_send(outgoing);
    }
}

/// A message to a program that follows one to another program: it is queued when that one was sent, or cannot be sent any
/// more.
#[derive(Debug)]
pub(crate) struct Next {
    /// A queue that the hub has given up is not kept open.
    to: mpsc::WeakSender<Outgoing>,
    message: Option<Box<Outgoing>>,
}

impl Drop for Next {
    fn drop(&mut self) {
        if let (Some(message), Some(to)) = (self.message.take(), self.to.upgrade()) {
            // Full is the queue of a program that does not read; the next message that the hub has for it ends it.
            let _ = to.try_send(*message);
        }
    }
}

/// What programs send to the control plane.
#[derive(Debug)]
pub(crate) enum ClientInput {
    /// A program said Hello in our version.
    Opened {
        client: ClientId,
        who: ProgramIdentity,
        out: OutQueue,
        /// Notified when the program has closed its wake socket.
        hung_up: Arc<Notify>,
        /// Until it is attached.
        entering: Entering,
    },
    Request {
        client: ClientId,
        request: Request,
        with: With,
        /// Held until all that it causes was said to peers.
        turn: OwnedSemaphorePermit,
    },
    /// It is gone; with words, if it broke the rules.
    Closed { client: ClientId, fault: Option<String> },
}

/// Programs of one user that said Hello and are not attached yet, or refused. Others of that user wait, so those of other
/// users find few before them, however many come.
pub(crate) const ENTERING_MAX: usize = 16;

/// One of these.
pub(crate) type Entering = OwnedSemaphorePermit;

/// The identity of the program. The kernel gives process and user.
#[derive(Debug, Clone)]
pub(crate) struct ProgramIdentity {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) role: Role,
    pub(crate) name: String,
    /// By which the policy knows its tenant.
    pub(crate) facts: ProgramFacts,
    /// By which the next daemon knows it again.
    pub(crate) process: ProcessName,
}

/// What serving a program needs.
#[derive(Debug, Clone)]
pub(crate) struct ClientContext {
    pub(crate) inputs: ClientQueue<ClientInput>,
    pub(crate) limits: DaemonLimits,
    pub(crate) receivers: Arc<Receivers>,
    pub(crate) memory: Memory,
    /// The programs of each user that want to come in.
    pub(crate) doors: Arc<Rooms>,
    /// For the message that is being read: one at a time, on one thread.
    pub(crate) buffer: Arc<Mutex<Vec<u8>>>,
}

/// Accepts until it is stopped. Then the programs have [`FAREWELL`] to take their last messages. The runtime's types
/// for Unix sockets serve for SEQPACKET ones too: nothing here uses their reading and writing, only their readiness.
pub(crate) async fn accept_clients(listener: OwnedFd, context: ClientContext, stop: Shutdown) -> io::Result<()> {
    // A kernel that cannot refuse them has receivers throw them away.
    let _ = receivers::refuse_descriptors(&listener);
    let listener = UnixListener::from_std(listener.into())?;
    let places = Shares::new(context.limits.clients_max, context.limits.user_share());
    let mut clients = JoinSet::new();
    'accepting: for number in 1.. {
        let accepted = loop {
            tokio::select! {
                accepted = listener.accept() => break accepted,
                Some(_) = clients.join_next() => {}
                () = stop.triggered() => break 'accepting,
            }
        };
        match accepted {
            Ok((socket, _)) => match admit(&socket, &context, &places) {
                Ok(Admitted { who, held, place }) => {
                    let (id, context) = (ClientId(number), context.clone());
                    clients.spawn(async move {
                        serve(socket, who, held, (id, context)).await;
                        drop(place);
                    });
                }
                Err((reason, detail)) => {
                    let _ = send_message(socket.as_fd(), &refused(reason, &detail), &[]);
                    tracing::debug!(%reason, detail, "refused a program");
                    context.receivers.close(socket);
                }
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept programs");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while clients.join_next().await.is_some() {} }).await;
    Ok(())
}

/// A program that may say Hello.
struct Admitted {
    who: PeerCredentials,
    held: SocketAtReceiver,
    place: Share,
}

fn admit(socket: &UnixStream, context: &ClientContext, places: &Shares) -> Result<Admitted, (Reason, String)> {
    let who = control::peer_credentials(socket)
        .map_err(|e| (Reason::Policy, format!("the kernel does not say who the program is: {e}")))?;
    let place = places.try_take(who.uid, 1).map_err(|full| match full.of {
        None => (Reason::LocalLimit, "too many programs are attached (limits.clients_max)".into()),
        Some(uid) => {
            let detail =
                format!("user {uid} has too many programs attached (limits.clients_max, limits.user_share_percent)");
            (Reason::UserPrograms, detail)
        }
    })?;
    let held = context.receivers.hold(who.uid, socket).map_err(|e| (Reason::LocalLimit, e.to_string()))?;
    Ok(Admitted { who, held, place })
}

fn refused(reason: Reason, detail: impl Into<String>) -> Reply {
    Reply::Refused {
        version: APP_VERSION,
        layout: LAYOUT_VERSION,
        release: env!("CARGO_PKG_VERSION").into(),
        reason,
        detail: detail.into(),
    }
}

/// Serves a program to its end. The receiver closes the last descriptor of its socket.
async fn serve(
    socket: UnixStream,
    who: PeerCredentials,
    held: SocketAtReceiver,
    (client, context): (ClientId, ClientContext),
) {
    let turns = Arc::new(Semaphore::new(TURNS));
    let mut session = Session { socket: &socket, client, uid: who.uid, context: &context, held, turns };
    session.serve(who).await;
    let Session { mut held, .. } = session;
    let _ = held.renew(&socket);
    // The program sees the end now, however long the receiver takes.
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
    drop(socket);
    drop(held);
}

fn check_hello(request: Request) -> Result<(Role, String), (Reason, String)> {
    match request {
        Request::Hello { version, layout, .. } if version != APP_VERSION || layout != LAYOUT_VERSION => {
            let detail = format!(
                "the program speaks control version {version} and layout {layout}, the daemon (release {}) {APP_VERSION} and \
                 {LAYOUT_VERSION}: use library and daemon of one release",
                env!("CARGO_PKG_VERSION")
            );
            Err((Reason::PeerVersion, detail))
        }
        Request::Hello { role, name, .. } => {
            let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
            Ok((role, name[..end].to_string()))
        }
        _ => Err((Reason::AppFault, "the first message must be Hello".into())),
    }
}

/// Why the daemon stops serving a program.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    NotReceived(#[from] NotReceived),
    #[error("it sent descriptors with a message that brings none along, or more than one")]
    Descriptors,
    #[error("it closed its wake socket")]
    WakeSocket,
}

/// What a request may bring along.
fn kind_of(request: &Request) -> Option<Kind> {
    match request {
        Request::PairSegment { .. } | Request::Return { .. } | Request::ReturnChunk { .. } => Some(Kind::Memory),
        Request::Meet { .. } => Some(Kind::Socket),
        _ => None,
    }
}

/// A program on its socket.
struct Session<'a> {
    socket: &'a UnixStream,
    client: ClientId,
    uid: u32,
    context: &'a ClientContext,
    held: SocketAtReceiver,
    turns: Arc<Semaphore>,
}

impl Session<'_> {
    async fn serve(&mut self, who: PeerCredentials) {
        let PeerCredentials { pid, uid, .. } = who;
        let limits = &self.context.limits;
        let hello = match timeout(limits.handshake(), self.next_request()).await {
            Ok(Ok(Bare::Taken(request))) => check_hello(request),
            Ok(Ok(Bare::WithDescriptors(_))) => Err((Reason::AppFault, Fault::Descriptors.to_string())),
            Ok(Err(ChannelError::Closed)) => return,
            Ok(Err(e)) => Err((Reason::AppFault, format!("the first message is no Hello: {e}"))),
            Err(_) => Err((Reason::TimedOut, "no Hello came".into())),
        };
        let (role, name) = match hello {
            Ok(hello) => hello,
            Err((reason, detail)) => {
                // Only a debug line: the program gets the same message, and could fill the log with it.
                tracing::debug!(pid, uid, %reason, detail, "refused a program");
                let _ = send_message(self.socket.as_fd(), &refused(reason, detail), &[]);
                return;
            }
        };
        if role == Role::Inspector {
            // Without it the kernel keeps more for one that does not read, and nothing else changes.
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(self.socket, INSPECTOR_SEND_BYTES);
        } else {
            // Where the listener's refusal was not had, there is nothing to take back.
            let _ = receivers::allow_descriptors(self.socket);
        }
        let Some(entering) = self.context.doors.enter(uid).await else { return };
        let (facts, process) = facts_of(self.socket, who);
        let (out, outgoing) = mpsc::channel(count(limits.client_queue_max));
        let hung_up = Arc::new(Notify::new());
        let opened = ClientInput::Opened {
            client: self.client,
            who: ProgramIdentity { pid, uid, role, name, facts, process },
            out: OutQueue { out, uid, unread: self.context.memory.unread.clone() },
            hung_up: Arc::clone(&hung_up),
            entering,
        };
        if self.context.inputs.send(uid, opened).await.is_err() {
            return;
        }
        let fault = self.carry(outgoing, &hung_up).await.err();
        let fault = fault.filter(|e| !matches!(e, Fault::Channel(ChannelError::Closed))).map(|e| e.to_string());
        // Its answer to a fault is sent by the control plane as long as it knows the program.
        let closed = ClientInput::Closed { client: self.client, fault: fault.clone() };
        let _ = self.context.inputs.send(uid, closed).await;
        if let Some(detail) = fault {
            let _ = send_message(self.socket.as_fd(), &Reply::Detached { reason: Reason::AppFault, detail }, &[]);
        }
    }

    /// Messages both ways. Ends without error when the control plane has dropped its end and all is sent.
    async fn carry(&mut self, mut outgoing: mpsc::Receiver<Outgoing>, hung_up: &Notify) -> Result<(), Fault> {
        let mut pending: Option<Outgoing> = None;
        let mut closing: Option<Instant> = None;
        let mut leaves: Option<Instant> = None;
        let mut turn: Option<OwnedSemaphorePermit> = None;
        loop {
            if outgoing.is_closed() && closing.get_or_insert_with(Instant::now).elapsed() >= FAREWELL {
                return Ok(());
            }
            tokio::select! {
                next = outgoing.recv(), if pending.is_none() => match next {
                    Some(next) => pending = Some(next),
                    None => return Ok(()),
                },
                sent = send(self.socket, pending.as_ref()), if pending.is_some() => {
                    if matches!(sent, Err(ChannelError::Closed)) {
                        self.hear_last_words().await?;
                    }
                    sent?;
                    // From here on the program may ask again.
                    drop(pending.take().and_then(|sent| sent.question));
                }
                Ok(taken) = Arc::clone(&self.turns).acquire_owned(), if turn.is_none() => turn = Some(taken),
                // Once the control plane has dropped its end, what the program says does not matter any more.
                received = self.next_request(), if turn.is_some() && !outgoing.is_closed() => {
                    // A control plane that has ended has still left its last words in `outgoing`.
                    if let Some(turn) = turn.take() {
                        self.take_in(received?, turn).await?;
                    }
                }
                () = hung_up.notified(), if leaves.is_none() => leaves = Some(Instant::now() + LEAVING),
                () = sleep_until(leaves.unwrap_or_else(Instant::now)), if leaves.is_some() => {
                    self.hear_last_words().await?;
                    return Err(Fault::WakeSocket);
                }
                // Only to notice the closing behind a message that the program does not read.
                () = tokio::time::sleep(FAREWELL), if pending.is_some() => {}
            }
        }
    }

    /// Passes a message on, with what comes with it.
    async fn take_in(&mut self, seen: Bare<Request>, turn: OwnedSemaphorePermit) -> Result<(), Fault> {
        let (request, with) = match seen {
            Bare::Taken(request) => (request, Verdict::Nothing),
            Bare::WithDescriptors(request) => {
                let kind = kind_of(&request).ok_or(Fault::Descriptors)?;
                let with = self.held.take(self.socket, kind).await?;
                if matches!(with, Verdict::TooMany | Verdict::Nothing) {
                    return Err(Fault::Descriptors);
                }
                (request, with)
            }
        };
        let said = ClientInput::Request { client: self.client, request, with, turn };
        let _ = self.context.inputs.send(self.uid, said).await;
        Ok(())
    }

    /// What the program said before it went counts, as that it accepted a connection: it may have ended in order since.
    async fn hear_last_words(&mut self) -> Result<(), Fault> {
        for _ in 0..LAST_WORDS_MAX {
            let Ok(turn) = Arc::clone(&self.turns).acquire_owned().await else { break };
            match self.receive() {
                Ok(seen) => self.take_in(seen, turn).await?,
                Err(ChannelError::WouldBlock) => break,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    async fn next_request(&mut self) -> Result<Bare<Request>, ChannelError> {
        loop {
            self.socket.readable().await.map_err(ChannelError::Io)?;
            if let Some(seen) = attempt(self.socket, Interest::READABLE, || self.receive()) {
                return seen;
            }
        }
    }

    fn receive(&self) -> Result<Bare<Request>, ChannelError> {
        // Whatever a panic left there is overwritten.
        let mut buffer = self.context.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        receive_bare(self.socket.as_fd(), &mut buffer)
    }
}

async fn send(socket: &UnixStream, message: Option<&Outgoing>) -> Result<(), ChannelError> {
    let Some(Outgoing { frame, fds, .. }) = message else { return Ok(()) };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    loop {
        socket.writable().await.map_err(ChannelError::Io)?;
        if let Some(sent) = attempt(socket, Interest::WRITABLE, || send_frame(socket.as_fd(), frame, &fds)) {
            return sent;
        }
    }
}

/// One call on a socket that was ready. `None` if it was not ready after all; the runtime then waits again.
fn attempt<T>(
    socket: &UnixStream,
    interest: Interest,
    mut call: impl FnMut() -> Result<T, ChannelError>,
) -> Option<Result<T, ChannelError>> {
    let done = socket.try_io(interest, || match call() {
        Err(ChannelError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
        other => Ok(other),
    });
    done.ok()
}
