//! Looking for the other end of a kernel TCP connection, to replace the connection by a stream (docs/use/run.md): for
//! libraries that stand between a program and its sockets.

use std::fmt;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use control::{MeetProof, MeetStep, Request};
use raas_core::{Answer, RequestId};

pub use control::{MeetingPlace, Rendezvous, TcpEnd};

use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::lock;
use crate::{Reason, Session, Stream};

/// How a search ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The other end is there, or was sent to this end's listener.
    Met(MeetingPlace),
    /// The connection stays on TCP.
    Stays(Reason),
}

/// A search for the other end, under way at the daemon. It has no time limit. While it is there, `raas ss` shows the
/// connection; dropping it ends the search and takes the row out.
pub struct Meeting {
    attachment: Arc<Attachment>,
    request: RequestId,
    is_answered: bool,
    /// The ends of the socket.
    ends: Option<(SocketAddr, SocketAddr)>,
    proof: Option<Proof>,
    may_be_clear: bool,
}

impl Meeting {
    /// Begins to look for the other end of `socket`, a connected TCP socket. Returns at once. The daemon reads the
    /// addresses from the socket itself.
    pub fn begin(session: &Session, socket: BorrowedFd<'_>, end: TcpEnd) -> Result<Self, SessionError> {
        let attachment = Arc::clone(&session.attachment);
        let request = attachment.ask_with(Vec::new(), &[socket], |session| session.meet(end))?;
        Ok(Self { attachment, request, is_answered: false, ends: ends_of(socket), proof: None, may_be_clear: false })
    }

    /// The answer if it is there by now; once.
    pub fn try_finish(&mut self) -> Result<Option<Found>, SessionError> {
        if self.is_answered {
            return Ok(None);
        }
        self.attachment.check_fork()?;
        self.attachment.look();
        self.prove();
        let (answer, lost) = {
            let mut tables = lock(&self.attachment.tables);
            if !tables.is_over(self.request) {
                return Ok(None);
            }
            (tables.finish(self.request), tables.lost())
        };
        self.proof = None;
        self.is_answered = true;
        match (answer, lost) {
            (Some(Answer::Met(Ok(place))), _) => Ok(Some(Found::Met(place))),
            (Some(Answer::Met(Err(reason))), _) => Ok(Some(Found::Stays(reason))),
            (Some(other), _) => Err(SessionError::Protocol(format!("the answer to Meet was {other:?}"))),
            (None, Some(lost)) => Err(lost),
            (None, None) => Err(SessionError::Protocol("the answer to Meet is gone".into())),
        }
    }

    /// Does what the daemon wants for its proof that this end is one of a connection between two namespaces. What cannot
    /// be done is not: the connection stays on TCP.
    fn prove(&mut self) {
        loop {
            let step = lock(&self.attachment.tables).session.next_meet_step(self.request);
            let proof = match step {
                Some(MeetStep::Open) => {
                    self.proof = self.ends.and_then(Proof::open);
                    self.proof.as_ref().and_then(Proof::port).map(MeetProof::Port)
                }
                Some(MeetStep::Send { port, word }) => {
                    self.proof.iter_mut().for_each(|proof| proof.note_word(port, word));
                    continue;
                }
                Some(MeetStep::Clear) => {
                    self.may_be_clear = true;
                    continue;
                }
                None => self.proof.as_mut().and_then(Proof::exchange).map(MeetProof::Heard),
            };
            let Some(proof) = proof else { break };
            self.attachment.tell(&Request::MeetProof { request: self.request.number(), proof });
        }
    }

    /// Whether the daemon lets the connection be in the clear, as far as it has said: with another host that is decided by
    /// `encrypt`. To be asked where [`Session::requires_encryption`] says that it matters.
    pub fn may_be_clear(&self) -> bool {
        self.may_be_clear
    }

    /// The stream has taken the place of the connection: `raas ss` shows it with the connection's own addresses, as long
    /// as this is there.
    pub fn show(&self, stream: &Stream) {
        if let Some((local, peer)) = self.ends {
            let proof = MeetProof::Stream { connection: stream.id(), local, peer };
            self.attachment.tell(&Request::MeetProof { request: self.request.number(), proof });
        }
    }

    /// No stream will take the place of the connection: for its row in `raas ss`, as long as this is there.
    pub fn stays(&self, reason: Reason) {
        if let Some((local, peer)) = self.ends {
            let proof = MeetProof::Stays { reason, local, peer };
            self.attachment.tell(&Request::MeetProof { request: self.request.number(), proof });
        }
    }

    /// Whether the daemon has answered, so that the next [`Meeting::try_finish`] says something; looks at nothing else.
    pub fn is_over(&self) -> bool {
        self.is_answered || self.attachment.check_fork().is_err() || lock(&self.attachment.tables).is_over(self.request)
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if self.attachment.check_fork().is_err() {
            return;
        }
        if !self.is_answered {
            drop(lock(&self.attachment.tables).finish(self.request));
        }
        self.attachment.tell(&Request::Unmeet { request: self.request.number() });
    }
}

impl fmt::Debug for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meeting").field("request", &self.request).field("is_answered", &self.is_answered).finish()
    }
}

/// Words that one end sends.
const WORDS_MAX: usize = 8;
/// Times that each is sent, one with each look: a datagram may be lost.
const SENDS: u32 = 8;

/// Shows that words to this end's address come to it, and sends those of the other end.
#[derive(Debug)]
struct Proof {
    socket: UdpSocket,
    peer: SocketAddr,
    /// To which port, which, how often it was sent.
    words: Vec<(u16, u64, u32)>,
}

impl Proof {
    fn open((local, peer): (SocketAddr, SocketAddr)) -> Option<Self> {
        let mut local = local;
        local.set_port(0);
        let socket = UdpSocket::bind(local).ok()?;
        let socket = UdpSocket::from(shm::raised(OwnedFd::from(socket)));
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, peer, words: Vec::new() })
    }

    fn port(&self) -> Option<u16> {
        self.socket.local_addr().ok().map(|address| address.port())
    }

    fn note_word(&mut self, port: u16, word: u64) {
        if self.words.len() < WORDS_MAX {
            self.words.push((port, word, 0));
        }
    }

    /// Sends what is to be sent, and takes a word if one has come.
    fn exchange(&mut self) -> Option<u64> {
        for (port, word, sent) in self.words.iter_mut().filter(|(_, _, sent)| *sent < SENDS) {
            *sent += 1;
            let mut to = self.peer;
            to.set_port(*port);
            // One that does not arrive is as one that was not sent.
            let _ = self.socket.send_to(&word.to_be_bytes(), to);
        }
        let mut bytes = [0; 9];
        let (8, from) = self.socket.recv_from(&mut bytes).ok()? else { return None };
        let is_peers = from.ip().to_canonical() == self.peer.ip().to_canonical();
        is_peers.then(|| bytes.first_chunk().copied().map(u64::from_be_bytes)).flatten()
    }
}

fn ends_of(socket: BorrowedFd<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let canonical = |end: SocketAddr| match end.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, end.port())),
        IpAddr::V6(_) => end,
    };
    let local = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some((canonical(local), canonical(peer)))
}

/// Where a listener of this session is reached from this host, for [`Rendezvous::port`].
pub fn port_of(listener: &crate::Listener) -> u16 {
    listener.local_addr().map_or(0, |address: SocketAddr| address.port())
}
