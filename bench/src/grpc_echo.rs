//! A gRPC service that gives back what it gets, without generated code, and its client; whatever carries them.

use std::convert::Infallible;
use std::future::{Ready, ready};

use anyhow::{Result, ensure};
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const PATH: &str = "/raas.bench.Echo/Say";

/// What is said.
#[derive(Clone, PartialEq, prost::Message)]
struct Words {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
}

/// The service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Echo;

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

/// A client.
#[derive(Debug, Clone)]
pub(crate) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    /// Of a channel to the service.
    pub(crate) fn new(channel: Channel) -> Self {
        Self(tonic::client::Grpc::new(channel))
    }

    /// One call; the response must be what was said.
    pub(crate) async fn call(&mut self, said: &[u8]) -> Result<()> {
        self.0.ready().await?;
        let request = Request::new(Words { bytes: said.to_vec() });
        let codec = ProstCodec::<Words, Words>::default();
        let words = self.0.unary(request, PathAndQuery::from_static(PATH), codec).await?.into_inner();
        ensure!(words.bytes == said, "another response than the request");
        Ok(())
    }
}
