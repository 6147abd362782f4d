//! Ping-pong with SEND or WRITE, both roles. Each side answers as soon as it sees the message.

use std::time::Instant;

use anyhow::Result;
use verbs::{Payload, SendFlags, SendOp, SendWr, WcOpcode};

use super::case::Load;
use super::control::Run;
use super::end::{End, QUEUE};
use super::waiting::{Poller, Wait};

/// Every so many sends one is signalled, so that the send queue empties.
const SIGNAL_EVERY: u32 = QUEUE / 4;
/// Receives posted ahead.
const RECEIVES_AHEAD: u32 = QUEUE / 2;

/// Makes ready for the other side's first message.
pub(crate) fn prepare(end: &mut End, run: &Run) -> Result<()> {
    match run.load {
        Load::SendPingPong => (0..RECEIVES_AHEAD.min(run.count)).try_for_each(|_| end.post_recv(run.bytes)),
        _ => Ok(end.region.write(0, &vec![0; run.bytes as usize])?),
    }
}

/// The side that begins: nanoseconds of each round trip.
pub(crate) fn ping(end: &mut End, run: &Run, wait: Wait) -> Result<Vec<u64>> {
    let mut game = Game::new(end, run, wait);
    let mut round_trips = Vec::with_capacity(run.count as usize);
    for index in 0..run.count {
        let begin = Instant::now();
        game.send(index)?;
        game.receive(index)?;
        round_trips.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(round_trips)
}

/// The side that answers.
pub(crate) fn pong(end: &mut End, run: &Run, wait: Wait) -> Result<()> {
    let mut game = Game::new(end, run, wait);
    for index in 0..run.count {
        game.receive(index)?;
        game.send(index)?;
    }
    // The other side's acknowledgement of the last message is of no interest, but ours of its last one must leave.
    end.settle();
    Ok(())
}

struct Game<'e> {
    end: &'e mut End,
    run: Run,
    poller: Poller,
    message: Vec<u8>,
    /// Receives that completed and were not yet asked for.
    arrived: u32,
}

impl<'e> Game<'e> {
    fn new(end: &'e mut End, run: &Run, wait: Wait) -> Self {
        let poller = Poller::new(end.cq, wait);
        Self { end, run: *run, poller, message: vec![run.mark; run.bytes as usize], arrived: 0 }
    }

    fn send(&mut self, index: u32) -> Result<()> {
        // The last byte numbers the message, and is what a watcher of memory looks at.
        if let Some(last) = self.message.last_mut() {
            *last = number(index);
        }
        let op = match self.run.load {
            Load::SendPingPong => SendOp::Send,
            _ => SendOp::Write(self.end.remote(0)),
        };
        let signaled = index % SIGNAL_EVERY == SIGNAL_EVERY - 1;
        let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let qpn = self.end.qpn()?;
        let wr = SendWr { wr_id: 1, op, payload: Payload::Inline(&self.message), flags, dest: None };
        self.end.nic.post_send(qpn, &[wr])?;
        Ok(())
    }

    fn receive(&mut self, index: u32) -> Result<()> {
        self.poller.on_progress();
        while !self.has_come(index)? {
            let End { nic, .. } = &mut *self.end;
            let completions = self.poller.poll(nic.as_mut())?;
            let receives = completions.iter().filter(|c| c.opcode == WcOpcode::Recv).count();
            self.arrived += u32::try_from(receives)?;
            self.poller.check()?;
        }
        if self.run.load == Load::SendPingPong {
            self.arrived -= 1;
            if index + RECEIVES_AHEAD < self.run.count {
                self.end.post_recv(self.run.bytes)?;
            }
        }
        Ok(())
    }

    fn has_come(&self, index: u32) -> Result<bool> {
        if self.run.load == Load::SendPingPong {
            return Ok(self.arrived > 0);
        }
        let mut last = [0];
        self.end.region.read(u64::from(self.run.bytes) - 1, &mut last)?;
        Ok(last[0] == number(index))
    }
}

/// Message numbers run from 1 to 255 and over again: 0 is what memory holds before.
fn number(index: u32) -> u8 {
    (index % 255) as u8 + 1
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn neighbours_differ_and_none_is_zero() {
        for index in 0..1000 {
            assert_ne!(number(index), 0);
            assert_ne!(number(index), number(index + 1));
        }
    }
}
