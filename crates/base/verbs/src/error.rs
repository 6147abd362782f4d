//! Errors of verbs calls. The status of executed work is data ([`crate::Status`]), not an error.

use crate::{QpState, QpType, Verb, Wire};

/// Why a verbs call was refused; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The identifier names no object of this provider.
    #[error("no such {0}")]
    NoSuch(&'static str),
    /// A limit of the device or of the object is reached.
    #[error("{what} is full: the limit is {limit}")]
    Full {
        /// What is full.
        what: &'static str,
        /// How many fit.
        limit: u64,
    },
    /// An argument is out of range.
    #[error("{what} is {value}, allowed are {min}..={max}")]
    OutOfRange {
        /// Which argument.
        what: &'static str,
        /// What it is.
        value: u64,
        /// Least allowed.
        min: u64,
        /// Most allowed.
        max: u64,
    },
    /// The other end's device is of another kind: the two cannot be connected.
    #[error("the endpoint is of kind {found}, this device connects to kind {expected}")]
    ForeignEndpoint {
        /// The first byte of the endpoint.
        found: u8,
        /// What it would have to be.
        expected: u8,
    },
    /// The two ends have no wire in common.
    #[error(
        "this end may use {own}, the peer's {peer}: set `wire` to the same on both hosts, or to \"auto\" on one of them"
    )]
    NoCommonWire {
        /// What this end offers.
        own: String,
        /// What the peer's end offers.
        peer: String,
    },
    /// The connection must not be in the clear, and cannot be encrypted.
    #[error("encryption is required, and {0}")]
    NotEncrypted(&'static str),
    /// The QP's state does not allow the call.
    #[error("QP is in state {state:?}, which does not allow {what}")]
    WrongState {
        /// The state.
        state: QpState,
        /// The call or transition.
        what: &'static str,
    },
    /// The QP's transport service does not have the operation.
    #[error("{verb} does not exist on {qp_type} queue pairs: use {} queue pair", with_verb(.verb))]
    NotOnTransport {
        /// The QP's transport service.
        qp_type: QpType,
        /// What was asked for.
        verb: Verb,
    },
    /// The wire does not carry the QP's transport service.
    #[error(
        "the wire {wire} does not carry {qp_type} queue pairs: set `wire` to \"roce\" or \"auto\", or use an RC queue pair"
    )]
    NotOnWire {
        /// The wire that was asked for.
        wire: Wire,
        /// The QP's transport service.
        qp_type: QpType,
    },
    /// The object is still used by others.
    #[error("{0} is still in use")]
    Busy(&'static str),
    /// The provider does not have this.
    #[error("{device} does not support {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What was asked for.
        what: &'static str,
    },
    /// The operating system or the driver refused.
    #[error("{call} failed with errno {errno}")]
    Os {
        /// Which call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

/// The transport services that have a verb, for a message: `an RC or UC`.
fn with_verb(verb: &Verb) -> String {
    let having: Vec<_> = QpType::ALL.into_iter().filter(|t| t.has(*verb)).map(QpType::name).collect();
    format!("an {}", having.join(" or "))
}

/// A post stopped at a work request; those before it were accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("work request {index} was refused: {cause}")]
pub struct PostError {
    /// Index of the first refused work request.
    pub index: usize,
    /// Why.
    pub cause: VerbsError,
}
