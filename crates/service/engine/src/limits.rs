//! The bounds of everything that grows or loops in the engine, by name.
//!
//! What an operator may change is in [`crate::EngineConfig`]; what is part of the protocol or of the arithmetic of
//! liveness is here. It must never hold state.

use std::time::Duration;

/// Connections of a peer that came back in vain, and of which it is told at a time.
pub(crate) const GONE_MAX: usize = 65_536;
/// How often connections without their other ends are looked at.
pub(crate) const AWAY_TICK: Duration = Duration::from_millis(100);
/// Smallest and largest ring in bytes (docs/inside/shared-memory.md).
pub(crate) use shm::{RING_BYTES_MAX, RING_BYTES_MIN};

/// Most entries of any of the engine's tables: connections, applications, lanes.
pub const TABLE_MAX: u32 = crate::table::INDEX_MAX;
/// Most bytes that may be in flight on a lane.
pub const FLIGHT_BYTES_MAX: u64 = 1 << 40;
/// Ring sizes that exist: the powers of two from [`RING_BYTES_MIN`] to [`RING_BYTES_MAX`].
pub(crate) const RING_CLASSES: usize = 12;
/// Bytes of one ring chunk that the engine asks for at most, if more than one ring is in it.
pub(crate) const CHUNK_BYTES_TARGET: u64 = 16 << 20;
/// Rings that the first chunk of an application has, if they fit [`CHUNK_BYTES_TARGET`].
pub(crate) const CHUNK_RINGS_FIRST: u32 = 4;
/// Chunks of one application, both directions.
pub(crate) const CHUNKS_PER_APP_MAX: usize = 8192;

/// Leased lanes take at most one in so many of the lanes that the device holds.
pub(crate) const LEASED_SHARE: u32 = 8;

/// Freed slots of a session that wait at least, while unused ones are left. Few, so that a session stays in few pages.
pub(crate) const SLOT_REUSE_DELAY: usize = 64;

/// Fewest SRQ entries of a grant, which every lane has, whether it is used or not. A few small messages a second need no
/// more, and each costs little of a frame that gives them back.
pub const LANE_CREDITS_MIN: u32 = 8;
/// Most SRQ entries of a grant.
pub const LANE_CREDITS_MAX: u32 = 1 << 16;
/// A credit of each lane that only frames which return credits may take.
pub(crate) const CREDITS_RESERVED: u64 = 1;
/// The peer is short of credits when it has at most this many left.
pub(crate) const CREDITS_LOW: u64 = 2;
/// Credits that are not given back by a frame of their own while there are fewer.
pub(crate) const CREDITS_DUE_MIN: u64 = 4;
/// A grant of which half was used in this time gets larger, and one of which less than a quarter was used gets smaller.
/// Longer than round trips, so that a grant grows with each of them.
pub(crate) const CREDITS_PERIOD: Duration = Duration::from_secs(1);
/// How often lanes are asked for entries at most, while others want them and there are none.
pub(crate) const RECLAIM_PACE: Duration = Duration::from_millis(10);
/// A peer that holds entries for so long after it was asked for them, while others want them, has its lane reset.
pub(crate) const RECLAIM_WITHIN: Duration = Duration::from_secs(5);
/// Entries whose buffers are one memory region.
pub(crate) const RECV_BLOCK_ENTRIES: u32 = 64;
/// Entries that are posted and granted to nobody, at most a quarter of all: a peer that uses more than it was given uses
/// these until the engine sees it, and not those of other lanes.
pub(crate) const RECV_SLACK: u32 = 256;
/// Entries posted beyond what grants and slack need that are left where they are.
pub(crate) const RECV_SURPLUS_MIN: u64 = 64;
/// Smallest page of the systems that this runs on: memory is given back by whole pages.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// Least bytes of all receive buffers.
pub const SRQ_BYTES_MIN: u64 = 4 << 10;
/// Most bytes of all receive buffers.
pub const SRQ_BYTES_MAX: u64 = 1 << 40;

/// Bytes of a stream that must come without a pause until it counts as bulk: those of a transfer that takes longer than
/// making a connection, many times.
pub(crate) const BULK_BYTES: u64 = 8 << 20;
/// Of the connections of a lane, so many count as those that share its bytes: of that many each is bulk after its share of
/// [`BULK_BYTES`].
pub(crate) const BULK_SHARED_BY: u32 = 8;
/// So long a time without a byte is a pause of a stream.
pub(crate) const BULK_PAUSE: Duration = Duration::from_millis(400);
/// Turns of a conversation from which on it gets a connection of its own: many times what making one costs.
pub(crate) const CONVERSATION_TURNS: u32 = 256;
/// Bytes of one turn at most.
pub(crate) const TURN_BYTES_MAX: u32 = 16 << 10;
/// Connections of a lane up to which a conversation leaves it. With more the daemons carry many messages at a time, and
/// each connection that leaves costs every program a descriptor.
pub(crate) const CONVERSATION_CONNECTIONS: u32 = 8;
/// Connections of a lane up to which its streams leave it early over paths that are neither near nor long. There more of them
/// carry as much together over one TCP connection, and share it evenly.
pub(crate) const FEW_CONNECTIONS: u32 = 4;
/// Bytes that a writer over a long path keeps in its ring until the stream has its TCP connection: they must come over the
/// lane, beside all the connections that were made meanwhile. TCP begins with about as much in a round trip (RFC 6928).
pub(crate) const HOLD_BYTES_FAR: u32 = 16 << 10;
/// For so long at most: the connection may be refused, and two programs that both write much before they read need their
/// rings.
pub(crate) const HOLD_FOR: Duration = Duration::from_secs(2);
/// Writers that are let go in one run at most.
pub(crate) const HOLDS_PER_RUN: usize = 64;

/// Work requests that a lane's send queue holds, if the device allows as many.
pub(crate) const SEND_QUEUE_DEPTH: u32 = 256;
/// Fewest work requests that a device must allow on a send queue.
pub(crate) const SEND_QUEUE_DEPTH_MIN: u32 = 64;
/// Send-queue places that data leaves to control frames.
pub(crate) const SEND_QUEUE_RESERVED: usize = 1;
/// Work requests handed to the device in one call.
pub(crate) const POST_BATCH: usize = 16;
/// What a work request costs an application's turn at least, in bytes: short ones cost the device the same as long
/// ones.
pub(crate) const WORK_REQUEST_BYTES: u32 = 256;
/// Every so many work requests one is signalled, so that the send queue's accounting goes on.
pub(crate) const SIGNAL_WRS: u32 = 16;
/// So many times while a lane's bytes in flight fill up a work request is signalled. Each asks the peer for an
/// acknowledgement.
pub(crate) const SIGNALS_PER_FLIGHT: u64 = 8;
/// Fewest bytes in flight that a lane is allowed.
pub const FLIGHT_BYTES_MIN: u64 = 256 << 10;
/// Control frames of a lane that may be posted and not completed. More than [`SIGNAL_WRS`], so that one of them, or a
/// later work request, is signalled before they are used up.
pub(crate) const FRAME_SLOTS: u16 = 32;
/// Longest control frame that is sent: one packet of the usual path MTU. An idle lane holds memory for [`FRAME_SLOTS`] of
/// them.
pub(crate) const FRAME_SENT_BYTES_MAX: u32 = 1024;
/// Control frames made for one lane in one round before and again after its data.
pub(crate) const FRAMES_PER_PUMP: usize = 8;
/// Shortest SRQ entry that a lane works with, on either side.
pub const FRAME_BYTES_MIN: u32 = 256;
/// Longest SRQ entry.
pub const FRAME_BYTES_MAX: u32 = 1 << 16;

/// Opens of one direction of a lane that wait for their answer: the sender holds further ones back, the receiver fails
/// a lane whose peer does not. It bounds the parked opens and the refusals that wait for a frame.
pub(crate) const OPENS_PENDING_MAX: u32 = 1024;

/// Completions taken in one round.
pub(crate) const COMPLETIONS_PER_RUN: usize = 256;
/// Dirty slots taken of one application in one round.
pub(crate) const DOORBELLS_PER_APP: usize = 256;
/// What a turn of an application that comes back with its session may cost: in slots that are looked at.
pub(crate) const RETURN_TURN: u32 = 256;
/// What a connection or socket that it brings costs of it.
pub(crate) const RETURN_TICKET: u32 = 16;
/// What a chunk costs.
pub(crate) const RETURN_CHUNK: u32 = 64;
/// The same of all applications. Those that had no turn are the first of the next round.
pub(crate) const DOORBELLS_PER_RUN: usize = 1024;
/// Connections of an application that left, or of a listener that it closed, that end in one round.
pub(crate) const ENDINGS_PER_RUN: usize = 64;
/// Asynchronous device events taken in one round.
pub(crate) const ASYNC_EVENTS_PER_RUN: usize = 16;
/// Timers of each kind fired in one round.
pub(crate) const TIMERS_PER_RUN: usize = 256;
/// Receives handed to the device in one call.
pub(crate) const RECV_BATCH: usize = 32;
/// Polls of the CQ, of [`COMPLETIONS_PER_RUN`] each, to empty it when a queue pair is taken down.
pub(crate) const DRAIN_POLLS: usize = 1024;

/// Resets of a lane within [`LANE_RESET_WINDOW`]; with one more its connections end.
pub(crate) const LANE_RESETS_MAX: usize = 16;
/// See [`LANE_RESETS_MAX`].
pub(crate) const LANE_RESET_WINDOW: Duration = Duration::from_secs(60);
/// A lane with worn keys over which operations go waits so long before it is reset, so that the peer, which counts the same
/// records, begins no new ones either.
pub(crate) const KEYS_SETTLE: Duration = Duration::from_millis(100);
/// How often a connect looks for a lane again whose lane made room for another host's before there was an answer. With
/// one more time it fails: hosts take each other's places faster than they use them.
pub(crate) const CONNECT_DISPLACED_MAX: u32 = 8;
/// Queue pairs in a row that spend all their retries before the path MTU is suspected.
pub(crate) const LANE_SPENT_MAX: u32 = 2;
/// One that was up for so long before it spent them begins a new row. Longer than all retries take.
pub(crate) const LANE_SUSPECT_WITHIN: Duration = Duration::from_secs(30);
/// How long a lowered path MTU holds before the device's is tried again: the first time, doubled after each time, and
/// at most. Kernels forget what a router said after ten minutes.
pub(crate) const LANE_WIDEN_FIRST: Duration = Duration::from_secs(5 * 60);
/// See [`LANE_WIDEN_FIRST`].
pub(crate) const LANE_WIDEN_LAST: Duration = Duration::from_secs(80 * 60);
/// Resets in a row of incarnations that were up for [`LANE_FRUITLESS_AFTER`], had something to send and carried nothing
/// in either direction; with one more the connections end.
pub(crate) const LANE_RESETS_FRUITLESS_MAX: u32 = 3;
/// See [`LANE_RESETS_FRUITLESS_MAX`].
pub(crate) const LANE_FRUITLESS_AFTER: Duration = Duration::from_secs(1);

/// Consumed bytes below a quarter of the ring are reported within this time.
pub(crate) const HEAD_LINGER: Duration = Duration::from_millis(1);
/// Connections that a departed application closed in order may deliver their last bytes for this long.
pub(crate) const ORPHAN_LINGER: Duration = Duration::from_secs(60);
/// Looks at a connection that is in use, in the time after which it rests.
pub(crate) const REST_TICKS: u32 = 8;
/// Connections looked at in one round for whether they rest.
pub(crate) const REST_LOOKS_PER_RUN: usize = 256;
/// Connections whose pages are given back in one round.
pub(crate) const RESTS_PER_RUN: usize = 8;
/// Bytes of a ring of which pages are given back in one turn of its connection. A page takes about a microsecond.
pub(crate) const REST_SLICE_BYTES: u64 = 256 << 10;
/// Ring bytes of one round, both directions.
pub(crate) const REST_BYTES_PER_RUN: u64 = 2 * REST_SLICE_BYTES;
/// Pause after a full round, in which others are served.
pub(crate) const REST_PACE: Duration = Duration::from_millis(1);
/// Ticks for which a rest is put off because something is in the way; then the connection is left alone until it is
/// used.
pub(crate) const REST_TRIES_MAX: u8 = 16;
/// Where rings hold much, a connection that holds [`REST_SOON_BYTES_MIN`] rests after so long without use.
pub(crate) const REST_SOON_AFTER: Duration = Duration::from_millis(16);
/// To give back less costs more than it brings: a message or two come to less.
pub(crate) const REST_SOON_BYTES_MIN: u64 = 64 << 10;
/// Connections looked at before their time in each [`REST_SOON_AFTER`].
pub(crate) const REST_SOON_LOOKS: usize = 1024;
/// Where rings hold much, a ring grows when it was full, and nothing was taken out of it, for so long: then its reader
/// may be waiting for just that.
pub(crate) const GROW_WHEN_STUCK: Duration = Duration::from_millis(50);
/// Where rings hold much, the writer of a stream of which little was written keeps at most so many bytes in its ring.
pub(crate) const HOLD_BYTES_MUCH: u32 = 32 << 10;
/// Until nothing was taken out of it for so long: perhaps each end waits until the other reads.
pub(crate) const HOLD_WHEN_STUCK: Duration = Duration::from_millis(200);
/// Looks at a lane in the time after which it rests.
pub(crate) const LANE_REST_TICKS: u32 = 4;
/// The device's counters are read so often for [`crate::EngineTotals`].
pub(crate) const DEVICE_SAMPLE: Duration = Duration::from_secs(1);

/// Datagrams handed to the device and not completed: UD has no window.
pub(crate) const DATAGRAMS_INFLIGHT_MAX: u32 = 64;
/// As [`DATAGRAMS_INFLIGHT_MAX`], in bytes.
pub(crate) const DATAGRAM_BYTES_INFLIGHT_MAX: u64 = 256 << 10;
/// Receives of the UD queue pair, if the device allows as many: what may arrive between two rounds.
pub(crate) const DATAGRAM_RECEIVES: u32 = 512;
/// Completions that the UD queue pair can have in the CQ.
pub(crate) const DATAGRAM_COMPLETIONS_MAX: u32 = DATAGRAM_RECEIVES + DATAGRAMS_INFLIGHT_MAX;
/// Datagrams taken out of transmit rings in one round.
pub(crate) const DATAGRAMS_PER_RUN: usize = 256;
/// Deficit-round-robin quantum of a datagram socket, and of an application's together.
pub(crate) const DATAGRAM_QUANTUM_BYTES: u32 = 32 << 10;
/// Smallest ring that a datagram socket gets, if the operator allows it: some of the longest datagrams.
pub(crate) const DATAGRAM_RING_BYTES_MIN: u32 = 16 << 10;
/// Longest piece of a message on UC, header included: what a receive of the daemon holds.
pub(crate) const PIECE_BYTES_MAX: u32 = 8 << 10;
/// Shortest that a peer may ask for.
pub(crate) const PIECE_BYTES_MIN: u32 = 256;
/// Receives of an engine's UC queue pairs together. They are promised to nobody: what finds none is lost.
pub(crate) const PIECE_RECEIVES: u32 = 256;
/// Pieces handed to the device and not completed, of an engine's UC queue pairs together.
pub(crate) const PIECES_INFLIGHT_MAX: u32 = 64;
/// Completions that an engine's UC queue pairs can have in the CQ.
pub(crate) const PIECE_COMPLETIONS_MAX: u32 = PIECE_RECEIVES + PIECES_INFLIGHT_MAX;
/// Places for WRITEs on UC that a peer gets: of [`PIECE_BYTES_MAX`] each.
pub(crate) const WRITE_PLACES: u32 = 64;
/// Most that a peer may have for this end: a piece says the number of WRITEs before it with 16 bits.
pub(crate) const WRITE_PLACES_MAX: u32 = 1 << 15;
/// Pieces taken out of transmit rings in one round.
pub(crate) const PIECES_PER_RUN: usize = 256;
/// Deficit-round-robin quantum of a UC connection, and of an application's together.
pub(crate) const MESSAGE_QUANTUM_BYTES: u32 = 32 << 10;
/// A failed UD queue pair is started again at most this often.
pub(crate) const DATAGRAM_REVIVAL: Duration = Duration::from_secs(1);
/// Questions for a path of one application that wait for a link.
pub(crate) const PATH_ASKS_PER_APP_MAX: usize = 1024;

/// Operation queues of a host.
pub(crate) const OPERATION_QUEUES_MAX: u32 = 4096;
/// Runs of kernels of one host that wait or run.
pub(crate) const KERNELS_QUEUED_MAX: usize = 256;
/// Notices of one region that are kept before its owner has a ring for them.
pub(crate) const NOTICES_EARLY_MAX: usize = 64;
/// Notices of one lane that wait for room: with this many, half of its operations are left to others.
pub(crate) const NOTICES_OF_LANE_MAX: usize = OPERATIONS_PER_LANE_MAX as usize / 2;
/// Notices of one program of this host that wait for room.
pub(crate) const NOTICES_OF_APP_MAX: usize = 64;
/// How long a notice waits for room after the owner last took one.
pub(crate) const NOTICE_PATIENCE: Duration = Duration::from_secs(2);
/// Operation queues of one application.
pub(crate) const OPERATION_QUEUES_PER_APP_MAX: usize = 64;
/// Smallest ring that an operation queue gets, if the operator allows it: some READs of the longest that travel in it.
pub(crate) const OPERATION_RING_BYTES_MIN: u32 = 16 << 10;
/// Operations of one queue that were begun and have not ended.
pub(crate) const OPERATIONS_PER_QUEUE_MAX: u32 = 256;
/// Operations of one lane that were begun and have not ended, and so answers that an end keeps for its peer.
pub(crate) const OPERATIONS_PER_LANE_MAX: u32 = 1024;
/// Submissions of one queue that are refused in one look at it.
pub(crate) const OPERATION_LOOKS_PER_TURN: usize = 64;
/// Slots of a lane's buffers for bytes that travel in the rings: operations with such bytes at a time.
pub(crate) const OPERATION_BUFFERS: u16 = 64;
/// Regions of other hosts that the applications of a host have open: more than a user's share, which the daemon bounds.
pub const REGION_HANDLES_MAX: u32 = TABLE_MAX;
/// Regions of other hosts that one application has open: as many as its daemon lets it open.
pub(crate) const REGION_HANDLES_PER_APP_MAX: usize = 4096;
/// Regions of this host that are registered for others.
pub(crate) const REGIONS_REGISTERED_MAX: usize = 1 << 16;
/// Local regions of one application.
pub(crate) const LOCAL_REGIONS_PER_APP_MAX: usize = 1024;

/// Pause before datagrams have a host dialed again after the first dial that failed; it doubles with each further one.
pub(crate) const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
pub(crate) const REDIAL_PAUSE_MAX: Duration = Duration::from_secs(10);

/// ACK timeout of a lane: 4.096 us x 2^17 = 537 ms (IBTA 9.7.6.1.3). It is long because a host whose cores are all busy
/// looks like a dead one for some hundred milliseconds, and the control link shows death. The software NIC probes much
/// earlier.
pub(crate) const LANE_ACK_TIMEOUT: u8 = 17;
/// Transport retries before a lane fails: not 7, which kernel rxe takes for "without end".
pub(crate) const LANE_RETRIES: u8 = 6;
/// RNR retries: for ever. A safety net; credits make RNR NAKs impossible.
pub(crate) const LANE_RNR_RETRIES: u8 = 7;
/// RNR timer code that peers get: 640 us.
pub(crate) const LANE_MIN_RNR_TIMER: u8 = 12;

const _: () = {
    assert!(RING_BYTES_MIN << (RING_CLASSES - 1) == RING_BYTES_MAX);
    assert!(FRAME_SLOTS as u32 > SIGNAL_WRS);
    assert!(SEND_QUEUE_DEPTH_MIN as usize > SIGNAL_WRS as usize + SEND_QUEUE_RESERVED);
    assert!(LANE_CREDITS_MIN as u64 >= CREDITS_DUE_MIN + CREDITS_RESERVED && CREDITS_DUE_MIN > CREDITS_LOW);
};
