//! Whether a reader takes a stream, so that nobody waits for its answers.
//!
//! Owns the counting. It must never take a conversation for a stream: there each sleep would cost both sides a wake.

/// Waits in a row, each after no write of this side, and on the ring after [`INFLOW_BYTES`] or more, that make a stream.
const INFLOW_WAITS: u32 = 16;
/// See [`INFLOW_WAITS`].
const INFLOW_BYTES: u64 = 16 << 10;

/// What one reader got between its waits.
#[derive(Debug, Default)]
pub(crate) struct Inflow {
    taken: u64,
    waits: u32,
}

impl Inflow {
    /// Bytes were taken out of the ring.
    #[inline]
    pub(crate) fn on_taken(&mut self, bytes: u64) {
        self.taken += bytes;
    }

    /// Nothing is there and the reader is going to wait; `answered`: this side wrote since the last time. `by_tcp`: what it
    /// waits for comes by the stream's own TCP connection, which wakes a reader for however little came. Says whether it
    /// takes a stream.
    pub(crate) fn on_wait(&mut self, answered: bool, by_tcp: bool) -> bool {
        let is_much = std::mem::take(&mut self.taken) >= INFLOW_BYTES || by_tcp;
        let goes_on = is_much && !answered;
        self.waits = if goes_on { self.waits.saturating_add(1) } else { 0 };
        self.waits >= INFLOW_WAITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(waits: u32, bytes: impl FnMut(u32) -> u64, answered: impl FnMut(u32) -> bool) -> bool {
        last_by(false, waits, bytes, answered)
    }

    fn last_by(
        by_tcp: bool,
        waits: u32,
        mut bytes: impl FnMut(u32) -> u64,
        mut answered: impl FnMut(u32) -> bool,
    ) -> bool {
        let mut inflow = Inflow::default();
        let mut is_stream = false;
        for i in 0..waits {
            inflow.on_taken(bytes(i) / 2);
            inflow.on_taken(bytes(i).div_ceil(2));
            is_stream = inflow.on_wait(answered(i), by_tcp);
        }
        is_stream
    }

    #[test]
    fn a_stream_is_many_waits_for_much_without_an_answer() {
        assert!(last(INFLOW_WAITS, |_| INFLOW_BYTES, |_| false));
        assert!(!last(INFLOW_WAITS - 1, |_| INFLOW_BYTES, |_| false));
        assert!(!last(1000, |_| INFLOW_BYTES - 1, |_| false), "small messages one at a time");
        assert!(!last(1000, |_| 1 << 20, |i| i % 2 == 0), "a conversation in large messages");
        assert!(!last(1000, |i| if i == 995 { 8 } else { 1 << 20 }, |_| false), "a stream that paused");
    }

    #[test]
    fn kernel_tcp_wakes_the_reader_of_a_stream_for_little() {
        assert!(last_by(true, INFLOW_WAITS, |_| 1448, |_| false));
        assert!(!last_by(true, INFLOW_WAITS - 1, |_| 1448, |_| false));
        assert!(!last_by(true, 1000, |_| 1448, |i| i % 2 == 0), "a conversation");
    }
}
