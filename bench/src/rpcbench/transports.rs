//! The transports of `raas-rpc` between two daemons.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::load::{Load, median_us};
use anyhow::{Context, Result, ensure};
use raas::Session;
use raas_embedded::Embedded;
use raas_rpc::{CallInfo, Client, ClientBuilder, Server, Transport};

use super::WORDS;

/// Server and clients.
const ADDRESSES: [&str; 2] = ["127.88.6.1", "127.88.6.2"];
/// Sessions among which clients are shared out, as among so many programs.
const SESSIONS: usize = 8;
/// Threads among which clients are shared out, as gRPC's are: what many threads cost is no transport's.
const THREADS: usize = 2;
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Longer than anything takes; only a fault reaches it.
const PATIENCE: Duration = Duration::from_secs(60);

/// See the head of this file.
pub(crate) struct Hosts {
    server: Embedded,
    client: Embedded,
}

fn echo(_: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
    Ok(request.to_vec())
}

fn call(client: &Client) -> Result<()> {
    ensure!(client.call(&WORDS)? == WORDS, "another response than the request");
    Ok(())
}

/// Connects. Hundreds of threads that look for responses may have kept the daemons from each other: then their link is
/// made anew, and the next attempt has it.
fn connect(settings: &ClientBuilder, server: &Server) -> Result<Client> {
    let end = Instant::now() + PATIENCE;
    loop {
        match settings.clone().connect(server.local_addr()) {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() > end => return Err(error.into()),
            Err(error) => eprintln!("connecting again: {error}"),
        }
        std::thread::sleep(CONNECT_PAUSE);
    }
}

/// Has one call of each client under way, until the load is over.
fn drive(clients: &[Client], load: &Load) -> Result<()> {
    let begin = |client: &Client| client.begin(&WORDS, Some(PATIENCE));
    let mut calls = clients.iter().map(begin).collect::<Result<Vec<_>, _>>()?;
    while !load.is_over() {
        let mut is_idle = true;
        for (client, call) in clients.iter().zip(&mut calls) {
            if !call.is_ended() {
                continue;
            }
            let ended = std::mem::replace(call, begin(client)?);
            ensure!(ended.wait()? == WORDS, "another response than the request");
            load.on_call();
            is_idle = false;
        }
        if is_idle {
            std::thread::yield_now();
        }
    }
    calls.into_iter().try_for_each(|call| call.wait().map(drop))?;
    Ok(())
}

impl Hosts {
    pub(crate) fn start() -> Result<Self> {
        let start = |address: &str| -> Result<Embedded> {
            Ok(raas_embedded::builder(address.parse::<IpAddr>()?).key(&[7; 32]).start()?)
        };
        let [server, client] = ADDRESSES.map(start);
        Ok(Self { server: server?, client: client? })
    }

    /// A server, and clients of one transport.
    fn connect(&self, transport: Transport, count: usize, host: &Embedded) -> Result<(Server, Vec<Client>)> {
        let session = self.server.session();
        let server = Server::builder().session(session).serve((session.addresses()[0], 0), echo)?;
        let attach = |_| Session::connect(host.socket());
        let sessions = (0..SESSIONS.min(count)).map(attach).collect::<Result<Vec<_>, _>>()?;
        let mut clients = Vec::with_capacity(count);
        for session in sessions.iter().cycle().take(count) {
            let settings = Client::builder().session(session).transport(transport).timeout(Some(PATIENCE));
            clients.push(connect(&settings, &server)?);
        }
        Ok((server, clients))
    }

    pub(crate) fn latency_us(&self, transport: Transport, is_one_host: bool, time: Duration) -> Result<f64> {
        let host = if is_one_host { &self.server } else { &self.client };
        let (_server, clients) = self.connect(transport, 1, host)?;
        let end = Instant::now() + time;
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            call(&clients[0])?;
            times.push(began.elapsed());
        }
        Ok(median_us(times))
    }

    pub(crate) fn rate(&self, transport: Transport, count: usize, time: Duration) -> Result<f64> {
        let (_server, clients) = self.connect(transport, count, &self.client)?;
        let load = Load::new();
        let start = |clients: &[Client]| {
            let (load, clients) = (Arc::clone(&load), clients.to_vec());
            std::thread::spawn(move || drive(&clients, &load))
        };
        let threads: Vec<_> = clients.chunks(count.div_ceil(THREADS)).map(start).collect();
        let rate = load.rate(time);
        for thread in threads {
            thread.join().ok().context("a client's thread panicked")??;
        }
        let counts = clients.iter().map(Client::counters);
        let (calls, repeats) = counts.fold((0, 0), |sum, c| (sum.0 + c.calls, sum.1 + c.repeats));
        eprintln!("{transport}: {calls} calls, {repeats} requests were sent again");
        Ok(rate)
    }
}
