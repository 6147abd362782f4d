//! A pool of another program, as a reader has it.
//!
//! Owns the connections to the owner's program, each of which holds as many tensors as may be lent on it. It must never
//! take an answer for that of another request.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use raas::{ConnectOptions, LOANS_MAX, MessageStream, Region, RegionAccess, RegionKey, Session, View};

use crate::books::Wanted;
use crate::counts::{Counting, Counts};
use crate::error::Error;
use crate::header::{HEAD_BYTES, Head};
use crate::shelf::lock;
use crate::tensor::{Held, Tensor, TensorRef};
use crate::wire::{Reply, hello, request};

/// Connections of a reader to one pool.
const LINKS_MAX: usize = 16;
/// How long an owner's program has to answer, unless told otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to the owner's program.
struct Link {
    stream: MessageStream,
    turn: Mutex<()>,
    held: Arc<AtomicUsize>,
    /// It has ended, or an answer did not come and may still.
    is_over: AtomicBool,
}

/// Why a link gave no tensor.
enum Failure {
    /// The owner said no.
    Refused(Error),
    /// It holds as many as it can.
    Busy,
    /// It is over; another one may do.
    Broken(String),
    /// No answer in time.
    Silent,
}

/// A pool of any host, opened by a reader. Threads may share it.
pub struct Reader {
    session: Session,
    host: IpAddr,
    name: String,
    key: RegionKey,
    opened: Mutex<Head>,
    links: Mutex<Vec<Arc<Link>>>,
    patience: Duration,
    counting: Arc<Counting>,
}

impl Reader {
    /// Opens the pool of that name at a host. The key is the pool's ([`Pool::key`](crate::Pool::key)).
    pub fn open(session: &Session, host: IpAddr, name: &str, key: RegionKey) -> Result<Self, Error> {
        let head = read_head(session, host, name, key)?;
        Ok(Self {
            session: session.clone(),
            host,
            name: name.to_owned(),
            key,
            opened: Mutex::new(head),
            links: Mutex::default(),
            patience: PATIENCE,
            counting: Arc::default(),
        })
    }

    /// How long the owner's program has to answer. Default: 10 s.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.patience = time;
        self
    }

    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Holds the tensor that has a name. On the pool's host it is mapped; of another host nothing is moved yet.
    pub fn get(&self, name: &str) -> Result<Tensor, Error> {
        self.wanted(&Wanted { name: name.to_owned(), generation: None })
    }

    /// Holds the very tensor of a reference. [`Error::Stale`] and [`Error::Freed`] if it is over.
    pub fn get_ref(&self, reference: &TensorRef) -> Result<Tensor, Error> {
        let TensorRef { pool, name, generation } = reference;
        if *pool != lock(&self.opened).pool {
            return Err(Error::Stale { name: name.clone(), held: *generation, current: 0 });
        }
        self.wanted(&Wanted { name: name.clone(), generation: Some(*generation) })
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counting.now()
    }

    fn wanted(&self, wanted: &Wanted) -> Result<Tensor, Error> {
        let mut was_renewed = false;
        for link in self.usable() {
            match self.ask(&link, wanted) {
                Ok(tensor) => return Ok(tensor),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Silent) => return Err(self.silent()),
                Err(Failure::Busy) => {}
                Err(Failure::Broken(_)) => was_renewed = true,
            }
        }
        // All are full or over. One more try if a new one meets the end of a daemon as well.
        let mut last = None;
        for _ in 0..2 {
            let link = self.connect(was_renewed)?;
            match self.ask(&link, wanted) {
                Ok(tensor) => return Ok(tensor),
                Err(Failure::Refused(error)) => return Err(error),
                Err(Failure::Silent) => return Err(self.silent()),
                Err(Failure::Busy) => return Err(self.too_many()),
                Err(Failure::Broken(why)) => (was_renewed, last) = (true, Some(why)),
            }
        }
        Err(Error::OwnerGone { pool: self.name.clone(), why: last.unwrap_or_default() })
    }

    fn silent(&self) -> Error {
        Error::NoAnswer { pool: self.name.clone(), after: self.patience }
    }

    fn too_many(&self) -> Error {
        Error::TooManyHeld { pool: self.name.clone(), max: LINKS_MAX * LOANS_MAX as usize }
    }

    /// Links that may have room. Those that are over are forgotten when nothing is held by them.
    fn usable(&self) -> Vec<Arc<Link>> {
        let mut links = lock(&self.links);
        links.retain(|link| !link.is_over.load(Ordering::Acquire));
        let has_room = |link: &&Arc<Link>| link.held.load(Ordering::Acquire) < LOANS_MAX as usize;
        links.iter().filter(has_room).cloned().collect()
    }

    /// A new link. After the end of another one the pool may have moved, so its head is read again: it must be the same
    /// pool.
    fn connect(&self, is_again: bool) -> Result<Arc<Link>, Error> {
        if lock(&self.links).len() >= LINKS_MAX {
            return Err(self.too_many());
        }
        let mut head = *lock(&self.opened);
        if is_again {
            // What cannot be opened any more by this key is not the pool that it was.
            let found = read_head(&self.session, self.host, &self.name, self.key).map_err(|error| match error {
                Error::Region(why) => Error::OwnerGone { pool: self.name.clone(), why: why.to_string() },
                other => other,
            })?;
            if found.pool != head.pool {
                let why = "another pool has its name: open that".to_owned();
                return Err(Error::OwnerGone { pool: self.name.clone(), why });
            }
            head = found;
            *lock(&self.opened) = found;
        }
        let gone = |why: String| Error::OwnerGone { pool: self.name.clone(), why };
        let options = ConnectOptions::new().timeout(self.patience);
        let host = if self.host.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { self.host };
        let stream = MessageStream::connect_with(&self.session, (host, head.port), options);
        let stream = stream.map_err(|e| gone(e.to_string()))?;
        let prepared = stream.set_read_timeout(Some(self.patience)).and_then(|()| stream.send(&hello(&head.secret)));
        prepared.map_err(|e| gone(e.to_string()))?;
        let link =
            Arc::new(Link { stream, turn: Mutex::default(), held: Arc::default(), is_over: AtomicBool::new(false) });
        lock(&self.links).push(Arc::clone(&link));
        Ok(link)
    }

    fn ask(&self, link: &Link, wanted: &Wanted) -> Result<Tensor, Failure> {
        let answer = {
            let _turn = lock(&link.turn);
            if link.is_over.load(Ordering::Acquire) {
                return Err(Failure::Broken("the connection is over".into()));
            }
            exchange(&link.stream, wanted).inspect_err(|_| link.is_over.store(true, Ordering::Release))
        };
        let (view, reply) = match answer {
            Ok(answer) => answer,
            Err(e) if matches!(e.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {
                return Err(Failure::Silent);
            }
            Err(e) => return Err(Failure::Broken(e.to_string())),
        };
        let (pool, name) = (self.name.clone(), wanted.name.clone());
        let refused = |error| Err(Failure::Refused(error));
        match (view, reply) {
            (Some(view), Some(Reply::Granted(header))) => {
                if header.pool != lock(&self.opened).pool
                    || wanted.generation.is_some_and(|wanted| wanted != header.generation)
                {
                    return refused(Error::Stale { name, held: wanted.generation.unwrap_or(0), current: 0 });
                }
                link.held.fetch_add(1, Ordering::AcqRel);
                let held = Held(Arc::clone(&link.held));
                Tensor::lent((&wanted.name, header), view, held, &self.counting).map_err(Failure::Refused)
            }
            (None, Some(Reply::Stale { held, current })) => refused(Error::Stale { name, held, current }),
            (None, Some(Reply::Freed { generation })) => refused(Error::Freed { name, generation }),
            (None, Some(Reply::Unknown)) => refused(Error::Unknown { pool, name }),
            (None, Some(Reply::Busy)) => Err(Failure::Busy),
            (None, Some(Reply::Renew)) => {
                link.is_over.store(true, Ordering::Release);
                Err(Failure::Broken("its daemon is another one".into()))
            }
            (None, Some(Reply::Other(why))) => refused(Error::Connection { pool, why }),
            (_, reply) => {
                link.is_over.store(true, Ordering::Release);
                refused(Error::Protocol { pool, what: format!("an answer that cannot be: {reply:?}") })
            }
        }
    }
}

/// A request and its answer: a loan and what it is, or why there is none.
fn exchange(stream: &MessageStream, wanted: &Wanted) -> io::Result<(Option<View>, Option<Reply>)> {
    stream.send(&request(wanted))?;
    let next = || stream.receive_view()?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof));
    let first = next()?;
    if !first.is_lent() {
        return Ok((None, Reply::from_bytes(&first.to_vec()?)));
    }
    let second = next()?;
    let reply = if second.is_lent() { None } else { Reply::from_bytes(&second.to_vec()?) };
    Ok((Some(first), reply))
}

fn read_head(session: &Session, host: IpAddr, name: &str, key: RegionKey) -> Result<Head, Error> {
    let mut bytes = [0; HEAD_BYTES];
    let region = Region::open_for(session, host, name, key, RegionAccess::READ);
    region.and_then(|region| region.read(0, &mut bytes)).map_err(|e| Error::of_region(e, name))?;
    let what = || "the region of that name is no pool of tensors".to_owned();
    Head::from_bytes(&bytes).ok_or_else(|| Error::Protocol { pool: name.to_owned(), what: what() })
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("host", &self.host).field("name", &self.name).finish_non_exhaustive()
    }
}
