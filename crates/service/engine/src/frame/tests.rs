//! Literal bytes of every record, and frames that are no frames.

use std::net::IpAddr;

use control::RegionAccess;
use proptest::prelude::*;
use shm::OperationStatus;

use super::header::HEADER_BYTES;
use super::*;
use crate::ask::Ask;
use crate::choice::Load;
use crate::immediate::ROUTE_BITS;
use crate::ring_size::RingSize;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Record {
    Stream(StreamRecord),
    Operation(OperationRecord),
    Unreliable(UnreliableRecord),
    Lane(LaneRecord),
}

impl From<StreamRecord> for Record {
    fn from(record: StreamRecord) -> Self {
        Self::Stream(record)
    }
}

impl From<OperationRecord> for Record {
    fn from(record: OperationRecord) -> Self {
        Self::Operation(record)
    }
}

impl From<UnreliableRecord> for Record {
    fn from(record: UnreliableRecord) -> Self {
        Self::Unreliable(record)
    }
}

impl From<LaneRecord> for Record {
    fn from(record: LaneRecord) -> Self {
        Self::Lane(record)
    }
}

impl FrameRecord for Record {
    fn read(raw: &RawRecord<'_>) -> Result<Option<Self>, FrameError> {
        if let Some(record) = StreamRecord::read(raw)? {
            return Ok(Some(record.into()));
        }
        if let Some(record) = OperationRecord::read(raw)? {
            return Ok(Some(record.into()));
        }
        if let Some(record) = UnreliableRecord::read(raw)? {
            return Ok(Some(record.into()));
        }
        Ok(LaneRecord::read(raw)?.map(Self::from))
    }

    fn write(&self, frame: &mut FrameWriter<'_>) -> bool {
        match self {
            Self::Stream(record) => record.write(frame),
            Self::Operation(record) => record.write(frame),
            Self::Unreliable(record) => record.write(frame),
            Self::Lane(record) => record.write(frame),
        }
    }
}

const RING: WireRing = WireRing {
    size: RingSize { first: 0x0004_0000, grown: 0x0010_0000 },
    rkey: 0x1122_3344,
    addr: 0x0102_0304_0506_0708,
};

fn build(records: &[Record]) -> Vec<u8> {
    let mut buf = vec![0xee; 7];
    let mut w = FrameWriter::new(&mut buf, 4096);
    assert!(w.is_empty());
    for r in records {
        assert!(w.push(r));
    }
    w.finish(0x0a0b_0c0d, 0x1112_1314_1516_1718, 0x2122_2324_2526_2728);
    buf
}

fn records(frame: &[u8]) -> Result<Vec<Record>, FrameError> {
    parse::<Record>(frame)?.1.collect()
}

#[test]
fn header_bytes() {
    let frame = build(&[]);
    #[rustfmt::skip]
    assert_eq!(frame, [
        1, 0, 0, 0,
        0x0a, 0x0b, 0x0c, 0x0d,
        0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28,
    ]);
    let (h, mut r) = parse::<Record>(&frame).unwrap();
    let expected = Header {
        records: 0,
        incarnation: 0x0a0b_0c0d,
        sequence: 0x1112_1314_1516_1718,
        credits: 0x2122_2324_2526_2728,
    };
    assert_eq!(h, expected);
    assert!(r.next().is_none());
}

#[test]
fn record_bytes() {
    let open = StreamRecord::Open(Open {
        route: 0x0010_0001,
        ring: RING,
        to_port: 0x1f90,
        from_port: 0x8001,
        kind: 0,
        to_address: "10.1.2.3".parse().unwrap(),
    })
    .into();
    let regions = vec![
        RunRegion { key: 3, access: RegionAccess::READ | RegionAccess::EXECUTE },
        RunRegion { key: 4, access: RegionAccess::WRITE },
    ];
    let run = Run { id: 0x0102_0304, program: 9, regions, request: vec![1, b'k', 7] };
    let back = StreamRecord::Back(Back {
        route: 5,
        own_route: 6,
        is_answer: true,
        flags: 2,
        ring: RING,
        rx_tail: 9,
        rx_head: 8,
        tx_grown_at: 11,
        rx_grown_at: 10,
    });
    let swap = Ask::Atomic(shm::AtomicOp::CompareSwap { expected: 6, new: 7 });
    #[rustfmt::skip]
    let cases: [(Record, &[u8]); 27] = [
        (open, &[
            1, 0, 0, 56, 0x00, 0x10, 0x00, 0x01,
            0x00, 0x04, 0x00, 0x00, 0x11, 0x22, 0x33, 0x44,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
            0x1f, 0x90, 0x80, 0x01, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3,
            0x00, 0x10, 0x00, 0x00, 0, 0, 0, 0,
        ]),
        (StreamRecord::OpenAck { route: 2, own_route: 3, ring: RING }.into(), &[
            2, 0, 0, 32, 0, 0, 0, 2,
            0, 0, 0, 3, 0x00, 0x04, 0x00, 0x00, 0x11, 0x22, 0x33, 0x44,
            0x00, 0x10, 0x00, 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
        ]),
        (StreamRecord::OpenNak { route: 4, reason: 2 }.into(), &[3, 0, 0, 16, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 0]),
        (StreamRecord::Head { route: 5, consumed: 0x99 }.into(), &[4, 0, 0, 16, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x99]),
        (StreamRecord::Fin { route: 6, final_tail: 1 << 32 }.into(), &[5, 0, 0, 16, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0]),
        (StreamRecord::Stop { route: 7 }.into(), &[6, 0, 0, 8, 0, 0, 0, 7]),
        (StreamRecord::Reset { route: 8, reason: 10 }.into(), &[7, 0, 0, 16, 0, 0, 0, 8, 0, 0, 0, 10, 0, 0, 0, 0]),
        (LaneRecord::Reclaim { most: 8 }.into(), &[8, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0]),
        (LaneRecord::Yield { count: 503 }.into(), &[9, 0, 0, 16, 0, 0, 0, 0, 0, 0, 1, 0xf7, 0, 0, 0, 0]),
        (StreamRecord::Grow { route: 9 }.into(), &[10, 0, 0, 8, 0, 0, 0, 9]),
        (StreamRecord::GrowAnswer { route: 1, allowed: true }.into(), &[11, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
        (StreamRecord::GrownAt { route: 2, at: 1 << 19 }.into(), &[12, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 8, 0, 0]),
        (OperationRecord::Execute { key: 3, id: 0x0102_0304, offset: 0x50, ask: swap }.into(), &[
            13, 0, 0, 40, 0, 0, 0, 3,
            1, 2, 3, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50,
            0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 6,
        ]),
        (OperationRecord::Executed { id: 5, status: OperationStatus::NotificationsFull, value: 0x99 }.into(), &[
            14, 0, 0, 24, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0x99, 12, 0, 0, 0, 0, 0, 0, 0,
        ]),
        (OperationRecord::Run(run).into(), &[
            18, 0, 0, 31, 0, 0, 0, 3,
            1, 2, 3, 4, 0, 0, 0, 9, 9, 1, 0, 0,
            0, 0, 0, 4, 2, 0, 0, 0, 1, b'k', 7,
        ]),
        (OperationRecord::Answer { id: 6, failed: true, bytes: vec![1, 2, 3] }.into(), &[
            19, 0, 0, 15, 0, 0, 0, 6, 1, 0, 0, 0, 1, 2, 3,
        ]),
        (UnreliableRecord::Offer { piece_bytes: 0x2000, endpoint: vec![4, 5, 6] }.into(), &[
            22, 0, 0, 19, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 4, 5, 6,
        ]),
        (UnreliableRecord::Answer { reason: 36 }.into(), &[23, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 36, 0, 0, 0, 0]),
        (UnreliableRecord::PlacesAsk.into(), &[24, 0, 0, 8, 0, 0, 0, 0]),
        (UnreliableRecord::Places(WritePlaces { first: RING.remote(), count: 64, bytes: 0x2000 }).into(), &[
            25, 0, 0, 32, 0, 0, 0, 0,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x22, 0x33, 0x44,
            0, 0, 0, 64, 0, 0, 0x20, 0, 0, 0, 0, 0,
        ]),
        (StreamRecord::Ready { route: 3, end: 0x0a0b, ring: RING.remote() }.into(), &[
            15, 0, 0, 32, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0,
        ]),
        (StreamRecord::Pulled { route: 4, end: 7 }.into(), &[16, 0, 0, 16, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 7]),
        (LaneRecord::Load(Load::new(90, 50)).into(), &[17, 0, 0, 16, 0, 0, 0, 0, 90, 50, 0, 0, 0, 0, 0, 0]),
        (LaneRecord::Unused { us: 60_000_000 }.into(), &[27, 0, 0, 16, 0, 0, 0, 0, 3, 0x93, 0x87, 0, 0, 0, 0, 0]),
        (back.into(), &[
            20, 0, 0, 72, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 1, 2,
            0x00, 0x04, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0,
            0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 8,
            0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0, 10,
        ]),
        (StreamRecord::Gone { route: 7 }.into(), &[21, 0, 0, 8, 0, 0, 0, 7]),
        (UnreliableRecord::PlacesGrant { end: 0x0102_0041 }.into(), &[26, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0x41]),
    ];
    for (record, bytes) in cases {
        let frame = build(std::slice::from_ref(&record));
        assert_eq!(&frame[HEADER_BYTES..], bytes, "{record:?}");
        assert_eq!(frame[2..4], [0, 1]);
        assert_eq!(records(&frame), Ok(vec![record]));
    }
}

#[test]
fn an_ipv6_destination_stays_itself() {
    let open = |to: &str| {
        let to_address = to.parse().unwrap();
        StreamRecord::Open(Open { route: 1, ring: RING, to_port: 1, from_port: 2, kind: 1, to_address }).into()
    };
    assert_eq!(records(&build(&[open("2001:db8::1")])), Ok(vec![open("2001:db8::1")]));
    assert_eq!(records(&build(&[open("::ffff:10.0.0.1")])), Ok(vec![open("10.0.0.1")]));
}

#[test]
fn a_full_frame_refuses_and_stays_whole() {
    let mut buf = Vec::new();
    let mut w = FrameWriter::new(&mut buf, HEADER_BYTES + 16 + 15);
    assert!(w.push(&StreamRecord::Head { route: 1, consumed: 2 }));
    assert!(!w.push(&StreamRecord::Head { route: 1, consumed: 3 }));
    assert!(w.push(&StreamRecord::Stop { route: 1 }));
    w.finish(1, 1, 0);
    assert_eq!(
        records(&buf),
        Ok(vec![StreamRecord::Head { route: 1, consumed: 2 }.into(), StreamRecord::Stop { route: 1 }.into()])
    );
}

#[test]
fn malformed_frames_are_named() {
    let whole = build(&[StreamRecord::Head { route: 1, consumed: 2 }.into()]);
    for cut in 0..HEADER_BYTES {
        assert_eq!(parse::<Record>(&whole[..cut]).unwrap_err(), FrameError::Truncated("header"));
    }
    for cut in HEADER_BYTES..whole.len() {
        assert_eq!(records(&whole[..cut]), Err(FrameError::Truncated("record")), "{cut}");
    }
    let changed = |at: usize, to: u8| {
        let mut f = whole.clone();
        f[at] = to;
        records(&f)
    };
    assert_eq!(changed(0, 2), Err(FrameError::Version(2)));
    assert_eq!(changed(1, 1), Err(FrameError::Reserved("header")));
    assert_eq!(changed(3, 0), Err(FrameError::Trailing(16)));
    assert_eq!(changed(3, 2), Err(FrameError::Truncated("record")));
    assert_eq!(changed(HEADER_BYTES, 0), Err(FrameError::Kind(0)));
    assert_eq!(changed(HEADER_BYTES, 99), Err(FrameError::Kind(99)));
    assert_eq!(changed(HEADER_BYTES, 6), Err(FrameError::Length { kind: 6, bytes: 16 }));
    assert_eq!(changed(HEADER_BYTES + 1, 1), Err(FrameError::Reserved("record")));
    assert_eq!(changed(HEADER_BYTES, 21), Err(FrameError::Length { kind: 21, bytes: 16 }));
    let mut answer = build(&[StreamRecord::GrowAnswer { route: 1, allowed: false }.into()]);
    answer[HEADER_BYTES + 11] = 2;
    assert_eq!(records(&answer), Err(FrameError::Answer(2)));
    assert_eq!(changed(HEADER_BYTES + 3, 7), Err(FrameError::Length { kind: 4, bytes: 7 }));
    assert_eq!(changed(HEADER_BYTES + 3, 8), Err(FrameError::Length { kind: 4, bytes: 8 }));
}

#[test]
fn each_kind_is_one_mechanism_s() {
    fn knows<R: FrameRecord>(frame: &[u8], kind: u8) -> bool {
        parse::<R>(frame).unwrap().1.next().unwrap().err() != Some(FrameError::Kind(kind))
    }
    let mut frame = build(&[StreamRecord::Stop { route: 1 }.into()]);
    let mut all = 0;
    for kind in 0..=u8::MAX {
        frame[HEADER_BYTES] = kind;
        let known = [
            knows::<StreamRecord>(&frame, kind),
            knows::<OperationRecord>(&frame, kind),
            knows::<UnreliableRecord>(&frame, kind),
            knows::<LaneRecord>(&frame, kind),
        ];
        let by = known.into_iter().filter(|known| *known).count();
        assert!(by <= 1, "{kind} is known by {by}");
        all += by;
    }
    assert_eq!(all, 27);
}

fn any_record() -> impl Strategy<Value = Record> {
    let ring = (any::<u32>(), any::<u32>(), any::<u32>(), any::<u64>())
        .prop_map(|(first, grown, rkey, addr)| WireRing { size: RingSize { first, grown }, rkey, addr });
    prop_oneof![
        (any::<u32>(), ring.clone(), any::<u16>(), any::<u16>(), any::<u32>()).prop_map(
            |(route, ring, to, from, a)| {
                let to_address = IpAddr::V4(a.into());
                StreamRecord::Open(Open { route, ring, to_port: to, from_port: from, kind: a, to_address }).into()
            }
        ),
        (any::<u32>(), any::<u32>(), ring).prop_map(|(route, own_route, ring)| StreamRecord::OpenAck {
            route,
            own_route,
            ring
        }
        .into()),
        (any::<u32>(), any::<u32>()).prop_map(|(route, reason)| StreamRecord::OpenNak { route, reason }.into()),
        (any::<u32>(), any::<u64>()).prop_map(|(route, consumed)| StreamRecord::Head { route, consumed }.into()),
        (any::<u32>(), any::<u64>()).prop_map(|(route, final_tail)| StreamRecord::Fin { route, final_tail }.into()),
        any::<u32>().prop_map(|route| StreamRecord::Stop { route }.into()),
        (any::<u32>(), any::<u32>()).prop_map(|(route, reason)| StreamRecord::Reset { route, reason }.into()),
        any::<u32>().prop_map(|most| LaneRecord::Reclaim { most }.into()),
        any::<u32>().prop_map(|count| LaneRecord::Yield { count }.into()),
        any::<u32>().prop_map(|us| LaneRecord::Unused { us }.into()),
        any::<u32>().prop_map(|route| StreamRecord::Grow { route }.into()),
        (any::<u32>(), any::<bool>()).prop_map(|(route, allowed)| StreamRecord::GrowAnswer { route, allowed }.into()),
        (any::<u32>(), any::<u64>()).prop_map(|(route, at)| StreamRecord::GrownAt { route, at }.into()),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(list in proptest::collection::vec(any_record(), 0..40)) {
        prop_assert_eq!(records(&build(&list)), Ok(list));
    }

    #[test]
    fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), valid_start in any::<bool>()) {
        if valid_start && bytes.len() >= 2 {
            bytes[0] = FRAME_VERSION;
            bytes[1] = 0;
        }
        if let Ok((header, list)) = parse::<Record>(&bytes) {
            prop_assert!(list.count() <= usize::from(header.records) + 1);
        }
    }

    #[test]
    fn a_changed_frame_never_panics(list in proptest::collection::vec(any_record(), 1..10), at in any::<proptest::sample::Index>(), to in any::<u8>()) {
        let mut frame = build(&list);
        let at = at.index(frame.len());
        frame[at] = to;
        let _ = records(&frame);
    }
}

#[test]
fn a_route_has_as_many_bits_as_an_immediate_can_carry() {
    assert_eq!(check_route((1 << ROUTE_BITS) - 1), Ok(()));
    assert_eq!(check_route(1 << ROUTE_BITS), Err(FrameError::Route(1 << ROUTE_BITS)));
}
