//! Lent parts of the rings, on both paths.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;

use crate::Watchdog;
use crate::world::{PATHS, pattern, two};

#[test]
fn what_is_committed_arrives_and_the_rest_does_not() {
    let _watchdog = Watchdog::start("what_is_committed_arrives_and_the_rest_does_not");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        drop(t.client.reserve(100).unwrap());
        let mut dropped = t.client.reserve(100).unwrap();
        dropped.write_all(b"never sent").unwrap();
        drop(dropped);
        let mut loan = t.client.reserve(12).unwrap();
        write!(loan, "....{}", 12_345).unwrap();
        assert!(loan.patch(0, &5u32.to_le_bytes()));
        assert!(!loan.patch(6, b"12345"), "beyond what was written");
        assert_eq!((loan.written(), loan.remaining()), (9, 3));
        assert_eq!(loan.write(b"too much").unwrap(), 3);
        assert_eq!(loan.write(b"more").unwrap(), 0);
        assert_eq!(loan.commit(), 12);
        let mut got = [0; 12];
        t.server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"\x05\0\0\x0012345too");
        let e = t.client.reserve(4097).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidInput && e.to_string().contains("4096"), "{e}");
        t.client.set_nonblocking(true).unwrap();
        t.client.write_all(&[0; 10]).unwrap();
        assert_eq!(t.client.reserve(4096).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(t.server);
        while t.client.reserve(1).is_ok() {
            thread::yield_now();
        }
    }
}

#[test]
fn rings_go_round_by_loans_alone() {
    let _watchdog = Watchdog::start("rings_go_round_by_loans_alone");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let data = pattern(300_000, 3);
        thread::scope(|s| {
            s.spawn(|| {
                for (i, piece) in data.chunks(1777).enumerate() {
                    let mut loan = t.client.reserve(piece.len()).unwrap();
                    let (head, tail) = piece.split_at(i % piece.len());
                    loan.write_all(head).unwrap();
                    loan.write_all(tail).unwrap();
                    assert_eq!(loan.commit(), piece.len());
                }
                t.client.shutdown(Shutdown::Write).unwrap();
            });
            let mut got = Vec::new();
            while let Some(mut loan) = t.server.loan().unwrap() {
                let len = loan.len();
                // A look takes nothing.
                let mut first = [0];
                assert_eq!((loan.copy_to(0, &mut first), loan.copy_to(len, &mut first)), (1, 0));
                let part = len.div_ceil(2);
                loan.write_to(0..part, &mut got).unwrap();
                assert_eq!(got[got.len() - part], first[0]);
                assert_eq!(loan.consume(part), part);
                loan.write_to(0..usize::MAX, &mut got).unwrap();
                assert_eq!(loan.consume(usize::MAX), len - part);
                assert!(loan.is_empty());
            }
            assert!(got == data, "{} of {} bytes, or wrong ones", got.len(), data.len());
        });
    }
}
