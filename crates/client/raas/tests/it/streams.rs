//! Streams on both paths: data, ends, timeouts, threads. Nothing here knows which daemon there is.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use raas::{Readiness, Reason, StreamError};

use crate::Watchdog;
use crate::world::{PATHS, pattern, two};

#[test]
fn bytes_arrive_in_order_both_ways_at_once() {
    let _watchdog = Watchdog::start("bytes_arrive_in_order_both_ways_at_once");
    for (host, path) in PATHS {
        let mut t = two(host, 8192);
        assert_eq!((t.client.path(), t.server.path()), (path, path));
        let [a, b] = [pattern(3_000_000, 1), pattern(2_000_000, 2)];
        let (client, server) = (&t.client, &t.server);
        thread::scope(|s| {
            s.spawn(|| {
                let mut writer = client;
                writer.write_all(&a).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            s.spawn(|| {
                let mut writer = server;
                for piece in b.chunks(777) {
                    writer.write_all(piece).unwrap();
                }
                server.shutdown(Shutdown::Write).unwrap();
            });
            s.spawn(|| {
                let mut got = Vec::new();
                let mut reader = client;
                reader.read_to_end(&mut got).unwrap();
                assert!(got == b, "{} bytes instead of {}", got.len(), b.len());
            });
            let mut got = Vec::new();
            let mut reader = server;
            reader.read_to_end(&mut got).unwrap();
            assert!(got == a, "{} bytes instead of {}", got.len(), a.len());
        });
        assert_eq!(t.client.read(&mut [0; 1]).unwrap(), 0, "the end stays the end");
    }
}

#[test]
fn small_messages_go_to_and_fro() {
    let _watchdog = Watchdog::start("small_messages_go_to_and_fro");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        let echo = thread::spawn(move || {
            let mut buffer = [0; 64];
            while t.server.read_exact(&mut buffer).is_ok() {
                t.server.write_all(&buffer).unwrap();
            }
        });
        for i in 0..2000u32 {
            let message = pattern(64, i);
            t.client.write_all(&message).unwrap();
            let mut answer = [0; 64];
            t.client.read_exact(&mut answer).unwrap();
            assert_eq!(answer[..], message[..]);
        }
        drop(t.client);
        echo.join().unwrap();
    }
}

#[test]
fn slow_partners_are_woken_from_sleep() {
    let _watchdog = Watchdog::start("slow_partners_are_woken_from_sleep");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        let reader = thread::spawn(move || {
            let mut sum = 0usize;
            let mut buffer = [0; 1000];
            loop {
                match t.server.read(&mut buffer).unwrap() {
                    0 => return sum,
                    n => sum += n,
                }
                if sum.is_multiple_of(7) {
                    thread::sleep(Duration::from_millis(2));
                }
            }
        });
        let data = pattern(60_000, 3);
        for piece in data.chunks(1500) {
            t.client.write_all(piece).unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        drop(t.client);
        assert_eq!(reader.join().unwrap(), data.len());
    }
}

#[test]
fn half_close_lets_the_answer_come() {
    let _watchdog = Watchdog::start("half_close_lets_the_answer_come");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        t.client.write_all(b"question").unwrap();
        t.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(t.client.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut got = String::new();
        t.server.read_to_string(&mut got).unwrap();
        assert_eq!(got, "question");
        t.server.write_all(b"answer").unwrap();
        drop(t.server);
        got.clear();
        t.client.read_to_string(&mut got).unwrap();
        assert_eq!(got, "answer");
    }
}

#[test]
fn written_then_dropped_still_arrives() {
    let _watchdog = Watchdog::start("written_then_dropped_still_arrives");
    for (host, _) in PATHS {
        let mut t = two(host, 65536);
        let data = pattern(60_000, 9);
        t.client.write_all(&data).unwrap();
        drop(t.client);
        let mut got = Vec::new();
        t.server.read_to_end(&mut got).unwrap();
        assert!(got == data);
        // The other end is closed: writing fails, at the latest when that is known.
        let error = loop {
            if let Err(e) = t.server.write(b"x") {
                break e;
            }
        };
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn closing_with_unread_bytes_resets() {
    let _watchdog = Watchdog::start("closing_with_unread_bytes_resets");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        t.client.write_all(b"never read").unwrap();
        t.server.peek(&mut [0; 3]).unwrap();
        t.server.write_all(b"tail").unwrap();
        // On a lane what was written just before may be lost with the reset; it must have arrived to be read.
        while t.client.unread_bytes().unwrap() < 4 {
            thread::yield_now();
        }
        drop(t.server);
        let mut got = [0; 4];
        t.client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"tail", "what arrived before the reset is delivered");
        let error = t.client.read(&mut got).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer));
        assert_eq!(t.client.write(b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(t.client.failure(), Some(Reason::ResetByPeer));
    }
}

#[test]
fn shutting_reading_stops_the_writer_and_frees_the_reader() {
    let _watchdog = Watchdog::start("shutting_reading_stops_the_writer_and_frees_the_reader");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let (client, server) = (&t.client, &t.server);
        thread::scope(|s| {
            let reader = s.spawn(|| {
                let mut reader = server;
                reader.read(&mut [0; 10]).unwrap()
            });
            thread::sleep(Duration::from_millis(20));
            server.shutdown(Shutdown::Read).unwrap();
            assert_eq!(reader.join().unwrap(), 0);
            let mut writer = client;
            let error = loop {
                if let Err(e) = writer.write(&[0; 1000]) {
                    break e;
                }
            };
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        });
    }
}

#[test]
fn a_blocked_writer_is_freed_by_shutdown_and_by_room() {
    let _watchdog = Watchdog::start("a_blocked_writer_is_freed_by_shutdown_and_by_room");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let client = &t.client;
        thread::scope(|s| {
            let writer = s.spawn(|| {
                let mut writer = client;
                // More than the rings hold.
                writer.write_all(&[7; 100_000])
            });
            thread::sleep(Duration::from_millis(20));
            let mut some = [0; 50_000];
            let mut server = &t.server;
            server.read_exact(&mut some).unwrap();
            thread::sleep(Duration::from_millis(20));
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(writer.join().unwrap().unwrap_err().kind(), ErrorKind::BrokenPipe);
            let mut rest = Vec::new();
            server.read_to_end(&mut rest).unwrap();
            assert!(rest.len() < 50_000 && rest.iter().all(|&b| b == 7));
        });
    }
}

#[test]
fn timeouts_take_nothing() {
    let _watchdog = Watchdog::start("timeouts_take_nothing");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        t.client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert_eq!(t.client.read_timeout(), Some(Duration::from_millis(20)));
        assert_eq!(t.client.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::TimedOut);
        t.client.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut sent = 0;
        let error = loop {
            match t.client.write(&[1; 700]) {
                Ok(n) => sent += n,
                Err(e) => break e,
            }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(t.client.set_read_timeout(Some(Duration::ZERO)).is_err());
        drop(t.client);
        let mut got = Vec::new();
        t.server.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), sent);
    }
}

#[test]
fn split_halves_live_apart() {
    let _watchdog = Watchdog::start("split_halves_live_apart");
    for (host, _) in PATHS {
        let t = two(host, 4096);
        let (mut client_read, mut client_write) = t.client.split();
        let (mut server_read, mut server_write) = t.server.split();
        let echo = thread::spawn(move || {
            std::io::copy(&mut server_read, &mut server_write).unwrap();
        });
        let data = pattern(200_000, 4);
        let copy = data.clone();
        let writer = thread::spawn(move || client_write.write_all(&copy).unwrap());
        let mut got = Vec::new();
        client_read.read_to_end(&mut got).unwrap();
        assert!(got == data);
        writer.join().unwrap();
        echo.join().unwrap();
    }
}

#[test]
fn vectored_writes_are_one_stream() {
    let _watchdog = Watchdog::start("vectored_writes_are_one_stream");
    for (host, _) in PATHS {
        let mut t = two(host, 4096);
        let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(t.client.write_vectored(&parts).unwrap(), 6);
        let mut got = [0; 6];
        t.server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"onetwo");
        assert_eq!(t.client.write(&[]).unwrap(), 0);
    }
}

#[test]
fn what_ended_in_order_stays_so_when_the_connection_breaks_before_it_is_read() {
    let _watchdog = Watchdog::start("what_ended_in_order_stays_so_when_the_connection_breaks_before_it_is_read");
    for (host, path) in PATHS {
        let mut t = two(host, 4096);
        t.server.write_all(b"never read").unwrap();
        while t.client.unread_bytes().unwrap() < 10 {
            thread::yield_now();
        }
        t.client.write_all(b"all of it").unwrap();
        t.client.shutdown(Shutdown::Write).unwrap();
        while !t.server.readiness().unwrap().contains(Readiness::HUP) {
            thread::yield_now();
        }
        // With bytes unread: a reset, which comes after the end.
        drop(t.client);
        while t.server.failure().is_none() {
            thread::yield_now();
        }
        let mut got = Vec::new();
        t.server.read_to_end(&mut got).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(got, b"all of it");
        assert_eq!(t.server.failure(), Some(Reason::ResetByPeer), "{path:?}");
        let error = t.server.write(&[1]).unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer), "{path:?}: writing is broken");
    }
}
