//! A server: a listener, and a thread for each worker that is connected. It ends with the process.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use raas::{ListenOptions, MessageListener, Region, RegionAccess, RegionOptions, Session};

use crate::error::ServeError;
use crate::link::{Connection, Over, RING_BYTES};
use crate::values::{KEYS_MAX, Values, ValuesError};
use crate::wire::{self, Request, VALUE_BYTES};

/// Workers of a server at a time; one more is turned away.
const WORKERS_MAX: usize = 256;

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
}

/// What the threads of a server share.
#[derive(Debug)]
struct Shared {
    values: Values,
    keys: u64,
    /// Key and name of the region that has the values.
    region: Option<([u8; 16], String)>,
    workers: AtomicUsize,
}

impl Server {
    /// Starts one that holds the keys from 0 to `keys`, all with the value 0. `at` is the address that workers connect
    /// to; with port 0 the system chooses one.
    pub fn start(over: &Over, at: SocketAddr, keys: u64) -> Result<Self, ServeError> {
        if !(1..=KEYS_MAX).contains(&keys) {
            return Err(ServeError::Keys { keys, max: KEYS_MAX });
        }
        match over {
            Over::Tcp => {
                let listen = || -> std::io::Result<_> {
                    let listener = TcpListener::bind(at)?;
                    let address = listener.local_addr()?;
                    Ok((listener, address))
                };
                let (listener, address) = listen().map_err(|error| ServeError::Listen { at, error })?;
                let shared = Shared::new(keys, None);
                thread::spawn(move || {
                    listener.incoming().map_while(Result::ok).for_each(|stream| shared.take(Connection::tcp(stream)));
                });
                Ok(Self { address })
            }
            Over::Raas(session) => Self::over_raas(session, at, keys),
        }
    }

    fn over_raas(session: &Session, at: SocketAddr, keys: u64) -> Result<Self, ServeError> {
        let options = ListenOptions::new().ring_bytes(RING_BYTES);
        let listener =
            MessageListener::bind_with(session, at, options).map_err(|error| ServeError::Bind { at, error })?;
        let address = listener.local_addr().map_err(|error| ServeError::Listen { at, error })?;
        // Listeners of a host have ports of their own, and so the name is no other region's.
        let name = format!("parameter-server-{}-{}", std::process::id(), address.port());
        let region = RegionOptions::new().access(RegionAccess::READ);
        let region = region.create(session, &name, keys * VALUE_BYTES as u64)?;
        let shared = Shared::new(keys, Some(region));
        thread::spawn(move || {
            listener.incoming().map_while(Result::ok).for_each(|stream| shared.take(Ok(Connection::raas(stream))));
        });
        Ok(Self { address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Shared {
    fn new(keys: u64, region: Option<Region>) -> Arc<Self> {
        let named = region.as_ref().map(|region| (*region.key().as_bytes(), region.name().to_owned()));
        Arc::new(Self { values: Values::new(keys, region), keys, region: named, workers: AtomicUsize::new(0) })
    }

    /// Serves a worker in a thread of its own.
    fn take(self: &Arc<Self>, link: std::io::Result<Connection>) {
        // A connection that ended at once is nobody's concern.
        let Ok(mut link) = link else { return };
        let shared = Arc::clone(self);
        if self.workers.fetch_add(1, Ordering::Relaxed) < WORKERS_MAX {
            thread::spawn(move || {
                if let Err(error) = shared.serve(&mut link) {
                    eprintln!("a worker's connection ended: {error}");
                }
                shared.workers.fetch_sub(1, Ordering::Relaxed);
            });
        } else {
            self.workers.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Answers one worker until it ends.
    fn serve(&self, link: &mut Connection) -> std::io::Result<()> {
        let mut reply = Vec::new();
        while let Some(message) = link.receive()? {
            self.answer(message, &mut reply);
            link.send(&reply)?;
        }
        Ok(())
    }

    fn answer(&self, message: &[u8], reply: &mut Vec<u8>) {
        let done: Result<(), ValuesError> = match wire::request(message) {
            Err(error) => return wire::put_refused(reply, &error.to_string()),
            Ok(Request::Hello) => {
                let region = self.region.as_ref().map(|(key, name)| (*key, name.as_str()));
                return wire::put_welcome(reply, self.keys, region);
            }
            Ok(Request::Reset) => self.values.reset(),
            Ok(Request::Push(keys, values)) => self.values.add(keys, values),
            Ok(Request::Pull(keys)) => {
                let pulled = self.values.read(keys, |values| wire::put_values(reply, keys.len(), values));
                match pulled {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
        };
        match done {
            Ok(()) => wire::put_done(reply),
            Err(error) => wire::put_refused(reply, &error.to_string()),
        }
    }
}
