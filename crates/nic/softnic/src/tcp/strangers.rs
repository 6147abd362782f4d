//! TCP connections that have not shown whose they are: bounded in number and time, each at its own cost.
//!
//! Owns them from accept to the end of their MPA request (RFC 5044 7.1). One that shows a token becomes a queue pair's;
//! anything else is closed, and costs nothing but itself.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use verbs::Time;

/// Connections without a token at a time. With one more the oldest goes.
pub(crate) const STRANGERS_MAX: usize = 64;
/// Of them from one address. With one more the oldest of that address goes.
pub(crate) const STRANGERS_PER_SOURCE_MAX: usize = 16;
/// How long one may take to show its token. A peer sends it with its first segment.
pub(crate) const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// A connection of nobody.
#[derive(Debug)]
pub(crate) struct Stranger {
    pub(crate) fd: OwnedFd,
    pub(crate) from: SocketAddr,
    /// What came of its request.
    pub(crate) received: Vec<u8>,
    number: u32,
    until: Time,
}

/// All of them, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    waiting: VecDeque<Stranger>,
    last_number: u32,
}

impl Strangers {
    /// Takes a connection in; gives its number, and how many had to go for it.
    pub(crate) fn add(&mut self, now: Time, fd: OwnedFd, from: SocketAddr) -> (u32, u64) {
        let of_source = |ip: IpAddr| move |s: &Stranger| s.from.ip() == ip;
        let mut gone = 0;
        if self.waiting.iter().filter(|s| of_source(from.ip())(s)).count() >= STRANGERS_PER_SOURCE_MAX
            && let Some(oldest) = self.waiting.iter().position(of_source(from.ip()))
        {
            self.waiting.remove(oldest);
            gone += 1;
        }
        while self.waiting.len() >= STRANGERS_MAX {
            self.waiting.pop_front();
            gone += 1;
        }
        self.last_number = self.last_number.wrapping_add(1);
        let (number, until) = (self.last_number, now + STRANGER_PATIENCE);
        self.waiting.push_back(Stranger { fd, from, received: Vec::new(), number, until });
        (number, gone)
    }

    /// The one of that number, if it is still there.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Stranger> {
        self.waiting.iter_mut().find(|s| s.number == number)
    }

    /// Takes the one of that number out.
    pub(crate) fn take(&mut self, number: u32) -> Option<Stranger> {
        let at = self.waiting.iter().position(|s| s.number == number)?;
        self.waiting.remove(at)
    }

    /// Closes those whose time is over; says how many.
    pub(crate) fn expire(&mut self, now: Time) -> u64 {
        let mut gone = 0;
        while self.waiting.front().is_some_and(|s| s.until <= now) {
            self.waiting.pop_front();
            gone += 1;
        }
        gone
    }

    /// When the oldest one's time is over.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|s| s.until)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn fd() -> OwnedFd {
        UnixStream::pair().unwrap().0.into()
    }

    fn from(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 9))
    }

    #[test]
    fn one_source_cannot_drive_others_out() {
        let mut s = Strangers::default();
        let (friend, _) = s.add(Time(0), fd(), from(1));
        for _ in 0..10 * STRANGERS_MAX {
            s.add(Time(1), fd(), from(2));
        }
        assert!(s.get_mut(friend).is_some());
        assert_eq!(s.waiting.len(), 1 + STRANGERS_PER_SOURCE_MAX);
    }

    #[test]
    fn there_are_so_many_and_they_have_so_much_time() {
        let mut s = Strangers::default();
        let numbers: Vec<u32> = (0..=STRANGERS_MAX).map(|i| s.add(Time(i as u64), fd(), from(i as u8)).0).collect();
        assert!(s.get_mut(numbers[0]).is_none() && s.get_mut(numbers[1]).is_some());
        assert_eq!(s.deadline(), Some(Time(1) + STRANGER_PATIENCE));
        assert!(s.take(numbers[2]).is_some() && s.take(numbers[2]).is_none());
        assert_eq!(s.expire(Time(0) + STRANGER_PATIENCE), 0);
        assert_eq!(s.expire(Time(STRANGERS_MAX as u64) + STRANGER_PATIENCE), STRANGERS_MAX as u64 - 1);
        assert!(s.is_empty() && s.deadline().is_none());
    }
}
