//! A client of an etcd member: its third interface over gRPC, as far as it is needed, over connections that stay.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, client};
use tonic_prost::ProstCodec;

use super::load::{COMMAND_BYTES, Load, Times, now_ns};

const PUT: &str = "/etcdserverpb.KV/Put";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
/// Clients that share a connection.
const SHARE: u32 = 8;
const LOOK: Duration = Duration::from_millis(1);

#[derive(Clone, PartialEq, prost::Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// What of an answer is needed: nothing.
#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Debug, Clone)]
struct Client(client::Grpc<Channel>);

impl Client {
    async fn new(at: SocketAddr) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{at}"))?.tcp_nodelay(true);
        Ok(Self(client::Grpc::new(endpoint.connect().await?)))
    }

    async fn put(&mut self, key: u32) -> Result<()> {
        self.0.ready().await?;
        let put = Put { key: key.to_le_bytes().to_vec(), value: vec![7; COMMAND_BYTES] };
        let codec = ProstCodec::<Put, Nothing>::default();
        self.0.unary(Request::new(put), PathAndQuery::from_static(PUT), codec).await?;
        Ok(())
    }

    async fn leads(&mut self) -> Result<bool> {
        self.0.ready().await?;
        let codec = ProstCodec::<Nothing, Status>::default();
        let answer = self.0.unary(Request::new(Nothing {}), PathAndQuery::from_static(STATUS), codec).await?;
        let status = answer.into_inner();
        Ok(status.leader != 0 && status.header.is_some_and(|header| header.member == status.leader))
    }
}

pub(super) async fn run(at: SocketAddr) -> Result<()> {
    let mut client = loop {
        match Client::new(at).await {
            Ok(client) => break client,
            // It does not listen yet.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    println!("ready");
    let asked = Arc::new(AtomicU64::new(0));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match what {
            "role" => {
                let leads = client.leads().await.unwrap_or(false);
                println!("role {}", if leads { "leader" } else { "follower" });
            }
            "load" => {
                let load = Load::parse(rest)?;
                let mut clients = Vec::new();
                for number in 0..load.clients.div_ceil(SHARE) {
                    let client = Client::new(at).await?;
                    let of = number * SHARE..load.clients.min((number + 1) * SHARE);
                    clients.extend(of.map(|key| tokio::spawn(commit(client.clone(), key, load))));
                }
                let mut all = Vec::new();
                for client in clients {
                    all.push(client.await??);
                }
                println!("loaded {}", load.told(all));
            }
            "first" => {
                let token = rest.parse()?;
                asked.store(token, Ordering::Release);
                tokio::spawn(first(client.clone(), token, Arc::clone(&asked)));
            }
            _ => anyhow::bail!("no such order: {line}"),
        }
    }
    Ok(())
}

async fn commit(mut client: Client, key: u32, load: Load) -> Result<Times> {
    let mut times = load.begin();
    while let Some(wait) = times.wait() {
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let begin = Instant::now();
        client.put(key).await?;
        times.on_end(begin);
    }
    Ok(times)
}

/// When this member leads, its first commit; unless something else was asked for since.
async fn first(mut client: Client, token: u64, asked: Arc<AtomicU64>) {
    while asked.load(Ordering::Acquire) == token {
        if client.leads().await.unwrap_or(false) && client.put(0).await.is_ok() {
            println!("first {token} {}", now_ns());
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}
