//! The client: calls from any number of threads and tasks.
//!
//! Owns the settings and the public face. What is under way, and who looks for responses, is in `core`.

mod call;
mod change;
mod channel;
mod core;
mod dial;
mod driver;
mod enter;
mod messages;
mod slots;
mod ticket;
mod turns;
mod writes;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use raas::Session;

use crate::choice::Choice;
use crate::error::{CallError, OpenError};
use crate::hello::{ClientId, Transport};
use crate::once::WINDOW_MAX;
pub use call::{Call, CallFuture};
use core::Core;

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    session: Option<Session>,
    transport: Transport,
    window: u16,
    timeout: Option<Duration>,
    reconnect_for: Duration,
    datagram_ring_bytes: u32,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        Self {
            session: None,
            transport: Transport::Messages,
            window: 8,
            timeout: Some(Duration::from_secs(10)),
            reconnect_for: Duration::from_secs(10),
            datagram_ring_bytes: 0,
        }
    }
}

/// What a client does besides calling, fixed when it is made.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) transport: Transport,
    pub(crate) window: u16,
    pub(crate) timeout: Option<Duration>,
    pub(crate) reconnect_for: Duration,
    pub(crate) datagram_ring_bytes: u32,
    pub(crate) id: ClientId,
}

impl ClientBuilder {
    /// The session to call in. Default: the process-wide one.
    #[must_use]
    pub fn session(mut self, session: &Session) -> Self {
        self.session = Some(session.clone());
        self
    }

    /// How requests and responses travel. Default: [`Transport::Messages`].
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// Calls under way at most, 1 to 256, and no more than the server allows. Default: 8. Further calls wait for room.
    #[must_use]
    pub fn window(mut self, calls: u16) -> Self {
        self.window = calls;
        self
    }

    /// The time of a call that names none; `None` for calls that wait without end. Default: 10 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a client that lost its server tries to connect again, before the calls that wait fail with
    /// [`CallError::Unreachable`]. A later call begins to try again. Default: 10 s.
    #[must_use]
    pub fn reconnect_for(mut self, time: Duration) -> Self {
        self.reconnect_for = time;
        self
    }

    /// Size of the ring in which responses by datagram wait until they are taken, as
    /// [`DatagramOptions::ring_bytes`](raas::DatagramOptions::ring_bytes). What does not fit is lost, and asked for again
    /// after 50 ms. Default: 0, which is the daemon's default.
    #[must_use]
    pub fn datagram_ring_bytes(mut self, bytes: u32) -> Self {
        self.datagram_ring_bytes = bytes;
        self
    }

    /// Connects to the first of the addresses that answers.
    pub fn connect(self, addr: impl ToSocketAddrs) -> Result<Client, OpenError> {
        let Self { session, transport, window, timeout, reconnect_for, datagram_ring_bytes } = self;
        if window == 0 || window > WINDOW_MAX {
            return Err(OpenError::Setting { name: "window", value: window.into(), range: "1 to 256" });
        }
        let session = match session {
            Some(session) => session,
            None => Session::global()?,
        };
        let addresses = addr.to_socket_addrs().map_err(OpenError::Resolve)?.collect();
        let id = ClientId::random()?;
        let settings = Settings { addresses, transport, window, timeout, reconnect_for, datagram_ring_bytes, id };
        Ok(Client(Arc::new(Core::connect(session, settings)?)))
    }
}

/// What a client did since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClientCounters {
    /// Calls that were begun.
    pub calls: u64,
    /// Requests that were written into a slot, or sent as a message.
    pub requests: u64,
    /// Those among them that repeat one: its response was late or lost, or is to be sent from now on.
    pub repeats: u64,
    /// Those that also woke the server.
    pub notifications: u64,
    /// READs of responses.
    pub fetches: u64,
    /// Those among them that found none.
    pub failed_fetches: u64,
    /// Datagrams that were received.
    pub datagrams: u64,
    /// With [`Transport::Scale`], requests that were written into a seat. The others were laid down for the server to
    /// fetch.
    pub in_turn: u64,
    /// Switches from fetching to responses that the server sends, by RFP's rule.
    pub switches_to_reply: u64,
    /// And back.
    pub switches_to_fetch: u64,
    /// Connections that were made after the first.
    pub reconnects: u64,
    /// Changes of the transport, with [`Transport::Auto`].
    pub changes: u64,
}

/// A client of one server. Clones are the same client.
///
/// When the server is lost the client connects again and asks again for what was under way. If the server remembers it,
/// each call is executed once all the same; if not, calls whose request had left fail with
/// [`CallError::OutcomeUnknown`].
#[derive(Clone)]
pub struct Client(pub(crate) Arc<Core>);

impl Client {
    /// Connects in the process-wide session with the default settings.
    pub fn connect(addr: impl ToSocketAddrs) -> Result<Self, OpenError> {
        Self::builder().connect(addr)
    }

    /// For settings.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Calls, and waits for the response, for as long as the client's timeout says.
    pub fn call(&self, request: &[u8]) -> Result<Vec<u8>, CallError> {
        self.begin(request, self.0.settings.timeout)?.wait()
    }

    /// As [`Client::call`], for at most `timeout`. The server does not begin a call whose time is over.
    pub fn call_within(&self, request: &[u8], timeout: Duration) -> Result<Vec<u8>, CallError> {
        self.begin(request, Some(timeout))?.wait()
    }

    /// Begins a call and does not wait for its response: several may be under way from one thread. Waits while as many
    /// calls as the window allows are under way.
    pub fn begin(&self, request: &[u8], timeout: Option<Duration>) -> Result<Call, CallError> {
        let time = core::Time::new(timeout);
        let ticket = self.0.enter(Arc::new(request.to_vec()), time)?;
        self.0.transmit(ticket.sequence, false);
        Ok(Call::new(&self.0, ticket))
    }

    /// Calls from a task of any runtime. Dropping the future gives the call up. A thread of the client's own sends
    /// requests and takes responses from the first such call on.
    pub fn call_async(&self, request: impl Into<Vec<u8>>, timeout: Option<Duration>) -> CallFuture {
        CallFuture::new(&self.0, request.into(), timeout)
    }

    /// Its name, as the service sees it.
    pub fn id(&self) -> ClientId {
        self.0.settings.id
    }

    /// How its requests travel now.
    pub fn transport(&self) -> Transport {
        self.choice().transport
    }

    /// How its requests travel now, and why.
    pub fn choice(&self) -> Choice {
        self.0.choice()
    }

    /// What it did.
    pub fn counters(&self) -> ClientCounters {
        self.0.counters()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id()).field("transport", &self.transport()).finish_non_exhaustive()
    }
}

/// Tower's interface: ready when a call would have room. With several clones another one may take it first; then the
/// future waits for room itself.
impl tower_service::Service<Vec<u8>> for Client {
    type Response = Vec<u8>;
    type Error = CallError;
    type Future = CallFuture;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        if let Err(error) = driver::ensure(&self.0) {
            return Poll::Ready(Err(error));
        }
        let time = core::Time { deadline: None::<Instant>, after: Duration::ZERO };
        if self.0.has_room_or_wakes(context.waker(), time) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn call(&mut self, request: Vec<u8>) -> CallFuture {
        self.call_async(request, self.0.settings.timeout)
    }
}
