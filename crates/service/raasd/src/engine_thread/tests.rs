//! The thread with a device that does nothing, or dies.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use control::RegionAccess;
use shm::{Segment, Sharing};
use verbs::{
    Access, AddressVector, AhId, AsyncEvent, Completion, CqId, DeviceAttr, Gid, Lkey, Mr, MrId, PathMtu, PostError,
    QpInit, QpModify, QpStatus, QpType, Qpn, RecvWr, Region, Rkey, SendWr, SrqId, SrqInit, VerbsError,
};

use plane::RegionCommand;

use super::*;
use crate::error::panic_words;

/// A device that completes nothing and, after so many polls, panics.
struct Idle {
    attr: DeviceAttr,
    polls_left: Option<u32>,
    polls: Arc<AtomicU64>,
}

const NO: VerbsError = VerbsError::NoSuch("object");

impl Provider for Idle {
    fn device(&self) -> &DeviceAttr {
        &self.attr
    }
    fn create_cq(&mut self, _: u32) -> Result<CqId, VerbsError> {
        Ok(CqId(1))
    }
    fn destroy_cq(&mut self, _: CqId) -> Result<(), VerbsError> {
        Ok(())
    }
    fn create_srq(&mut self, _: &SrqInit) -> Result<SrqId, VerbsError> {
        Ok(SrqId(1))
    }
    fn destroy_srq(&mut self, _: SrqId) -> Result<(), VerbsError> {
        Ok(())
    }
    fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, VerbsError> {
        if init.qp_type == QpType::Ud { Ok(Qpn(2)) } else { Err(NO) }
    }
    fn modify_qp(&mut self, _: Qpn, _: &QpModify) -> Result<(), VerbsError> {
        Ok(())
    }
    fn query_qp(&self, _: Qpn) -> Result<QpStatus, VerbsError> {
        Err(NO)
    }
    fn destroy_qp(&mut self, _: Qpn) -> Result<(), VerbsError> {
        Err(NO)
    }
    fn create_ah(&mut self, _: &AddressVector) -> Result<AhId, VerbsError> {
        Err(NO)
    }
    fn destroy_ah(&mut self, _: AhId) -> Result<(), VerbsError> {
        Err(NO)
    }
    fn reg_mr(&mut self, _: &Region, _: u64, len: u64, _: Access) -> Result<Mr, VerbsError> {
        Ok(Mr { id: MrId(1), lkey: Lkey(1), rkey: Rkey(1), len })
    }
    fn dereg_mr(&mut self, _: MrId) -> Result<(), VerbsError> {
        Err(NO)
    }
    fn post_send(&mut self, _: Qpn, _: &[SendWr<'_>]) -> Result<(), PostError> {
        Err(PostError { index: 0, cause: NO })
    }
    fn post_recv(&mut self, _: Qpn, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Ok(())
    }
    fn post_srq_recv(&mut self, _: SrqId, _: &[RecvWr<'_>]) -> Result<(), PostError> {
        Err(PostError { index: 0, cause: NO })
    }
    fn poll_cq(&mut self, _: CqId, _: &mut Vec<Completion>, _: usize) -> Result<usize, VerbsError> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        match &mut self.polls_left {
            Some(0) => panic!("the device is on fire"),
            Some(n) => *n -= 1,
            None => {}
        }
        Ok(0)
    }
    fn req_notify_cq(&mut self, _: CqId, _: bool) -> Result<(), VerbsError> {
        Ok(())
    }
    fn poll_event(&mut self) -> Option<AsyncEvent> {
        None
    }
}

/// An engine, and what it says.
struct Started {
    handle: EngineHandle,
    events: mpsc::Receiver<EngineReport>,
    ended: Shutdown,
}

fn start(polls_left: Option<u32>) -> Started {
    start_counting(polls_left, Arc::default())
}

fn start_counting(polls_left: Option<u32>, polls: Arc<AtomicU64>) -> Started {
    let address = IpAddr::from([127, 0, 0, 1]);
    let attr = DeviceAttr {
        name: "idle".into(),
        gid: Gid::from(address),
        udp_port: 4791,
        mtu: PathMtu::Mtu1024,
        max_msg_bytes: 1 << 30,
        max_inline_bytes: 0,
        max_qp_wr: 1 << 14,
        max_srq_wr: 1 << 14,
        max_cqe: 1 << 16,
        max_sge: 4,
        max_rd_atomic: 1,
        max_qp: 64,
        max_mr: 64,
        capabilities: verbs::Capabilities::ROCE,
        rx_budget_bytes: u32::MAX,
    };
    let page = Segment::create("test", EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
    let page = EnginePage::format(page.into_region(), 1).unwrap();
    let config = EngineConfig::new(vec![address]);
    let (queue, events) = mpsc::channel(EVENTS_MAX);
    let (ended, device) = (Shutdown::new(), Idle { attr, polls_left, polls });
    let parts =
        EngineParts { config, device, page, entropy: [1; 32], events: queue, ended: ended.clone(), cpu_max: 100 };
    Started { handle: spawn(parts).unwrap(), events, ended }
}

fn inspect(started: &mut Started, request: u64) {
    let command = Command::Inspect { number: request, viewer: Viewer::All, part: EnginePart::Totals };
    started.handle.commands.blocking_send(command).unwrap();
    started.handle.bell.ring();
    let answer = started.events.blocking_recv().map(|said| said.what);
    assert!(matches!(answer, Some(FromEngine::Inspected { number, .. }) if number == request), "{answer:?}");
}

#[test]
fn commands_are_answered_awake_and_asleep_and_stop_ends_it() {
    let mut started = start(None);
    for request in 0..200 {
        if request % 10 == 0 {
            // Long enough to fall asleep.
            std::thread::sleep(Duration::from_millis(3));
        }
        inspect(&mut started, request);
    }
    started.handle.commands.blocking_send(Command::Stop).unwrap();
    started.handle.bell.ring();
    started.handle.thread.join().unwrap().unwrap();
    assert!(started.events.blocking_recv().is_none());
}

#[test]
fn a_control_plane_that_is_gone_ends_it() {
    let started = start(None);
    drop(started.handle.commands);
    started.handle.bell.ring();
    started.handle.thread.join().unwrap().unwrap();
}

#[test]
fn answers_that_nobody_takes_hold_commands_back_and_are_not_lost() {
    let mut started = start(None);
    let total = (EVENTS_MAX + COMMANDS_MAX / 2) as u64;
    for request in 0..total {
        let part = EnginePart::Connections(0);
        started.handle.commands.blocking_send(Command::Inspect { number: request, viewer: Viewer::All, part }).unwrap();
        started.handle.bell.ring();
    }
    for request in 0..total {
        let answer = started.events.blocking_recv().map(|said| said.what);
        assert!(matches!(answer, Some(FromEngine::Inspected { number, .. }) if number == request), "{answer:?}");
    }
}

#[test]
fn a_round_of_the_engine_has_one_page_at_most() {
    const QUESTIONS: u64 = 500;
    let polls = Arc::new(AtomicU64::new(0));
    let mut started = start_counting(None, Arc::clone(&polls));
    for number in 0..QUESTIONS {
        let part = [EnginePart::Totals, EnginePart::Connections(0), EnginePart::Apps(7)][number as usize % 3];
        started.handle.commands.blocking_send(Command::Inspect { number, viewer: Viewer::User(5), part }).unwrap();
    }
    started.handle.bell.ring();
    for expected in 0..QUESTIONS {
        let answer = started.events.blocking_recv().map(|said| said.what);
        assert!(matches!(answer, Some(FromEngine::Inspected { number, .. }) if number == expected), "{answer:?}");
        // The device is polled once a round, before the round's page is made.
        assert!(polls.load(Ordering::Relaxed) > expected, "page {expected}");
    }
}

#[test]
fn a_panic_closes_the_queue_and_is_told() {
    let mut started = start(Some(10));
    assert!(started.events.blocking_recv().is_none());
    let panic = started.handle.thread.join().unwrap_err();
    assert_eq!(panic_words(panic.as_ref()), "the device is on fire");
    assert!(started.ended.is_triggered(), "the daemon ends with an engine");
}

#[test]
fn a_region_is_registered_for_what_its_owner_allows_and_one_that_is_not_is_told() {
    let mut started = start(None);
    let peer = IpAddr::from([127, 0, 0, 2]);
    let mut grant = |region, memory: Option<dispatch::Mapped>| {
        let register = memory.as_ref().map(|_| RegionAccess::READ);
        let command = RegionCommand::Grant { region, epoch: 3, register, writer: None, peer, open: 7, lane: None };
        let command = dispatch::Command::Region { command, memory };
        started.handle.commands.blocking_send(Command::Engine(command)).unwrap();
        started.handle.bell.ring();
        match started.events.blocking_recv().map(|said| said.what) {
            Some(FromEngine::Report(Report::RegionGranted { open: 7, result, not_registered, .. })) => {
                (result, not_registered)
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(grant(1, Some(Err("no memory".into()))), (Err(_), Some(1))));
    assert!(matches!(grant(1, None), (Err(_), None)), "this one was to be registered before");
    let memory = Region::anonymous(4096).unwrap();
    let (granted, not_registered) = grant(1, Some(Ok(memory)));
    let granted = granted.unwrap();
    assert_eq!((granted.access, granted.epoch, not_registered), (RegionAccess::READ, 3, None));
}
