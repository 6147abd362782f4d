//! The load of Figures 15 and 16: workers push pairs and pull them again, a number of rounds. What was pushed is
//! compared with what the servers hold in the end.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::WorkError;
use crate::link::Over;
use crate::worker::Worker;

/// Values of a push differ from key to key: 1 to this.
const WEIGHTS: u64 = 5;
/// Largest whole number up to which 32-bit values count exactly.
const EXACT_MAX: u64 = 1 << 24;

/// An exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// Workers, each a thread with connections of its own to all servers.
    pub workers: usize,
    /// Pairs of a push and of a pull, shared out to all servers.
    pub pairs: u64,
    /// Rounds of a push and a pull behind it.
    pub rounds: u32,
}

/// Sets all values to 0, runs the exchange, checks the sums, and says how long all rounds of all workers took.
pub fn exchange(over: &Over, servers: &[SocketAddr], wanted: Exchange) -> Result<Duration, WorkError> {
    let Exchange { workers, pairs, rounds } = wanted;
    let together: u64 = (1..=workers as u64).sum();
    if u64::from(rounds) * WEIGHTS * together > EXACT_MAX {
        return Err(WorkError::Inexact { rounds, workers });
    }
    let mut connected = (0..workers).map(|_| Worker::connect(over, servers)).collect::<Result<Vec<_>, _>>()?;
    let first = connected.first_mut().ok_or(WorkError::Inexact { rounds, workers })?;
    first.reset()?;
    let keys = spread(pairs, servers.len(), first.keys())?;
    let begin = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = connected
            .iter_mut()
            .zip(1u32..)
            .map(|(worker, number)| {
                scope.spawn({
                    let keys = &keys;
                    move || run(worker, number, keys, rounds)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
    })?;
    let took = begin.elapsed();
    let mut values = vec![0.0; keys.len()];
    connected[0].pull(&keys, &mut values)?;
    for (key, found) in keys.iter().zip(values) {
        let wanted = (u64::from(rounds) * together) as f32 * weight(*key);
        if found != wanted {
            return Err(WorkError::Sum { key: *key, found, wanted });
        }
    }
    Ok(took)
}

/// What is pushed to a key by the first worker; the second one pushes twice as much, and so on.
fn weight(key: u64) -> f32 {
    (key % WEIGHTS + 1) as f32
}

/// So many keys, each server's share from its first one on.
fn spread(pairs: u64, servers: usize, keys: u64) -> Result<Vec<u64>, WorkError> {
    let servers = servers as u64;
    let each = keys / servers;
    let share = |server: u64| pairs / servers + u64::from(server < pairs % servers);
    if share(0) > each {
        return Err(WorkError::KeyOutside { key: share(0), keys });
    }
    Ok((0..servers).flat_map(|server| (0..share(server)).map(move |key| server * each + key)).collect())
}

/// One worker's rounds. Alone it finds exactly what it pushed; others add to it meanwhile.
fn run(worker: &mut Worker, number: u32, keys: &[u64], rounds: u32) -> Result<(), WorkError> {
    let pushed: Vec<f32> = keys.iter().map(|key| weight(*key) * number as f32).collect();
    let mut values = vec![0.0; keys.len()];
    for round in 1..=rounds {
        worker.push(keys, &pushed)?;
        worker.pull(keys, &mut values)?;
        for ((key, found), pushed) in keys.iter().zip(&values).zip(&pushed) {
            let wanted = pushed * round as f32;
            if *found < wanted {
                return Err(WorkError::Sum { key: *key, found: *found, wanted });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_shared_out_from_each_first_one_on() {
        assert_eq!(spread(5, 2, 200).expect("keys"), [0, 1, 2, 100, 101]);
        assert_eq!(spread(1, 4, 400).expect("keys"), [0]);
        assert!(spread(9, 2, 8).is_err());
    }
}
