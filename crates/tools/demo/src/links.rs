//! How an application of the demo opens its connections: it connects some and accepts the others, at the same time, and
//! each begins with a number so that both ends know which one it is.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::AppLink;
use super::protocol::Seat;
use transport::{Accept, Connection, Duplex, Transport};

/// First bytes of a connection: this, then its number; the acceptor answers with the same bytes.
const MAGIC: &[u8; 4] = b"RDML";
const GREETING_BYTES: usize = 8;
/// Bound of each wait on one connection; the run as a whole has a bound of its own.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long the acceptor waits at once.
const ACCEPT_TIMEOUT: Duration = Duration::from_millis(500);

/// The open connections of an application, by number.
pub(crate) type Links<S> = BTreeMap<u32, Arc<S>>;

/// Opens those of `links` that are not open.
pub(crate) fn open<T: Transport>(
    transport: &T,
    listener: &T::Listener,
    links: &[AppLink],
    peers: &[(Seat, SocketAddr)],
    open: &mut Links<T::Stream>,
) -> Result<(), String> {
    let missing: Vec<&AppLink> = links.iter().filter(|link| !open.contains_key(&link.connection)).collect();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| accept_all(listener, &missing));
        let connected = connect_all(transport, &missing, peers);
        let accepted = accepting.join().map_err(|_| "the accepting thread panicked".to_owned())?;
        open.extend(connected?);
        open.extend(accepted?);
        Ok(())
    })
}

fn connect_all<T: Transport>(
    transport: &T,
    links: &[&AppLink],
    peers: &[(Seat, SocketAddr)],
) -> Result<Links<T::Stream>, String> {
    let mut open = Links::new();
    for link in links.iter().filter(|l| l.connects) {
        let (_, to) = peers.iter().find(|(seat, _)| *seat == link.peer).ok_or("no address for a peer")?;
        let stream = transport.connect(*to, TIMEOUT).map_err(|e| format!("connection {}: {e}", link.connection))?;
        let exchange = || -> io::Result<()> {
            stream.set_timeout(Some(TIMEOUT))?;
            let mut greeting = [0; GREETING_BYTES];
            greeting[..4].copy_from_slice(MAGIC);
            greeting[4..].copy_from_slice(&link.connection.to_le_bytes());
            stream.send_all(&greeting)?;
            let mut answer = [0; GREETING_BYTES];
            stream.recv_exact(&mut answer)?;
            if answer == greeting { Ok(()) } else { Err(io::Error::other("wrong greeting")) }
        };
        exchange().map_err(|e| format!("connection {} to {to}: greeting: {e}", link.connection))?;
        open.insert(link.connection, Arc::new(stream));
    }
    Ok(open)
}

fn accept_all<L: Accept>(listener: &L, links: &[&AppLink]) -> Result<Links<L::Stream>, String> {
    let expected: BTreeSet<u32> = links.iter().filter(|l| !l.connects).map(|l| l.connection).collect();
    let give_up = Instant::now() + TIMEOUT;
    let mut open = Links::new();
    while open.len() < expected.len() {
        let stream = match listener.accept_timeout(ACCEPT_TIMEOUT) {
            Ok(Some(stream)) => stream,
            Ok(None) if Instant::now() < give_up => continue,
            Ok(None) => return Err(format!("only {} of {} connections came", open.len(), expected.len())),
            Err(e) => return Err(format!("accept: {e}")),
        };
        let connection = greet(&stream).map_err(|e| format!("accepted connection: greeting: {e}"))?;
        if !expected.contains(&connection) || open.insert(connection, Arc::new(stream)).is_some() {
            return Err(format!("connection {connection} came, which nobody expects"));
        }
    }
    Ok(open)
}

fn greet(stream: &impl Connection) -> io::Result<u32> {
    stream.set_timeout(Some(TIMEOUT))?;
    let mut bytes = [0; GREETING_BYTES];
    stream.recv_exact(&mut bytes)?;
    let [m0, m1, m2, m3, number @ ..] = bytes;
    if [m0, m1, m2, m3] != *MAGIC {
        return Err(io::Error::other("no connection of this demo"));
    }
    stream.send_all(&bytes)?;
    Ok(u32::from_le_bytes(number))
}

/// Half-closes all of `open`, and checks that the peers do the same and send nothing more.
pub(crate) fn close<S: Connection>(open: &Links<S>) -> Result<(), String> {
    for (connection, stream) in open {
        stream.finish_sending().map_err(|e| format!("half-close of connection {connection}: {e}"))?;
    }
    for (connection, stream) in open {
        match stream.recv(&mut [0; 1]) {
            Ok(0) => {}
            Ok(_) => return Err(format!("connection {connection}: bytes after the end")),
            Err(e) => return Err(format!("end of connection {connection}: {e}")),
        }
    }
    Ok(())
}
