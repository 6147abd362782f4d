//! Literal bytes of submissions and completions, records that are none, and the tables of the documentation.

use super::*;

fn submission(opcode: Opcode, segments: u8, bytes: u32) -> Submission {
    Submission {
        tag: 0x0102_0304_0506_0708,
        opcode,
        flags: submission_flag::FENCE,
        class: Class::Visible,
        segments,
        region: 0x1112_1314,
        epoch: 0x21,
        offset: 0x31_0000,
        bytes,
        notify: 0x41,
        operand: 0x51,
        compare: 0x61,
    }
}

#[test]
fn literal_bytes_of_a_submission() {
    let s = submission(Opcode::WriteNotify, 2, 0x300);
    let bytes = s.to_bytes();
    let mut expected = [0; SUBMISSION_BYTES];
    expected[..16].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1, 3, 1, 3, 2, 0x14, 0x13, 0x12, 0x11]);
    (expected[16], expected[26], expected[33], expected[36], expected[40], expected[48]) =
        (0x21, 0x31, 3, 0x41, 0x51, 0x61);
    assert_eq!(bytes, expected);
    assert_eq!(Submission::parse(&bytes), Ok(s));
    let segment = LocalSegment { region: 7, bytes: 0x203, offset: 0x405 };
    assert_eq!(segment.to_bytes(), [7, 0, 0, 0, 3, 2, 0, 0, 5, 4, 0, 0, 0, 0, 0, 0]);
    assert_eq!(LocalSegment::parse(&segment.to_bytes()), segment);
}

#[test]
fn literal_bytes_of_a_completion() {
    let done = CompletionRecord { tag: 9, status: OperationStatus::OutOfBounds, bytes: 0x102, value: 3, detail: 4 };
    let mut expected = [0; COMPLETION_BYTES];
    (expected[0], expected[8], expected[16], expected[24]) = (9, 3, 3, 4);
    expected[12..14].copy_from_slice(&[2, 1]);
    assert_eq!(done.to_bytes(), expected);
    assert_eq!(CompletionRecord::parse(&expected), Some(done));
    assert_eq!(done.ring_bytes(), 32 + 264);
}

#[test]
fn what_travels_in_the_rings_is_counted() {
    let of = |opcode, segments, bytes| {
        let s = submission(opcode, segments, bytes);
        (s.ring_bytes(), s.completion_ring_bytes())
    };
    assert_eq!(of(Opcode::Write, 0, 9), (64 + 16, 32));
    assert_eq!(of(Opcode::Write, 3, 9), (64 + 48, 32));
    assert_eq!(of(Opcode::Read, 0, 9), (64, 32 + 16));
    assert_eq!(of(Opcode::Read, 1, 9), (64 + 16, 32));
    assert_eq!(of(Opcode::FetchAdd, 0, 8), (64, 32));
    assert_eq!(of(Opcode::Run, 0, 9), (64 + 16, 32 + 896));
}

#[test]
fn what_no_submission_can_be_is_refused() {
    let refused = |change: &dyn Fn(&mut [u8; SUBMISSION_BYTES])| {
        let mut bytes = submission(Opcode::Write, 1, 8).to_bytes();
        change(&mut bytes);
        Submission::parse(&bytes).unwrap_err()
    };
    assert_eq!(refused(&|b| b[8] = 0), SubmissionError::Opcode(0));
    assert_eq!(refused(&|b| b[8] = 13), SubmissionError::Opcode(13));
    assert_eq!(refused(&|b| b[8] = 12), SubmissionError::Segments { found: 1, max: 0 });
    let long = refused(&|b| (b[8], b[11], b[33]) = (12, 0, 4));
    assert_eq!(long, SubmissionError::Bytes { found: 0x408, max: KERNEL_BYTES_MAX });
    let regions = refused(&|b| (b[8], b[11], b[32], b[40]) = (12, 0, 200, 17));
    assert_eq!(regions, SubmissionError::Regions { found: 17, max: 16 });
    let regions = refused(&|b| (b[8], b[11], b[32], b[40]) = (12, 0, 15, 2));
    assert_eq!(regions, SubmissionError::Regions { found: 2, max: 1 });
    assert_eq!(refused(&|b| b[9] = 4), SubmissionError::Flags(4));
    assert_eq!(refused(&|b| b[10] = 5), SubmissionError::Class(5));
    assert_eq!(refused(&|b| b[11] = 17), SubmissionError::Segments { found: 17, max: 16 });
    assert_eq!(refused(&|b| b[63] = 1), SubmissionError::Reserved);
    assert_eq!(refused(&|b| b[8] = 5), SubmissionError::Segments { found: 1, max: 0 });
    let long = refused(&|b| (b[11], b[33]) = (0, 0x11));
    assert_eq!(long, SubmissionError::Bytes { found: 0x1108, max: OPERATION_INLINE_MAX });
    let four = refused(&|b| (b[8], b[11], b[32]) = (4, 0, 4));
    assert_eq!(four, SubmissionError::Bytes { found: 4, max: 8 });
}

#[test]
fn what_no_completion_can_be_is_refused() {
    let done = CompletionRecord { tag: 1, status: OperationStatus::Failed, bytes: 0, value: 0, detail: 0 };
    for (at, value) in [(8, 15), (9, 1), (10, 1), (11, 1), (13, 0x11), (15, 1)] {
        let mut bytes = done.to_bytes();
        bytes[at] = value;
        assert_eq!(CompletionRecord::parse(&bytes), None, "byte {at} = {value}");
    }
}

#[test]
fn codes_are_their_own_and_read_back() {
    for op in Opcode::ALL {
        assert_eq!(Opcode::from_code(op.code()), Some(*op));
    }
    for status in OperationStatus::ALL {
        assert_eq!(OperationStatus::from_code(status.code()), Some(*status));
    }
    assert_eq!((Opcode::ALL.len(), Class::ALL.len(), OperationStatus::ALL.len()), (12, 4, 15));
    assert!(
        Opcode::CompareSwap.is_atomic()
            && Opcode::Max.is_atomic()
            && !Opcode::WriteNotify.is_atomic()
            && !Opcode::Run.is_atomic()
    );
}

/// Rows `| offset | size | field | ...` of the document.
fn documented(heading: &str) -> Vec<(usize, usize, String)> {
    const DOCUMENT: &str = include_str!("../../../../../docs/inside/shared-memory.md");
    let section = DOCUMENT.split("\n## ").find(|section| section.starts_with(heading)).expect("the document has it");
    let rows = section.lines().filter_map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        Some((cells.get(1)?.parse().ok()?, cells.get(2)?.parse().ok()?, (*cells.get(3)?).to_owned()))
    });
    rows.collect()
}

/// Sets each documented field to all ones, alone, in bytes that are zero otherwise.
fn alone(heading: &str, name: &str) -> (usize, usize) {
    let rows = documented(heading);
    let (at, size, _) = rows.iter().find(|row| row.2 == name).unwrap_or_else(|| panic!("{heading}: no {name}"));
    (*at, *size)
}

#[test]
fn the_tables_are_as_documented() {
    let ones = Submission {
        tag: u64::MAX,
        opcode: Opcode::Read,
        flags: 3,
        class: Class::Posted,
        segments: 16,
        region: u32::MAX,
        epoch: u64::MAX,
        offset: u64::MAX,
        bytes: u32::MAX,
        notify: u32::MAX,
        operand: u64::MAX,
        compare: u64::MAX,
    };
    let with = |change: fn(&mut Submission)| {
        let mut other = ones;
        change(&mut other);
        let (a, b) = (ones.to_bytes(), other.to_bytes());
        let first = (0..a.len()).find(|i| a[*i] != b[*i]).unwrap();
        let last = (0..a.len()).rfind(|i| a[*i] != b[*i]).unwrap();
        (first, last + 1 - first)
    };
    type Change = fn(&mut Submission);
    let fields: [(&str, Change); 11] = [
        ("tag", |s| s.tag = 0),
        ("opcode", |s| s.opcode = Opcode::Max),
        ("flags", |s| s.flags = 0),
        ("class", |s| s.class = Class::Visible),
        ("segments", |s| s.segments = 0),
        ("region", |s| s.region = 0),
        ("epoch", |s| s.epoch = 0),
        ("offset", |s| s.offset = 0),
        ("bytes", |s| s.bytes = 0),
        ("notify", |s| s.notify = 0),
        ("operand", |s| s.operand = 0),
    ];
    for (name, change) in fields {
        assert_eq!(with(change), alone("Submission", name), "{name}");
    }
    assert_eq!(with(|s| s.compare = 0), alone("Submission", "compare"));
    let end = |heading| documented(heading).iter().map(|(at, size, _)| at + size).max();
    let all = [end("Submission"), end("Segment"), end("Completion")];
    assert_eq!(all, [SUBMISSION_BYTES, SEGMENT_BYTES, COMPLETION_BYTES].map(Some));
}
