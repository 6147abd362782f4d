//! A worker: connections to all servers, and which of them has which key. Server `n` of servers that hold `k` keys each
//! has the keys from `n * k` to `(n + 1) * k`.

use std::net::SocketAddr;
use std::ops::Range;

use raas::{Batch, Pending, Region, RegionAccess, RegionKey};

use crate::error::WorkError;
use crate::link::{Connection, Over};
use crate::wire::{self, Floats, PAIRS_MAX, Reply, VALUE_BYTES};

/// A pull of more runs of neighbouring keys is a message: each run would be a READ.
const RUNS_MAX: usize = 16;

/// Connections to all servers.
#[derive(Debug)]
pub struct Worker {
    servers: Vec<Remote>,
    /// Keys of each server.
    each: u64,
    message: Vec<u8>,
    /// Bytes out of a region.
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Remote {
    link: Connection,
    region: Option<Region>,
}

/// A server's part of a request.
#[derive(Debug, Clone)]
struct Part {
    server: usize,
    /// Places of its keys in the request.
    keys: Range<usize>,
}

impl Worker {
    /// Connects to all servers, which must hold as many keys each.
    pub fn connect(over: &Over, servers: &[SocketAddr]) -> Result<Self, WorkError> {
        let mut worker = Self { servers: vec![], each: 0, message: vec![], bytes: vec![] };
        for (number, to) in servers.iter().enumerate() {
            let mut link = Connection::connect(over, *to)?;
            wire::put_hello(&mut worker.message);
            link.send(&worker.message)?;
            let Reply::Welcome { keys, region } = received(&mut link)? else { return Err(out_of_turn()) };
            if number == 0 {
                worker.each = keys;
            } else if keys != worker.each {
                return Err(WorkError::Uneven { number, keys, first: worker.each });
            }
            let region = match (over, region) {
                (Over::Raas(session), Some((key, name))) => {
                    let key = RegionKey::new(key);
                    Some(Region::open_for(session, to.ip(), name, key, RegionAccess::READ)?)
                }
                _ => None,
            };
            worker.servers.push(Remote { link, region });
        }
        if worker.servers.is_empty() { Err(WorkError::NoServer) } else { Ok(worker) }
    }

    /// Keys of all servers together: from 0 to this.
    pub fn keys(&self) -> u64 {
        self.each * self.servers.len() as u64
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Adds the values to those of the keys, which ascend; waits until all servers have.
    pub fn push(&mut self, keys: &[u64], values: &[f32]) -> Result<(), WorkError> {
        let parts = self.parts(keys, values.len())?;
        for part in &parts {
            let (of_part, base) = (part.keys.clone(), part.server as u64 * self.each);
            wire::put_push(&mut self.message, &keys[of_part.clone()], base, &values[of_part]);
            self.servers[part.server].link.send(&self.message)?;
        }
        let mut refused = None;
        for part in parts {
            match received(&mut self.servers[part.server].link) {
                Ok(Reply::Done) => {}
                Ok(_) => return Err(out_of_turn()),
                // The replies of the others are taken all the same, so that the next ones are those of the next
                // request.
                Err(error @ WorkError::Refused(_)) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Gets the values of the keys, which ascend.
    pub fn pull(&mut self, keys: &[u64], values: &mut [f32]) -> Result<(), WorkError> {
        let mut asked: Vec<Part> = vec![];
        let mut read: Vec<(Part, Pending)> = vec![];
        for part in self.parts(keys, values.len())? {
            let of_part = &keys[part.keys.clone()];
            let base = part.server as u64 * self.each;
            let remote = &mut self.servers[part.server];
            match (&remote.region, runs(of_part)) {
                (Some(region), Some(runs)) if region.is_here() => {
                    let mut at = part.keys.start;
                    for run in runs {
                        self.bytes.resize(run.len() * VALUE_BYTES, 0);
                        region.read((of_part[run.start] - base) * VALUE_BYTES as u64, &mut self.bytes)?;
                        put(&mut values[at..at + run.len()], Floats::new(&self.bytes))?;
                        at += run.len();
                    }
                }
                (Some(region), Some(runs)) => {
                    let mut batch = Batch::new();
                    for run in runs {
                        let offset = (of_part[run.start] - base) * VALUE_BYTES as u64;
                        batch.read(region, offset, run.len() * VALUE_BYTES);
                    }
                    read.push((part, batch.submit()?));
                }
                _ => {
                    wire::put_pull(&mut self.message, of_part, base);
                    remote.link.send(&self.message)?;
                    asked.push(part);
                }
            }
        }
        for (part, pending) in read {
            let ended = pending.wait()?;
            ended.check()?;
            let mut at = part.keys.start;
            for operation in 0..ended.len() {
                let found = Floats::new(ended.bytes(operation)?);
                put(&mut values[at..(at + found.len()).min(part.keys.end)], found)?;
                at += found.len();
            }
        }
        let mut refused = None;
        for part in asked {
            match received(&mut self.servers[part.server].link) {
                Ok(Reply::Values(found)) => put(&mut values[part.keys], found)?,
                Ok(_) => return Err(out_of_turn()),
                Err(error @ WorkError::Refused(_)) => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// Makes all values 0.
    pub fn reset(&mut self) -> Result<(), WorkError> {
        for remote in &mut self.servers {
            wire::put_reset(&mut self.message);
            remote.link.send(&self.message)?;
            let Reply::Done = received(&mut remote.link)? else { return Err(out_of_turn()) };
        }
        Ok(())
    }

    /// Which server has which of the keys.
    fn parts(&self, keys: &[u64], values: usize) -> Result<Vec<Part>, WorkError> {
        if keys.len() != values {
            return Err(WorkError::Pairs { keys: keys.len(), values });
        }
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(WorkError::Order { key: pair[1], before: pair[0] });
        }
        if let Some(key) = keys.last().copied().filter(|key| *key >= self.keys()) {
            return Err(WorkError::KeyOutside { key, keys: self.keys() });
        }
        let mut parts = vec![];
        let mut start = 0;
        for server in 0..self.servers.len() {
            let last = (server as u64 + 1) * self.each;
            let end = start + keys[start..].partition_point(|key| *key < last);
            if end - start > PAIRS_MAX {
                return Err(WorkError::Pairs { keys: end - start, values: end - start });
            }
            if end > start {
                parts.push(Part { server, keys: start..end });
            }
            start = end;
        }
        Ok(parts)
    }
}

/// Runs of neighbours among ascending keys, as places; none if they are more than READs should be.
fn runs(keys: &[u64]) -> Option<Vec<Range<usize>>> {
    let mut runs: Vec<Range<usize>> = vec![];
    for (place, key) in keys.iter().enumerate() {
        let is_full = runs.len() == RUNS_MAX;
        match runs.last_mut() {
            Some(run) if keys[place - 1] + 1 == *key => run.end += 1,
            _ if is_full => return None,
            _ => runs.push(place..place + 1),
        }
    }
    Some(runs)
}

fn put(values: &mut [f32], found: Floats<'_>) -> Result<(), WorkError> {
    if found.len() != values.len() {
        return Err(out_of_turn());
    }
    values.iter_mut().zip(found.iter()).for_each(|(value, found)| *value = found);
    Ok(())
}

fn received(link: &mut Connection) -> Result<Reply<'_>, WorkError> {
    match wire::reply(link.receive()?.ok_or(WorkError::Ended)?)? {
        Reply::Refused(why) => Err(WorkError::Refused(why.to_owned())),
        reply => Ok(reply),
    }
}

/// A reply of another kind, or with another number of values, than was asked for.
fn out_of_turn() -> WorkError {
    std::io::Error::new(std::io::ErrorKind::InvalidData, "the reply does not belong to the request").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        assert_eq!(runs(&[]), Some(vec![]));
        assert_eq!(runs(&[5, 6, 7, 9, 20, 21]), Some(vec![0..3, 3..4, 4..6]));
        let apart: Vec<u64> = (0..RUNS_MAX as u64 + 1).map(|n| 2 * n).collect();
        assert_eq!(runs(&apart), None);
        assert_eq!(runs(&apart[1..]).map(|runs| runs.len()), Some(RUNS_MAX));
    }
}
