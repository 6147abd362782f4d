//! The clients that a server knows, and how long.
//!
//! Owns the records. It must never forget a client that is connected: its calls would be executed twice.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::lock;
use crate::hello::{ClientId, Refusal};
use crate::once::Once;

/// What is known of a client.
#[derive(Debug)]
pub(crate) struct KnownClient {
    pub(crate) id: ClientId,
    pub(crate) once: Mutex<Once>,
    /// A call has ended, for those that wait for it.
    pub(crate) ended: Condvar,
    life: Mutex<Life>,
}

#[derive(Debug)]
struct Life {
    connections: u32,
    left: Instant,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Clients {
    records: Mutex<HashMap<ClientId, Arc<KnownClient>>>,
    /// Connections that there are now.
    present: Arc<AtomicU64>,
    max: u32,
    forget_after: Duration,
}

/// A connection of a client; dropped when it ends.
#[derive(Debug)]
pub(crate) struct Presence(pub(crate) Arc<KnownClient>, Arc<AtomicU64>);

impl Clients {
    pub(crate) fn new(max: u32, forget_after: Duration) -> Self {
        Self { records: Mutex::default(), present: Arc::default(), max, forget_after }
    }

    pub(crate) fn count(&self) -> u64 {
        lock(&self.records).len() as u64
    }

    /// Clients that are connected.
    pub(crate) fn present(&self) -> u64 {
        self.present.load(Ordering::Relaxed)
    }

    fn presence(&self, record: &Arc<KnownClient>) -> Presence {
        self.present.fetch_add(1, Ordering::Relaxed);
        Presence(Arc::clone(record), Arc::clone(&self.present))
    }

    /// A client connects; says whether it was known.
    pub(crate) fn enter(&self, id: ClientId, window: u16) -> Result<(Presence, bool), Refusal> {
        let mut records = lock(&self.records);
        let now = Instant::now();
        let is_old = |record: &KnownClient| {
            let life = lock(&record.life);
            life.connections == 0 && now.saturating_duration_since(life.left) > self.forget_after
        };
        if let Some(record) = records.get(&id) {
            if !is_old(record) {
                lock(&record.life).connections += 1;
                lock(&record.once).set_window(window);
                return Ok((self.presence(record), true));
            }
            records.remove(&id);
        }
        if records.len() >= self.max as usize {
            records.retain(|_, record| !is_old(record));
        }
        if records.len() >= self.max as usize {
            return Err(Refusal::TooManyClients { max: self.max });
        }
        let life = Mutex::new(Life { connections: 1, left: now });
        let record = Arc::new(KnownClient { id, once: Mutex::new(Once::new(window)), ended: Condvar::new(), life });
        records.insert(id, Arc::clone(&record));
        Ok((self.presence(&record), false))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
        let mut life = lock(&self.0.life);
        life.connections -= 1;
        life.left = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_remembered_for_a_while_and_never_forgotten_while_it_is_there() {
        let clients = Clients::new(2, Duration::ZERO);
        let [a, b, c] = [1, 2, 3].map(|n| ClientId([n; 16]));
        let (first, known) = clients.enter(a, 4).unwrap();
        assert!(!known);
        let (second, known) = clients.enter(a, 4).unwrap();
        assert!(known);
        drop(second);
        let (other, _) = clients.enter(b, 4).unwrap();
        assert_eq!(clients.enter(c, 4).unwrap_err(), Refusal::TooManyClients { max: 2 });
        drop(first);
        std::thread::sleep(Duration::from_millis(2));
        let (_third, known) = clients.enter(c, 4).unwrap();
        assert!(!known, "the one that left is forgotten for it");
        drop(other);
        let lasting = Clients::new(2, Duration::from_secs(3600));
        drop(lasting.enter(a, 4).unwrap());
        assert!(lasting.enter(a, 4).unwrap().1);
    }
}
