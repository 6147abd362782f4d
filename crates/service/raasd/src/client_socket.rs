//! The control socket: accepting programs, their first message, then messages both ways.
//!
//! Owns the sockets to programs of this host. It must never block on one of them, never keep a descriptor that nobody
//! asked for, and never let a program that does not read cost more than its queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::{APP_VERSION, ChannelError, Reason, Received, Reply, Request, Role, receive, send_message};
use plane::{ClientId, ProgramFacts, UserPlaces};
use shm::LAYOUT_VERSION;
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::closers;
use crate::limits::{DaemonLimits, count, share};
use crate::program_facts::facts_of;
use crate::questions::QuestionPlace;
use crate::shutdown::Shutdown;

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
    pub(crate) reply: Reply,
    /// Shared, so that what many programs wait for costs the daemon one descriptor.
    pub(crate) fds: Vec<Arc<OwnedFd>>,
    /// It answers the program's only question; dropped when the socket has taken it.
    pub(crate) question: Option<QuestionPlace>,
}

impl Outgoing {
    pub(crate) fn new(reply: Reply, fds: Vec<OwnedFd>) -> Self {
        Self::shared(reply, fds.into_iter().map(Arc::new).collect())
    }

    pub(crate) fn shared(reply: Reply, fds: Vec<Arc<OwnedFd>>) -> Self {
        Self { reply, fds, question: None }
    }
}

/// What programs send to the control plane.
#[derive(Debug)]
pub(crate) enum ClientInput {
    /// A program said Hello in our version.
    Opened {
        client: ClientId,
        who: ProgramIdentity,
        out: mpsc::Sender<Outgoing>,
        /// Notified when the program has closed its wake socket.
        hung_up: Arc<Notify>,
    },
    Request {
        client: ClientId,
        received: Received<Request>,
    },
    /// It is gone; with words, if it broke the rules.
    Closed {
        client: ClientId,
        fault: Option<String>,
    },
}

/// The identity of the program. The kernel gives process and user.
#[derive(Debug, Clone)]
pub(crate) struct ProgramIdentity {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) role: Role,
    pub(crate) name: String,
    /// By which the policy knows its tenant.
    pub(crate) facts: ProgramFacts,
}

/// What serving a program needs.
#[derive(Debug, Clone)]
pub(crate) struct ClientContext {
    pub(crate) inputs: mpsc::Sender<ClientInput>,
    pub(crate) limits: DaemonLimits,
}

/// Accepts until it is stopped. Then the programs have [`FAREWELL`] to take their last messages. The runtime's types
/// for Unix sockets serve for SEQPACKET ones too: nothing here uses their reading and writing, only their readiness.
pub(crate) async fn accept_clients(listener: OwnedFd, context: ClientContext, stop: Shutdown) -> io::Result<()> {
    let listener = UnixListener::from_std(listener.into())?;
    let places = Arc::new(Semaphore::new(count(context.limits.clients_max).min(Semaphore::MAX_PERMITS)));
    let per_user_max = share(context.limits.clients_per_user_max, context.limits.clients_max);
    let users = UserPlaces::new(per_user_max, rustix::process::geteuid().as_raw());
    let users = Arc::new(Mutex::new(users));
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
            Ok((socket, _)) => match admit(&socket, &places, &users) {
                Ok((who, held)) => {
                    let (id, context) = (ClientId(number), context.clone());
                    clients.spawn(async move {
                        serve(socket, who, id, context).await;
                        drop(held);
                    });
                }
                Err((reason, detail)) => {
                    let _ = send_message(socket.as_fd(), &refused(reason, &detail), &[]);
                    tracing::debug!(%reason, detail, "refused a program");
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

/// A user's place; dropping it gives it back.
#[derive(Debug)]
struct UserPlace {
    places: Arc<Mutex<UserPlaces>>,
    uid: u32,
}

impl UserPlace {
    fn try_take(places: &Arc<Mutex<UserPlaces>>, uid: u32) -> Option<Self> {
        // The count is consistent between statements, whichever thread panicked.
        let taken = places.lock().unwrap_or_else(PoisonError::into_inner).try_take(uid);
        taken.then(|| Self { places: Arc::clone(places), uid })
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.uid);
    }
}

/// Pid and uid of a program, and its places: of the host's, and of its user's.
type Admitted = ((u32, u32), (OwnedSemaphorePermit, UserPlace));

fn admit(
    socket: &UnixStream,
    places: &Arc<Semaphore>,
    users: &Arc<Mutex<UserPlaces>>,
) -> Result<Admitted, (Reason, String)> {
    let who = control::peer_credentials(socket)
        .map_err(|e| (Reason::Policy, format!("the kernel does not say who the program is: {e}")))?;
    let place = Arc::clone(places)
        .try_acquire_owned()
        .map_err(|_| (Reason::LocalLimit, "too many programs are attached (limits.clients_max)".into()))?;
    let share = UserPlace::try_take(users, who.1).ok_or_else(|| {
        let detail = format!("user {} has too many programs attached (limits.clients_per_user_max)", who.1);
        (Reason::UserPrograms, detail)
    })?;
    Ok((who, (place, share)))
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

async fn serve(socket: UnixStream, (pid, uid): (u32, u32), client: ClientId, context: ClientContext) {
    let mut buffer = Vec::new();
    let hello = match timeout(context.limits.client_hello(), next_request(&socket, &mut buffer)).await {
        Ok(Ok(Received { message, fds, .. })) => {
            drop(closers::without_sockets(fds));
            check_hello(message)
        }
        Ok(Err(ChannelError::Closed)) => return,
        Ok(Err(e)) => Err((Reason::AppFault, format!("the first message is no Hello: {e}"))),
        Err(_) => Err((Reason::TimedOut, "no Hello came".into())),
    };
    let (role, name) = match hello {
        Ok(hello) => hello,
        Err((reason, detail)) => {
            // Only a debug line: the program gets the same message, and could fill the log with it.
            tracing::debug!(pid, uid, %reason, detail, "refused a program");
            let _ = send_message(socket.as_fd(), &refused(reason, detail), &[]);
            return;
        }
    };
    if role == Role::Inspector {
        // Without it the kernel keeps more for one that does not read, and nothing else changes.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, INSPECTOR_SEND_BYTES);
    }
    let (out, outgoing) = mpsc::channel(count(context.limits.client_queue_max));
    let hung_up = Arc::new(Notify::new());
    let opened = ClientInput::Opened {
        client,
        who: ProgramIdentity { pid, uid, role, name, facts: facts_of(pid, uid) },
        out,
        hung_up: Arc::clone(&hung_up),
    };
    if context.inputs.send(opened).await.is_err() {
        return;
    }
    let mut session = Session { socket: &socket, client, context: &context, buffer };
    let fault = session.carry(outgoing, &hung_up).await.err();
    let fault = fault.filter(|e| !matches!(e, Fault::Channel(ChannelError::Closed))).map(|e| e.to_string());
    // Its answer to a fault is sent by the control plane as long as it knows the program.
    let _ = context.inputs.send(ClientInput::Closed { client, fault: fault.clone() }).await;
    if let Some(detail) = fault {
        let _ = send_message(socket.as_fd(), &Reply::Detached { reason: Reason::AppFault, detail }, &[]);
    }
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
            let name: String = name.chars().filter(|c| !c.is_control()).collect();
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
    #[error("it closed its wake socket")]
    WakeSocket,
}

/// A program that said Hello.
struct Session<'a> {
    socket: &'a UnixStream,
    client: ClientId,
    context: &'a ClientContext,
    buffer: Vec<u8>,
}

impl Session<'_> {
    /// Messages both ways. Ends without error when the control plane has dropped its end and all is sent.
    async fn carry(&mut self, mut outgoing: mpsc::Receiver<Outgoing>, hung_up: &Notify) -> Result<(), Fault> {
        let mut pending: Option<Outgoing> = None;
        let mut closing: Option<Instant> = None;
        let mut leaves: Option<Instant> = None;
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
                // Once the control plane has dropped its end, what the program says does not matter any more.
                received = next_request(self.socket, &mut self.buffer), if !outgoing.is_closed() => {
                    // A control plane that has ended has still left its last words in `outgoing`.
                    self.pass_on(received?).await;
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

    async fn pass_on(&self, received: Received<Request>) {
        let _ = self.context.inputs.send(ClientInput::Request { client: self.client, received }).await;
    }

    /// What the program said before it went counts, as that it accepted a connection: it may have ended in order since.
    async fn hear_last_words(&mut self) -> Result<(), ChannelError> {
        for _ in 0..LAST_WORDS_MAX {
            match receive(self.socket.as_fd(), &mut self.buffer) {
                Ok(received) => self.pass_on(received).await,
                Err(ChannelError::WouldBlock) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

async fn next_request(socket: &UnixStream, buffer: &mut Vec<u8>) -> Result<Received<Request>, ChannelError> {
    loop {
        socket.readable().await.map_err(ChannelError::Io)?;
        if let Some(received) = attempt(socket, Interest::READABLE, || receive(socket.as_fd(), buffer)) {
            return received;
        }
    }
}

async fn send(socket: &UnixStream, message: Option<&Outgoing>) -> Result<(), ChannelError> {
    let Some(Outgoing { reply, fds, .. }) = message else { return Ok(()) };
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    loop {
        socket.writable().await.map_err(ChannelError::Io)?;
        if let Some(sent) = attempt(socket, Interest::WRITABLE, || send_message(socket.as_fd(), reply, &fds)) {
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
