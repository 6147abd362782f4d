//! An application that uses another host's region: it writes submissions, takes completions, and breaks things.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::RegionAccess;
use engine::{AppId, Event, OperationsOpen};
use shm::{COMPLETION_BYTES, Class, CompletionRecord, Opcode, OperationStatus, Submission};
use verbs::{Provider, QpModify, Qpn, Region};

use crate::world::{QUEUE_NUMBERS, World, addr};

pub(crate) const NUMBER: u64 = 7;
pub(crate) const EPOCH: u64 = 3;
pub(crate) const BYTES: usize = 1 << 20;

/// What an operation ended with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) tag: u64,
    pub(crate) status: OperationStatus,
    pub(crate) value: u64,
    pub(crate) detail: u64,
    pub(crate) bytes: Vec<u8>,
}

/// Host 1 owns a region, which an application of host 0 has open and uses through a queue.
pub(crate) struct Use {
    pub(crate) w: World,
    pub(crate) app: AppId,
    pub(crate) slot: u32,
    pub(crate) handle: u32,
    pub(crate) region: Region,
    pub(crate) ended: Vec<Ended>,
    pub(crate) tags: u64,
}

impl Use {
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(World::new(2, seed), RegionAccess::ALL)
    }

    pub(crate) fn of(mut w: World, access: RegionAccess) -> Self {
        let app = w.attach(0, 64);
        let slot = w.open_queue(0, app, 1);
        let region = Region::anonymous(BYTES).unwrap();
        let owner = &mut w.hosts[1];
        owner.engine.register_region(&mut owner.nic, NUMBER, EPOCH, region.clone(), access).unwrap();
        let grant = owner.engine.grant_region(&mut owner.nic, NUMBER, addr(0)).unwrap();
        let h = &mut w.hosts[0];
        let handle = h.engine.open_region(&mut h.nic, app, addr(1), grant).unwrap();
        Self { w, app, slot, handle, region, ended: Vec::new(), tags: 0 }
    }

    pub(crate) fn submission(&mut self, opcode: Opcode, offset: u64, bytes: u32) -> Submission {
        self.tags += 1;
        Submission {
            tag: self.tags,
            opcode,
            flags: 0,
            class: Class::Visible,
            segments: 0,
            region: self.handle,
            epoch: EPOCH,
            offset,
            bytes,
            notify: 0,
            operand: 0,
            compare: 0,
        }
    }

    pub(crate) fn put(&mut self, s: &Submission, behind: &[u8]) -> bool {
        let (app, slot) = (self.app, self.slot);
        let socket = self.w.app(0, app).sockets.get_mut(&slot).unwrap();
        let put = socket.writer.free().unwrap() >= s.ring_bytes()
            && socket.writer.write_ahead(0, &s.to_bytes())
            && socket.writer.write_ahead(64, behind)
            && socket.writer.commit(s.ring_bytes());
        self.w.app(0, app).poke(slot);
        put
    }

    pub(crate) fn submit(&mut self, s: &Submission, behind: &[u8]) -> u64 {
        assert!(self.put(s, behind), "no room");
        s.tag
    }

    /// Takes the completions that are there.
    pub(crate) fn collect(&mut self) {
        let (app, slot) = (self.app, self.slot);
        let Some(sim) = self.w.hosts[0].apps.get_mut(&app) else { return };
        let socket = sim.sockets.get_mut(&slot).unwrap();
        let mut took = false;
        while socket.reader.available().unwrap() > 0 {
            let mut head = [0; COMPLETION_BYTES];
            assert_eq!(socket.reader.peek_ahead(0, &mut head), head.len());
            let c = CompletionRecord::parse(&head).expect("the engine writes completions");
            let mut bytes = vec![0; c.bytes as usize];
            assert_eq!(socket.reader.peek_ahead(COMPLETION_BYTES as u64, &mut bytes), bytes.len());
            socket.reader.consume(c.ring_bytes());
            let CompletionRecord { tag, status, value, detail, .. } = c;
            assert!(self.ended.iter().all(|e| e.tag != tag), "operation {tag} ended twice");
            self.ended.push(Ended { tag, status, value, detail, bytes });
            took = true;
        }
        if took {
            self.w.app(0, app).poke(slot);
        }
    }

    pub(crate) fn wait(&mut self, tag: u64) -> Ended {
        for _ in 0..2_000_000 {
            self.collect();
            if let Some(at) = self.ended.iter().position(|e| e.tag == tag) {
                return self.ended[at].clone();
            }
            assert!(self.w.step(), "operation {tag} never ends");
        }
        panic!("operation {tag} takes too long: {:?}", self.w.hosts[0].engine.totals());
    }

    pub(crate) fn run(&mut self, s: &Submission, behind: &[u8]) -> Ended {
        let tag = self.submit(s, behind);
        self.w.hosts[0].engine.end_sleep();
        self.w.wake();
        self.wait(tag)
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: u32) -> Ended {
        let s = self.submission(Opcode::Read, offset, bytes);
        self.run(&s, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Ended {
        let s = self.submission(Opcode::Write, offset, bytes.len() as u32);
        self.run(&s, bytes)
    }

    pub(crate) fn atomic(&mut self, opcode: Opcode, offset: u64, operand: u64, compare: u64) -> Ended {
        let s = Submission { operand, compare, ..self.submission(opcode, offset, 8) };
        self.run(&s, &[])
    }

    pub(crate) fn fetch_add(&mut self) -> u64 {
        let s = Submission { operand: 1, ..self.submission(Opcode::FetchAdd, 0, 8) };
        self.submit(&s, &[])
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        self.region.word64(offset).unwrap().load(Ordering::SeqCst)
    }

    /// READs, WRITEs and atomics of the application, as `raas stat` shows them.
    pub(crate) fn verbs(&self) -> (u64, u64, u64) {
        let apps = self.w.hosts[0].engine.apps();
        let row = apps.iter().find(|a| a.pid == 1000).unwrap();
        (row.reads, row.writes, row.atomics)
    }

    pub(crate) fn posted(&self) -> u64 {
        self.w.counter(0, "operations_posted")
    }

    pub(crate) fn break_lane(&mut self, host: usize) {
        let lanes = self.w.hosts[host].engine.lanes();
        if let Some(qpn) = lanes.first().and_then(|l| l.qpn).filter(|q| *q != 0) {
            self.w.hosts[host].nic.modify_qp(Qpn(qpn), &QpModify::Err).unwrap();
        }
    }

    pub(crate) fn said(&mut self, what: impl Fn(&Event) -> bool) -> bool {
        self.w.hosts[0].regions.iter().any(what)
    }

    pub(crate) fn is_stopped(&mut self) -> bool {
        self.said(|e| matches!(e, Event::RegionStopped { region: NUMBER, .. }))
    }

    pub(crate) fn is_closed(&mut self) -> bool {
        self.said(|e| matches!(e, Event::RegionClosed { region: NUMBER, .. }))
    }
}

impl World {
    pub(crate) fn open_queue(&mut self, host: usize, app: AppId, number: u64) -> u32 {
        let request = 1 << 50 | number;
        let open = OperationsOpen { queue: QUEUE_NUMBERS + number, ring_bytes: 1 << 16 };
        self.hosts[host].engine.open_operations(app, request, open);
        self.until("a queue", |w| w.hosts[host].apps[&app].answers.contains_key(&request));
        self.app(host, app).answers[&request].unwrap()
    }

    pub(crate) fn wake(&mut self) {
        self.pass(Duration::ZERO);
    }
}
