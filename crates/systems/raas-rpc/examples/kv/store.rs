//! A key-value store as a service: numbered keys, values of at most 1 KiB. Its memory is a region that outlives the
//! program, so that a server which is killed loses nothing that it answered for.
//!
//! Each key has two places for values, and a word that counts its PUTs. A PUT fills the place that is not in use, and then
//! raises the word; so a kill leaves the old value or the new one.

use std::sync::Mutex;

use raas::{Region, RegionError, RegionKey, RegionOptions, RegionRefusal, Session};
use raas_rpc::{CallInfo, Client, Service};

/// Keys are below this.
pub(crate) const KEYS: u32 = 256;
/// Longest value.
pub(crate) const VALUE_BYTES_MAX: usize = 1024;
const PLACE_BYTES: u64 = 8 + VALUE_BYTES_MAX as u64;
const GET: u8 = 0;
const PUT: u8 = 1;

/// The service.
pub(crate) struct Store {
    region: Region,
    locks: Vec<Mutex<()>>,
}

impl Store {
    /// Opens the store's region, or makes it.
    pub(crate) fn open(session: &Session, name: &str, key: RegionKey) -> Result<Self, RegionError> {
        let bytes = u64::from(KEYS) * (8 + 2 * PLACE_BYTES);
        let made = RegionOptions::new().key(key).outlives(true).create(session, name, bytes);
        let region = match made {
            Err(e) if matches!(e.refusal(), Some(RegionRefusal::NameTaken { .. })) => {
                Region::open(session, session.addresses()[0], name, key)?
            }
            made => made?,
        };
        Ok(Self { region, locks: (0..KEYS).map(|_| Mutex::default()).collect() })
    }

    fn place(key: u32, puts: u64) -> u64 {
        u64::from(KEYS) * 8 + (u64::from(key) * 2 + puts % 2) * PLACE_BYTES
    }

    fn get(&self, key: u32) -> Result<Vec<u8>, RegionError> {
        let puts = self.region.load(u64::from(key) * 8)?;
        if puts == 0 {
            return Ok(Vec::new());
        }
        let at = Self::place(key, puts);
        let len = usize::try_from(self.region.load(at)?).unwrap_or(0).min(VALUE_BYTES_MAX);
        let mut value = vec![0; len];
        self.region.read(at + 8, &mut value)?;
        Ok(value)
    }

    fn put(&self, key: u32, value: &[u8]) -> Result<Vec<u8>, RegionError> {
        let puts = self.region.load(u64::from(key) * 8)? + 1;
        let at = Self::place(key, puts);
        self.region.store(at, value.len() as u64)?;
        self.region.write(at + 8, value)?;
        self.region.store(u64::from(key) * 8, puts)?;
        Ok(Vec::new())
    }
}

impl Service for Store {
    fn call(&self, _: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
        let Some((&[what, a, b, c, d], value)) = request.split_first_chunk() else {
            return Err("a request is a byte for GET or PUT, four for the key, and the value".into());
        };
        let key = u32::from_le_bytes([a, b, c, d]);
        let Some(lock) = self.locks.get(key as usize) else { return Err(format!("keys are 0 to {}", KEYS - 1)) };
        let _turn = lock.lock().map_err(|_| "an earlier call on this key panicked")?;
        let result = match what {
            GET => self.get(key),
            PUT if value.len() <= VALUE_BYTES_MAX => self.put(key, value),
            PUT => return Err(format!("a value has at most {VALUE_BYTES_MAX} bytes, this one {}", value.len())),
            other => return Err(format!("{other} is neither GET (0) nor PUT (1)")),
        };
        result.map_err(|e| e.to_string())
    }
}

fn request(what: u8, key: u32, value: &[u8]) -> Vec<u8> {
    [&[what][..], &key.to_le_bytes(), value].concat()
}

/// Reads a key; empty if nothing was put there.
pub(crate) fn get(client: &Client, key: u32) -> Result<Vec<u8>, raas_rpc::CallError> {
    client.call(&request(GET, key, &[]))
}

/// Sets a key.
pub(crate) fn put(client: &Client, key: u32, value: &[u8]) -> Result<(), raas_rpc::CallError> {
    client.call(&request(PUT, key, value)).map(|_| ())
}
