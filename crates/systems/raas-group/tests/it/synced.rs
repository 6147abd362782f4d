//! Groups whose acknowledgements outlive power: files are all that is left, and are cut.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use raas_group::{Class, Group, GroupError, status};

use crate::groups::{Hosts, Journal, KEY, PATIENCE, command, commit, leader, read};

fn join(hosts: &Hosts, dir: &Path, id: u8) -> Result<Group<Journal>, GroupError> {
    hosts.builder(id).synced(dir.join(id.to_string())).open(hosts.daemon(id).session(), Journal::default())
}

fn join_all(hosts: &Hosts, dir: &Path, ids: &[u8]) -> Vec<Group<Journal>> {
    std::thread::scope(|scope| {
        let joins: Vec<_> = ids.iter().map(|id| scope.spawn(move || join(hosts, dir, *id))).collect();
        joins.into_iter().map(|join| join.join().expect("no panic").expect("it joins")).collect()
    })
}

#[test]
fn what_was_acknowledged_is_there_when_only_the_directories_of_a_majority_are_left() {
    let (mut hosts, dir) = (Hosts::new(13, 3), tempfile::tempdir().expect("a directory"));
    let mut number = 0;
    // Each member has its turn to stay away, so each file has a time that it knows nothing of.
    for ids in [[1, 2, 3].as_slice(), &[2, 3], &[1, 3], &[1, 2]] {
        let groups = join_all(&hosts, dir.path(), ids);
        assert_eq!(read(&groups), (1..=number).map(command).collect::<Vec<_>>(), "{ids:?}");
        assert!(groups.iter().all(|group| group.class() == Class::SyncedMajority));
        // More than half of what the log has room for, so that snapshots are in the files.
        for _ in 0..150 {
            number += 1;
            commit(&groups, 7, number, &command(number));
        }
        drop(groups);
        hosts.restart();
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for file in fs::read_dir(from).expect("the directory").flatten() {
        fs::copy(file.path(), to.join(file.file_name())).expect("a copy");
    }
}

/// The last records of a real file are cut at every byte. Whatever is gone, what was acknowledged before the file was so
/// long is there, and nothing in another order.
#[test]
fn a_file_that_is_cut_anywhere_has_what_was_acknowledged_before_the_cut() {
    let (mut hosts, dir) = (Hosts::new(14, 1), tempfile::tempdir().expect("a directory"));
    let groups = join_all(&hosts, dir.path(), &[1]);
    let journal = |dir: &Path| dir.join("1").join("journal");
    // How long the file was when each was acknowledged: it has no rest, the only member waits.
    let mut lengths = vec![];
    for number in 1..=4 {
        commit(&groups, 7, number, &command(number));
        lengths.push(fs::metadata(journal(dir.path())).expect("it is there").len());
    }
    drop(groups);
    let whole = fs::read(journal(dir.path())).expect("it is there");
    assert!(lengths.windows(2).all(|pair| pair[0] < pair[1]), "{lengths:?}");
    for cut in lengths[1]..=whole.len() as u64 {
        hosts.restart();
        let other = tempfile::tempdir().expect("a directory");
        copy(&dir.path().join("1"), &other.path().join("1"));
        fs::write(journal(other.path()), &whole[..cut as usize]).expect("it is cut");
        let groups = join_all(&hosts, other.path(), &[1]);
        let found = read(&groups);
        let acknowledged = lengths.iter().filter(|length| **length <= cut).count();
        assert!(found.len() >= acknowledged, "cut at {cut} of {lengths:?}: {found:?}");
        assert_eq!(found, (1..=found.len() as u64).map(command).collect::<Vec<_>>());
    }
}

#[test]
fn a_member_whose_file_cannot_be_written_says_so_and_the_others_go_on() {
    let (hosts, dir) = (Hosts::new(15, 3), tempfile::tempdir().expect("a directory"));
    let groups = join_all(&hosts, dir.path(), &[1, 2, 3]);
    commit(&groups, 7, 1, &command(1));
    // A directory that is gone takes no new journal, which is due with the next snapshot.
    fs::remove_dir_all(dir.path().join("2")).expect("it goes");
    let (begin, mut number) = (Instant::now(), 1);
    let fault = loop {
        (0..100).for_each(|_| {
            number += 1;
            commit(&groups, 7, number, &command(number));
        });
        let seen = status(hosts.daemon(1).session(), hosts.address(1), "journal", KEY).expect("it is seen");
        assert_eq!(seen.class, Class::SyncedMajority);
        let faults: Vec<_> = seen.members.iter().map(|member| (member.id, member.file_fault)).collect();
        assert!(faults.iter().all(|(id, fault)| *id == 2 || fault.is_none()), "{faults:?}");
        if let Some((_, Some(fault))) = faults.iter().find(|(id, _)| *id == 2) {
            assert!(seen.members.iter().all(|member| member.synced_lag_bytes.is_some()), "{seen:?}");
            break *fault;
        }
        assert!(begin.elapsed() < PATIENCE, "{seen:?}");
    };
    assert_eq!(fault, 2, "there is no such directory");
    for _ in 0..50 {
        number += 1;
        commit(&groups, 7, number, &command(number));
    }
    assert_eq!(read(&groups), (1..=number).map(command).collect::<Vec<_>>());
}

#[test]
fn another_class_another_directory_and_one_in_use_are_refused_and_nothing_is_lost() {
    let (mut hosts, dir) = (Hosts::new(6, 1), tempfile::tempdir().expect("a directory"));
    let groups = join_all(&hosts, dir.path(), &[1]);
    commit(&groups, 7, 1, &command(1));
    let error = join(&hosts, dir.path(), 1).expect_err("it is in use");
    assert!(matches!(error, GroupError::DirectoryInUse { .. }), "{error}");
    drop(groups);
    let error = hosts.join_with(1, Duration::ZERO).expect_err("another class");
    let is_named =
        matches!(error, GroupError::OtherClass { its: Class::SyncedMajority, given: Class::RamMajority, .. });
    assert!(is_named && error.to_string().contains("synced-majority, not ram-majority"), "{error}");
    let other = tempfile::tempdir().expect("a directory");
    let error = join(&hosts, other.path(), 1).expect_err("the memory is another directory's");
    assert!(matches!(error, GroupError::OtherDirectory { .. }), "{error}");
    let sizes = hosts.builder(1).log_lines(1024).synced(dir.path().join("1"));
    let error = sizes.open(hosts.daemon(1).session(), Journal::default()).expect_err("other sizes");
    assert!(error.to_string().contains("other sizes"), "{error}");
    // A damaged beginning is no empty directory.
    let (journal, kept) = (dir.path().join("1/journal"), fs::read(dir.path().join("1/journal")).expect("it is there"));
    let mut damaged = kept.clone();
    damaged[9] ^= 1;
    for (bytes, word) in [(damaged.as_slice(), "damaged"), (&kept[..100], "damaged")] {
        fs::write(&journal, bytes).expect("it is damaged");
        let error = join(&hosts, dir.path(), 1).expect_err("it is damaged");
        assert!(matches!(error, GroupError::OtherDirectory { .. }) && error.to_string().contains(word), "{error}");
    }
    fs::remove_file(&journal).expect("it goes");
    let error = join(&hosts, dir.path(), 1).expect_err("it is gone");
    assert!(error.to_string().contains("is gone"), "{error}");
    fs::write(&journal, kept).expect("it is whole again");
    hosts.restart();
    let groups = join_all(&hosts, dir.path(), &[1]);
    assert_eq!(leader(&groups).class(), Class::SyncedMajority);
    assert_eq!(read(&groups), [command(1)]);
}

/// A group whose memories alone count is not made a synced one by a member that comes with a directory.
#[test]
fn a_group_without_files_takes_no_member_with_one() {
    let (hosts, dir) = (Hosts::new(7, 1), tempfile::tempdir().expect("a directory"));
    let groups = hosts.all_with(Duration::ZERO);
    commit(&groups, 7, 1, &command(1));
    assert_eq!(groups[0].class(), Class::RamMajority);
    drop(groups);
    let error = join(&hosts, dir.path(), 1).expect_err("another class");
    assert!(matches!(error, GroupError::OtherClass { its: Class::RamMajority, .. }), "{error}");
    assert_eq!(read(&hosts.all_with(Duration::ZERO)), [command(1)]);
}
