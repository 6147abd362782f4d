//! gRPC, as tonic does it over kernel TCP: an echo service without generated code.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::{Builder, Runtime};
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::WORDS;
use crate::load::{Load, median_us};

const ADDRESS: &str = "127.88.6.1:0";
const PATH: &str = "/raas.bench.Echo/Say";
/// Threads of the server, and of the clients.
const THREADS: usize = 2;

/// What is said.
#[derive(Clone, PartialEq, prost::Message)]
struct Words {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

/// The service.
#[derive(Debug, Clone, Copy)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "raas.bench.Echo";
}

/// Its only method.
#[derive(Debug, Clone, Copy)]
struct Say;

impl UnaryService<Words> for Say {
    type Response = Words;
    type Future = Ready<Result<Response<Words>, Status>>;

    fn call(&mut self, request: Request<Words>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(ProstCodec::default()).unary(Say, request).await) })
    }
}

/// A client with a connection of its own.
struct Client(tonic::client::Grpc<Channel>);

impl Client {
    async fn connect(to: SocketAddr) -> Result<Self> {
        Ok(Self(tonic::client::Grpc::new(Endpoint::from_shared(format!("http://{to}"))?.connect().await?)))
    }

    async fn call(&mut self) -> Result<()> {
        self.0.ready().await?;
        let request = Request::new(Words { bytes: WORDS.to_vec() });
        let codec = ProstCodec::<Words, Words>::default();
        let words = self.0.unary(request, PathAndQuery::from_static(PATH), codec).await?.into_inner();
        ensure!(words.bytes == WORDS, "another response than the request");
        Ok(())
    }
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
            let mut client = Client::connect(self.at).await?;
            let end = Instant::now() + time;
            let mut times = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                client.call().await?;
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
            let (mut client, load) = (clients.block_on(Client::connect(self.at))?, Arc::clone(&load));
            tasks.push(clients.spawn(async move {
                while !load.is_over() {
                    client.call().await?;
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
