//! openraft's calls over TCP: a connection for each member and direction, frames with a length before them, no delay.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use openraft::BasicNode;
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::{Raft, Types};

type Failed<E = openraft::error::Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

/// After that a member that could not be reached is tried again.
const AGAIN: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize)]
enum Call {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

/// Takes the calls of others.
pub(crate) async fn serve(at: SocketAddr, raft: Raft) -> Result<()> {
    let listener = TcpListener::bind(at).await.with_context(|| format!("listening at {at}"))?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let raft = raft.clone();
            // It ends with its connection.
            tokio::spawn(async move { drop(answer(stream, raft).await) });
        }
    });
    Ok(())
}

async fn answer(stream: TcpStream, raft: Raft) -> Result<()> {
    let mut link = Link::new(stream)?;
    loop {
        match link.receive().await? {
            Call::Append(call) => link.send(&raft.append_entries(call).await).await?,
            Call::Vote(call) => link.send(&raft.vote(call).await).await?,
            Call::Snapshot(call) => link.send(&raft.install_snapshot(call).await).await?,
        }
    }
}

/// A connection.
struct Link {
    stream: BufReader<TcpStream>,
    frame: Vec<u8>,
}

impl Link {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), frame: Vec::new() })
    }

    async fn send(&mut self, value: &impl Serialize) -> Result<()> {
        let mut frame = std::mem::take(&mut self.frame);
        frame.clear();
        frame.extend([0; 4]);
        self.frame = postcard::to_extend(value, frame)?;
        let bytes = u32::try_from(self.frame.len() - 4)?;
        self.frame[..4].copy_from_slice(&bytes.to_le_bytes());
        Ok(self.stream.write_all(&self.frame).await?)
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> Result<T> {
        let bytes = self.stream.read_u32_le().await?;
        self.frame.resize(usize::try_from(bytes)?, 0);
        self.stream.read_exact(&mut self.frame).await?;
        Ok(postcard::from_bytes(&self.frame)?)
    }
}

/// Makes the clients of other members.
pub(crate) struct Network;

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client {
        Client { target, at: node.addr.clone(), link: None }
    }
}

/// Calls one member. It connects when it has something to say.
pub(crate) struct Client {
    target: u64,
    at: String,
    link: Option<Link>,
}

impl Client {
    async fn call<R: DeserializeOwned, E>(&mut self, call: Call) -> Result<R, Failed<E>>
    where
        E: std::error::Error + DeserializeOwned,
    {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => TcpStream::connect(&self.at).await.and_then(Link::new).map_err(|e| unreachable(&e))?,
        };
        let result: Result<R, RaftError<u64, E>> = async {
            link.send(&call).await?;
            link.receive().await
        }
        .await
        .map_err(|e| failed(&e))?;
        self.link = Some(link);
        result.map_err(|e| RPCError::RemoteError(RemoteError::new(self.target, e)))
    }
}

fn unreachable<E: std::error::Error>(why: &io::Error) -> Failed<E> {
    RPCError::Unreachable(Unreachable::new(why))
}

fn failed<E: std::error::Error>(why: &impl Display) -> Failed<E> {
    RPCError::Network(NetworkError::new(&io::Error::other(why.to_string())))
}

impl RaftNetwork<Types> for Client {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed> {
        self.call(Call::Append(rpc)).await
    }

    async fn vote(&mut self, rpc: VoteRequest<u64>, _: RPCOption) -> Result<VoteResponse<u64>, Failed> {
        self.call(Call::Vote(rpc)).await
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<InstallSnapshotError>> {
        self.call(Call::Snapshot(rpc)).await
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(AGAIN))
    }
}
