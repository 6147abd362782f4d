//! Groups of three hosts, each a daemon of its own in this process.

use std::future::Future;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use raas::RegionKey;
use raas_embedded::Embedded;
use raas_group::{BadSnapshot, Group, GroupBuilder, GroupError, Machine, Refused, Role};

/// Longer than anything takes on a loaded machine; only a hang reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const KEY: RegionKey = RegionKey::new([5; 16]);

/// All commands, in their order.
#[derive(Default)]
pub(crate) struct Journal(pub(crate) Vec<Vec<u8>>);

impl Machine for Journal {
    fn apply(&mut self, _index: u64, command: &[u8]) -> Vec<u8> {
        self.0.push(command.to_vec());
        (self.0.len() as u64).to_le_bytes().to_vec()
    }

    fn save(&self, into: &mut Vec<u8>) {
        for command in &self.0 {
            into.extend_from_slice(&(command.len() as u64).to_le_bytes());
            into.extend_from_slice(command);
        }
    }

    fn load(&mut self, mut bytes: &[u8]) -> Result<(), BadSnapshot> {
        self.0.clear();
        while let Some((length, rest)) = bytes.split_first_chunk() {
            let (command, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize).ok_or(BadSnapshot)?;
            self.0.push(command.to_vec());
            bytes = rest;
        }
        Ok(())
    }
}

pub(crate) struct Hosts {
    addresses: Vec<(u8, IpAddr)>,
    daemons: Vec<Option<Embedded>>,
}

impl Hosts {
    pub(crate) fn new(group: u8, count: u8) -> Self {
        let [.., b, c] = std::process::id().to_be_bytes();
        let address = |id: u8| (id, IpAddr::from([127, 128 | b, c, group * 16 + id]));
        let addresses: Vec<_> = (1..=count).map(address).collect();
        let daemons = addresses.iter().map(|(_, host)| Some(daemon(*host))).collect();
        Self { addresses, daemons }
    }

    pub(crate) fn end(&mut self, at: usize) {
        self.daemons[at] = None;
    }

    /// All hosts have new daemons, which know no memory.
    pub(crate) fn restart(&mut self) {
        self.daemons.iter_mut().for_each(|daemon| *daemon = None);
        self.daemons = self.addresses.iter().map(|(_, host)| Some(daemon(*host))).collect();
    }

    pub(crate) fn address(&self, id: u8) -> IpAddr {
        self.addresses[usize::from(id) - 1].1
    }

    pub(crate) fn daemon(&self, id: u8) -> &Embedded {
        self.daemons[usize::from(id) - 1].as_ref().expect("its daemon runs")
    }

    fn join(&self, id: u8) -> Result<Group<Journal>, GroupError> {
        self.join_with(id, Duration::ZERO)
    }

    pub(crate) fn join_with(&self, id: u8, read_lease: Duration) -> Result<Group<Journal>, GroupError> {
        self.builder(id).read_lease(read_lease).open(self.daemon(id).session(), Journal::default())
    }

    pub(crate) fn builder(&self, id: u8) -> GroupBuilder {
        let builder = GroupBuilder::new("journal", KEY).members(&self.addresses).me(id);
        builder.log_lines(512).snapshot_bytes_max(64 << 10).command_bytes_max(1024).founded_within(PATIENCE)
    }

    /// All members, which found the group together.
    fn all(&self) -> Vec<Group<Journal>> {
        self.all_with(Duration::ZERO)
    }

    pub(crate) fn all_with(&self, read_lease: Duration) -> Vec<Group<Journal>> {
        std::thread::scope(|scope| {
            let join = |id| scope.spawn(move || self.join_with(id, read_lease));
            let joins: Vec<_> = self.addresses.iter().map(|(id, _)| join(*id)).collect();
            joins.into_iter().map(|join| join.join().expect("no panic").expect("it joins")).collect()
        })
    }
}

fn daemon(host: IpAddr) -> Embedded {
    raas_embedded::builder(host).key(&[42; 32]).start().expect("a daemon")
}

/// Whoever leads, sooner or later.
pub(crate) fn leader<'g>(groups: impl IntoIterator<Item = &'g Group<Journal>> + Clone) -> &'g Group<Journal> {
    let begin = Instant::now();
    loop {
        let found = groups.clone().into_iter().find(|group| matches!(group.role(), Role::Leader { .. }));
        if let Some(found) = found {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "nobody leads");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Has a command committed by whoever leads; its number makes it one command whatever happens.
pub(crate) fn commit<'g>(
    groups: impl IntoIterator<Item = &'g Group<Journal>> + Clone,
    client: u64,
    number: u64,
    command: &[u8],
) {
    let begin = Instant::now();
    loop {
        match leader(groups.clone()).propose_as(client, number, command) {
            Ok(_) => return,
            Err(GroupError::Unknown | GroupError::Refused(Refused::NotLeader { .. } | Refused::Full { .. })) => {}
            Err(other) => panic!("{other}"),
        }
        assert!(begin.elapsed() < PATIENCE, "it is not committed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn read<'g>(groups: impl IntoIterator<Item = &'g Group<Journal>> + Clone) -> Vec<Vec<u8>> {
    let begin = Instant::now();
    loop {
        if let Ok(found) = leader(groups.clone()).read(|journal| journal.0.clone()) {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "nobody answers");
    }
}

pub(crate) fn command(number: u64) -> Vec<u8> {
    format!("command {number}").into_bytes()
}

#[test]
fn what_is_committed_is_applied_by_all_in_one_order_and_read_at_once() {
    let hosts = Hosts::new(1, 3);
    let groups = hosts.all();
    let begin = Instant::now();
    // Once is not enough: on a busy machine somebody else may come to lead between two of them.
    while groups.iter().map(|group| group.propose(b"x")).filter(Result::is_err).count() < 2 {
        assert!(begin.elapsed() < PATIENCE, "one leads at most");
    }
    for number in 1..=200 {
        commit(&groups, 7, number, &command(number));
        if number % 50 == 0 {
            let found: Vec<_> = read(&groups).into_iter().filter(|command| command.len() > 1).collect();
            assert_eq!(found.len() as u64, number, "a read has what was committed before it");
        }
    }
    let last = leader(&groups).applied();
    for group in &groups {
        assert!(group.wait_applied(last, PATIENCE), "a follower learns");
        assert_eq!(group.members().iter().count(), 3);
    }
    let too_long = leader(&groups).propose(&[0; 2048]);
    assert!(matches!(too_long, Err(GroupError::Refused(Refused::TooLong { .. } | Refused::NotLeader { .. }))));
}

#[test]
fn many_callers_at_a_time_are_each_answered_once() {
    let hosts = Hosts::new(2, 3);
    let groups = hosts.all();
    std::thread::scope(|scope| {
        for caller in 0..8 {
            let groups = &groups;
            scope.spawn(move || (1..=25).for_each(|number| commit(groups, 100 + caller, number, &[caller as u8; 9])));
        }
    });
    let found = read(&groups);
    for caller in 0..8u8 {
        assert_eq!(found.iter().filter(|command| **command == [caller; 9]).count(), 25, "caller {caller}");
    }
}

#[test]
fn the_others_go_on_without_the_leaders_program_and_its_memory_still_counts() {
    let hosts = Hosts::new(3, 3);
    let mut groups = hosts.all();
    let mut number = 0;
    let mut more = |groups: &[Group<Journal>]| {
        for _ in 0..20 {
            number += 1;
            commit(groups, 9, number, &command(number));
        }
        number
    };
    more(&groups);
    // Two of three programs end. All memories are there: the third leads, and has everything.
    for _ in 0..2 {
        let gone = groups.iter().position(|group| matches!(group.role(), Role::Leader { .. })).unwrap_or(0);
        drop(groups.remove(gone));
        let last = more(&groups);
        let found = read(&groups);
        assert_eq!(found, (1..=last).map(command).collect::<Vec<_>>());
    }
    // The programs come back, each to its own memory.
    let ids: Vec<u8> = (1..=3)
        .filter(|id| {
            hosts.join(*id).is_ok_and(|group| {
                groups.push(group);
                true
            })
        })
        .collect();
    assert_eq!(ids.len(), 2, "one of them never left");
    let last = more(&groups);
    let leader = leader(&groups).applied();
    for group in &groups {
        assert!(group.wait_applied(leader, PATIENCE));
    }
    assert_eq!(read(&groups), (1..=last).map(command).collect::<Vec<_>>());
}

#[test]
fn a_memory_that_lost_its_bytes_counts_again_when_it_has_caught_up() {
    let mut hosts = Hosts::new(4, 3);
    let mut groups = hosts.all();
    for number in 1..=30 {
        commit(&groups, 9, number, &command(number));
    }
    // A whole host is gone, with its memory.
    let host = hosts.addresses[2].1;
    drop(groups.pop());
    hosts.daemons[2] = None;
    for number in 31..=60 {
        commit(&groups, 9, number, &command(number));
    }
    hosts.daemons[2] = Some(daemon(host));
    groups.push(hosts.join(3).expect("it comes back"));
    let before = groups[0].members();
    let begin = Instant::now();
    while groups[0].members() == before {
        assert!(begin.elapsed() < PATIENCE, "its new memory becomes a member");
        let number = 61 + begin.elapsed().as_millis() as u64;
        commit(&groups, 10, number, b"on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let found: Vec<_> = read(&groups).into_iter().filter(|command| command != b"on").collect();
    assert_eq!(found, (1..=60).map(command).collect::<Vec<_>>());
}

#[test]
fn a_group_that_is_new_waits_for_all_and_says_who_is_missing() {
    let hosts = Hosts::new(5, 2);
    let builder = GroupBuilder::new("alone", KEY).members(&hosts.addresses).me(1);
    let alone = builder.founded_within(Duration::from_millis(100)).open(hosts.daemon(1).session(), Journal::default());
    let error = alone.expect_err("member 2 is not there");
    assert!(matches!(&error, GroupError::NotFounded { missing, .. } if *missing == [2]), "{error}");
    let stranger = GroupBuilder::new("alone", KEY).members(&hosts.addresses).me(9);
    let error = stranger.open(hosts.daemon(1).session(), Journal::default()).expect_err("it is no member");
    assert!(matches!(error, GroupError::NoMember { me: 9 }));
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn one_thread_has_many_commands_under_way() {
    let hosts = Hosts::new(9, 3);
    let groups = hosts.all();
    let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let mut cx = std::task::Context::from_waker(&waker);
    let led = leader(&groups);
    let mut under_way: Vec<_> = (0..100).map(|number| led.propose_async(&command(number))).collect();
    let (begin, mut replies, mut lost) = (Instant::now(), Vec::new(), 0);
    while !under_way.is_empty() {
        assert!(begin.elapsed() < PATIENCE, "{} have no end", under_way.len());
        under_way.retain_mut(|proposal| match std::pin::Pin::new(proposal).poll(&mut cx) {
            std::task::Poll::Ready(Ok(committed)) => {
                replies.push(committed.reply);
                false
            }
            // On a busy machine somebody else may come to lead.
            std::task::Poll::Ready(Err(error)) => {
                assert!(matches!(error, GroupError::Unknown | GroupError::Refused(_)), "{error}");
                lost += 1;
                false
            }
            std::task::Poll::Pending => true,
        });
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let told = replies.len();
    replies.sort();
    replies.dedup();
    assert_eq!((replies.len(), told + lost), (told, 100), "each once");
    assert!((told..=100).contains(&read(&groups).len()));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = std::task::Waker::from(std::sync::Arc::new(Unpark(std::thread::current())));
    let begin = Instant::now();
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            return value;
        }
        // A waker that is never called shows.
        std::thread::park_timeout(PATIENCE);
        assert!(begin.elapsed() < PATIENCE, "nobody wakes the task");
    }
}

#[test]
fn tasks_read_what_was_committed_and_each_read_ends() {
    let hosts = Hosts::new(8, 3);
    let groups = hosts.all();
    for number in 1..=20 {
        commit(&groups, 7, number, &command(number));
        let begin = Instant::now();
        // On a busy machine somebody else may come to lead.
        let found = loop {
            let led = leader(&groups);
            let reads: Vec<_> = (0..5).map(|_| led.read_async(|journal| journal.0.len() as u64)).collect();
            let found: Result<Vec<u64>, GroupError> = reads.into_iter().map(block_on).collect();
            match found {
                Ok(found) => break found,
                Err(GroupError::LeadsNoMore | GroupError::Refused(Refused::NotLeader { .. })) => {}
                Err(other) => panic!("{other}"),
            }
            assert!(begin.elapsed() < PATIENCE, "nobody answers");
        };
        assert_eq!(found, [number; 5]);
    }
    let group = groups.into_iter().next().expect("it is one of them");
    let last = group.read_async(|journal| journal.0.len());
    drop(group);
    match block_on(last) {
        Ok(found) => assert_eq!(found, 20),
        Err(GroupError::Closed | GroupError::LeadsNoMore | GroupError::Refused(_)) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_task_hears_of_another_role_and_a_copy_has_what_was_committed() {
    let hosts = Hosts::new(12, 1);
    let groups = hosts.all();
    let mut role = Role::Follower { leader: None };
    while !matches!(role, Role::Leader { .. }) {
        role = block_on(groups[0].role_after(role));
    }
    commit(&groups, 1, 1, b"kept");
    let mut copy = Journal::default();
    copy.load(&groups[0].snapshot().expect("it leads")).expect("its own bytes");
    assert_eq!(copy.0, [b"kept"]);
    assert!(groups[0].describe().expect("it is open").contains("leads"));
}
