//! A session with the daemon: requests under way, listeners' backlogs, chunks, pairs, slots.
//!
//! Owns these tables, and the checks of the daemon's descriptions before memory is used by them. It does no I/O: it
//! takes the daemon's messages and returns those for the daemon. An error of [`Session::on_message`] means that the
//! session cannot go on with this daemon. A connection that cannot exist is only refused.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use control::{ChunkKind, Connection as Described, Kind, NotTaken, Path, Reason, Request};
use shm::{Pair, Region, RingMemory, Segment, SegmentError, Sharing, WakeSocket, Word32};

use crate::answer::{Asked, Requests};
use crate::endpoint::{Carrier, Name, RingSizes};
use crate::fault::is_want_of_descriptors;
use crate::lane::{Clock, LaneEnd, LaneRings, Means, SlotUse};
use crate::pair_link::{PairLink, PairSlot, end_of};
use crate::pair_socket::PairSocket;
use crate::ports::{self, PortUse, Ports};
use crate::segments::PairError;
use crate::sizes::{is_ring_size, pair_bytes};
use crate::unsent::Unsent;
use crate::{
    Answer, Connection, Daemon, DaemonMessage, Endpoint, Failed, Life, News, Outgoing, PeerSegment, RegionNews,
    RequestId, SessionFault, Wake,
};

/// Connections that may wait at one listener, whatever the daemon thinks.
const BACKLOG_MAX: usize = 65_536;
/// Ring chunks of one session.
const CHUNKS_MAX: usize = 65_536;
/// Pairs of one session.
const PAIRS_MAX: usize = 65_536;

/// What a session is made of; [`crate::Attached`] has it.
#[derive(Debug)]
pub struct SessionMemory {
    /// The session segment.
    pub session: shm::Session,
    /// The daemon's engines, as many as the segment is for.
    pub engines: Vec<EngineEnd>,
    /// Whether rings may give pages back while they rest: this process has joined [`shm::join_rest_barrier`].
    pub can_rest: bool,
    /// The host's monotonic clock in nanoseconds, for the daemon's traces; None: nothing is said of times.
    pub clock: Option<Clock>,
}

/// One engine of the daemon, as this process sees it.
#[derive(Debug, Clone)]
pub struct EngineEnd {
    /// The engine's word that says that it sleeps.
    pub sleep: Word32,
    /// How it is woken.
    pub wake: Arc<dyn Wake>,
}

/// A ring chunk.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) kind: ChunkKind,
    /// None: this process had no room for its descriptor.
    pub(crate) region: Option<Region>,
    /// Its descriptor, for a daemon that comes after this one.
    pub(crate) kept: Option<Arc<OwnedFd>>,
}

/// A connection through the daemon, for a daemon that comes after this one.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) generation: u32,
    pub(crate) sealed: Vec<u8>,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Session {
    daemon: Arc<Daemon>,
    memory: SessionMemory,
    pub(crate) requests: Requests,
    pub(crate) unsent: Unsent,
    backlogs: BTreeMap<u16, VecDeque<Box<Connection>>>,
    pub(crate) chunks: BTreeMap<u32, Chunk>,
    /// By slot, of the connections and datagram sockets that have it or had it last.
    pub(crate) tickets: BTreeMap<u32, Ticket>,
    pairs: BTreeMap<u64, PairLink>,
    outgoing: VecDeque<Outgoing>,
    pub(crate) region_news: VecDeque<RegionNews>,
    pub(crate) ports: Ports,
    /// Daemons that have ended while it went on.
    pub(crate) daemons: u64,
    /// No chunk had this number or a greater one.
    pub(crate) next_chunk: u32,
}

impl Session {
    /// A session of this process.
    pub fn new(memory: SessionMemory) -> Result<Self, SessionFault> {
        let life = Life::new().map_err(|e| SessionFault::os("memory that is empty after fork", &e))?;
        let wakes = memory.engines.iter().map(|engine| Arc::clone(&engine.wake)).collect();
        let daemon = Arc::new(Daemon::new(life, wakes, memory.session.slots()));
        Ok(Self {
            daemon,
            memory,
            requests: Requests::default(),
            unsent: Unsent::default(),
            backlogs: BTreeMap::new(),
            chunks: BTreeMap::new(),
            tickets: BTreeMap::new(),
            pairs: BTreeMap::new(),
            outgoing: VecDeque::new(),
            region_news: VecDeque::new(),
            ports: Ports::default(),
            daemons: 0,
            next_chunk: 0,
        })
    }

    /// The daemon as the session's connections know it.
    pub fn daemon(&self) -> &Arc<Daemon> {
        &self.daemon
    }

    /// As [`Life::disown`], of the session and all its pairs.
    pub fn disown(&self) {
        self.daemon.life().disown();
        self.pairs.values().for_each(|pair| pair.socket().life().disown());
    }

    /// The session segment: doorbells and the application's sleep word.
    pub fn memory(&self) -> &shm::Session {
        &self.memory.session
    }

    // ---- requests (`asking` has those that need no table): each is to be sent by the caller

    /// Asks to accept connections at a port, 0 for any free one.
    pub fn listen(&mut self, port: u16, backlog: u32, ring_bytes: u32, kind: Kind) -> (RequestId, Request) {
        let id = self.begin(Asked::Listen);
        (id, self.ports.ask(id, port, PortUse { backlog, ring_bytes, kind }))
    }

    /// Closes a port; connections that wait there are reset.
    pub fn unlisten(&mut self, port: u16) -> Request {
        drop(self.backlogs.remove(&port));
        self.ports.close(port);
        self.reap_all();
        Request::Unlisten { port }
    }

    /// Stops a connect. None: its answer is here already, or it was not sent. An answer is dropped, and a connection in
    /// it closes.
    pub fn cancel(&mut self, request: RequestId) -> Option<Request> {
        let was_pending = self.is_pending(request) && !self.is_unsent(request);
        drop(self.finish(request));
        self.reap_all();
        was_pending.then_some(Request::CancelConnect { request: request.number() })
    }

    pub(crate) fn begin(&mut self, asked: Asked) -> RequestId {
        self.requests.begin(asked)
    }

    /// What the daemon said of a handle to a region. After [`News::Region`] the caller must take these until there is
    /// none.
    pub fn next_region_news(&mut self) -> Option<RegionNews> {
        self.region_news.pop_front()
    }

    /// Whether a request waits for its answer.
    pub fn is_pending(&self, request: RequestId) -> bool {
        self.requests.asked(request.number()).is_some()
    }

    /// Ends a request; returns its answer, if it came. An answer that comes later is undone.
    pub fn finish(&mut self, request: RequestId) -> Option<Answer> {
        self.unsent.remove(request);
        self.requests.finish(request)
    }

    /// Takes a connection that waits at a port, with the message for the daemon.
    pub fn accept(&mut self, port: u16) -> Option<(Box<Connection>, Request)> {
        let connection = self.backlogs.get_mut(&port)?.pop_front()?;
        let accepted = Request::Accepted { port, connection: connection.endpoint.id() };
        Some((connection, accepted))
    }

    /// Whether a connection waits at a port.
    pub fn has_arrived(&self, port: u16) -> bool {
        self.backlogs.get(&port).is_none_or(|backlog| !backlog.is_empty())
    }

    /// A message that the session itself has for the daemon. After each call the caller must take these until there is
    /// none.
    pub fn next_outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    pub(crate) fn tell(&mut self, request: Request) {
        self.outgoing.push_back(Outgoing { request, segment: None });
    }

    // ---- pairs

    /// The socket of a pair.
    pub fn pair(&self, pair: u64) -> Option<&Arc<PairSocket>> {
        self.pairs.get(&pair).map(PairLink::socket)
    }

    /// Adds the slots to `slots` that the other process of a pair noted, after [`PairSocket::drain`].
    pub fn take_told(&mut self, pair: u64, slots: &mut Vec<u32>) {
        self.pairs.get_mut(&pair).into_iter().for_each(|pair| pair.take_told(slots));
    }

    /// The connections of all pairs.
    pub(crate) fn returned_ends(&self) -> impl Iterator<Item = control::ReturnedEnd> {
        let alive = self.pairs.values().filter(|pair| pair.socket().life().is_alive());
        alive.flat_map(PairLink::ends).map(|(name, own)| end_of(name, own))
    }

    /// What was asked and not answered fails.
    pub(crate) fn lose_asked(&mut self, reason: Reason) -> Vec<RequestId> {
        let unsent = &self.unsent;
        self.ports.lose_asked(|request| unsent.has(request));
        self.requests.lose_all(reason, |request| unsent.has(request))
    }

    /// Finishes the slots of a pair that both sides have closed. To be called when a connection of it was closed and
    /// when its socket was drained.
    pub fn reap(&mut self, pair: u64) {
        let over = self.pairs.get_mut(&pair).map(PairLink::reap).unwrap_or_default();
        for connection in over {
            self.tell(Request::PairClosed { connection });
        }
    }

    fn reap_all(&mut self) {
        let pairs: Vec<u64> = self.pairs.keys().copied().collect();
        pairs.into_iter().for_each(|pair| self.reap(pair));
    }

    /// To be called about once a second: finishes what a lost wake left over, and forgets pairs that are over.
    pub fn sweep(&mut self) {
        self.reap_all();
        self.pairs.retain(|_, pair| !pair.age());
    }

    // ---- messages of the daemon

    /// Follows one message of the daemon.
    pub fn on_message(&mut self, message: DaemonMessage) -> Result<News, SessionFault> {
        match message {
            DaemonMessage::Listening { request, result } => Ok(self.on_listening(request, result)),
            DaemonMessage::Connected { request, result } => {
                let is_socket = self.requests.asked(request) == Some(Asked::BindDatagram);
                let result = match result {
                    Ok(described) => self.open(&described, is_socket).map(Box::new),
                    Err(reason) => Err(Failed::Reason(reason)),
                };
                Ok(self.on_answer(request, Answer::Connected(result)))
            }
            DaemonMessage::DatagramPath { request, result } => Ok(self.on_answer(request, Answer::Path(result))),
            DaemonMessage::RegionOpened { request, mut result } => {
                if let Ok(new) = &mut result {
                    new.daemon = self.daemons;
                }
                Ok(self.on_answer(request, Answer::Region(result)))
            }
            DaemonMessage::RegionRevoked { request, result } => Ok(self.on_answer(request, Answer::Revoked(result))),
            DaemonMessage::RegionNotifier { request, result } => Ok(self.on_answer(request, Answer::Notifier(result))),
            DaemonMessage::RegionInstalled { request, result } => {
                Ok(self.on_answer(request, Answer::Installed(result)))
            }
            DaemonMessage::RegionRan { request, result } => Ok(self.on_answer(request, Answer::Ran(result))),
            DaemonMessage::MeetStep { request, step } => {
                self.requests.note_step(request, step);
                Ok(News::None)
            }
            DaemonMessage::Met { request, result } => Ok(self.on_answer(request, Answer::Met(result))),
            DaemonMessage::RegionAttached { request, result } => Ok(self.on_answer(request, Answer::Attached(result))),
            DaemonMessage::RegionLent { request, result } => Ok(self.on_answer(request, Answer::Lent(result))),
            DaemonMessage::RegionNews(news) => {
                self.region_news.push_back(news);
                Ok(News::Region)
            }
            DaemonMessage::Incoming { port, connection } => Ok(self.on_incoming(port, &connection)),
            DaemonMessage::Chunk { chunk, kind, region, kept } => self.on_chunk(chunk, kind, region, kept),
            DaemonMessage::ChunkGone { chunk } => {
                // Connections that still use it hold the memory themselves.
                drop(self.chunks.remove(&chunk));
                Ok(News::None)
            }
            DaemonMessage::PairOpened { pair, peer_pid, socket } => self.on_pair(pair, peer_pid, socket),
            DaemonMessage::PairSegment { pair, index, slots, segment } => {
                self.on_peer_segment(pair, index, slots, segment);
                Ok(News::None)
            }
            DaemonMessage::PairSegmentWanted { pair, index, slots, ring_bytes } => {
                self.on_segment_wanted(pair, index, slots, ring_bytes)?;
                Ok(News::None)
            }
            DaemonMessage::Direct { connection, socket, .. } => {
                // The caller takes a socket that it can use; without one the stream stays on the lane.
                if socket.is_none() {
                    self.not_taken(NotTaken::Direct { connection });
                }
                Ok(News::None)
            }
            DaemonMessage::Detached { reason } => Err(SessionFault::Lost(reason)),
        }
    }

    fn on_listening(&mut self, request: u64, result: Result<SocketAddr, Reason>) -> News {
        let how = match self.ports.take(request) {
            ports::Asked::Again(port) => {
                drop(self.requests.finish(RequestId(request)));
                return self.on_listening_again(port, result.is_ok());
            }
            ports::Asked::New(how) => how,
        };
        // The port is open before the caller that asked for it runs: connections may follow this very message.
        if let Ok(addr) = result {
            if self.requests.asked(request).is_some() {
                self.backlogs.entry(addr.port()).or_default();
                how.into_iter().for_each(|how| self.ports.open(addr.port(), how));
            } else {
                self.tell(Request::Unlisten { port: addr.port() });
            }
        }
        self.on_answer(request, Answer::Listening(result))
    }

    /// A new daemon opened a port again, or could not.
    fn on_listening_again(&mut self, port: u16, is_opened: bool) -> News {
        if !is_opened {
            self.ports.lose(port);
            return News::Arrived(port);
        }
        if !self.ports.is_open(port) {
            self.tell(Request::Unlisten { port });
        }
        News::None
    }

    fn on_answer(&mut self, request: u64, answer: Answer) -> News {
        match self.requests.file(request, answer) {
            None => News::Answered(RequestId(request)),
            // No caller waits any more: dropping a connection closes it, and a handle to a region is given back.
            Some(unclaimed) => {
                match &unclaimed {
                    Answer::Region(Ok(new)) => {
                        self.tell(Request::RegionClose { open: new.opened.open, delete: true });
                    }
                    Answer::Attached(Ok(number)) => self.tell(Request::RegionDetach { number: *number }),
                    Answer::Lent(Ok(lease)) => self.tell(Request::RegionUnlend { lease: *lease }),
                    _ => {}
                }
                drop(unclaimed);
                self.reap_all();
                News::None
            }
        }
    }

    fn on_incoming(&mut self, port: u16, described: &Described) -> News {
        // One that cannot be opened is dropped here; its peer sees it reset or die.
        let Ok(connection) = self.open(described, false) else { return News::None };
        match self.backlogs.get_mut(&port).filter(|backlog| backlog.len() < BACKLOG_MAX) {
            Some(backlog) => {
                backlog.push_back(Box::new(connection));
                News::Arrived(port)
            }
            None => {
                drop(connection);
                self.reap_all();
                News::None
            }
        }
    }

    /// Tells the daemon what this process, at its limit of open descriptors, has no room for: connections that need it
    /// are refused, all others go on.
    fn not_taken(&mut self, what: NotTaken) {
        self.tell(Request::NotTaken { what, limit: control::descriptor_limit() });
    }

    fn on_chunk(
        &mut self,
        chunk: u32,
        kind: ChunkKind,
        region: Option<Region>,
        kept: Option<OwnedFd>,
    ) -> Result<News, SessionFault> {
        if region.is_none() {
            self.not_taken(NotTaken::Chunk { chunk });
        }
        if self.chunks.len() >= CHUNKS_MAX || self.chunks.contains_key(&chunk) {
            return Err(SessionFault::Protocol(format!("chunk {chunk} is one too many, or there already")));
        }
        self.next_chunk = self.next_chunk.max(chunk.saturating_add(1));
        self.chunks.insert(chunk, Chunk { kind, region, kept: kept.map(Arc::new) });
        Ok(News::None)
    }

    fn on_pair(&mut self, id: u64, peer_pid: u32, socket: Option<WakeSocket>) -> Result<News, SessionFault> {
        let Some(socket) = socket else {
            self.not_taken(NotTaken::Pair { pair: id });
            return Ok(News::None);
        };
        if self.pairs.len() >= PAIRS_MAX || self.pairs.contains_key(&id) {
            return Err(SessionFault::Protocol(format!("pair {id} is one too many, or there already")));
        }
        let life = Life::new().map_err(|e| SessionFault::os("memory that is empty after fork", &e))?;
        self.pairs.insert(id, PairLink::new(id, peer_pid, socket, life));
        Ok(News::PairOpened(id))
    }

    fn on_peer_segment(&mut self, id: u64, index: u32, slots: u32, segment: PeerSegment) {
        let Some(pair) = self.pairs.get_mut(&id) else { return };
        match segment {
            PeerSegment::Mapped(segment) => pair.put_peer(index, slots, Some(segment)),
            PeerSegment::Refused => {}
            PeerSegment::NotTaken => {
                pair.put_peer(index, slots, None);
                self.not_taken(NotTaken::PairSegment { pair: id, index });
            }
        }
    }

    fn on_segment_wanted(&mut self, id: u64, index: u32, slots: u32, ring_bytes: u32) -> Result<(), SessionFault> {
        let bytes = pair_bytes(slots, ring_bytes)?;
        let Some(pair) = self.pairs.get_mut(&id) else { return Ok(()) };
        let made = |e: &dyn std::fmt::Display| SessionFault::Protocol(format!("segment for pair {id}: {e}"));
        let segment = match Segment::create("raas-pair", bytes, Sharing::PeerReadOnly) {
            Ok(segment) => Some(segment),
            Err(SegmentError::Os { source, .. }) if is_want_of_descriptors(&source) => None,
            Err(e) => return Err(made(&e)),
        };
        let format = |s: &Segment| Pair::format(s.region().clone(), slots, ring_bytes);
        let memory = segment.as_ref().map(format).transpose().map_err(|e| made(&e))?;
        if !pair.put_own(index, slots, memory) {
            return Err(made(&format!("{index} is in use, or not the next one")));
        }
        if segment.is_none() {
            self.not_taken(NotTaken::PairSegment { pair: id, index });
        } else {
            let request = Request::PairSegment { pair: id, index, slots, ring_bytes };
            self.outgoing.push_back(Outgoing { request, segment });
        }
        Ok(())
    }

    // ---- connections

    /// Takes a connection that the daemon describes; `is_socket`: it is a datagram socket's, with no peer.
    fn open(&mut self, described: &Described, is_socket: bool) -> Result<Connection, Failed> {
        let name = Name { id: described.id, local: described.local, peer: described.peer };
        match described.path {
            Path::Lane { slot, generation, .. } => {
                if slot < self.memory.session.slots() {
                    let ticket = Ticket { generation, sealed: described.ticket.clone() };
                    self.tickets.insert(slot, ticket);
                }
                self.open_lane(name, described, is_socket)
            }
            Path::Shm { pair, slot, generation } => self.open_pair(name, described, pair, slot, generation),
        }
    }

    fn open_lane(&mut self, name: Name, described: &Described, is_socket: bool) -> Result<Connection, Failed> {
        let Path::Lane { slot, generation, tx_chunk, tx_offset, rx_chunk, rx_offset, ring_bytes, grown_bytes } =
            described.path
        else {
            return Err(Failed::Protocol("not a lane".into()));
        };
        let wrong = |what: &str| Failed::Protocol(format!("{}: {what}", describe(described)));
        let session = &self.memory.session;
        let whose =
            session.place_of(slot).and_then(|place| Some((self.memory.engines.get(place.engine as usize)?, place)));
        let Some((engine, whose)) = whose else {
            return Err(wrong(&format!("slot {slot} of {}", session.slots())));
        };
        if !is_ring_size(ring_bytes) || !is_ring_size(grown_bytes) || grown_bytes < ring_bytes {
            return Err(wrong(&format!("ring of {ring_bytes} bytes that grows to {grown_bytes}")));
        }
        // One still in use would be two connections on one slot.
        if !self.daemon.take_slot(slot) {
            return Err(wrong(&format!("slot {slot} is in use")));
        }
        let opened = self.lane_ring(tx_chunk, ChunkKind::Tx, tx_offset, grown_bytes).and_then(|tx| {
            let rx = self.lane_ring(rx_chunk, ChunkKind::Rx, rx_offset, grown_bytes)?;
            let place = SlotUse { slot, generation, pid: self.daemon.life().owner() };
            let rings = LaneRings { tx, rx, first_bytes: ring_bytes.into() };
            let means = Means { can_rest: self.memory.can_rest, clock: self.memory.clock };
            LaneEnd::open(session.slot(slot), (whose, engine.sleep.clone()), place, rings, means)
                .map_err(|e| LaneRefusal::Wrong(e.to_string()))
        });
        match opened {
            Ok(opened) => {
                let end = if is_socket { opened.end.of_datagrams() } else { opened.end };
                // What a message may have must not depend on whether the rings grow.
                let rings = RingSizes { rx: ring_bytes.into(), tx: ring_bytes.into() };
                let endpoint = Endpoint::new(Arc::clone(&self.daemon), name, Carrier::Lane(end), rings);
                Ok(Connection::new(endpoint, opened.reader, opened.writer, rings))
            }
            Err(refusal) => {
                self.daemon.free_slot(slot);
                Err(match refusal {
                    // The daemon has the report, and ends the connection.
                    LaneRefusal::NotTaken => Failed::Reason(Reason::AppDescriptors),
                    LaneRefusal::Wrong(what) => {
                        LaneEnd::refuse(session, slot, generation);
                        wrong(&what)
                    }
                })
            }
        }
    }

    fn lane_ring(&self, number: u32, kind: ChunkKind, offset: u64, bytes: u32) -> Result<RingMemory, LaneRefusal> {
        match self.chunks.get(&number) {
            Some(Chunk { kind: found, region: Some(region), .. }) if *found == kind => {
                Ok(RingMemory { region: region.clone(), offset, bytes: bytes.into() })
            }
            Some(Chunk { region: None, .. }) => Err(LaneRefusal::NotTaken),
            _ => Err(LaneRefusal::Wrong(format!("no {kind:?} chunk {number}"))),
        }
    }

    fn open_pair(
        &mut self,
        name: Name,
        described: &Described,
        pair: u64,
        slot: u32,
        generation: u32,
    ) -> Result<Connection, Failed> {
        let Some(link) = self.pairs.get_mut(&pair) else {
            let connection = described.id;
            // A pair that is gone, or whose segments were no good: the other process is to blame, or dead.
            self.tell(Request::PairClosed { connection });
            return Err(Failed::Reason(Reason::PeerAppDied));
        };
        let connection = described.id;
        let place = PairSlot { slot, generation, name, pid: self.daemon.life().owner() };
        match link.open(place) {
            Ok(opened) => {
                let rings = RingSizes { rx: opened.rx_bytes, tx: opened.writer.capacity() };
                let endpoint = Endpoint::new(Arc::clone(&self.daemon), name, Carrier::Pair(opened.end), rings);
                Ok(Connection::new(endpoint, opened.reader, opened.writer, rings))
            }
            Err(e) => {
                let lacks_segment = matches!(e, PairError::NotTaken(..));
                let reason = if lacks_segment { Reason::PeerAppDescriptors } else { Reason::PeerLimit };
                link.refuse(slot, generation, reason);
                self.tell(Request::PairClosed { connection });
                Err(match lacks_segment {
                    true => Failed::Reason(Reason::AppDescriptors),
                    false => Failed::Protocol(format!("{}: {e}", describe(described))),
                })
            }
        }
    }
}

/// Why a slot was not taken.
enum LaneRefusal {
    /// This process had no descriptor for a chunk.
    NotTaken,
    /// The daemon's description cannot be.
    Wrong(String),
}

/// How a connection looks in an error message.
fn describe(connection: &Described) -> String {
    format!("connection {} from {} to {}", connection.id, connection.local, connection.peer)
}
