//! Someone between two daemons: one who has their key, and passes messages on or does not; and one who has not, and
//! changes bytes.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use control::PeerMessage;

use crate::frames::{read_frame, read_message, write_frame};
use crate::hosts::{Host, engines};
use crate::link_end::LinkEnd;

/// A connection from an address of our choice.
pub(crate) fn connect_from(source: IpAddr, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(source, 0)).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    TcpStream::from(socket)
}

/// Makes `dialer` reach `acceptor`, which runs already, at a listener.
pub(crate) fn listen_between(dialer: &mut Host, acceptor: &Host) -> TcpListener {
    let listener = TcpListener::bind((acceptor.address(), 0)).unwrap();
    let port = Some(listener.local_addr().unwrap().port());
    let address = acceptor.address();
    dialer.config.peers.push(raasd::PeerConfig { port, ..raasd::PeerConfig::new(address) });
    listener
}

/// What one who has the key makes of a message that passes; true: it is the acceptor's.
pub(crate) type Change = Box<dyn Fn(bool, PeerMessage) -> PeerMessage + Send + Sync>;

#[derive(Default)]
struct Shared {
    change: Option<Change>,
    frozen: AtomicBool,
    swallow_resets: AtomicBool,
    links: AtomicUsize,
    /// Of both daemons.
    heartbeats: AtomicUsize,
    /// The last link's two ends: the dialer's, the acceptor's.
    ends: Mutex<Option<[LinkEnd; 2]>>,
}

/// The one who has the key.
pub(crate) struct Middle {
    shared: Arc<Shared>,
}

impl Middle {
    /// Makes `dialer` reach `acceptor` through the middle. The acceptor runs already, the dialer does not.
    pub(crate) fn between(dialer: &mut Host, acceptor: &Host) -> Self {
        Self::that_changes(dialer, acceptor, None)
    }

    /// The same, with what it does to each message.
    pub(crate) fn that_changes(dialer: &mut Host, acceptor: &Host, change: Option<Change>) -> Self {
        let listener = listen_between(dialer, acceptor);
        let (source, to) = (dialer.address(), acceptor.daemon.as_ref().unwrap().peer_address());
        let shared = Arc::new(Shared { change, ..Shared::default() });
        let middle = Self { shared: Arc::clone(&shared) };
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Some([near, far]) = open_both(near.unwrap(), connect_from(source, to)) else { continue };
                *shared.ends.lock().unwrap() = Some([near.again(), far.again()]);
                shared.links.fetch_add(1, Ordering::SeqCst);
                for (from, into, is_acceptors) in [(near.again(), far.again(), false), (far, near, true)] {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || pass(from, into, is_acceptors, &shared));
                }
            }
        });
        middle
    }

    /// Links that were made.
    pub(crate) fn links(&self) -> usize {
        self.shared.links.load(Ordering::SeqCst)
    }

    /// Heartbeats that passed, in both directions.
    pub(crate) fn heartbeats(&self) -> usize {
        self.shared.heartbeats.load(Ordering::SeqCst)
    }

    /// From now on nothing is passed on, and nothing is closed.
    pub(crate) fn freeze(&self) {
        self.shared.frozen.store(true, Ordering::SeqCst);
    }

    /// Both sides get this as if from each other, and their answers to a reset are not passed on.
    pub(crate) fn say_to_both(&self, message: &PeerMessage) {
        self.shared.swallow_resets.store(true, Ordering::SeqCst);
        for end in self.shared.ends.lock().unwrap().as_mut().unwrap() {
            end.say(message);
        }
    }

    pub(crate) fn cut(&self) {
        for end in self.shared.ends.lock().unwrap().as_mut().unwrap() {
            let _ = end.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// A link with each side, in the name of the other.
fn open_both(mut near: TcpStream, far: TcpStream) -> Option<[LinkEnd; 2]> {
    let hello = read_message(&mut near)?;
    let PeerMessage::Hello { instance, address, .. } = hello else { return None };
    let (far, acceptor) = LinkEnd::dial(far, instance, address, engines())?;
    let (near, _) = LinkEnd::accept(near, hello, acceptor)?;
    Some([near, far])
}

fn pass(mut from: LinkEnd, mut into: LinkEnd, is_acceptors: bool, shared: &Shared) {
    while let Some(message) = from.hear() {
        if matches!(message, PeerMessage::Heartbeat) {
            shared.heartbeats.fetch_add(1, Ordering::SeqCst);
        }
        let message = match &shared.change {
            Some(change) => change(is_acceptors, message),
            None => message,
        };
        let swallowed =
            matches!(message, PeerMessage::LaneReset { .. }) && shared.swallow_resets.load(Ordering::SeqCst);
        if !swallowed && !shared.frozen.load(Ordering::SeqCst) {
            into.say(&message);
        }
    }
    if !shared.frozen.load(Ordering::SeqCst) {
        let _ = into.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// What one without the key does to a frame on its way; what it makes of it, and whether the connection ends then.
pub(crate) type Tamper = fn(frame: Vec<u8>) -> (Vec<Vec<u8>>, bool);

/// The one who has not the key. It passes frames on, keeps a copy of all bytes, and does something once when told.
#[derive(Debug)]
pub(crate) struct Tamperer {
    next: Arc<Mutex<Option<Tamper>>>,
    heard: Arc<Mutex<Vec<u8>>>,
    links: Arc<AtomicUsize>,
}

impl Tamperer {
    pub(crate) fn between(dialer: &mut Host, acceptor: &Host) -> Self {
        let listener = listen_between(dialer, acceptor);
        let (source, to) = (dialer.address(), acceptor.daemon.as_ref().unwrap().peer_address());
        let tamperer = Self { next: Arc::default(), heard: Arc::default(), links: Arc::default() };
        let (next, heard, links) =
            (Arc::clone(&tamperer.next), Arc::clone(&tamperer.heard), Arc::clone(&tamperer.links));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), connect_from(source, to));
                links.fetch_add(1, Ordering::SeqCst);
                let clone = |s: &TcpStream| s.try_clone().unwrap();
                for (from, into) in [(clone(&near), clone(&far)), (far, near)] {
                    let (next, heard) = (Arc::clone(&next), Arc::clone(&heard));
                    std::thread::spawn(move || tamper(from, into, &next, &heard));
                }
            }
        });
        tamperer
    }

    /// Does this to the next frame, whichever side sends it.
    pub(crate) fn strike(&self, tamper: Tamper) {
        *self.next.lock().unwrap() = Some(tamper);
    }

    /// All bytes that passed.
    pub(crate) fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }

    /// Connections that were made.
    pub(crate) fn links(&self) -> usize {
        self.links.load(Ordering::SeqCst)
    }
}

fn tamper(mut from: TcpStream, mut into: TcpStream, next: &Mutex<Option<Tamper>>, heard: &Mutex<Vec<u8>>) {
    while let Some(frame) = read_frame(&mut from) {
        heard.lock().unwrap().extend(&frame);
        let struck = next.lock().unwrap().take();
        let (frames, ends) = struck.map_or_else(|| (vec![frame.clone()], false), |tamper| tamper(frame.clone()));
        if !frames.iter().all(|frame| write_frame(&mut into, frame)) || ends {
            break;
        }
    }
    for end in [from, into] {
        let _ = end.shutdown(std::net::Shutdown::Both);
    }
}
