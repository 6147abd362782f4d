//! Control links on TCP: frames, and messages both ways once a link is up.
//!
//! Owns the sockets to other daemons. It must never hand a message on before the peer has proven the key, never send or
//! take a frame without its seal after that, never read a long frame from a stranger, and never wait without a bound.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::{CHALLENGE_BYTES, FRAME_BYTES_MAX, PeerMessage, Reason, decode, encode, with_length};
use plane::{
    ClusterKeys, DirectHello, Heartbeat, Identity, Introduction, LinkId, LinkNames, LinkPath, Refusal, Seal, Verdict,
    Watch, WatchAction,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use verbs::Time;

use crate::Config;
use crate::cluster::Members;
use crate::limits::count;
use crate::link_queue::Said;
use crate::log_quota::LogQuota;

/// Longest frame before the key is proven: the longest Hello, Noise message or Bye, with room for longer words of later
/// releases.
const HANDSHAKE_FRAME_BYTES_MAX: usize = 4096;
/// Time for the last message of a link that is being closed.
const FAREWELL: Duration = Duration::from_millis(500);
/// Messages that are said between two that are heard, while there are more of both.
const ANSWERS_PER_MESSAGE: usize = 8;

/// What links tell the control plane.
#[derive(Debug)]
pub(crate) enum LinkInput {
    /// A link that we accepted said Hello; it waits for the verdict.
    Hello {
        link: LinkId,
        source: IpAddr,
        hello: Identity,
        verdict: oneshot::Sender<Verdict>,
    },
    Up {
        link: LinkId,
        path: LinkPath,
        peer: Identity,
        out: mpsc::Sender<Said>,
    },
    Message {
        link: LinkId,
        message: PeerMessage,
    },
    /// The peer of a link that is up has said nothing for longer than it should. Told again while that lasts.
    Silent {
        link: LinkId,
        silent: Duration,
    },
    /// A link that was up, or that we accepted and said Hello, has ended.
    Down {
        link: LinkId,
        reason: Reason,
    },
    DialFailed {
        link: LinkId,
        reason: Reason,
    },
    /// Somebody at the port comes for an offer of a TCP connection; it waits for the verdict.
    DirectHello {
        hello: DirectHello,
        verdict: oneshot::Sender<Option<[u8; 32]>>,
    },
    /// Its socket, unless it broke.
    DirectSocket {
        number: u64,
        socket: Option<OwnedFd>,
    },
    /// What became of a connection for an offer of a peer.
    DirectDialed {
        peer: IpAddr,
        number: u64,
        connection: u64,
        result: Result<OwnedFd, Reason>,
    },
}

/// What every link needs.
#[derive(Debug)]
pub(crate) struct LinkContext {
    pub(crate) config: Arc<Config>,
    /// Replaced when the key files are read again.
    pub(crate) keys: Mutex<ClusterKeys>,
    pub(crate) instance: u64,
    /// Time zero of the control plane.
    pub(crate) started: Instant,
    pub(crate) inputs: mpsc::Sender<LinkInput>,
    /// The hosts of the cluster.
    pub(crate) members: Members,
    /// For lines about dials, which programs can cause.
    pub(crate) log: Mutex<LogQuota>,
    /// A link has taken a message.
    pub(crate) room: Notify,
}

impl LinkContext {
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.started.elapsed()
    }

    pub(crate) fn instant(&self, at: Time) -> Instant {
        self.started + Duration::from_nanos(at.as_nanos())
    }

    /// The keys that count for a new link.
    pub(crate) fn keys(&self) -> ClusterKeys {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What this daemon says of itself on a new link, which takes the place of that one, to a peer if it is known.
    pub(crate) fn introduction(&self, replaces: u64, peer: Option<IpAddr>) -> Result<Introduction, Refusal> {
        let challenge: [u8; CHALLENGE_BYTES] = fresh()?;
        let identity = Identity::new(self.instance, self.config.listen, self.config.engines, challenge);
        let heartbeat = peer.map_or(self.config.heartbeat, |peer| self.config.heartbeat_to(peer)).interval;
        let link = LinkNames { own: 0, replaces };
        Ok(Introduction::of_this_release(Identity { link, heartbeat, ..identity }))
    }
}

/// Random bytes of the system.
pub(crate) fn fresh<const N: usize>() -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| Refusal::new(Reason::LocalLimit, e.to_string()))?;
    Ok(bytes)
}

/// A TCP connection as frames.
#[derive(Debug)]
pub(crate) struct Wire {
    read: OwnedReadHalf,
    write: OwnedWriteHalf,
    /// Its addresses.
    path: LinkPath,
    /// Bytes of the next frame; kept here so that a read that is given up loses none.
    buffer: Vec<u8>,
    /// The peer has said something.
    heard: bool,
    frame_bytes_max: usize,
    /// From the end of the handshake on.
    seal: Option<Seal>,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        let (own, peer) = (stream.local_addr()?.ip().to_canonical(), stream.peer_addr()?.ip().to_canonical());
        let (read, write) = stream.into_split();
        Ok(Self {
            path: LinkPath { own, peer },
            read,
            write,
            buffer: Vec::new(),
            heard: false,
            frame_bytes_max: HANDSHAKE_FRAME_BYTES_MAX,
            seal: None,
        })
    }

    /// From here on each frame of both directions is sealed.
    pub(crate) fn seal_by(&mut self, seal: Option<Seal>) {
        self.seal = seal;
    }

    /// The next message; safe to be given up and called again.
    pub(crate) async fn next(&mut self) -> Result<PeerMessage, Refusal> {
        let lost = |what: String| Refusal::new(Reason::PeerLost, what);
        loop {
            if let Some(prefix) = self.buffer.first_chunk::<4>() {
                let len = u32::from_be_bytes(*prefix) as usize;
                if len > self.frame_bytes_max {
                    let detail = format!("a frame of {len} bytes is longer than {}", self.frame_bytes_max);
                    return Err(Refusal::new(Reason::Unspecified, detail));
                }
                if let Some(frame) = self.buffer.get(4..4 + len) {
                    let unreadable = |e: String| Refusal::new(Reason::Unspecified, e);
                    let message = match &mut self.seal {
                        Some(seal) => seal
                            .open(frame)
                            .map_err(|e| Refusal::new(Reason::PeerAuth, e.to_string()))
                            .and_then(|opened| decode(&opened).map_err(|e| unreadable(e.to_string()))),
                        None => decode(frame).map_err(|e| unreadable(e.to_string())),
                    };
                    self.buffer.drain(..4 + len);
                    return message;
                }
            }
            match self.read.read_buf(&mut self.buffer).await {
                Ok(0) => return Err(lost("the peer closed the link".into())),
                Ok(_) => self.heard = true,
                Err(e) => return Err(lost(e.to_string())),
            }
        }
    }

    /// Whether the peer has said anything at all.
    pub(crate) fn has_heard(&self) -> bool {
        self.heard
    }

    pub(crate) async fn send(&mut self, message: &PeerMessage) -> Result<(), Refusal> {
        let unsayable = |e: String| Refusal::new(Reason::Unspecified, e);
        let mut frame = encode(message).map_err(|e| unsayable(e.to_string()))?;
        if let Some(seal) = &mut self.seal {
            frame = seal.seal(&frame).map_err(|e| unsayable(e.to_string()))?;
        }
        let sent = self.write.write_all(&with_length(&frame)).await;
        sent.map_err(|e| Refusal::new(Reason::PeerLost, e.to_string()))
    }

    /// The connection itself, unless the peer has said more than was read as messages.
    pub(crate) fn into_stream(self) -> Option<TcpStream> {
        self.read.reunite(self.write).ok().filter(|_| self.buffer.is_empty())
    }

    /// Says why, as far as that can be said at once, and closes.
    pub(crate) fn dismiss(self, refusal: &Refusal) {
        let bye = PeerMessage::Bye { reason: refusal.reason, detail: refusal.detail.clone() };
        let Ok(frame) = encode(&bye) else { return };
        let (socket, mut rest) = (self.write.as_ref(), [0; HANDSHAKE_FRAME_BYTES_MAX]);
        // Bytes that nobody read turn a farewell into a reset.
        let _ = rustix::net::recv(socket, &mut rest, rustix::net::RecvFlags::DONTWAIT);
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        let _ = rustix::net::send(socket, &with_length(&frame), flags);
    }

    /// Says why, as far as that can be said in bounded time, and closes.
    pub(crate) async fn bye(mut self, refusal: &Refusal) {
        let bye = PeerMessage::Bye { reason: refusal.reason, detail: refusal.detail.clone() };
        let _ = timeout(FAREWELL, async {
            let _ = self.send(&bye).await;
            let _ = self.write.shutdown().await;
            // Bytes that nobody read would turn our farewell into a reset: take some, for a while.
            let mut rest = [0; 1024];
            for _ in 0..64 {
                if matches!(self.read.read(&mut rest).await, Ok(0) | Err(_)) {
                    break;
                }
            }
        })
        .await;
    }
}

/// Carries messages until the link or the daemon ends.
pub(crate) async fn run(mut wire: Wire, context: &LinkContext, link: LinkId, peer: Identity) {
    if wire.seal.is_none() {
        // A handshake that ends well gives a seal; without one nothing is carried.
        tracing::error!(peer = %peer.address, "a control link came up without its seal; this is a bug in raasd");
        return;
    }
    wire.frame_bytes_max = FRAME_BYTES_MAX;
    let (out, mut outgoing) = mpsc::channel(count(context.config.limits.link_queue_max));
    let up = LinkInput::Up { link, path: wire.path, peer, out };
    if context.inputs.send(up).await.is_err() {
        return;
    }
    let heartbeat = context.config.heartbeat_to(peer.address);
    let refusal = match carry(&mut wire, context, (link, heartbeat), &mut outgoing).await {
        Ok(()) => {
            let _ = timeout(FAREWELL, wire.write.shutdown()).await;
            return;
        }
        Err(refusal) => refusal,
    };
    let _ = context.inputs.send(LinkInput::Down { link, reason: Reason::PeerLost }).await;
    tracing::info!(peer = %peer.address, why = %refusal, "control link ended");
    if refusal.reason != Reason::PeerLost {
        wire.bye(&refusal).await;
    }
}

/// Ends without error when the control plane has dropped its end.
async fn carry(
    wire: &mut Wire,
    context: &LinkContext,
    (link, heartbeat): (LinkId, Heartbeat),
    outgoing: &mut mpsc::Receiver<Said>,
) -> Result<(), Refusal> {
    let patience = heartbeat.patience();
    let silent = |what: &str| Refusal::new(Reason::PeerLost, format!("{what} for {patience:?}"));
    let mut watch = Watch::new(context.now(), heartbeat);
    let say = async |wire: &mut Wire, Said { message, turn }: Said| {
        timeout(patience, wire.send(&message)).await.map_err(|_| silent("the peer read nothing"))??;
        drop(turn);
        context.room.notify_one();
        Ok::<_, Refusal>(())
    };
    loop {
        let deadline = context.instant(watch.deadline());
        tokio::select! {
            // What the peer sent while this side had no processor must be read before the peer is judged silent.
            biased;
            message = wire.next() => {
                watch.on_heard(context.now());
                // A control plane that has ended has still left its last words in `outgoing`.
                let _ = context.inputs.send(LinkInput::Message { link, message: message? }).await;
                // A peer that asks and asks is answered meanwhile.
                for _ in 0..ANSWERS_PER_MESSAGE {
                    let Ok(said) = outgoing.try_recv() else { break };
                    say(wire, said).await?;
                    watch.on_spoken(context.now());
                }
            }
            said = outgoing.recv() => {
                let Some(said) = said else { return Ok(()) };
                say(wire, said).await?;
                watch.on_spoken(context.now());
            }
            () = tokio::time::sleep_until(deadline) => {
                for action in watch.handle_timeout(context.now()) {
                    match action {
                        WatchAction::GiveUp => return Err(silent("the peer said nothing")),
                        WatchAction::TellSilence(silent) => {
                            let _ = context.inputs.send(LinkInput::Silent { link, silent }).await;
                        }
                        WatchAction::Beat => {
                            let beat = timeout(patience, wire.send(&PeerMessage::Heartbeat));
                            beat.await.map_err(|_| silent("the peer read nothing"))??;
                            watch.on_spoken(context.now());
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
