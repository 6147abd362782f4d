//! What client and server say before the first call, on the connection that then tells each of the other's end.
//!
//! Owns the two messages and their limits. It must never grant what the server does not have.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Version of the exchange; another one is refused.
pub(crate) const HELLO_VERSION: u16 = 2;
/// A message of the exchange has at most this many bytes.
pub(crate) const HELLO_BYTES_MAX: usize = 512;

/// A client's name: 128 random bits, so nobody else can call in its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClientId(pub(crate) [u8; 16]);

impl ClientId {
    /// One that no other client has.
    pub(crate) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Debug for ClientId {
    /// Half of it, because who knows all of it can call in the client's place.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "ClientId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

/// How requests and responses travel (docs/use/rpc.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Transport {
    /// Both as messages of one connection. The server sleeps while nobody calls.
    Messages,
    /// The request by WRITE into the client's slots in the server's memory, the response fetched from there by READ;
    /// with slow calls the server sends it instead (RFP, EuroSys 2017).
    Rfp,
    /// The request by WRITE as with [`Transport::Rfp`], the response by a datagram (HERD, SIGCOMM 2014).
    Herd,
    /// For many clients: they take turns in a small number of seats in the server's memory, to which they WRITE as with
    /// [`Transport::Herd`]. Between turns a client lays its requests down in its own memory, and the server fetches them
    /// by READ when the next turn comes (ScaleRPC, EuroSys 2019).
    Scale,
    /// One of the others, chosen by the client from what it sees of its calls and its server, and changed when that
    /// changes ([`Client::choice`](crate::Client::choice) says which, and why).
    Auto,
}

impl Transport {
    /// Whether requests lie in slots of the server's memory.
    pub(crate) fn has_slots(self) -> bool {
        matches!(self, Self::Rfp | Self::Herd | Self::Scale)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Messages => "messages",
            Self::Rfp => "rfp",
            Self::Herd => "herd",
            Self::Scale => "scale",
            Self::Auto => "auto",
        })
    }
}

/// What a client says first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) client: ClientId,
    pub(crate) transport: Transport,
    /// Calls that it has under way at most.
    pub(crate) window: u16,
    /// Where it receives datagrams.
    pub(crate) datagrams: Option<SocketAddr>,
}

/// What a client with turns says second: its region for requests that the server fetches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingName {
    pub(crate) region: String,
    pub(crate) key: [u8; 16],
}

/// Where a client with turns says what it laid down, and where it writes in its turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seating {
    /// Its word.
    pub(crate) word: u64,
    /// Where the seats begin.
    pub(crate) seats: u64,
    /// How many there are.
    pub(crate) count: u32,
}

/// The client's slots in the server's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    /// The region.
    pub(crate) region: String,
    pub(crate) key: [u8; 16],
    /// Where the client's slots begin.
    pub(crate) offset: u64,
    /// Slots of each direction; a call's slot is its number modulo this.
    pub(crate) slots: u16,
    /// Number of the slab, as notifications name it.
    pub(crate) slab: u32,
    /// The lease; requests without it are not taken.
    pub(crate) token: u64,
    /// Where the server's datagrams come from.
    pub(crate) datagrams: SocketAddr,
    /// How long the server looks at its slots after a request before it sleeps.
    pub(crate) awake_us: u32,
    /// Of a client with turns.
    pub(crate) seating: Option<Seating>,
}

/// What the server answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// It remembers the calls of this client; otherwise those that were sent may have been executed or not.
    pub(crate) is_known: bool,
    pub(crate) request_bytes_max: u32,
    pub(crate) response_bytes_max: u32,
    pub(crate) grant: Option<Grant>,
}

/// Why a server takes no client.
#[derive(Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// The server speaks another version.
    #[error("the server speaks version {server} of the exchange, this client {client}: update the older one")]
    Version {
        /// The server's.
        server: u16,
        /// The client's.
        client: u16,
    },
    /// More calls under way than the server allows for one client, or none.
    #[error("a window of {asked} calls was asked for, the server allows 1 to {max}: set a smaller one")]
    Window {
        /// What was asked for.
        asked: u16,
        /// What is allowed.
        max: u16,
    },
    /// As many clients as the server takes.
    #[error("the server has {max} clients, as many as it takes: try later, or raise its `clients_max`")]
    TooManyClients {
        /// How many it takes.
        max: u32,
    },
    /// The server does not offer this transport.
    #[error("the server does not offer transport {0}: ask for another one")]
    NotOffered(Transport),
    /// The client's datagram socket is not on the host that the client calls from, or cannot be reached.
    #[error("the server cannot send datagrams to {0}: the socket must be on the client's host and reachable")]
    Datagrams(SocketAddr),
    /// The server could not open the region in which the client lays requests down.
    #[error("the server cannot open the client's memory for requests: {0}; clients of other users can use `messages`")]
    Ring(String),
    /// What the client said is not of this protocol.
    #[error("what the client said first is not of this protocol")]
    NotHello,
}

raas::debug_says_the_words!(Refusal);

/// The server's first message.
pub(crate) type HelloAnswer = Result<Welcome, Refusal>;

/// Its answer to a [`RingName`].
pub(crate) type RingAnswer = Result<(), Refusal>;

/// As bytes.
pub(crate) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a type that cannot be written fails, and these can.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// From bytes.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}
