//! Requests of a session that change nothing but what is asked. Each is to be sent by the caller.

use std::net::{IpAddr, SocketAddr};

use control::{Kind, MeetStep, Request, TcpEnd};

use crate::answer::Asked;
use crate::{RequestId, Session};

impl Session {
    /// Asks for a connection. As TCP does, the unspecified address of `to` means this host: `addresses` name it.
    pub fn connect(&mut self, to: SocketAddr, ring_bytes: u32, kind: Kind) -> (RequestId, Request) {
        let id = self.requests.begin(Asked::Connect);
        (id, Request::Connect { request: id.number(), to, ring_bytes, kind })
    }

    /// Asks for a datagram socket at a port, 0 for any free one.
    pub fn bind_datagram(&mut self, port: u16, ring_bytes: u32) -> (RequestId, Request) {
        let id = self.requests.begin(Asked::BindDatagram);
        (id, Request::BindDatagram { request: id.number(), port, ring_bytes })
    }

    /// Asks how long a datagram to a host may be.
    pub fn datagram_path(&mut self, to: IpAddr) -> (RequestId, Request) {
        let id = self.requests.begin(Asked::DatagramPath);
        (id, Request::DatagramPath { request: id.number(), to })
    }

    /// Looks for the other end of a kernel TCP connection, whose socket goes with the message.
    pub fn meet(&mut self, end: TcpEnd) -> (RequestId, Request) {
        let id = self.requests.begin(Asked::Meet);
        (id, Request::Meet { request: id.number(), end })
    }

    /// What the daemon wants next of a meeting; it is taken.
    pub fn next_meet_step(&mut self, request: RequestId) -> Option<MeetStep> {
        self.requests.next_step(request.number())
    }
}
