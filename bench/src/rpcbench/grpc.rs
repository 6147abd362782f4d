//! gRPC, as tonic does it over kernel TCP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::grpc_echo::{Client, Echo};
use crate::load::{Load, median_us};
use anyhow::Result;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

use super::WORDS;

const ADDRESS: &str = "127.88.6.1:0";
/// Threads of the server, and of the clients.
const THREADS: usize = 2;

/// A client with a connection of its own.
async fn connect(to: SocketAddr) -> Result<Client> {
    Ok(Client::new(Endpoint::from_shared(format!("http://{to}"))?.connect().await?))
}

/// A server that runs.
pub(crate) struct Grpc {
    _server: Runtime,
    at: SocketAddr,
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(THREADS).enable_all().build()?)
}

impl Grpc {
    pub(crate) fn start() -> Result<Self> {
        let server = runtime()?;
        let listener = server.block_on(tokio::net::TcpListener::bind(ADDRESS))?;
        let at = listener.local_addr()?;
        let incoming = {
            let _context = server.enter();
            TcpIncoming::from(listener).with_nodelay(Some(true))
        };
        server.spawn(Server::builder().add_service(Echo).serve_with_incoming(incoming));
        Ok(Self { _server: server, at })
    }

    /// Of a client in one thread: what wakes least.
    pub(crate) fn latency_us(&self, time: Duration) -> Result<f64> {
        Builder::new_current_thread().enable_all().build()?.block_on(async {
            let mut client = connect(self.at).await?;
            let end = Instant::now() + time;
            let mut times = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                client.call(&WORDS).await?;
                times.push(began.elapsed());
            }
            Ok(median_us(times))
        })
    }

    pub(crate) fn rate(&self, count: usize, time: Duration) -> Result<f64> {
        let clients = runtime()?;
        let load = Load::new();
        let mut tasks = Vec::with_capacity(count);
        for _ in 0..count {
            let (mut client, load) = (clients.block_on(connect(self.at))?, Arc::clone(&load));
            tasks.push(clients.spawn(async move {
                while !load.is_over() {
                    client.call(&WORDS).await?;
                    load.on_call();
                }
                anyhow::Ok(())
            }));
        }
        let rate = load.rate(time);
        for task in tasks {
            clients.block_on(task)??;
        }
        Ok(rate)
    }
}
