//! Someone between two daemons, who passes the control link's frames on, or does not.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use control::{PeerMessage, decode, encode, frame_length, with_length};

use crate::hosts::Host;

/// One message from a connection; none at its end.
pub(crate) fn read_message(stream: &mut TcpStream) -> Option<PeerMessage> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix).ok()?;
    let mut frame = vec![0; frame_length(prefix).ok()?];
    stream.read_exact(&mut frame).ok()?;
    Some(decode(&frame).unwrap())
}

pub(crate) fn write_message(stream: &mut TcpStream, message: &PeerMessage) {
    // The side that closed does not want it any more.
    let _ = stream.write_all(&with_length(&encode(message).unwrap()));
}

/// A connection from an address of our choice.
pub(crate) fn connect_from(source: IpAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

#[derive(Debug, Default)]
struct Shared {
    frozen: AtomicBool,
    swallow_resets: AtomicBool,
    links: AtomicUsize,
    /// The last link's two ends: the dialer's, the acceptor's.
    ends: Mutex<Option<[TcpStream; 2]>>,
}

/// The middle.
#[derive(Debug)]
pub(crate) struct Middle {
    shared: Arc<Shared>,
}

impl Middle {
    /// Makes `dialer` reach `acceptor` through the middle. The acceptor runs already, the dialer does not.
    pub(crate) fn between(dialer: &mut Host, acceptor: &Host) -> Self {
        let listener = TcpListener::bind((acceptor.address(), 0)).unwrap();
        let port = Some(listener.local_addr().unwrap().port());
        dialer.config.peers.push(raasd::PeerConfig {
            address: acceptor.address(),
            port,
            sources: Vec::new(),
            wire: None,
        });
        let (source, to) = (dialer.address(), acceptor.daemon.as_ref().unwrap().peer_address());
        let shared = Arc::new(Shared::default());
        let middle = Self { shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                let far = connect_from(source, to);
                let clone = |s: &TcpStream| s.try_clone().unwrap();
                *shared.ends.lock().unwrap() = Some([clone(&near), clone(&far)]);
                shared.links.fetch_add(1, Ordering::SeqCst);
                for (from, into) in [(clone(&near), clone(&far)), (far, near)] {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || pass(from, into, &shared));
                }
            }
        });
        middle
    }

    /// Links that were made.
    pub(crate) fn links(&self) -> usize {
        self.shared.links.load(Ordering::SeqCst)
    }

    /// From now on nothing is passed on, and nothing is closed.
    pub(crate) fn freeze(&self) {
        self.shared.frozen.store(true, Ordering::SeqCst);
    }

    /// Both sides get this as if from each other, and their answers to a reset are not passed on.
    pub(crate) fn say_to_both(&self, message: &PeerMessage) {
        self.shared.swallow_resets.store(true, Ordering::SeqCst);
        for end in self.shared.ends.lock().unwrap().as_mut().unwrap() {
            write_message(end, message);
        }
    }

    pub(crate) fn cut(&self) {
        for end in self.shared.ends.lock().unwrap().as_mut().unwrap() {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut into: TcpStream, shared: &Shared) {
    while let Some(message) = read_message(&mut from) {
        let swallowed =
            matches!(message, PeerMessage::LaneReset { .. }) && shared.swallow_resets.load(Ordering::SeqCst);
        if !swallowed && !shared.frozen.load(Ordering::SeqCst) {
            write_message(&mut into, &message);
        }
    }
    if !shared.frozen.load(Ordering::SeqCst) {
        let _ = into.shutdown(std::net::Shutdown::Both);
    }
}
