//! Messages: those of a conversation go by TCP, long ones and bursts by the ring, in any order.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::atomic::Ordering;

use control::{PathKind, Reason};
use raas_core::{Connection, End, Incoming, Next, Readiness, ReceiveError, Side, message_header};

use super::{RING, World, byte, seeds};

/// Two ends of a connection of messages, with a TCP connection that both know.
struct Talk {
    world: World,
    incoming: [Incoming; 2],
    /// Lengths of the messages on the way to each end.
    lengths: [VecDeque<usize>; 2],
    /// Senders may be held up.
    may_wait: bool,
}

/// The longest message.
const LEN_MAX: usize = RING as usize - 4;

impl Talk {
    fn new(seed: u64) -> Self {
        let mut world = World::new(seed);
        for end in 0..2 {
            world.hosts[end].connection.as_ref().unwrap().endpoint.direct_place().unwrap().carry_messages();
            world.attach(end);
        }
        Self { world, incoming: Default::default(), lengths: Default::default(), may_wait: true }
    }

    fn below(&mut self, bound: u64) -> usize {
        self.world.rng.below(bound) as usize
    }

    /// Bytes move, and are read by `readers`.
    fn pass(&mut self, readers: &[usize]) {
        let end = self.below(2);
        match self.below(5) {
            0 => self.world.lane(end),
            1 => self.world.tcp(end),
            2 => self.world.hosts[end].direct.as_ref().unwrap().handle_event(),
            _ if readers.contains(&end) => self.read(end),
            _ => {}
        }
    }

    /// As the library receives, without waiting.
    fn read(&mut self, end: usize) {
        let host = &mut self.world.hosts[end];
        if host.end.is_some() {
            return;
        }
        let Connection { endpoint, rx, tx } = host.connection.as_mut().unwrap();
        let is_told = raas_core::readiness(endpoint, Some(&mut *rx), Some(&mut *tx), 1).contains(Readiness::READ);
        let (incoming, mut taken, mut buf) = (&mut self.incoming[end], 0, vec![0; LEN_MAX]);
        let received = loop {
            let mut read = |part: &mut [u8]| match rx.try_read(endpoint, part) {
                Ok(count) => {
                    taken += count.unwrap_or(0);
                    count.ok_or(None)
                }
                Err(End::Finished) => Ok(0),
                Err(why) => Err(Some(why)),
            };
            match incoming.next(&mut read) {
                Ok(Some(Next::OtherWay)) => rx.change_way(endpoint).unwrap(),
                Ok(_) => break incoming.receive(&mut buf, &mut read),
                Err(why) => break Err(why),
            }
        };
        match received {
            Ok(Some(len)) => {
                assert_eq!(self.lengths[end].pop_front(), Some(len));
                let expected: Vec<u8> = (host.read..).take(len).map(|at| byte(1 - end, at)).collect();
                assert_eq!(buf[..len], expected, "at {} of what goes to {end}", host.read);
                host.read += len as u64;
            }
            Ok(None) => host.end = Some(End::Finished),
            Err(ReceiveError::Read(None)) => {
                assert!(!is_told || taken > 0, "a read that was told of something finds nothing");
                rx.tell_room(endpoint);
            }
            Err(ReceiveError::Read(Some(why))) => host.end = Some(why),
            Err(ReceiveError::Framing(why)) => panic!("{why}"),
        }
    }

    /// Tries to send a message, once.
    fn try_send(&mut self, from: usize, len: usize) -> Result<bool, End> {
        let host = &mut self.world.hosts[from];
        let bytes: Vec<u8> = (host.wrote..).take(len).map(|at| byte(from, at)).collect();
        let Connection { endpoint, tx, .. } = host.connection.as_mut().unwrap();
        let header = message_header(len, LEN_MAX).unwrap();
        let is_sent =
            tx.put_message(endpoint, &[IoSlice::new(&header), IoSlice::new(&bytes)], 4 + len, self.may_wait)?;
        if is_sent {
            host.wrote += len as u64;
            self.lengths[1 - from].push_back(len);
        }
        Ok(is_sent)
    }

    /// Sends a message; says whether it was sent.
    fn send(&mut self, from: usize, len: usize) -> bool {
        for _ in 0..100_000 {
            match self.try_send(from, len) {
                Ok(true) => return true,
                Ok(false) => self.pass(&[0, 1]),
                Err(_) => return false,
            }
        }
        panic!("no room comes")
    }

    /// All that was sent to `to` is received. False: its reading ended.
    fn settle(&mut self, to: usize) -> bool {
        for _ in 0..100_000 {
            if self.world.hosts[to].end.is_some() {
                return false;
            }
            if self.lengths[to].is_empty() {
                return true;
            }
            self.pass(&[to]);
        }
        panic!("messages do not come")
    }

    fn turns(&mut self, turns: usize) -> bool {
        (0..turns).all(|_| {
            let len = self.below(60);
            (0..2).all(|end| self.send(end, len) && self.settle(1 - end))
        })
    }

    fn burst(&mut self, longest: usize) -> bool {
        let (from, count) = (self.below(2), 1 + self.below(20));
        (0..count).all(|_| {
            let len = self.below(longest as u64);
            let is_sent = self.send(from, len);
            (0..self.below(4)).for_each(|_| self.pass(&[0, 1]));
            is_sent
        })
    }

    /// Bytes of an end that went by TCP.
    fn by_tcp(&self, end: usize) -> u64 {
        self.world.hosts[end].words.direct_tx.load(Ordering::Relaxed)
    }

    /// Both ends write no more, and read to the end.
    fn finish(&mut self) {
        for host in &mut self.world.hosts {
            let _ = host.connection.as_mut().unwrap().shut(Side::Write);
        }
        for _ in 0..100_000 {
            if self.world.is_over() {
                return;
            }
            self.pass(&[0, 1]);
        }
        panic!("no end comes")
    }
}

#[test]
fn messages_come_once_and_in_order_whichever_way_each_goes() {
    for seed in 1..=seeds() {
        let mut talk = Talk::new(seed);
        for _ in 0..4 {
            let before = [0, 1].map(|end| talk.by_tcp(end));
            assert!(talk.turns(40), "seed {seed}");
            (0..2).for_each(|end| assert!(talk.by_tcp(end) > before[end], "seed {seed}: a conversation goes by TCP"));
            let longest = if talk.below(2) == 0 { 60 } else { LEN_MAX };
            assert!(talk.burst(longest), "seed {seed}");
            (0..2).for_each(|end| assert!(talk.settle(end), "seed {seed}"));
        }
        talk.finish();
        for end in 0..2 {
            let (host, other) = (&talk.world.hosts[end], &talk.world.hosts[1 - end]);
            assert_eq!((host.end, host.read), (Some(End::Finished), other.wrote), "seed {seed}");
            let by_tcp = host.words.direct_rx.load(Ordering::Relaxed);
            assert_eq!(talk.by_tcp(1 - end), by_tcp, "seed {seed}: both count the same bytes");
            assert_eq!(host.connection.as_ref().unwrap().endpoint.path(), PathKind::TcpDirect, "seed {seed}");
        }
    }
}

#[test]
fn who_does_not_wait_for_answers_leaves_tcp_and_comes_back_when_it_does() {
    for seed in 1..20 {
        let mut talk = Talk::new(seed);
        assert!(talk.turns(60));
        let by_tcp = talk.by_tcp(0);
        // The first may be an answer, and then it says that it goes.
        (0..20).for_each(|_| assert!(talk.send(0, 64) && talk.settle(1)));
        assert!((by_tcp..=by_tcp + 72).contains(&talk.by_tcp(0)), "seed {seed}");
        assert!(talk.turns(60));
        assert!(talk.by_tcp(0) > by_tcp + 72, "seed {seed}");
    }
}

#[test]
fn who_must_not_wait_leaves_tcp_too() {
    let mut talk = Talk::new(1);
    assert!(talk.turns(60));
    talk.may_wait = false;
    let by_tcp = [0, 1].map(|end| talk.by_tcp(end));
    assert!(talk.turns(60));
    (0..2).for_each(|end| assert_eq!(talk.by_tcp(end), by_tcp[end] + 4, "it says that it goes"));
    let mut fresh = Talk::new(2);
    fresh.may_wait = false;
    assert!(fresh.turns(60));
    assert_eq!([0, 1].map(|end| fresh.by_tcp(end)), [0, 0]);
}

#[test]
fn two_ends_that_fill_their_rings_before_they_receive_wait_for_no_room_of_tcp() {
    for seed in 1..20 {
        let mut talk = Talk::new(seed);
        assert!(talk.turns(60));
        let room = talk.world.pipe.lock().unwrap().room;
        for end in 0..2 {
            let mut sent = 0;
            while talk.try_send(end, 500).unwrap() {
                sent += 500;
            }
            assert!(sent > RING / 2, "seed {seed}: {sent}");
        }
        assert_eq!(talk.world.pipe.lock().unwrap().room, room, "seed {seed}");
        (0..2).for_each(|end| assert!(talk.settle(end), "seed {seed}"));
    }
}

#[test]
fn a_connection_that_breaks_never_looks_like_an_end() {
    let mut resets = 0;
    for seed in 1..=seeds() {
        let mut talk = Talk::new(seed);
        let turns = 20 + talk.below(40);
        assert!(talk.turns(turns));
        (0..talk.below(3)).for_each(|_| assert!(talk.burst(200)));
        {
            let mut pipe = talk.world.pipe.lock().unwrap();
            pipe.is_broken = true;
            for end in 0..2 {
                let arrived = pipe.arrived[end];
                pipe.bytes[end].truncate(arrived);
            }
        }
        let _ = talk.turns(20) && talk.burst(200);
        talk.finish();
        for end in 0..2 {
            let (host, other) = (&talk.world.hosts[end], &talk.world.hosts[1 - end]);
            match host.end {
                Some(End::Finished) => assert_eq!(host.read, other.wrote, "seed {seed}: a part looks like all"),
                Some(End::Reset(Reason::DirectLost)) => resets += 1,
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    assert!(resets > seeds() / 10, "{resets}: too few to show something");
}
