//! A mechanism that is this file and a line of the list, and nothing else of the engine, with something on each lane.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use control::Reason;
use roce::{Ipv4IdMode, Nic, NicConfig, NicLimits};
use shm::EnginePage;
use verbs::{Capabilities, PathMtu, Provider, Region, Time};

use super::*;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::engine::mechanism::Counter;
use crate::frame::{FrameError, FrameRecord, FrameWriter, LaneRecord, RawRecord, StreamRecord, parse};
use crate::ids::LaneId;
use crate::lane_at::LaneAt;
use crate::lane_part::LanePart;
use crate::violation::Violation;

const KIND: u8 = 200;
const FORBIDDEN: u32 = 13;
/// As long as it is owed, the lane is needed.
const DEAR: u32 = 14;

/// What it did, and what it wants.
#[derive(Debug, Default)]
struct Noted {
    heard: Vec<u32>,
    rounds: u32,
    lanes_up: u32,
    lanes_severed: Vec<Reason>,
    has_work: bool,
    deadline: Option<Time>,
}

thread_local! {
    static NOTED: RefCell<Noted> = RefCell::default();
}

fn noted<T>(f: impl FnOnce(&mut Noted) -> T) -> T {
    NOTED.with(|noted| f(&mut noted.borrow_mut()))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToyRecord(u32);

impl FrameRecord for ToyRecord {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        if raw.kind == KIND { raw.number().map(|number| Some(Self(number))) } else { Ok(None) }
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        frame.append_number(KIND, 0, self.0)
    }
}

/// What it keeps on a lane: numbers that the peer is to be told.
#[derive(Debug, Default)]
pub(crate) struct ToyOnLane {
    owed: Vec<u32>,
}

impl LanePart for ToyOnLane {
    fn wants_frame(&self) -> bool {
        !self.owed.is_empty()
    }

    fn is_quiet(&self) -> bool {
        self.owed.is_empty()
    }

    fn is_needed(&self) -> bool {
        self.owed.contains(&DEAR)
    }

    fn forget_queue_pair(&mut self) {
        self.owed.clear();
    }
}

#[derive(Debug)]
pub(crate) struct Toy;

impl Mechanism for Toy {
    type Record = ToyRecord;

    fn on_record<P: Provider>(
        _engine: &mut Engine,
        _nic: &mut P,
        _lane: LaneId,
        ToyRecord(number): ToyRecord,
    ) -> Result<(), Violation> {
        if number == FORBIDDEN {
            return Err(Violation::Unreliable("a number that brings no luck"));
        }
        noted(|noted| noted.heard.push(number));
        Ok(())
    }

    fn write(telling: &mut Telling<'_>, frame: &mut FrameWriter<'_>) -> bool {
        let owed = &mut telling.lane.on.toy.owed;
        while let Some(number) = owed.first().copied() {
            if !frame.push(&ToyRecord(number)) {
                return false;
            }
            owed.remove(0);
        }
        true
    }

    fn run(_engine: &mut Engine) -> bool {
        noted(|noted| noted.rounds += 1);
        false
    }

    fn has_work(_engine: &Engine) -> bool {
        noted(|noted| noted.has_work)
    }

    fn deadline(_engine: &Engine) -> Option<Time> {
        noted(|noted| noted.deadline)
    }

    fn on_lane_up(_engine: &mut Engine, _lane: LaneId) {
        noted(|noted| noted.lanes_up += 1);
    }

    fn on_severed(_engine: &mut Engine, _lane: LaneId, reason: Reason) {
        noted(|noted| noted.lanes_severed.push(reason));
    }

    fn counters(_engine: &Engine, out: &mut Vec<Counter>) {
        out.push(("toys_heard", noted(|noted| noted.heard.len() as u64)));
    }
}

fn address(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn host(number: u8) -> (Engine, Nic) {
    let config = NicConfig {
        local: SocketAddr::new(address(number), 4791),
        standby: Vec::new(),
        mtu: PathMtu::Mtu4096,
        limits: NicLimits::default(),
        rx_budget_bytes: 1 << 20,
        capabilities: Capabilities::SOFTWARE_NIC,
        name: "toy".into(),
        max_gso_segments: 16,
        id_mode: Ipv4IdMode::SegmentIndex,
    };
    let mut nic = Nic::new(config, [number; 32]);
    let page = EnginePage::format(Region::anonymous(EnginePage::BYTES as usize).unwrap(), 1).unwrap();
    let engine = Engine::new(EngineConfig::new(vec![address(number)]), &mut nic, page, [number; 32]).unwrap();
    (engine, nic)
}

/// A host whose lane to another one is about to be up, the lane, and the incarnation of the other end.
fn linked() -> (Engine, Nic, LaneId, u32) {
    let ((mut engine, mut nic), (mut other, mut other_nic)) = (host(1), host(2));
    engine.lane_offer(&mut nic, address(2)).unwrap();
    let offer = other.lane_offer(&mut other_nic, address(1)).unwrap();
    engine.lane_accept(&mut nic, address(2), &offer).unwrap();
    let lane = engine.lanes.at(LaneAt::from(address(2))).unwrap();
    (engine, nic, lane, offer.incarnation)
}

fn frame(incarnation: u32, numbers: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::new(&mut bytes, 4096);
    for number in numbers {
        assert!(writer.push(&LaneRecord::Reclaim { most: 64 }));
        assert!(writer.push(&ToyRecord(*number)));
        // About a connection that is over here: it is passed over.
        assert!(writer.push(&StreamRecord::Head { route: 1, consumed: 0 }));
    }
    writer.finish(incarnation, 1, 0);
    bytes
}

#[test]
fn its_records_come_to_it_among_those_of_others() {
    let (mut engine, mut nic, lane, incarnation) = linked();
    let frame = frame(incarnation, &[3, 4]);
    assert_eq!(check_frame(&frame), Ok(6));
    assert_eq!(engine.on_frame(&mut nic, lane, &frame), Ok(()));
    assert_eq!(noted(|noted| std::mem::take(&mut noted.heard)), [3, 4]);
    assert_eq!(engine.totals().counters.iter().find(|(name, _)| *name == "stale_frames"), Some(&("stale_frames", 2)));
}

#[test]
fn what_it_does_not_take_costs_the_peer_the_lane() {
    let (mut engine, mut nic, lane, incarnation) = linked();
    let found = engine.on_frame(&mut nic, lane, &frame(incarnation, &[FORBIDDEN, 5]));
    assert_eq!(found, Err(Violation::Unreliable("a number that brings no luck")));
    assert!(noted(|noted| noted.heard.is_empty()));
}

#[test]
fn it_has_its_part_of_rounds_sleep_and_rows() {
    let (mut engine, mut nic) = host(1);
    let now = Time::ZERO + Duration::from_secs(1);
    engine.run(now, &mut nic);
    engine.run(now, &mut nic);
    assert_eq!(noted(|noted| noted.rounds), 2);
    noted(|noted| noted.has_work = true);
    assert!(!engine.prepare_sleep(&mut nic));
    noted(|noted| noted.has_work = false);
    assert!(engine.prepare_sleep(&mut nic));
    let soon = now + Duration::from_nanos(1);
    noted(|noted| noted.deadline = Some(soon));
    assert_eq!(engine.deadline(), Some(soon));
    noted(|noted| noted.heard = vec![1, 2, 3]);
    assert!(engine.totals().counters.contains(&("toys_heard", 3)));
}

#[test]
fn it_learns_of_a_lane_s_life() {
    let (mut engine, mut nic, _, _) = linked();
    let now = Time::ZERO + Duration::from_secs(1);
    engine.lane_ready(now, &mut nic, address(2));
    assert_eq!(noted(|noted| noted.lanes_up), 1);
    engine.lane_lost(now, &mut nic, address(2), Reason::PeerLost);
    assert_eq!(noted(|noted| std::mem::take(&mut noted.lanes_severed)), [Reason::PeerLost]);
}

/// A host whose lane to another one is up, and the lane.
fn up() -> (Engine, Nic, LaneId) {
    let (mut engine, mut nic, lane, _) = linked();
    engine.lane_ready(Time::ZERO + Duration::from_secs(1), &mut nic, address(2));
    engine.run(Time::ZERO + Duration::from_secs(1), &mut nic);
    (engine, nic, lane)
}

/// What it wrote into the frame that was made last.
fn said(engine: &Engine) -> Vec<u32> {
    let (_, records) = parse::<Record>(&engine.scratch.frame_out).unwrap();
    records
        .filter_map(|record| if let Record::toy(ToyRecord(number)) = record.unwrap() { Some(number) } else { None })
        .collect()
}

#[test]
fn what_it_keeps_on_a_lane_leaves_in_frames() {
    let (mut engine, mut nic, lane) = up();
    let now = Time::ZERO + Duration::from_secs(2);
    let frames = engine.counters.frames_sent;
    assert!(!engine.lanes.get(lane).unwrap().has_frame_to_send());
    engine.lanes.get_mut(lane).unwrap().on.toy.owed = vec![7, 8];
    assert!(engine.lanes.get(lane).unwrap().has_frame_to_send());
    assert!(!engine.lanes.get(lane).unwrap().is_quiet());
    engine.lanes.queue(lane);
    engine.run(now, &mut nic);
    assert_eq!(engine.counters.frames_sent, frames + 1);
    assert_eq!(said(&engine), [7, 8]);
    assert!(engine.lanes.get(lane).unwrap().is_quiet());
}

#[test]
fn what_does_not_fit_leaves_in_the_next_frame() {
    let (mut engine, mut nic, lane) = up();
    engine.lanes.get_mut(lane).unwrap().on.toy.owed = (0..400).collect();
    let frames = engine.counters.frames_sent;
    engine.lanes.queue(lane);
    engine.run(Time::ZERO + Duration::from_secs(2), &mut nic);
    assert!(engine.lanes.get(lane).unwrap().is_quiet());
    assert!(engine.counters.frames_sent > frames + 1, "{} frames", engine.counters.frames_sent - frames);
    assert_eq!(said(&engine).last(), Some(&399));
}

#[test]
fn a_lane_is_needed_and_loses_its_queue_pair_with_it() {
    let (mut engine, mut nic, lane) = up();
    assert!(engine.lanes.get(lane).unwrap().is_unused());
    engine.lanes.get_mut(lane).unwrap().on.toy.owed = vec![DEAR];
    assert!(!engine.lanes.get(lane).unwrap().is_unused());
    engine.lane_lost(Time::ZERO + Duration::from_secs(2), &mut nic, address(2), Reason::PeerLost);
    assert!(engine.lanes.get(lane).unwrap().on.toy.owed.is_empty());
}
