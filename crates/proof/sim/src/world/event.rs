//! What is going to happen in the world.

use std::net::IpAddr;

use control::CHALLENGE_BYTES;
use dispatch::Command;
use plane::{ClientId, LinkId};

use crate::address::At;
use crate::app::{Reply, Request};
use crate::check::AppUid;
use crate::direct::{self, DirectEnd};
use crate::links::Input;
use crate::regions::Shared;
use crate::streams::{Carried, EndId};
use crate::tcp::{EndOf, Segment};

/// An offer of a peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerOffer {
    pub(super) peer: IpAddr,
    pub(super) number: u64,
    pub(super) token: [u8; CHALLENGE_BYTES],
    pub(super) connection: u64,
}

/// What an owner has put off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerStep {
    /// It copies its region, which was revoked.
    Move,
    /// It copies its region to memory of the next daemon.
    Follow,
    /// It revokes its region again.
    Revoke,
    /// It finds the next daemon.
    Return,
    /// It reads and changes its memory.
    Touch,
}

/// What an end does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MeetingStep {
    Ask,
    GiveUp {
        dies: bool,
    },
    /// A word came to a port of its own.
    Word {
        port: u16,
        word: u64,
    },
}

/// Whence and whither a packet goes, and over which path.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) from: At,
    pub(super) to: At,
    pub(super) path: usize,
}

/// Something that is going to happen. `life` is that of the host it happens on.
#[derive(Debug)]
pub(super) enum Event {
    Packet {
        way: Way,
        bytes: Box<[u8]>,
        id: u16,
        /// As it was sent.
        whole: bool,
        /// A switch has marked it: its queue is long (ECN).
        marked: bool,
    },
    /// A packet arrives at the switch before the host that it goes to.
    AtSwitch {
        to: usize,
        packet: Box<Event>,
    },
    /// Something arrives at an end of a stream that carries a lane.
    Stream {
        to: EndId,
        carried: Carried,
    },
    /// An end of such a stream has heard nothing since the path was cut for the so many-th time.
    StreamSilence {
        end: EndId,
        cut: u64,
    },
    Engine {
        at: At,
        life: u32,
    },
    Timer {
        at: At,
        life: u32,
    },
    /// The second step by which connections of the host come to rest.
    Rest {
        at: At,
        life: u32,
    },
    App {
        host: usize,
        life: u32,
        app: AppUid,
    },
    ToDaemon {
        host: usize,
        life: u32,
        app: AppUid,
        request: Request,
    },
    ToApp {
        host: usize,
        life: u32,
        app: AppUid,
        reply: Box<Reply>,
    },
    /// The daemon notices that a process is gone.
    Hangup {
        host: usize,
        life: u32,
        app: AppUid,
    },
    /// A segment of TCP arrives at an end of its connection.
    Segment {
        to: EndOf,
        segment: Box<Segment>,
    },
    /// A daemon learns of a connection that its kernel accepted.
    Accept {
        host: usize,
        life: u32,
        peer: usize,
        connection: u64,
    },
    LinkTimer {
        host: usize,
        life: u32,
        link: LinkId,
    },
    /// The control plane hears something.
    Plane {
        host: usize,
        life: u32,
        input: Box<Input>,
    },
    PlaneTimer {
        host: usize,
        life: u32,
    },
    /// The engine takes a command of the control plane.
    Command {
        at: At,
        life: u32,
        command: Box<Command>,
    },
    /// A process hears its control plane.
    OfPlane {
        host: usize,
        life: u32,
        app: AppUid,
        reply: Box<control::Reply>,
    },
    /// The daemon hears of a pair.
    ToPairs {
        host: usize,
        life: u32,
        app: AppUid,
        request: Box<control::Request>,
    },
    /// A program that uses regions looks at its rings.
    User {
        host: usize,
        life: u32,
        user: usize,
    },
    /// A program asks its daemon for something about regions.
    ToRegions {
        host: usize,
        life: u32,
        client: ClientId,
        request: Box<control::Request>,
    },
    /// A program hears of regions.
    OfRegions {
        host: usize,
        client: ClientId,
        said: Box<(control::Reply, Option<Shared>)>,
    },
    /// The owner of a region does what it has put off.
    Owner {
        host: usize,
        owner: u64,
        step: OwnerStep,
    },
    /// A process comes back to a daemon that was started again.
    Return {
        host: usize,
        life: u32,
        app: AppUid,
    },
    /// Somebody comes to the port of a host for the TCP connection of a stream: from which host, and in which of its lives.
    DirectHello {
        host: usize,
        from: (usize, u32),
        offer: PeerOffer,
        nonce: [u8; CHALLENGE_BYTES],
    },
    /// Something arrives at an end of such a connection.
    Direct {
        to: DirectEnd,
        hosts: (usize, usize),
        carried: direct::Carried,
    },
    /// An end of a kernel TCP connection does something.
    Meeting {
        meeting: usize,
        side: usize,
        step: MeetingStep,
    },
    Fault(usize),
    Start {
        plan: usize,
    },
}
