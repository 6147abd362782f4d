//! Named bounds of everything that grows or waits.

use std::time::Duration;

/// Longest payload of one segment. With the longer header it stays below the 65,535 bytes of the length field.
pub const SEGMENT_PAYLOAD_MAX: u32 = 65_504;
/// Longest message (RFC 5040 section 5.1 allows 2^32 - 1; verbs allow 2^31).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;
/// Frames that are built and not sent.
pub(crate) const FRAMES_AHEAD_MAX: usize = 256;
/// Bytes of frames that are copied because a CRC or markers go over them, built and not sent: four of the longest.
pub(crate) const COPIED_AHEAD_MAX: usize = 256 << 10;
/// Longest control payload: an Atomic Request, and a Terminate message that names a Read Request.
pub(crate) const CONTROL_BYTES_MAX: usize = 64;
/// Bytes read behind a payload while large payloads come: the end of a frame, an Immediate Data frame and the header of
/// the next frame. What is read beyond must be copied.
pub(crate) const READ_BEHIND: usize = 128;
/// Bytes read at a time while payloads are small.
pub(crate) const READ_AHEAD: usize = 16 << 10;
/// Bytes read at a time where each frame is checked as a whole before its bytes are placed.
pub(crate) const READ_CHECKED: usize = 64 << 10;
/// A payload of so many bytes goes straight to its place, and lets [`READ_BEHIND`] follow.
pub(crate) const LARGE_PAYLOAD: usize = 4 << 10;
/// Time for the exchange before the first frame.
pub const STARTUP_MAX: Duration = Duration::from_secs(5);
/// Time that an end which has sent its last byte waits for the peer's.
pub const LINGER_MAX: Duration = Duration::from_secs(1);
/// A payload of so many bytes goes to and comes from registered memory in one step, so that a stream that cuts anywhere
/// tears no word.
pub(crate) const WORD_BYTES: usize = 8;
