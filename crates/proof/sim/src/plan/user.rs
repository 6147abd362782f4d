//! What a program does that uses regions of other hosts.

use std::time::Duration;

use verbs::Time;

/// Such a program: it reads, writes and changes words of a region of another host, drawn for each time that it opens one.
#[derive(Debug, Clone)]
pub struct UserPlan {
    /// Its host.
    pub host: usize,
    /// When it starts.
    pub start: Time,
    /// Operations at a time.
    pub depth: u32,
    /// Operations altogether.
    pub count: u32,
    /// Longest pause between two looks at its rings.
    pub gap_max: Duration,
    /// Operations after which it dies, and another one takes its place.
    pub dies_after: Option<u32>,
    /// Its handles have lanes of their own.
    pub is_leased: bool,
    /// What its operations read into and write from beside its rings.
    pub local: Option<LocalPlan>,
    /// It opens regions by leases too, where their owners lend them to its host.
    pub borrows: bool,
}

/// A region of a program's host as local memory of its operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalPlan {
    /// One that the program makes, revokes and gives up.
    Own,
    /// The host's, which another program makes, revokes and gives up.
    Hosts,
}
