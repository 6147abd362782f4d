//! The example service: its messages, as prost derives them, and its server.
//!
//! Owns what `service.rs` does not: the types and the answers. It must never wait for more than its client sends.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt, iter};
use tonic::{Request, Response, Status, Streaming};

#[path = "service.rs"]
mod service;

pub(crate) use service::echo_client::EchoClient;
use service::echo_server::Echo;
pub(crate) use service::echo_server::EchoServer;

/// What is to be said.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoRequest {
    /// The words.
    #[prost(bytes = "vec", tag = "1")]
    pub words: Vec<u8>,
    /// How often, for `Repeat`.
    #[prost(uint32, tag = "2")]
    pub times: u32,
}

/// What was said.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoReply {
    /// The words.
    #[prost(bytes = "vec", tag = "1")]
    pub words: Vec<u8>,
    /// How the server's connection travels: `shm` or `lane`.
    #[prost(string, tag = "2")]
    pub path: String,
}

/// The server.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct EchoService;

type Replies = Pin<Box<dyn Stream<Item = Result<EchoReply, Status>> + Send>>;

/// The path of the connection, which tonic attaches to each request.
fn path<T>(request: &Request<T>) -> Result<String, Status> {
    let info = request.extensions().get::<raas_tonic::ConnectInfo>();
    info.map(|i| format!("{:?}", i.path).to_lowercase()).ok_or_else(|| Status::internal("not over RaaS"))
}

#[tonic::async_trait]
impl Echo for EchoService {
    type RepeatStream = Replies;
    type ChatStream = Replies;

    async fn say(&self, request: Request<EchoRequest>) -> Result<Response<EchoReply>, Status> {
        let path = path(&request)?;
        Ok(Response::new(EchoReply { words: request.into_inner().words, path }))
    }

    async fn repeat(&self, request: Request<EchoRequest>) -> Result<Response<Replies>, Status> {
        let path = path(&request)?;
        let EchoRequest { words, times } = request.into_inner();
        let reply = move |_| Ok(EchoReply { words: words.clone(), path: path.clone() });
        Ok(Response::new(Box::pin(iter(0..times).map(reply))))
    }

    async fn chat(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<Replies>, Status> {
        let path = path(&request)?;
        let reply = move |said: Result<EchoRequest, Status>| Ok(EchoReply { words: said?.words, path: path.clone() });
        Ok(Response::new(Box::pin(request.into_inner().map(reply))))
    }
}
