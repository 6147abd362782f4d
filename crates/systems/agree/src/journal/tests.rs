//! Files as they are after a cut at every byte, and after a wrong one.

use super::*;
use crate::entry::{Draft, Kind as Of};
use crate::members::{Member, Members};
use crate::scribe::{Ask, Scribe};
use crate::settings::Settings;

const GROUP: u64 = 9;

fn title() -> Title {
    let layout = Layout::new(128, 32).unwrap();
    Title { group: GROUP, member: 2, number: 77, layout, command_bytes_max: 100 }
}

fn entry(before: Tail, round: u64, bytes: &[u8]) -> Entry {
    let (term, commit) = (Term::new(round, 1), 0);
    Entry::new(before, Draft { term, kind: Of::Command, client: 4, number: 5, commit, bytes })
}

/// So many entries behind `before`.
fn entries(before: Tail, round: u64, count: usize) -> Vec<Entry> {
    let mut all: Vec<Entry> = vec![];
    for at in 0..count {
        let last = all.last().map_or(before, |entry| entry.tail);
        all.push(entry(last, round, &vec![at as u8; at * 13 % 70]));
    }
    all
}

fn mark() -> Mark {
    let members = Members::new(&[Member { id: 1, number: 10 }, Member { id: 2, number: 77 }]);
    let tail = Tail { index: 40, term: Term::new(3, 1), crc: 1234, line: 95 };
    Mark { tail, snapshot_bytes: 16, snapshot_crc: crc_of_snapshot(&[6; 16]), members }
}

/// A file with a snapshot, and records behind it: each with what the file proves when it is whole.
fn file() -> (Vec<u8>, Vec<(usize, Journal)>) {
    let mut journal = Journal { mark: Some(mark()), snapshot: vec![6; 16], ..Journal::new(title()) };
    let (mut bytes, mut sum) = journal.encode();
    let mut states = vec![(bytes.len(), journal.clone())];
    let first = entries(journal.base(), 3, 4);
    // The last one takes the place of two that an older leader wrote.
    let over = entries(first[1].tail, 5, 3);
    let changes = [
        Change { promised: Some(Term::new(3, 1)), entries: vec![] },
        Change { promised: None, entries: first },
        Change { promised: Some(Term::new(5, 1)), entries: over },
    ];
    for change in changes {
        // A term and entries are two records.
        for part in [
            Change { promised: change.promised, entries: vec![] },
            Change { promised: None, entries: change.entries.clone() },
        ] {
            if !part.is_empty() {
                sum = part.encode(sum, &mut bytes);
                journal.apply(part);
                states.push((bytes.len(), journal.clone()));
            }
        }
    }
    (bytes, states)
}

#[test]
fn a_file_that_is_cut_anywhere_proves_what_stood_whole_before_the_cut() {
    let (bytes, states) = file();
    assert!(states.len() == 5 && states[4].1.entries.len() == 5 && states[3].1.entries.len() == 4);
    for cut in 0..=bytes.len() {
        let expected = states.iter().rev().find(|(end, _)| *end <= cut).map(|(_, journal)| journal.clone());
        assert_eq!(Journal::decode(&bytes[..cut]).ok(), expected, "cut at {cut}");
    }
}

#[test]
fn a_wrong_byte_makes_a_file_shorter_or_none_and_never_another() {
    let (bytes, states) = file();
    for at in 0..bytes.len() {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        let before = states.iter().rev().find(|(end, _)| *end <= at).map(|(_, journal)| journal.clone());
        // Bytes that nobody reads change nothing.
        let found = Journal::decode(&wrong).ok();
        assert!(found == before || found.as_ref() == states.last().map(|(_, journal)| journal), "byte {at}");
    }
}

#[test]
fn records_of_another_file_are_none_of_this() {
    let (bytes, states) = file();
    let other = Journal { title: Title { number: 78, ..title() }, ..states[0].1.clone() };
    let (mut mixed, _) = other.encode();
    mixed.extend(&bytes[states[0].0..]);
    assert_eq!(Journal::decode(&mixed), Ok(other));
}

/// A memory of zeroes with what a file says in it.
fn memory_of(journal: &Journal) -> Vec<u8> {
    let mut memory = vec![0; journal.title.layout.bytes() as usize];
    for (offset, bytes) in journal.restore() {
        memory[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
    }
    memory
}

/// Lets a scribe look once; what it wrote.
fn look(scribe: &mut Scribe, memory: &mut [u8]) -> Vec<Ask> {
    let mut asked = vec![];
    scribe.look();
    while let Some(ask) = scribe.ask() {
        match &ask {
            Ask::Read { offset, bytes } => {
                scribe.on_read(&memory[*offset as usize..*offset as usize + bytes]);
                continue;
            }
            Ask::Publish { offset, bytes } => {
                memory[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
            }
            Ask::Append(_) | Ask::Replace(_) => {}
        }
        scribe.on_done();
        asked.push(ask);
    }
    asked
}

#[test]
fn a_memory_that_is_made_of_a_file_has_its_log_its_term_and_its_snapshot_and_needs_no_new_record() {
    for (_, journal) in file().1 {
        let mut memory = memory_of(&journal);
        let head = Head::decode(&memory, GROUP, &Members::default()).unwrap();
        assert_eq!((head.term, head.mark.tail), (journal.promised.max(journal.tail().term), journal.base()));
        let mut scribe = Scribe::new(journal.clone()).unwrap();
        let first = look(&mut scribe, &mut memory);
        assert!(matches!(first[0], Ask::Replace(_)), "what was read is synced anew: {first:?}");
        let Ask::Replace(bytes) = &first[0] else { unreachable!() };
        assert_eq!(Journal::decode(bytes), Ok(journal.clone()));
        // The mark's term stands in the head, and in no record.
        let again = look(&mut scribe, &mut memory);
        assert_eq!(
            again.iter().filter(|ask| matches!(ask, Ask::Append(_))).count(),
            usize::from(journal.promised < head.term)
        );
        let kept = crate::Kept::decode(&memory[crate::Kept::AT as usize..]).unwrap();
        assert_eq!((kept.index, kept.promised, kept.fault), (journal.tail().index, head.term, 0));
    }
}

/// Entries of a new leader take the place of some; a log that is only shorter takes nothing away.
#[test]
fn a_file_follows_its_memory_where_that_is_another_and_not_where_it_is_torn() {
    let mut journal = Journal { mark: Some(mark()), snapshot: vec![6; 16], ..Journal::new(title()) };
    journal.apply(Change { promised: Some(Term::new(3, 1)), entries: entries(mark().tail, 3, 4) });
    let mut memory = memory_of(&journal);
    let mut scribe = Scribe::new(journal.clone()).unwrap();
    let first = look(&mut scribe, &mut memory);
    let Ask::Replace(file) = &first[0] else { panic!("{first:?}") };
    let (mut file, second) = (file.clone(), journal.entries[1].tail);
    let at = title().layout.line_at(second.line) as usize;
    memory[at] ^= 1;
    assert_eq!(look(&mut scribe, &mut memory), [], "torn");
    // A new leader comes, whose log is shorter; behind its end the older one's last entry still stands.
    let over = entries(second, 5, 1);
    memory[..16].copy_from_slice(&Head::name(GROUP, Term::new(5, 1)));
    memory[at..at + over[0].lines.len()].copy_from_slice(&over[0].lines);
    for ask in look(&mut scribe, &mut memory) {
        if let Ask::Append(bytes) = ask {
            file.extend(bytes);
        }
    }
    let found = Journal::decode(&file).unwrap();
    assert_eq!((found.entries.len(), found.tail(), found.promised), (3, over[0].tail, Term::new(5, 1)));
}

#[test]
fn sizes_that_no_group_has_make_no_scribe() {
    let wrong = Title { command_bytes_max: 1 << 20, ..title() };
    assert!(Scribe::new(Journal::new(wrong)).is_err());
    assert!(
        Settings::check_sizes(&Settings {
            group: 1,
            me: 0,
            members: vec![],
            layout: title().layout,
            command_bytes_max: 100,
            piece_bytes_max: 63,
            period_us: 1,
            lease_us: 0,
            is_synced: true,
            seed: 0,
        })
        .is_err()
    );
}

/// What a mark does not stand for, a file that begins with it has as the older one had it: entries and promise.
#[test]
fn a_file_that_begins_with_a_newer_mark_drops_nothing_else() {
    let mut journal = Journal::new(title());
    let promised = Term::new(5, 1);
    journal.apply(Change { promised: Some(promised), entries: entries(journal.base(), 3, 4) });
    let mut memory = memory_of(&journal);
    let mut scribe = Scribe::new(journal.clone()).unwrap();
    look(&mut scribe, &mut memory);
    let newer = Mark { tail: journal.entries[1].tail, ..mark() };
    let mut bank = |bytes: &[u8]| {
        let (at, mark_at) = (title().layout.bank_at(1) as usize, mark_at(1) as usize);
        memory[at..at + 16].copy_from_slice(bytes);
        memory[mark_at..mark_at + MARK_BYTES].copy_from_slice(&newer.encode(GROUP));
        look(&mut scribe, &mut memory)
    };
    // A leader is writing there: what is not whole takes no file's place.
    assert_eq!(bank(&[7; 16]), []);
    let asked = bank(&[6; 16]);
    let Some(Ask::Replace(bytes)) = asked.first() else { panic!("{asked:?}") };
    let found = Journal::decode(bytes).unwrap();
    assert_eq!((found.promised, found.base(), found.tail()), (promised, newer.tail, journal.tail()));
    assert_eq!((found.entries.len(), found.snapshot), (2, vec![6; 16]));
}
