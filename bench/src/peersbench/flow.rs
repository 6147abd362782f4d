//! Messages from the daemon in the middle to all its peers, on their connections in turn.
//!
//! Both sides go through the connections in the same order, so a blocking read never waits for a message that is sent
//! only after it. The number of connections is the same for any number of peers: only the number of hosts differs.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use raas::{Listener, Stream};

use super::PATIENCE;
use super::cluster::{Cluster, Host};
use super::cost::Used;

/// First byte of the last message of a turn.
pub(crate) const LAST: u8 = 1;

/// What a turn came to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) gbit_per_s: f64,
    pub(crate) gigabytes: f64,
    pub(crate) messages: f64,
    /// What the daemon in the middle used for it, and all the others together.
    pub(crate) center: Used,
    pub(crate) peers: Used,
}

/// The connections of a cluster, and the thread that reads at the peers.
#[derive(Debug)]
pub(crate) struct Flow {
    streams: Vec<Stream>,
    size: usize,
    go: Option<Sender<()>>,
    counted: Receiver<Result<u64>>,
    reader: Option<JoinHandle<()>>,
    cluster: Cluster,
}

impl Flow {
    pub(crate) fn start(cluster: Cluster, connections: usize, size: usize) -> Result<Self> {
        let listeners: Vec<_> = cluster
            .peers
            .iter()
            .map(|peer| Listener::bind_with(&peer.session, (peer.address, 0)))
            .collect::<Result<_, _>>()?;
        let mut streams = Vec::new();
        let mut accepted = Vec::new();
        for listener in listeners.iter().cycle().take(connections) {
            let stream = Stream::connect_with(&cluster.center.session, listener.local_addr()?)?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let (other, _) = listener.accept_timeout(PATIENCE)?;
            other.set_read_timeout(Some(PATIENCE))?;
            streams.push(stream);
            accepted.push(other);
        }
        let (go, begin) = channel();
        let (count, counted) = channel();
        let reader = std::thread::spawn(move || {
            while begin.recv().is_ok() {
                if count.send(read_turn(&mut accepted, size)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { streams, size, go: Some(go), counted, reader: Some(reader), cluster })
    }

    /// Messages for so long, and one on each connection at least.
    pub(crate) fn run(&mut self, duration: Duration) -> Result<Turn> {
        let used = |cluster: &Cluster| -> Result<[Used; 2]> {
            Ok([Used::of(cluster.center.pid())?, Used::of_all(cluster.peers.iter().map(Host::pid))?])
        };
        let before = used(&self.cluster)?;
        self.go.as_ref().context("the reader has ended")?.send(()).map_err(|_| anyhow!("the reader has ended"))?;
        let mut message = vec![0; self.size];
        let (begin, least) = (Instant::now(), self.streams.len() as u64);
        let mut messages = 0_u64;
        'turns: loop {
            for stream in &mut self.streams {
                let is_last = messages + 1 >= least && begin.elapsed() >= duration;
                message[0] = if is_last { LAST } else { 0 };
                stream.write_all(&message)?;
                messages += 1;
                if is_last {
                    break 'turns;
                }
            }
        }
        let read = self.counted.recv_timeout(PATIENCE).context("the reader does not end")??;
        ensure!(read == messages, "{read} messages of {messages} arrived");
        let seconds = begin.elapsed().as_secs_f64();
        let [center, peers] = used(&self.cluster)?;
        let gigabytes = (messages * self.size as u64) as f64 / 1e9;
        Ok(Turn {
            gbit_per_s: gigabytes * 8.0 / seconds,
            gigabytes,
            messages: messages as f64,
            center: center - before[0],
            peers: peers - before[1],
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.go = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn read_turn(streams: &mut [Stream], size: usize) -> Result<u64> {
    let mut message = vec![0; size];
    let mut messages = 0;
    loop {
        for stream in streams.iter_mut() {
            stream.read_exact(&mut message)?;
            messages += 1;
            if message.first() == Some(&LAST) {
                return Ok(messages);
            }
        }
    }
}
