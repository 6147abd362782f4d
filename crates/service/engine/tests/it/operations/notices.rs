//! What writers tell the owner of a region: in its ring, in order, behind the bytes; and who waits when it has no room.

use std::sync::atomic::Ordering;
use std::time::Duration;

use control::RegionAccess;
use engine::{AppId, OperationsOpen};
use shm::{COMPLETION_BYTES, CompletionRecord, NOTICE_BYTES, Notice, Opcode, OperationStatus, Submission};
use verbs::Region;

use super::fixture::{EPOCH, NUMBER, Use};
use crate::world::{QUEUE_NUMBERS, World, addr};

/// Notices that the smallest ring holds.
const ROOM: u32 = 16_384 / NOTICE_BYTES as u32;
/// Those that are kept before there is a ring.
const EARLY: u32 = 64;

/// The owner of the region on host 1, with or without a ring.
struct Owner {
    app: AppId,
    slot: u32,
}

impl Owner {
    fn new(u: &mut Use) -> Self {
        let app = u.w.attach(1, 64);
        Self { app, slot: Self::open(u, app, 100, NUMBER) }
    }

    fn open(u: &mut Use, app: AppId, number: u64, region: u64) -> u32 {
        let request = 1 << 50 | number;
        let open = OperationsOpen { queue: QUEUE_NUMBERS + number, ring_bytes: 16 << 10 };
        u.w.hosts[1].engine.open_operations(app, request, open);
        u.w.until("a queue", |w| w.hosts[1].apps[&app].answers.contains_key(&request));
        let slot = u.w.app(1, app).answers[&request].unwrap();
        let now = u.w.now;
        u.w.hosts[1].engine.notices_into(now, app, region, QUEUE_NUMBERS + number);
        u.w.wake();
        slot
    }

    /// Takes at most so many.
    fn take(&self, u: &mut Use, most: usize) -> Vec<Notice> {
        let socket = u.w.app(1, self.app).sockets.get_mut(&self.slot).unwrap();
        let mut taken = Vec::new();
        while taken.len() < most && socket.reader.available().unwrap() > 0 {
            let mut record = [0; NOTICE_BYTES];
            assert_eq!(socket.reader.peek_ahead(0, &mut record), NOTICE_BYTES);
            let (head, from) = record.split_first_chunk::<COMPLETION_BYTES>().unwrap();
            let head = CompletionRecord::parse(head).unwrap();
            taken.push(Notice::parse(&head, from.try_into().unwrap()).expect("the engine writes notices"));
            socket.reader.consume(NOTICE_BYTES as u64);
        }
        u.w.app(1, self.app).poke(self.slot);
        u.w.wake();
        taken
    }
}

fn notify(u: &mut Use, tag: u32, offset: u64) -> u64 {
    let s = Submission { notify: tag, ..u.submission(Opcode::WriteNotify, offset, 8) };
    u.submit(&s, &u64::from(tag).to_le_bytes())
}

/// Those that have ended, with their statuses.
fn ended(u: &mut Use) -> Vec<(u64, OperationStatus)> {
    u.collect();
    u.ended.iter().map(|e| (e.tag, e.status)).collect()
}

fn statuses(u: &mut Use) -> Vec<OperationStatus> {
    ended(u).into_iter().map(|(_, status)| status).collect()
}

#[test]
fn notices_come_behind_their_bytes_with_where_and_from_whom() {
    let mut u = Use::new(706);
    let owner = Owner::new(&mut u);
    for tag in 1..=3 {
        let at = u64::from(tag) * 8;
        let id = notify(&mut u, tag, at);
        u.w.wake();
        assert_eq!(u.wait(id).status, OperationStatus::Ok);
        assert_eq!(owner.take(&mut u, 9), [Notice { tag, offset: at, bytes: 8, from: Some(addr(0)) }]);
        assert_eq!(u.word(at), u64::from(tag));
    }
    // The last piece of a long write tells of all of it.
    let last = u.submission(Opcode::WriteNotify, 4096, 8);
    let last = Submission { notify: 7, operand: 96, compare: 4008, ..last };
    assert_eq!(u.run(&last, &[1; 8]).status, OperationStatus::Ok);
    assert_eq!(owner.take(&mut u, 9), [Notice { tag: 7, offset: 96, bytes: 4008, from: Some(addr(0)) }]);
    for (operand, compare) in [((1 << 20) - 7, 8), (u64::MAX, 8)] {
        let lie = Submission { operand, compare, ..u.submission(Opcode::WriteNotify, 0, 8) };
        assert_eq!(u.run(&lie, &[1; 8]).status, OperationStatus::OutOfBounds, "it is the writer's lie alone");
    }
    assert_eq!(u.w.counter(1, "notices_told"), 4);
    assert!(u.w.hosts[1].regions.is_empty(), "nothing of it is the control plane's");
    u.w.assert_clean();
}

#[test]
fn what_comes_before_the_ring_is_kept_and_then_writers_wait() {
    let mut u = Use::new(707);
    for tag in 0..EARLY + 2 {
        notify(&mut u, tag, 0);
    }
    u.w.wake();
    u.w.until("the first are taken", |w| w.counter(1, "notices_waiting") == 2);
    u.w.pass(Duration::from_millis(100));
    assert_eq!(statuses(&mut u), [OperationStatus::Ok; EARLY as usize]);
    let owner = Owner::new(&mut u);
    u.w.pass(Duration::from_millis(100));
    assert_eq!(statuses(&mut u), [OperationStatus::Ok; EARLY as usize + 2]);
    let tags: Vec<_> = owner.take(&mut u, 999).iter().map(|n| n.tag).collect();
    assert_eq!(tags, (0..EARLY + 2).collect::<Vec<_>>());
    u.w.assert_clean();
}

/// Until so many operations are under way: in this world time passes in steps, of which some are as long as writers wait.
fn until_under_way(u: &mut Use, count: u32) {
    u.w.until("operations end", |w| w.counter(0, "operations_in_flight") == u64::from(count));
    u.collect();
}

/// A writer of a full ring waits, in order; others do not.
#[test]
fn a_full_ring_holds_its_own_writers_back_and_nobody_else() {
    let mut u = Use::new(708);
    let owner = Owner::new(&mut u);
    let second = u.w.open_queue(0, u.app, 2);
    // More than the lane has buffers for bytes of operations.
    let more = 100;
    for tag in 0..ROOM + more {
        notify(&mut u, tag, 0);
        if tag % 100 == 99 {
            until_under_way(&mut u, (tag + 1).saturating_sub(ROOM));
        }
    }
    u.w.until("the ring is full", |w| w.counter(1, "notices_waiting") == u64::from(more));
    until_under_way(&mut u, more);
    assert_eq!(statuses(&mut u).len(), ROOM as usize);
    // Another region of that host, and another queue, go on.
    let other = Region::anonymous(64).unwrap();
    let host = &mut u.w.hosts[1];
    host.engine.register_region(&mut host.nic, 8, EPOCH, other.clone(), RegionAccess::ALL).unwrap();
    let grant = host.engine.grant_region(&mut host.nic, 8, addr(0)).unwrap();
    let host = &mut u.w.hosts[0];
    let handle = host.engine.open_region(&mut host.nic, u.app, addr(1), grant).unwrap();
    let first = std::mem::replace(&mut u.slot, second);
    let s = Submission { region: handle, notify: 5, ..u.submission(Opcode::WriteNotify, 8, 8) };
    assert_eq!(u.run(&s, &[5; 8]).status, OperationStatus::Ok, "it is kept until its owner has a ring");
    let s = Submission { operand: 1, ..u.submission(Opcode::FetchAdd, 0, 8) };
    assert_eq!(u.run(&s, &[]).status, OperationStatus::Ok, "atomics do not wait for notices");
    let s = u.submission(Opcode::Write, 16, 8);
    assert_eq!(u.run(&s, &[5; 8]).status, OperationStatus::Ok, "nor does a WRITE for their buffers");
    u.slot = first;
    // As many go on as the owner takes.
    assert_eq!(u.w.counter(1, "notices_waiting"), u64::from(more));
    let mut tags: Vec<u32> = owner.take(&mut u, 10).iter().map(|n| n.tag).collect();
    until_under_way(&mut u, more - 10);
    while tags.len() < (ROOM + more) as usize {
        tags.extend(owner.take(&mut u, 7).iter().map(|n| n.tag));
        until_under_way(&mut u, more.saturating_sub(tags.len() as u32));
    }
    assert_eq!(tags, (0..ROOM + more).collect::<Vec<_>>());
    assert!(statuses(&mut u).iter().all(|s| *s == OperationStatus::Ok));
    assert_eq!((u.w.counter(1, "notices_waiting"), u.w.counter(1, "notices_refused")), (0, 0));
    u.w.assert_clean();
}

#[test]
fn who_waits_for_an_owner_that_takes_nothing_is_refused_in_the_end() {
    let mut u = Use::new(709);
    for tag in 0..EARLY + 5 {
        notify(&mut u, tag, 8 * u64::from(tag));
    }
    u.w.wake();
    u.w.until("some wait", |w| w.counter(1, "notices_waiting") == 5);
    u.w.pass(Duration::from_millis(1900));
    assert_eq!(ended(&mut u).len(), EARLY as usize, "the owner has time");
    u.w.pass(Duration::from_millis(200));
    let all = ended(&mut u);
    let full = |(_, status): &(u64, OperationStatus)| *status == OperationStatus::NotificationsFull;
    assert_eq!((all.len(), all.iter().filter(|end| full(end)).count()), (EARLY as usize + 5, 5));
    assert_eq!(u.word(8 * u64::from(EARLY + 4)), u64::from(EARLY + 4), "the bytes are there");
    assert_eq!((u.w.counter(1, "notices_waiting"), u.w.counter(1, "notices_refused")), (0, 5));
    u.w.assert_clean();
}

/// A program of the region's own host that has it mapped, with a queue.
struct Mapped {
    app: AppId,
    slot: u32,
    handle: u32,
    ended: Vec<(u64, OperationStatus)>,
}

impl Mapped {
    fn new(u: &mut Use) -> Self {
        let app = u.w.attach(1, 64);
        let slot = u.w.open_queue(1, app, 300);
        let handle = u.w.hosts[1].engine.open_notifier(app, NUMBER, u.region.len()).unwrap();
        Self { app, slot, handle, ended: Vec::new() }
    }

    /// Has the owner told of 4 bytes. The operation has the tag's number.
    fn tell(&self, u: &mut Use, tag: u32) {
        let s = Submission { region: self.handle, epoch: 0, notify: tag, ..u.submission(Opcode::WriteNotify, 8, 0) };
        self.submit(u, &Submission { tag: tag.into(), operand: 8, compare: 4, ..s });
    }

    fn submit(&self, u: &mut Use, s: &Submission) {
        let socket = u.w.app(1, self.app).sockets.get_mut(&self.slot).unwrap();
        assert!(socket.writer.write_ahead(0, &s.to_bytes()) && socket.writer.commit(s.ring_bytes()));
        u.w.app(1, self.app).poke(self.slot);
        u.w.wake();
    }

    fn ended(&mut self, u: &mut Use) -> &[(u64, OperationStatus)] {
        let socket = u.w.app(1, self.app).sockets.get_mut(&self.slot).unwrap();
        while socket.reader.available().unwrap() > 0 {
            let mut head = [0; COMPLETION_BYTES];
            assert_eq!(socket.reader.peek_ahead(0, &mut head), head.len());
            let record = CompletionRecord::parse(&head).unwrap();
            socket.reader.consume(record.ring_bytes());
            self.ended.push((record.tag, record.status));
        }
        u.w.app(1, self.app).poke(self.slot);
        &self.ended
    }

    fn done(&mut self, u: &mut Use) -> usize {
        self.ended(u).iter().filter(|(_, status)| *status == OperationStatus::Ok).count()
    }
}

#[test]
fn a_program_of_this_host_waits_in_the_same_line() {
    let mut u = Use::new(710);
    let mut writer = Mapped::new(&mut u);
    for tag in 0..EARLY {
        writer.tell(&mut u, tag);
        u.w.settle();
    }
    notify(&mut u, EARLY, 0);
    u.w.wake();
    u.w.until("one waits", |w| w.counter(1, "notices_waiting") == 1);
    writer.tell(&mut u, EARLY + 1);
    u.w.until("two wait", |w| w.counter(1, "notices_waiting") == 2);
    assert_eq!(writer.done(&mut u), EARLY as usize);
    let owner = Owner::new(&mut u);
    let found = owner.take(&mut u, 999);
    assert_eq!(found.iter().map(|n| n.tag).collect::<Vec<_>>(), (0..EARLY + 2).collect::<Vec<_>>());
    assert_eq!(found[0], Notice { tag: 0, offset: 8, bytes: 4, from: None });
    assert_eq!(found[EARLY as usize].from, Some(addr(0)));
    u.w.pass(Duration::from_millis(10));
    assert_eq!(writer.done(&mut u), EARLY as usize + 1);
    u.w.assert_clean();
}

/// One that floods is held back at its queue when 64 of its notices wait, and goes on as the owner takes them.
#[test]
fn a_program_of_this_host_is_held_back_and_loses_nothing() {
    let mut u = Use::new(712);
    let owner = Owner::new(&mut u);
    let mut writer = Mapped::new(&mut u);
    let all = ROOM + 200;
    let told = |w: &World| w.counter(1, "notices_told");
    for tag in 0..all {
        writer.tell(&mut u, tag);
        // Its ring of completions is to have room.
        if tag + 1 == 200 {
            u.w.until("the first are told", |w| told(w) == 200);
            writer.ended(&mut u);
        }
    }
    u.w.until("it is held back", |w| w.counter(1, "notices_waiting") == 64);
    let (mut found, mut room) = (Vec::new(), u64::from(ROOM));
    while found.len() < all as usize {
        writer.ended(&mut u);
        found.extend(owner.take(&mut u, 50));
        room = (room + 50).min(all.into());
        u.w.until("it goes on", |w| told(w) == room);
    }
    assert!(found.iter().map(|n| n.tag).eq(0..all), "in order, each once");
    assert_eq!((writer.done(&mut u), u.w.counter(1, "notices_refused")), (all as usize, 0));
    u.w.assert_clean();
}

/// What it has no right to is refused; the end of its handle, and its own, leave nothing behind.
#[test]
fn a_notifier_tells_and_does_nothing_else_and_ends_with_its_program() {
    let mut u = Use::new(713);
    let owner = Owner::new(&mut u);
    let mut writer = Mapped::new(&mut u);
    let s = |u: &mut Use, opcode, bytes| Submission { region: 0, epoch: 0, ..u.submission(opcode, 0, bytes) };
    for (opcode, tag) in [(Opcode::Read, 1), (Opcode::FetchAdd, 2), (Opcode::CompareSwap, 3)] {
        let s = Submission { tag, region: writer.handle, ..s(&mut u, opcode, 8) };
        writer.submit(&mut u, &s);
    }
    let beyond = Submission { tag: 4, region: writer.handle, ..s(&mut u, Opcode::WriteNotify, 0) };
    writer.submit(&mut u, &Submission { operand: (1 << 20) - 3, compare: 4, ..beyond });
    u.w.settle();
    let refused = |status| matches!(status, OperationStatus::Access | OperationStatus::OutOfBounds);
    assert!(writer.ended(&mut u).iter().all(|(_, status)| refused(*status)) && writer.ended.len() == 4);
    assert_eq!(u.word(0), 0);
    writer.tell(&mut u, 5);
    u.w.settle();
    assert_eq!(owner.take(&mut u, 9).len(), 1);
    // Its handle is over: what is behind is refused.
    u.w.hosts[1].engine.close_region(writer.app, writer.handle, true);
    writer.tell(&mut u, 6);
    u.w.settle();
    assert_eq!(writer.ended(&mut u).last(), Some(&(6, OperationStatus::NoRegion)));
    // One that is killed while its notices wait.
    let mut other = Mapped::new(&mut u);
    for n in 1..=ROOM + 30 {
        other.tell(&mut u, n);
        let is_there =
            |w: &mut World| w.counter(1, "notices_told") - 1 + w.counter(1, "notices_waiting") == u64::from(n);
        u.w.until("it is told, or waits", is_there);
        other.ended(&mut u);
    }
    assert_eq!(u.w.counter(1, "notices_waiting"), 30);
    let app = other.app;
    u.w.kill(1, app);
    u.w.until("memory free", |w| w.hosts[1].gone.contains(&app));
    assert_eq!((u.w.counter(1, "notices_waiting"), owner.take(&mut u, 999).len()), (0, ROOM as usize));
    u.w.assert_clean();
}

/// An owner that lies about what it has taken is thrown out alone. Who waits for it is refused when its region ends.
#[test]
fn an_owner_that_writes_into_its_rings_words_harms_itself_alone() {
    for lie in [u64::MAX / 2, 1 << 40, u64::MAX - 7] {
        let mut u = Use::new(711);
        let owner = Owner::new(&mut u);
        for tag in 0..5 {
            notify(&mut u, tag, 0);
        }
        u.w.wake();
        u.w.until("they are told", |w| w.counter(1, "notices_told") == 5);
        u.w.app(1, owner.app).sockets[&owner.slot].words.rx_head.store(lie, Ordering::Release);
        u.w.app(1, owner.app).poke(owner.slot);
        let last = notify(&mut u, 6, 0);
        u.w.wake();
        u.w.until("it is thrown out", |w| w.counter(1, "app_faults") == 1);
        u.w.hosts[1].engine.forget_region(NUMBER);
        u.w.wake();
        let end = u.wait(last).status;
        assert!(matches!(end, OperationStatus::Ok | OperationStatus::NotificationsFull), "{end:?}");
        assert_eq!((u.w.hosts[1].lane_failures.len(), u.w.counter(1, "notices_waiting")), (0, 0));
    }
}

/// Notices wait while queue pairs break: each is told once, in order, and says so once.
#[test]
fn notices_are_told_exactly_once_across_resets() {
    for seed in 720..726 {
        let mut u = Use::new(seed);
        let owner = Owner::new(&mut u);
        let (count, mut submitted, mut broken, mut steps) = (1200, 0, 0, 0_u64);
        let mut tags = Vec::new();
        while u.ended.len() < count as usize {
            while submitted < count && submitted < u.ended.len() as u32 + 200 {
                notify(&mut u, submitted, 0);
                submitted += 1;
            }
            u.w.wake();
            u.collect();
            steps += 1;
            assert!(steps < 2_000_000, "{} of {count}: {:?}", u.ended.len(), u.w.hosts[1].engine.totals());
            if broken < 6 && u.ended.len() > broken * 150 && steps % 3 == 0 {
                u.break_lane((broken + seed as usize) % 2);
                broken += 1;
            }
            if steps % 40 == 0 {
                tags.extend(owner.take(&mut u, 30).iter().map(|n| n.tag));
            }
            u.w.step();
        }
        tags.extend(owner.take(&mut u, 9999).iter().map(|n| n.tag));
        for end in &u.ended {
            let is_told = tags.contains(&(end.tag as u32 - 1));
            match end.status {
                OperationStatus::Ok => assert!(is_told, "seed {seed}: one that is done was not told"),
                OperationStatus::OutcomeUnknown => {}
                other => assert!(!is_told, "seed {seed}: one that was told ended with {other:?}"),
            }
        }
        assert!(u.ended.iter().filter(|e| e.status == OperationStatus::Ok).count() > 300, "seed {seed}");
        assert!(tags.is_sorted() && tags.windows(2).all(|w| w[0] < w[1]), "seed {seed}: each once, in order");
        assert!(u.w.counter(0, "lane_resets") > 1, "seed {seed}");
    }
}

#[test]
fn a_revoke_does_not_wait_for_writers_that_wait() {
    let mut u = Use::new(712);
    for tag in 0..EARLY + 3 {
        notify(&mut u, tag, 0);
    }
    u.w.wake();
    u.w.until("some wait", |w| w.counter(1, "notices_waiting") == 3);
    u.w.hosts[1].engine.halt_region(NUMBER, addr(0));
    u.w.hosts[0].engine.stop_region(addr(1), NUMBER, EPOCH);
    u.w.pass(Duration::from_millis(100));
    assert!(u.is_stopped());
    assert_eq!((ended(&mut u).len(), u.w.counter(1, "notices_waiting")), (EARLY as usize + 3, 0));
    u.w.assert_clean();
}
