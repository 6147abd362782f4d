//! One client's connection: the first exchange, requests as messages, and the client's end.
//!
//! Owns the client's presence and its slab. Whatever happens, both end with the connection.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raas::{MessageStream, Readiness};

use super::clients::{KnownClient, Presence};
use super::execute::{Answer, execute, wait_for_end};
use super::slabs::SlabLease;
use super::{Counters, Shared, lock};
use crate::frame::{REQUEST_HEADER_BYTES, RequestHeader, ResponseHeader, clients_word, request_flag};
use crate::hello::{
    HELLO_BYTES_MAX, HELLO_VERSION, Hello, HelloAnswer, Refusal, RingAnswer, Transport, Welcome, decode, encode,
};
use crate::once::Outcome;

/// How long a client may take to say its first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves a connection until it ends.
pub(crate) fn serve(shared: &Shared, stream: &MessageStream) {
    if let Err(error) = serve_client(shared, stream) {
        tracing::debug!(%error, "a client's connection ended");
    }
}

fn serve_client(shared: &Shared, stream: &MessageStream) -> io::Result<()> {
    stream.set_read_timeout(Some(HELLO_TIMEOUT))?;
    let mut buffer = vec![0; HELLO_BYTES_MAX];
    let Some(len) = stream.receive(&mut buffer)? else { return Ok(()) };
    let (transport, presence, lease) = match welcome(shared, stream, &buffer[..len]) {
        Ok((welcome, hello, presence, lease)) => {
            stream.send(&encode::<HelloAnswer>(&Ok(welcome)))?;
            (hello.transport, presence, lease)
        }
        Err(refusal) => return refuse(stream, refusal, &mut buffer),
    };
    if let (Transport::Scale, Some(lease)) = (transport, &lease) {
        let Some(len) = stream.receive(&mut buffer)? else { return Ok(()) };
        let name = decode(&buffer[..len]).ok_or(Refusal::NotHello);
        let host = stream.peer_addr()?.ip();
        match name.and_then(|name| lease.open_ring(host, &name, stream)) {
            Ok(()) => stream.send(&encode::<RingAnswer>(&Ok(())))?,
            Err(refusal) => return refuse(stream, refusal, &mut buffer),
        }
    }
    stream.set_read_timeout(None)?;
    buffer.resize(REQUEST_HEADER_BYTES + shared.settings.request_bytes_max as usize, 0);
    serve_messages(shared, stream, transport, &presence, &mut buffer)
}

/// Says why not. The answers of both exchanges say a refusal with the same bytes.
fn refuse(stream: &MessageStream, refusal: Refusal, buffer: &mut [u8]) -> io::Result<()> {
    stream.send(&encode::<HelloAnswer>(&Err(refusal)))?;
    // The client closes, when it has read that.
    let _ = stream.receive(buffer);
    Ok(())
}

type Welcomed = (Welcome, Hello, Presence, Option<SlabLease>);

/// Checks what a client said first, and gives it what it needs.
fn welcome(shared: &Shared, stream: &MessageStream, first: &[u8]) -> Result<Welcomed, Refusal> {
    let hello: Hello = decode(first).ok_or(Refusal::NotHello)?;
    let (version, window, max) = (hello.version, hello.window, shared.settings.window);
    if version != HELLO_VERSION {
        return Err(Refusal::Version { server: HELLO_VERSION, client: version });
    }
    if window == 0 || window > max {
        return Err(Refusal::Window { asked: window, max });
    }
    if hello.transport == Transport::Auto {
        // The choice is the client's.
        return Err(Refusal::NotOffered(hello.transport));
    }
    let (presence, is_known) = shared.clients.enter(hello.client, window)?;
    let mut lease = None;
    if hello.transport.has_slots() {
        let to = datagrams_of(stream, &hello)?;
        // The worker with the fewest clients.
        let slabs = shared.slabs.iter().min_by_key(|slabs| slabs.granted());
        let slabs = slabs.ok_or(Refusal::NotOffered(hello.transport))?;
        lease = Some(SlabLease::grant(slabs, &presence.0, hello.transport, to)?);
    }
    let grant = lease.as_ref().map(SlabLease::words);
    let (request_bytes_max, response_bytes_max) =
        (shared.settings.request_bytes_max, shared.settings.response_bytes_max);
    Ok((Welcome { is_known, request_bytes_max, response_bytes_max, grant }, hello, presence, lease))
}

/// Where the client wants its datagrams. Only its own host may be named: nobody is to be sent what he did not ask for.
fn datagrams_of(stream: &MessageStream, hello: &Hello) -> Result<SocketAddr, Refusal> {
    let to = hello.datagrams.ok_or(Refusal::NotHello)?;
    let peer = stream.peer_addr().map_err(|_| Refusal::Datagrams(to))?;
    if peer.ip().to_canonical() == to.ip().to_canonical() { Ok(to) } else { Err(Refusal::Datagrams(to)) }
}

/// Takes what comes: before each call all that is there, so that a call that is given up meanwhile is not begun.
fn serve_messages(
    shared: &Shared,
    stream: &MessageStream,
    transport: Transport,
    presence: &Presence,
    buffer: &mut [u8],
) -> io::Result<()> {
    let record = &presence.0;
    let mut calls: VecDeque<(RequestHeader, Vec<u8>, Instant)> = VecDeque::new();
    while !shared.is_over() {
        // A client that sends more than its window waits in the connection.
        let has_room = calls.len() < shared.settings.window.into();
        if calls.is_empty() || (has_room && stream.readiness()?.contains(Readiness::READ)) {
            match stream.receive(buffer)? {
                Some(len) => {
                    take_message(shared, record, transport, &buffer[..len], &mut calls);
                    continue;
                }
                None if calls.is_empty() => return Ok(()),
                // It says nothing more, and may still want what it asked for.
                None => {}
            }
        }
        let Some((header, payload, arrived)) = calls.pop_front() else { continue };
        let mut answer = execute(shared, record, transport, (&header, &payload), arrived);
        if matches!(answer, Answer::Running) {
            answer = wait_for_end(shared, record, &header);
        }
        if let Answer::Send(outcome) = answer {
            stream.send(&response(shared, &header, &outcome).encode(&outcome.payload))?;
        }
    }
    Ok(())
}

fn take_message(
    shared: &Shared,
    record: &KnownClient,
    transport: Transport,
    message: &[u8],
    calls: &mut VecDeque<(RequestHeader, Vec<u8>, Instant)>,
) {
    match RequestHeader::decode(message) {
        Some((header, _)) if header.flags & request_flag::CANCEL != 0 => {
            lock(&record.once).on_cancel(header.sequence);
        }
        Some((header, payload)) if !transport.has_slots() => {
            calls.push_back((header, payload.to_vec(), Instant::now()))
        }
        _ => Counters::add(&shared.counters.refused),
    }
}

/// The header of a response.
pub(crate) fn response(shared: &Shared, request: &RequestHeader, outcome: &Outcome) -> ResponseHeader {
    ResponseHeader {
        sequence: request.sequence,
        token: request.token,
        len: u32::try_from(outcome.payload.len()).unwrap_or(u32::MAX),
        run_us: outcome.run_us,
        status: outcome.status,
        flags: 0,
        clients: clients_word(shared.clients.present()),
        turn: None,
    }
}
