//! Parsers: no bytes make them panic, and what they accept says the same when it is written again.

use control::{PeerMessage, Reply, Request, decode, encode, frame_length, with_length};
use roce::wire::{Body, Packet, PacketFault, Unchecked};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shm::{
    COMPLETION_BYTES, CompletionRecord, DatagramRecord, OPERATION_BYTES_MAX, OPERATION_INLINE_MAX, RECORD_HEADER_BYTES,
    SUBMISSION_BYTES, Submission,
};
use verbs::{GRH_BYTES, Grh};

/// Both parsers of a datagram agree, and what they hand out lies within it.
pub(crate) fn roce_packet(bytes: &[u8]) {
    let whole = Packet::parse(bytes);
    let in_steps = Unchecked::parse(bytes).and_then(|unchecked| {
        assert!(unchecked.covered.len() < bytes.len(), "the ICRC covers all but itself");
        unchecked.into_packet()
    });
    match (&whole, &in_steps) {
        (Ok(a), Ok(b)) => assert_eq!(a, b),
        // A short packet may be cut at two places.
        (Err(PacketFault::Truncated(_)), Err(_)) | (Err(_), Err(_)) => {}
        _ => panic!("the two parsers disagree: {whole:?} and {in_steps:?}"),
    }
    let Ok(packet) = whole else { return };
    let payload = match packet.body {
        Body::Request(roce::wire::Request::Send { payload, .. } | roce::wire::Request::Write { payload, .. }) => {
            payload
        }
        Body::Response(roce::wire::Response::Read { payload, .. }) => payload,
        Body::Datagram(datagram) => datagram.payload,
        _ => &[],
    };
    assert!(payload.len() <= bytes.len().saturating_sub(16), "payload, BTH and ICRC together are the packet");
}

/// The bytes as a submission, and as a completion, of an operation queue.
pub(crate) fn operation(bytes: &[u8]) {
    if let Some((head, _)) = bytes.split_first_chunk::<SUBMISSION_BYTES>()
        && let Ok(submission) = Submission::parse(head)
    {
        assert_eq!(submission.to_bytes(), *head, "a parsed submission is the same when written again");
        assert!(submission.bytes <= OPERATION_BYTES_MAX);
        assert!(submission.inline_bytes().max(submission.returned_bytes()) <= OPERATION_INLINE_MAX);
        assert!(submission.ring_bytes() >= SUBMISSION_BYTES as u64 && submission.ring_bytes().is_multiple_of(8));
    }
    if let Some((head, _)) = bytes.split_first_chunk::<COMPLETION_BYTES>()
        && let Some(completion) = CompletionRecord::parse(head)
    {
        assert_eq!(CompletionRecord::parse(&completion.to_bytes()), Some(completion));
        assert!(completion.ring_bytes() <= COMPLETION_BYTES as u64 + u64::from(OPERATION_INLINE_MAX));
    }
}

/// A frame of a lane.
pub(crate) fn lane_frame(bytes: &[u8]) {
    if let Ok(records) = engine::check_frame(bytes) {
        assert!(records * 8 <= bytes.len(), "each record has eight bytes at least");
    }
}

/// A datagram of a peer daemon behind the header area of its receive; and the same bytes as a piece of a message on UC,
/// and as a record of an application's ring.
pub(crate) fn datagram(bytes: &[u8]) {
    if let Some((area, datagram)) = bytes.split_first_chunk::<GRH_BYTES>() {
        Grh::parse(area);
        engine::check_datagram(datagram);
    }
    if let Some(payload) = engine::check_piece(bytes) {
        assert!(payload < bytes.len(), "there is a header before it");
    }
    if let Some((header, _)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()
        && let Some(record) = DatagramRecord::parse(header)
    {
        assert_eq!(
            DatagramRecord::parse(&record.to_bytes()),
            Some(record),
            "a parsed record is the same when written again"
        );
        assert!(record.ring_bytes() >= RECORD_HEADER_BYTES as u64 + u64::from(record.bytes));
    }
}

/// What an application says to its daemon.
pub(crate) fn app_request(bytes: &[u8]) {
    round_trip::<Request>(bytes);
}

/// What a daemon says to an application.
pub(crate) fn app_reply(bytes: &[u8]) {
    round_trip::<Reply>(bytes);
}

/// What a daemon says to another, with its length in front.
pub(crate) fn peer_message(bytes: &[u8]) {
    if let Some((prefix, rest)) = bytes.split_first_chunk::<4>()
        && let Ok(length) = frame_length(*prefix)
    {
        assert!(length <= control::FRAME_BYTES_MAX);
        if let Some(frame) = rest.get(..length) {
            round_trip::<PeerMessage>(frame);
            assert_eq!(with_length(frame)[..4], *prefix);
        }
    }
    round_trip::<PeerMessage>(bytes);
}

fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Ok(message) = decode::<T>(bytes) else { return };
    // A number may be written in more bytes than it needs, so only the second writing has to be the same bytes.
    let written =
        encode(&message).expect("what fitted a frame fits it again, for no encoding is longer than another's");
    let again = decode::<T>(&written).expect("an own encoding is a message");
    assert!(again == message, "{message:?} became {again:?}");
}

/// A configuration file: problems name lines that exist, and what is accepted is in range.
pub(crate) fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let lines = text.lines().count().max(1) + 1;
    match raasd::Config::from_text(text) {
        Ok(config) => {
            for limit in raasd::LIMITS {
                let value = limit.value(&config);
                assert!((limit.min..=limit.max).contains(&value), "{} is {value}", limit.key);
            }
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            for problem in &error.problems {
                let line = problem.split(':').next().and_then(|n| n.parse::<usize>().ok());
                assert!(line.is_some_and(|n| (1..=lines).contains(&n)), "{problem:?} of {lines} lines");
            }
        }
    }
}
