//! The list of mechanisms. Each is a line here.

use super::mechanism::{Both, Mechanism};
use crate::datagram::Datagrams;
use crate::frame::check_frame_of;
use crate::lanes::Lanes;
use crate::operations::Operations;
use crate::unreliable::Unreliable;
use crate::vqp::table::Connections;

/// The first of a list, and the others.
macro_rules! list {
    ($last:ty $(,)?) => { $last };
    ($first:ty, $($others:ty),+ $(,)?) => { Both<$first, list![$($others),+]> };
}

/// All, in the order in which they are asked.
type All = list![
    Datagrams,
    // Streams.
    Connections,
    // Messages on UC.
    Unreliable,
    Operations,
    // What is about a lane itself.
    Lanes,
];

#[cfg(not(test))]
pub(super) type Mechanisms = All;
#[cfg(test)]
pub(super) type Mechanisms = list![tests::Toy, All];

/// One thing that a frame says, by the mechanism that it is for.
pub(super) type Record = <Mechanisms as Mechanism>::Record;

/// Takes a control frame apart as the engine does; how many records it has, or a text that says what is wrong. This is
/// for tools and fuzzers: the engine itself checks each record where it uses it.
pub fn check_frame(frame: &[u8]) -> Result<usize, String> {
    check_frame_of::<Record>(frame)
}

#[cfg(test)]
mod tests;
