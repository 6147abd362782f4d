//! Entries as they are written, torn and changed: nothing else may pass for one.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BYTES_MAX: usize = 200;
const GROUP: u64 = 5;

fn log(lengths: &[usize], round: u64, filling: u8, before: Tail) -> Vec<Entry> {
    let mut tail = before;
    let entry = |(at, length): (usize, &usize)| {
        let bytes = vec![filling; *length];
        let (client, number) = (u64::from(filling), at as u64);
        let draft =
            Draft { term: Term::new(round, 1), kind: Kind::Command, client, number, commit: tail.index, bytes: &bytes };
        let entry = Entry::new(tail, draft);
        tail = entry.tail;
        entry
    };
    lengths.iter().enumerate().map(entry).collect()
}

fn image(entries: &[Entry]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.lines.clone()).collect()
}

fn read(mut before: Tail, mut bytes: &[u8]) -> Vec<Tail> {
    let mut tails = vec![];
    while let Decoded::Entry(entry) = decode(before, bytes, BYTES_MAX) {
        bytes = &bytes[entry.lines.len()..];
        before = entry.tail;
        tails.push(before);
    }
    tails
}

fn tails(entries: &[Entry]) -> Vec<Tail> {
    entries.iter().map(|entry| entry.tail).collect()
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let before = Tail::start(GROUP);
    let draft =
        Draft { term: Term::new(2, 3), kind: Kind::Members, client: 4, number: 5, commit: 0, bytes: b"eight by" };
    let entry = Entry::new(before, draft);
    assert_eq!((entry.lines.len(), entry.bytes(), entry.line()), (LINE_BYTES, b"eight by".as_slice(), 0));
    assert_eq!(decode(before, &entry.lines, BYTES_MAX), Decoded::Entry(entry.clone()));
    assert_eq!(decode(before, &entry.lines, 7), Decoded::End, "longer than any may be");
    assert_eq!(decode(before, &entry.lines[..8], BYTES_MAX), Decoded::Short(LINE_BYTES));
    assert_eq!(decode(Tail::start(GROUP + 1), &entry.lines, BYTES_MAX), Decoded::End, "another group's");
    assert_eq!(decode(before, &[0; 64], BYTES_MAX), Decoded::End);
}

#[test]
fn a_long_entry_says_how_much_it_needs() {
    let before = Tail::start(GROUP);
    let draft = Draft { term: Term::new(1, 1), kind: Kind::Command, client: 0, number: 0, commit: 0, bytes: &[7; 100] };
    let entry = Entry::new(before, draft);
    assert_eq!(decode(before, &entry.lines[..LINE_BYTES], BYTES_MAX), Decoded::Short(entry.lines.len()));
}

/// The log that is overwritten half way: by a leader whose entries are as long as the old ones, so that behind his last
/// one the old ones stand at their very lines, with the right index and a term that is not smaller.
#[test]
fn behind_entries_of_one_leader_those_of_another_are_no_log() {
    let before = Tail::start(GROUP);
    let (old, new) = (log(&[30; 4], 7, 1, before), log(&[30; 2], 7, 2, before));
    let mut bytes = image(&old);
    bytes[..2 * 2 * LINE_BYTES].copy_from_slice(&image(&new));
    assert_eq!(read(before, &bytes), tails(&new));
}

proptest! {
    #[test]
    fn bytes_by_chance_are_no_entry(bytes in vec(any::<u8>(), 0..512), index in 0..4u64) {
        let before = Tail { index, ..Tail::start(GROUP) };
        prop_assert!(!matches!(decode(before, &bytes, BYTES_MAX), Decoded::Entry(_)));
    }

    #[test]
    fn one_changed_byte_ends_the_log_there(lengths in vec(0..BYTES_MAX, 1..6), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let before = Tail::start(GROUP);
        let entries = log(&lengths, 1, 9, before);
        let mut bytes = image(&entries);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let hit = entries.iter().position(|entry| (at / LINE_BYTES) as u64 >= entry.line() && ((at / LINE_BYTES) as u64) < entry.tail.line).unwrap();
        let within = at - entries[hit].line() as usize * LINE_BYTES;
        let is_covered = within < 52 || (HEADER_BYTES..HEADER_BYTES + lengths[hit]).contains(&within);
        let all = tails(&entries);
        prop_assert_eq!(read(before, &bytes), if is_covered { all[..hit].to_vec() } else { all });
    }

    /// A new leader's entries over an old one's, of which any words have landed and any have not.
    #[test]
    fn a_torn_log_is_a_prefix_of_one_of_both(
        shared in vec(0..BYTES_MAX, 0..3),
        old in vec(0..BYTES_MAX, 0..5),
        new in vec(0..BYTES_MAX, 1..5),
        landed in vec(any::<bool>(), 64),
        all_but in 0..3u8,
    ) {
        let before = Tail::start(GROUP);
        let common = log(&shared, 1, 1, before);
        let fork = common.last().map_or(before, |entry| entry.tail);
        let (old, new) = (log(&old, 2, 2, fork), log(&new, 3, 3, fork));
        let start = image(&common).len();
        let mut bytes = [image(&common), image(&old)].concat();
        let over = image(&new);
        bytes.resize(bytes.len().max(start + over.len()), 0);
        for (word, value) in over.chunks(8).enumerate() {
            // Mostly whole lines, so that whole entries land too.
            let lands = if all_but == 0 { landed[word % 64] } else { landed[word / 8 % 64] || all_but == 2 };
            if lands {
                bytes[start + word * 8..][..8].copy_from_slice(value);
            }
        }
        let found = read(before, &bytes);
        let (left, right) = ([tails(&common), tails(&old)].concat(), [tails(&common), tails(&new)].concat());
        prop_assert!(left.starts_with(&found) || right.starts_with(&found), "{:?}", found);
        prop_assert!(found.len() >= common.len());
    }
}
