//! The one NIC of a process: all contexts and threads of it share it. A child made by `fork` has none until it opens a
//! device, and then one of its own.
//!
//! Owns the NIC, the GID table and which object of the program an event is of. No lock of the maps is held while the NIC is
//! called.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use softnic::{Listener, Progress, SoftNic, SoftNicConfig};
use verbs::{AsyncEvent, Completion, CqId, DeviceAttr, Gid, Provider, Qpn, SrqId};

use crate::events::lock;
use crate::place;
use objects::{AsyncItem, Channel, Context, Cq, Qp, Srq};

pub(crate) mod objects;
pub(crate) mod report;

/// Names the addresses of the device, with commas between them; all of the host's otherwise.
const ADDRESSES: &str = "RAAS_VERBS_ADDRESSES";

/// How many `fork`s lie between the process that loaded the library and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

/// The NIC and what belongs to it. It lives as long as its process.
#[derive(Debug)]
pub(crate) struct Process {
    nic: Mutex<Held>,
    pub(crate) attr: DeviceAttr,
    /// The GID table.
    pub(crate) gids: Vec<Gid>,
    pub(crate) objects: Arc<Objects>,
    forks: u32,
}

/// The NIC, and room for what it gives.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) nic: SoftNic,
    pub(crate) completions: Vec<Completion>,
}

/// Addresses of the program's objects by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) cqs: Mutex<HashMap<CqId, usize>>,
    pub(crate) qps: Mutex<HashMap<Qpn, usize>>,
    pub(crate) srqs: Mutex<HashMap<SrqId, usize>>,
    /// Open contexts, for events of the port.
    pub(crate) contexts: Mutex<Vec<usize>>,
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

impl Process {
    /// The NIC of this process, opened if it has none.
    pub(crate) fn open() -> Result<&'static Self, String> {
        let mut process = lock(&PROCESS);
        let forks = FORKS.load(Ordering::Relaxed);
        if let Some(open) = process.filter(|open| open.forks == forks) {
            return Ok(open);
        }
        if process.is_none() {
            // SAFETY: the function is of this library, which is never unloaded: a driver of libibverbs keeps it.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        // That of the parent stays as it is in a child: its thread is not here, and its memory may be half changed.
        let made: &'static Self = Box::leak(Box::new(Self::make(forks)?));
        *process = Some(made);
        report::at_exit();
        Ok(made)
    }

    fn make(forks: u32) -> Result<Self, String> {
        let addresses = addresses();
        let (first, others) = addresses.split_first().ok_or("this network namespace has no address: set lo up")?;
        let share = place::find(&addresses).map_err(|error| format!("{error}; {ADDRESSES} names others"))?;
        let is_alone = share.is_none();
        let objects = Arc::new(Objects::default());
        let config = SoftNicConfig {
            standby: others.to_vec(),
            share: share.map(Arc::new),
            progress: Progress::Helper,
            listener: Some(Arc::clone(&objects) as Arc<dyn Listener>),
            ..SoftNicConfig::new(*first)
        };
        let nic = SoftNic::open(config).map_err(|error| match is_alone {
            true => {
                format!("{error}. Without an agent each process needs addresses of its own: start it by `raas verbs`")
            }
            false => error.to_string(),
        })?;
        let attr = nic.device().clone();
        let gids = addresses.iter().map(|address| Gid::from(*address)).collect();
        Ok(Self { nic: Mutex::new(Held { nic, completions: Vec::new() }), attr, gids, objects, forks })
    }

    /// The NIC of this process, if a device was opened.
    pub(crate) fn current() -> Option<&'static Self> {
        *lock(&PROCESS)
    }

    /// The NIC; none in a child that was made after it was opened.
    pub(crate) fn nic(&self) -> Option<MutexGuard<'_, Held>> {
        (self.forks == FORKS.load(Ordering::Relaxed)).then(|| lock(&self.nic))
    }
}

/// The addresses that the device is at, the one that programs take first at the front.
fn addresses() -> Vec<IpAddr> {
    let named = std::env::var(ADDRESSES).unwrap_or_default();
    let named: Vec<IpAddr> = named.split(',').filter_map(|address| address.trim().parse().ok()).collect();
    if named.is_empty() { softnic::host_addresses().unwrap_or_default() } else { named }
}

impl Objects {
    fn raise(&self, context: usize, item: AsyncItem) {
        // SAFETY: an object is taken out of the maps before it goes, and its context goes after it.
        let context = unsafe { &*(context as *const Context) };
        context.events.push(item);
    }

    fn on_queue_pair(&self, qpn: Qpn, kind: u32) {
        let qps = lock(&self.qps);
        if let Some(element) = qps.get(&qpn).copied() {
            // SAFETY: an object is taken out of its map, under the lock that is held here, before it goes.
            let context = unsafe { (*(element as *const Qp)).public.context };
            // SAFETY: the context of a QP is open.
            self.raise(std::ptr::from_ref(unsafe { Context::of(context) }) as usize, AsyncItem { element, kind });
        }
    }
}

/// `enum ibv_event_type`.
pub(crate) mod event_type {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const QP_FATAL: u32 = 1;
    pub(crate) const QP_REQ_ERR: u32 = 2;
    pub(crate) const QP_ACCESS_ERR: u32 = 3;
    pub(crate) const COMM_EST: u32 = 4;
    pub(crate) const SQ_DRAINED: u32 = 5;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ACTIVE: u32 = 9;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
    pub(crate) const QP_LAST_WQE_REACHED: u32 = 16;
}

impl Listener for Objects {
    fn on_completion(&self, cq: CqId) {
        let cqs = lock(&self.cqs);
        let Some(address) = cqs.get(&cq).copied() else { return };
        // SAFETY: a CQ is taken out of the map, under the lock that is held here, before it goes; its channel goes later.
        let channel = unsafe { (*(address as *const Cq)).public.channel };
        if !channel.is_null() {
            // SAFETY: channels of this library are `Channel`s.
            unsafe { &(*channel.cast::<Channel>()).events }.push(address);
        }
    }

    fn on_event(&self, event: AsyncEvent) {
        use event_type as t;
        match event {
            AsyncEvent::QpFatal(qpn) => self.on_queue_pair(qpn, t::QP_FATAL),
            AsyncEvent::QpRequestError(qpn) => self.on_queue_pair(qpn, t::QP_REQ_ERR),
            AsyncEvent::QpAccessError(qpn) => self.on_queue_pair(qpn, t::QP_ACCESS_ERR),
            AsyncEvent::SqDrained(qpn) => self.on_queue_pair(qpn, t::SQ_DRAINED),
            AsyncEvent::CommEstablished(qpn) => self.on_queue_pair(qpn, t::COMM_EST),
            AsyncEvent::LastWqeReached(qpn) => self.on_queue_pair(qpn, t::QP_LAST_WQE_REACHED),
            AsyncEvent::SrqLimit(srq) => {
                let srqs = lock(&self.srqs);
                if let Some(element) = srqs.get(&srq).copied() {
                    // SAFETY: as for queue pairs.
                    let context = unsafe { Context::of((*(element as *const Srq)).context) };
                    context.events.push(AsyncItem { element, kind: t::SRQ_LIMIT_REACHED });
                }
            }
            AsyncEvent::CqError(cq) => {
                let cqs = lock(&self.cqs);
                if let Some(element) = cqs.get(&cq).copied() {
                    // SAFETY: as for queue pairs.
                    let context = unsafe { Context::of((*(element as *const Cq)).public.context) };
                    context.events.push(AsyncItem { element, kind: t::CQ_ERR });
                }
            }
            AsyncEvent::PortDown => self.on_port(1, t::PORT_ERR),
            AsyncEvent::PortUp => self.on_port(1, t::PORT_ACTIVE),
            AsyncEvent::DeviceFatal => self.on_port(0, t::DEVICE_FATAL),
            // Verbs have no word for the others.
            _ => {}
        }
    }
}

impl Objects {
    fn on_port(&self, element: usize, kind: u32) {
        for context in lock(&self.contexts).iter() {
            self.raise(*context, AsyncItem { element, kind });
        }
    }
}
