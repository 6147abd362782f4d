//! The few bytes with which client and server of `raas perf` agree on a test, and the server's report at its end. All
//! integers are little-endian. Every field of the other side is checked before it is used.
//!
//! ```text
//! Hello   client -> server  32 bytes: "raasperf", version u16, kind u8, 0 u8, size u32, zero u64 x 2
//! Answer  server -> client  16 bytes: "raasperf", version u16, status u8, zero u8 x 5
//! Report  server -> client  56 bytes: "perfdone", payload_bytes, cpu_start_ns, cpu_end_ns, daemon_start_ns,
//!                                     daemon_end_ns, daemon_known (0 or 1), u64 each
//! ```

use std::time::Duration;

/// Version of these messages.
pub(crate) const VERSION: u16 = 1;
/// Longest message of a test.
pub(crate) const SIZE_BYTES_MAX: u32 = 16 << 20;

/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 32;
/// Bytes of an answer.
pub(crate) const ANSWER_BYTES: usize = 16;
/// Bytes of a report.
pub(crate) const REPORT_BYTES: usize = 56;

const MAGIC: &[u8; 8] = b"raasperf";
const MAGIC_REPORT: &[u8; 8] = b"perfdone";

/// Which test a connection runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Ping-pong: each message is sent back.
    Latency,
    /// One-way stream of large writes.
    Bandwidth,
    /// One-way stream of small messages, each one write.
    Rate,
}

impl Kind {
    const ALL: [(Self, u8); 3] = [(Self::Latency, 1), (Self::Bandwidth, 2), (Self::Rate, 3)];

    fn code(self) -> u8 {
        Self::ALL.iter().find(|(k, _)| *k == self).map_or(0, |(_, c)| *c)
    }

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, c)| *c == code).map(|(k, _)| *k)
    }
}

/// What the client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The test.
    pub(crate) kind: Kind,
    /// Bytes of a message, 1 to [`SIZE_BYTES_MAX`].
    pub(crate) size_bytes: u32,
}

/// Why a server does not run the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The bytes are no hello at all: no answer is sent.
    #[error("the first bytes are no `raas perf` request")]
    NotPerf,
    /// Another version.
    #[error("`raas perf` there speaks version {0}, this one speaks {VERSION}: use the same release on both sides")]
    Version(u16),
    /// No such test.
    #[error("no such test")]
    Kind,
    /// The size is 0 or too large.
    #[error("message size must be 1 to {SIZE_BYTES_MAX} bytes")]
    Size,
    /// Too many connections at once.
    #[error("the perf server is at its limit of connections")]
    Busy,
}

impl Hello {
    /// The bytes.
    pub(crate) fn encode(self) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..10].copy_from_slice(&VERSION.to_le_bytes());
        out[10] = self.kind.code();
        out[12..16].copy_from_slice(&self.size_bytes.to_le_bytes());
        out
    }

    /// A client's bytes, checked.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, Refusal> {
        if &bytes[..8] != MAGIC {
            return Err(Refusal::NotPerf);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        let kind = Kind::from_code(bytes[10]).ok_or(Refusal::Kind)?;
        if bytes[11] != 0 || bytes[16..].iter().any(|b| *b != 0) {
            return Err(Refusal::Kind);
        }
        let size_bytes = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        if size_bytes == 0 || size_bytes > SIZE_BYTES_MAX {
            return Err(Refusal::Size);
        }
        Ok(Self { kind, size_bytes })
    }
}

/// The server's answer to a hello: yes, or why not.
pub(crate) fn encode_answer(result: Result<(), Refusal>) -> [u8; ANSWER_BYTES] {
    let mut out = [0; ANSWER_BYTES];
    out[..8].copy_from_slice(MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[10] = match result {
        Ok(()) => 0,
        Err(Refusal::NotPerf | Refusal::Kind) => 2,
        Err(Refusal::Version(_)) => 1,
        Err(Refusal::Size) => 3,
        Err(Refusal::Busy) => 4,
    };
    out
}

/// What the server answered.
pub(crate) fn decode_answer(bytes: &[u8; ANSWER_BYTES]) -> Result<(), Refusal> {
    if &bytes[..8] != MAGIC {
        return Err(Refusal::NotPerf);
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    match bytes[10] {
        _ if version != VERSION => Err(Refusal::Version(version)),
        0 => Ok(()),
        3 => Err(Refusal::Size),
        4 => Err(Refusal::Busy),
        _ => Err(Refusal::Kind),
    }
}

/// What the server saw of a test, per connection. Processor times are points on its process's clocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Payload bytes that the server received.
    pub(crate) payload_bytes: u64,
    /// Processor time of the server's process when the test began.
    pub(crate) cpu_start: Duration,
    /// And when it ended.
    pub(crate) cpu_end: Duration,
    /// Processor time of the server's daemon at begin and end, if it could be read.
    pub(crate) daemon: Option<(Duration, Duration)>,
}

impl Report {
    /// The bytes.
    pub(crate) fn encode(&self) -> [u8; REPORT_BYTES] {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let (daemon_start, daemon_end) = self.daemon.unwrap_or_default();
        let fields = [
            self.payload_bytes,
            ns(self.cpu_start),
            ns(self.cpu_end),
            ns(daemon_start),
            ns(daemon_end),
            u64::from(self.daemon.is_some()),
        ];
        let mut out = [0; REPORT_BYTES];
        out[..8].copy_from_slice(MAGIC_REPORT);
        for (place, value) in out[8..].chunks_exact_mut(8).zip(fields) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// A server's bytes; `None` if they are no report.
    pub(crate) fn decode(bytes: &[u8; REPORT_BYTES]) -> Option<Self> {
        if &bytes[..8] != MAGIC_REPORT {
            return None;
        }
        let mut fields = [0u64; 6];
        for (field, place) in fields.iter_mut().zip(bytes[8..].chunks_exact(8)) {
            *field = u64::from_le_bytes(place.try_into().ok()?);
        }
        let [payload_bytes, cpu_start, cpu_end, daemon_start, daemon_end, known] = fields;
        let time = Duration::from_nanos;
        let daemon = match known {
            0 => None,
            1 => Some((time(daemon_start), time(daemon_end))),
            _ => return None,
        };
        Some(Self { payload_bytes, cpu_start: time(cpu_start), cpu_end: time(cpu_end), daemon })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_bytes_are_fixed() {
        let bytes = Hello { kind: Kind::Rate, size_bytes: 0x0001_0203 }.encode();
        assert_eq!(&bytes[..16], b"raasperf\x01\x00\x03\x00\x03\x02\x01\x00");
        assert_eq!(&bytes[16..], &[0; 16]);
        assert_eq!(Hello::decode(&bytes), Ok(Hello { kind: Kind::Rate, size_bytes: 0x0001_0203 }));
    }

    #[test]
    fn hostile_hellos_are_refused() {
        let good = Hello { kind: Kind::Latency, size_bytes: 64 }.encode();
        let with = |at: usize, value: u8| {
            let mut b = good;
            b[at] = value;
            Hello::decode(&b)
        };
        assert_eq!(with(0, b'x'), Err(Refusal::NotPerf));
        assert_eq!(with(8, 9), Err(Refusal::Version(9)));
        assert_eq!(with(10, 0), Err(Refusal::Kind));
        assert_eq!(with(10, 200), Err(Refusal::Kind));
        assert_eq!(with(11, 1), Err(Refusal::Kind));
        assert_eq!(with(12, 0), Err(Refusal::Size));
        assert_eq!(with(15, 0x7f), Err(Refusal::Size));
        assert_eq!(with(31, 1), Err(Refusal::Kind));
    }

    #[test]
    fn answers_and_reports_survive_the_wire() {
        for r in [Ok(()), Err(Refusal::Kind), Err(Refusal::Size), Err(Refusal::Busy)] {
            assert_eq!(decode_answer(&encode_answer(r)), r);
        }
        assert_eq!(decode_answer(&[0; ANSWER_BYTES]), Err(Refusal::NotPerf));
        let mut other = encode_answer(Ok(()));
        other[8] = 7;
        assert_eq!(decode_answer(&other), Err(Refusal::Version(7)));

        let ms = Duration::from_millis;
        let report = Report { payload_bytes: 5, cpu_start: ms(2), cpu_end: ms(3), daemon: Some((ms(4), ms(9))) };
        assert_eq!(Report::decode(&report.encode()), Some(report));
        let without = Report { daemon: None, ..report };
        assert_eq!(Report::decode(&without.encode()), Some(without));
        assert_eq!(Report::decode(&[0; REPORT_BYTES]), None);
        let mut bad = report.encode();
        bad[48] = 2;
        assert_eq!(Report::decode(&bad), None);
    }
}
