//! The names by which the engine's parts know each other's entries.
//!
//! Types without behaviour, below every table that they name. It must never use a module that has state.

use crate::immediate::ROUTE_BITS;
use crate::table::{INDEX_BITS, KEY_BITS, Key, REUSE_DELAY};

macro_rules! key {
    ($(#[$doc:meta])* $vis:vis struct $name:ident, $bits:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        $vis struct $name(u32);

        impl Key for $name {
            const INDEX_BITS: u32 = INDEX_BITS;
            const KEY_BITS: u32 = $bits;
            const REUSE_DELAY: usize = REUSE_DELAY;

            fn from_bits(bits: u32) -> Self {
                Self(bits)
            }
            fn bits(self) -> u32 {
                self.0
            }
        }
    };
}

key!(
    /// A peer host's lane.
    pub(crate) struct LaneId, KEY_BITS
);
key!(
    /// Names a virtual QP in this engine; peers know it by its route id.
    pub(crate) struct RouteId, ROUTE_BITS
);
key!(
    /// A connect without an answer.
    pub(crate) struct ConnectId, KEY_BITS
);
key!(
    /// A peer's open without an answer.
    pub struct OpenId, KEY_BITS
);
key!(
    /// A datagram socket.
    pub(crate) struct SocketId, KEY_BITS
);
key!(
    /// A bind of a datagram socket that waits for rings.
    pub(crate) struct BindId, KEY_BITS
);

key!(
    /// An operation queue.
    pub(crate) struct QueueId, KEY_BITS
);
key!(
    /// An opening of an operation queue that waits for rings.
    pub(crate) struct QueueBindId, KEY_BITS
);
key!(
    /// An operation in flight; the peer returns it with its answer.
    pub(crate) struct OperationId, KEY_BITS
);
key!(
    /// An application's right to a region of another host.
    pub(crate) struct HandleId, KEY_BITS
);

/// What has turns on a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Connection(RouteId),
    Operations(QueueId),
}

/// An attached application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AppId(pub u32);

impl Key for AppId {
    const INDEX_BITS: u32 = INDEX_BITS;
    const KEY_BITS: u32 = KEY_BITS;
    const REUSE_DELAY: usize = REUSE_DELAY;

    fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
    fn bits(self) -> u32 {
        self.0
    }
}

/// A slot of an application's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotAt {
    pub(crate) app: AppId,
    pub(crate) slot: u32,
}
