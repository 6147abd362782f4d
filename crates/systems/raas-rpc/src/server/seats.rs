//! Seats: places for requests in the server's memory, which clients have one after the other.
//!
//! Owns who has which seat, and until when he may write there. It must never give a seat to another client while the one
//! before may write, or what he wrote in time may still be on its way.

use std::time::{Duration, Instant};

/// What was written in time has arrived so long after.
const GRACE: Duration = Duration::from_millis(2);

#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    /// The client that has it, or had it last, and the end of its turn.
    of: Option<(u32, Instant)>,
}

/// See the head of this file. Clients are numbers.
#[derive(Debug)]
pub(crate) struct Seats {
    seats: Vec<Seat>,
    /// Seats that anybody ever had.
    used: usize,
}

impl Seats {
    pub(crate) fn new(count: u32) -> Self {
        Self { seats: vec![Seat::default(); count as usize], used: 0 }
    }

    /// Seats that anybody ever had: those behind them were never touched.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Whether somebody may write there now.
    pub(crate) fn is_live(&self, seat: usize, now: Instant) -> bool {
        self.seats.get(seat).and_then(|seat| seat.of).is_some_and(|(_, until)| until > now)
    }

    /// How many clients may write now.
    pub(crate) fn live(&self, now: Instant) -> usize {
        (0..self.used).filter(|seat| self.is_live(*seat, now)).count()
    }

    /// The end of the longest turn.
    pub(crate) fn latest(&self) -> Option<Instant> {
        self.seats.iter().filter_map(|seat| seat.of).map(|(_, until)| until).max()
    }

    /// Whether a client has this seat, and may write there now.
    pub(crate) fn holds(&self, seat: u32, client: u32, now: Instant) -> bool {
        self.is_live(seat as usize, now) && self.is_of(seat, client)
    }

    fn is_of(&self, seat: u32, client: u32) -> bool {
        self.seats.get(seat as usize).and_then(|seat| seat.of).is_some_and(|(of, _)| of == client)
    }

    /// A client's turn goes on in the seat that it had, if nobody had it since.
    pub(crate) fn renew(&mut self, seat: u32, client: u32, until: Instant) -> bool {
        let is_its = self.is_of(seat, client);
        if let (true, Some(seat)) = (is_its, self.seats.get_mut(seat as usize)) {
            // What was told before stays true.
            let before = seat.of.map_or(until, |(_, before)| before);
            seat.of = Some((client, until.max(before)));
        }
        is_its
    }

    /// A seat for a client: one that was used before if there is one, so that the memory that is in use stays small.
    /// `None`: all are taken.
    pub(crate) fn sit(&mut self, client: u32, now: Instant, until: Instant) -> Option<u32> {
        let is_free = |seat: &Seat| seat.of.is_none_or(|(_, until)| now.saturating_duration_since(until) > GRACE);
        // The one that is free for the longest time: what comes too late there finds nobody.
        let oldest = (0..self.used)
            .filter(|seat| is_free(&self.seats[*seat]))
            .min_by_key(|seat| self.seats[*seat].of.map(|(_, until)| until));
        let seat = oldest.or_else(|| (self.used < self.seats.len()).then_some(self.used))?;
        self.used = self.used.max(seat + 1);
        self.seats[seat].of = Some((client, until));
        u32::try_from(seat).ok()
    }

    /// A client has left: nothing of it comes any more that anybody wants.
    pub(crate) fn leave(&mut self, seat: u32, client: u32) {
        if let (true, Some(seat)) = (self.is_of(seat, client), self.seats.get_mut(seat as usize)) {
            seat.of = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_seat_is_another_clients_only_some_time_after_the_turns_end() {
        let now = Instant::now();
        let mut seats = Seats::new(2);
        assert_eq!(seats.sit(7, now, now + MS), Some(0));
        assert_eq!(seats.sit(8, now, now + MS), Some(1));
        assert!(seats.holds(0, 7, now) && !seats.holds(0, 8, now) && seats.live(now) == 2);
        assert_eq!(seats.sit(9, now + MS + GRACE, now + 9 * MS), None, "its last requests may be on their way");
        assert!(!seats.holds(0, 7, now + MS), "the turn is over");
        assert!(seats.renew(1, 8, now + 5 * MS), "in its own seat it may go on");
        let later = now + MS + GRACE + MS;
        assert_eq!(seats.sit(9, later, later + MS), Some(0));
        assert!(!seats.renew(0, 7, later + MS), "somebody else has it");
        assert_eq!(seats.latest(), Some(now + 5 * MS));
    }

    #[test]
    fn turns_are_never_made_shorter_and_seats_are_used_again() {
        let now = Instant::now();
        let mut seats = Seats::new(100);
        for client in 0..1000 {
            let begin = now + 4 * MS * client;
            assert!(seats.sit(client, begin, begin + MS).is_some());
        }
        assert_eq!(seats.used(), 1);
        seats.renew(0, 999, now);
        assert_eq!(seats.latest(), Some(now + 4 * MS * 999 + MS));
        seats.leave(0, 998);
        assert!(seats.latest().is_some(), "not its seat any more");
        seats.leave(0, 999);
        assert_eq!(seats.sit(5, now, now + MS), Some(0));
    }
}
