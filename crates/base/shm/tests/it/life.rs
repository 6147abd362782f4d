//! The word of a process's life, as other processes see it.
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use shm::{EnginePage, Life, Segment, Sharing};

const CHILD: &str = "SHM_TEST_LIFE_CHILD";
const BYTES: u64 = 4096;
const OFFSET: u64 = 24;

#[test]
fn a_word_says_the_end_when_it_is_dropped() {
    let segment = Segment::create("life", BYTES, Sharing::ReadWrite).unwrap();
    let word = segment.region().word32(OFFSET).unwrap();
    assert!(!Life::is_over(word.load(Ordering::SeqCst)));
    let life = Life::begin(segment.region(), OFFSET).unwrap();
    assert!(word.load(Ordering::SeqCst) != 0 && !Life::is_over(word.load(Ordering::SeqCst)));
    drop(life);
    assert!(Life::is_over(word.load(Ordering::SeqCst)));
    // It may begin again.
    let _life = Life::begin(segment.region(), OFFSET).unwrap();
    assert!(!Life::is_over(word.load(Ordering::SeqCst)));
}

#[test]
fn a_word_that_cannot_be_is_refused() {
    let segment = Segment::create("life", BYTES, Sharing::ReadWrite).unwrap();
    assert!(Life::begin(segment.region(), 2).is_err());
    assert!(Life::begin(segment.region(), BYTES).is_err());
}

#[test]
fn an_engine_page_says_it_to_those_who_opened_it_before() {
    let segment = Segment::create("page", EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
    let page = EnginePage::format(segment.region().clone(), 1).unwrap();
    let fd = segment.fd().try_clone_to_owned().unwrap();
    let seen = Segment::accept(fd, EnginePage::BYTES, Sharing::PeerReadOnly).unwrap();
    let word = EnginePage::open(seen.into_region()).unwrap().life();
    assert_eq!(word.load(Ordering::SeqCst), 0);
    let life = page.begin_life().unwrap();
    assert!(word.load(Ordering::SeqCst) != 0 && !Life::is_over(word.load(Ordering::SeqCst)));
    drop(life);
    assert!(Life::is_over(word.load(Ordering::SeqCst)));
}

/// The child says that it lives, and that it is about to be killed; nothing of it runs at its end.
#[test]
fn the_kernel_says_the_end_of_a_process_that_was_killed() {
    if let Ok(number) = std::env::var(CHILD) {
        // SAFETY: the parent left this descriptor open for this process, and nobody else in it knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(number.parse().unwrap()) };
        let segment = Segment::accept(fd, BYTES, Sharing::ReadWrite).unwrap();
        let _life = Life::begin(segment.region(), OFFSET).unwrap();
        println!("\nlives");
        std::io::stdout().flush().unwrap();
        loop {
            std::thread::park();
        }
    }
    for _ in 0..20 {
        let segment = Segment::create("life", BYTES, Sharing::ReadWrite).unwrap();
        let word = segment.region().word32(OFFSET).unwrap();
        // Not close-on-exec.
        let inherited = rustix::io::dup(segment.fd()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["life::the_kernel_says_the_end_of_a_process_that_was_killed", "--exact", "--nocapture"])
            .env(CHILD, inherited.as_raw_fd().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "lives"), "the child did not start");
        assert!(word.load(Ordering::SeqCst) != 0 && !Life::is_over(word.load(Ordering::SeqCst)));
        child.kill().unwrap();
        // Who finds its descriptors closed finds the word.
        assert!(lines.next().is_none());
        assert!(Life::is_over(word.load(Ordering::SeqCst)));
        child.wait().unwrap();
    }
}
