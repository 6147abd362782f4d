//! Programs under `raas run` that have the two ends of one kernel TCP connection.

use verbs::Time;

/// One connection. The first of each pair is the end that connected, the second the one that accepted.
#[derive(Debug, Clone)]
pub struct MeetingPlan {
    /// The hosts of the two ends.
    pub hosts: [usize; 2],
    /// The ports of the two ends. In other network namespaces another connection may have the same ones.
    pub ports: [u16; 2],
    /// When the ends ask their daemons; none: the program is none under `raas run`.
    pub asks: [Option<Time>; 2],
    /// When an end that has no answer gives up, and whether its program dies then.
    pub gives_up: [Option<(Time, bool)>; 2],
    /// The network namespaces of the ends; none is the daemon's own.
    pub namespaces: [Option<u64>; 2],
}
