//! gRPC as tonic does it, over kernel TCP or over RaaS (`raas-tonic`): what does a call take by size, and how many calls
//! a second do clients reach that have one under way each? Server and clients are programs of their own. The client
//! prints a line of JSON for each point. Each client is a thread with a connection of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::grpc_echo::{Client, Echo};
use crate::load::{Load, median_us};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};

/// Part of the calls that warm up.
const WARM_PART: u32 = 4;
/// Longest message: what gRPC takes by default.
const BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Args)]
pub(crate) struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves until it is ended; prints `ready` first.
    Server {
        /// Where.
        #[arg(long)]
        at: SocketAddr,
        /// What carries the connections.
        #[arg(long, value_enum)]
        over: Over,
    },
    /// One call at a time.
    Times {
        #[command(flatten)]
        to: To,
        /// Bytes of a request, and of its response.
        #[arg(long, value_delimiter = ',')]
        sizes: Vec<usize>,
        /// Calls of each size.
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
        calls: u32,
    },
    /// Many clients.
    Rates {
        #[command(flatten)]
        to: To,
        /// Clients.
        #[arg(long, value_delimiter = ',')]
        clients: Vec<usize>,
        /// Bytes of a request, and of its response.
        #[arg(long, default_value_t = 8)]
        size: usize,
        /// Seconds of each number of clients.
        #[arg(long)]
        seconds: f64,
    },
}

#[derive(Debug, Args)]
struct To {
    /// The server.
    #[arg(long)]
    to: SocketAddr,
    /// What carries the connections.
    #[arg(long, value_enum)]
    over: Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Over {
    /// Kernel TCP.
    Tcp,
    /// RaaS.
    Raas,
}

pub(crate) fn main(cli: Cli) -> Result<()> {
    match cli.role {
        Role::Server { at, over } => runtime()?.block_on(serve(at, over)),
        Role::Times { to, sizes, calls } => sizes.into_iter().try_for_each(|size| {
            let us = time_us(&to, &words(size)?, calls)?;
            println!("{}", json!({ "bytes": size, "us": us }));
            Ok(())
        }),
        Role::Rates { to, clients, size, seconds } => {
            ensure!(seconds > 0.0 && seconds <= 60.0, "--seconds is more than 0 and at most 60");
            clients.into_iter().try_for_each(|clients| {
                let calls = rate(&to, &words(size)?, clients, Duration::from_secs_f64(seconds))?;
                println!("{}", json!({ "clients": clients, "calls_per_s": calls }));
                Ok(())
            })
        }
    }
}

/// What a program does in one thread: a processor is all that a side has.
fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn words(size: usize) -> Result<Vec<u8>> {
    ensure!(size <= BYTES_MAX, "{size} bytes: at most {BYTES_MAX}");
    Ok((0..size).map(|n| ((n * 31) >> 3) as u8).collect())
}

async fn serve(at: SocketAddr, over: Over) -> Result<()> {
    let server = Server::builder().add_service(Echo);
    match over {
        Over::Tcp => {
            let listener = tokio::net::TcpListener::bind(at).await?;
            println!("ready");
            server.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))).await?;
        }
        Over::Raas => {
            let listener = raas::aio::Listener::bind(at).await?;
            println!("ready");
            server.serve_with_incoming(raas_tonic::Incoming::new(listener)).await?;
        }
    }
    bail!("no more connections come")
}

async fn connect(to: &To) -> Result<Client> {
    let endpoint = Endpoint::from_shared(format!("http://{}", to.to))?.tcp_nodelay(true);
    let channel = match to.over {
        Over::Tcp => endpoint.connect().await,
        Over::Raas => endpoint.connect_with_connector(raas_tonic::Connector::new(raas::Session::global()?)).await,
    };
    Ok(Client::new(channel.with_context(|| format!("connecting to {}", to.to))?))
}

/// The median time of a call.
fn time_us(to: &To, said: &[u8], calls: u32) -> Result<f64> {
    runtime()?.block_on(async {
        let mut client = connect(to).await?;
        for _ in 0..calls / WARM_PART {
            client.call(said).await?;
        }
        let mut times = Vec::with_capacity(calls as usize);
        for _ in 0..calls {
            let began = Instant::now();
            client.call(said).await?;
            times.push(began.elapsed());
        }
        Ok(median_us(times))
    })
}

/// Calls a second of all clients.
fn rate(to: &To, said: &[u8], clients: usize, time: Duration) -> Result<f64> {
    let load = Load::new();
    std::thread::scope(|scope| {
        let mut threads = vec![];
        for _ in 0..clients {
            let runtime = runtime()?;
            let mut client = runtime.block_on(connect(to))?;
            let load = Arc::clone(&load);
            threads.push(scope.spawn(move || -> Result<()> {
                runtime.block_on(async move {
                    while !load.is_over() {
                        client.call(said).await?;
                        load.on_call();
                    }
                    Ok(())
                })
            }));
        }
        let rate = load.rate(time);
        threads.into_iter().try_for_each(|thread| thread.join().expect("a client does not panic"))?;
        Ok(rate)
    })
}
