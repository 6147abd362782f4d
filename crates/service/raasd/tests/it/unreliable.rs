//! Connections of messages on UC between whole daemons: over either wire of the lane, sealed and in the clear, on one
//! host, and refused by name.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use control::{PathKind, Reason};
use raas::{ConnectOptions, Flags, ListenOptions, MessageListener, MessageStream, Session, Stream, Transport};
use verbs::{Encrypt, Wire, WirePolicy};

use crate::hosts::{Host, PATIENCE, bounded, eventually, pattern};

fn host(encrypt: Encrypt, wire: WirePolicy) -> Host {
    let mut host = Host::new();
    (host.config.encrypt, host.config.wire) = (encrypt, wire);
    host.start();
    host
}

/// A host whose lanes may use either wire, whatever the others' may.
fn able() -> Host {
    host(Encrypt::Off, WirePolicy::Auto)
}

fn listen(session: &Session, at: IpAddr) -> MessageListener {
    listen_for(session, at, Flags::UC)
}

fn listen_for(session: &Session, at: IpAddr, flags: Flags) -> MessageListener {
    MessageListener::bind_with(session, (at, 0), ListenOptions::new().flags(flags)).unwrap()
}

fn options() -> ConnectOptions {
    ConnectOptions::new().flags(Flags::UC | Flags::SEND).timeout(PATIENCE)
}

fn pair(a: &Host, b: &Host) -> (MessageStream, MessageStream) {
    pair_by(a, b, Flags::SEND)
}

/// Both ends ask for the verb.
fn pair_by(a: &Host, b: &Host, verb: Flags) -> (MessageStream, MessageStream) {
    let listener = listen_for(&b.session(), b.address(), Flags::UC | verb);
    let at = listener.local_addr().unwrap();
    let stream = MessageStream::connect_with(&a.session(), at, options().flags(Flags::UC | verb)).unwrap();
    let (accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
    assert_eq!((stream.transport(), accepted.transport()), (Transport::Uc, Transport::Uc));
    (stream, accepted)
}

/// Message `number`, which says which one it is.
fn message(number: u32, len: usize) -> Vec<u8> {
    [&number.to_le_bytes()[..], &pattern(len, number as u8)].concat()
}

/// Which one it is; it must be whole.
fn number_of(bytes: &[u8]) -> u32 {
    let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(bytes == message(number, bytes.len() - 4), "message {number} is not as it was sent");
    number
}

/// Sends until a message arrives: single ones may be lost.
fn reaches(from: &MessageStream, to: &MessageStream, next: &mut u32, len: usize) {
    to.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    for _ in 0..20 {
        *next += 1;
        from.send(&message(*next, len)).unwrap();
        match to.receive_vec() {
            Ok(got) => {
                assert!(number_of(&got.expect("no end")) <= *next);
                return;
            }
            Err(e) => assert!(matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{e}"),
        }
    }
    panic!("none of 20 messages arrived");
}

fn verb_of(host: &Host, stream: &MessageStream) -> String {
    host.connections().into_iter().find(|row| row.id == stream.id()).unwrap().verb.unwrap()
}

fn travels_both_ways_beside_a_lane_of_either_wire(asked: Flags, verb: &'static str) {
    bounded(move || {
        let (auto, roce) = (WirePolicy::Auto, WirePolicy::Only(Wire::Roce));
        for (encrypt, wire) in
            [(Encrypt::Off, auto), (Encrypt::Off, roce), (Encrypt::Required, auto), (Encrypt::Required, roce)]
        {
            let (a, b) = (host(encrypt, wire), host(encrypt, wire));
            let (stream, accepted) = pair_by(&a, &b, asked);
            let mut next = (0, 0);
            for len in [0, 1, 1000, 9000, 60_000] {
                reaches(&stream, &accepted, &mut next.0, len);
                reaches(&accepted, &stream, &mut next.1, len);
            }
            let row = a.connections().into_iter().find(|row| row.id == stream.id()).unwrap();
            assert_eq!((row.path, row.verb.as_deref()), (PathKind::Lane, Some(verb)), "{row:?}");
            let by_write = a.counter("uc_writes_sent").min(b.counter("uc_writes_received"));
            assert_eq!(by_write >= 5, asked == Flags::WRITE, "{by_write} pieces by WRITE");
            assert_eq!((row.wire.as_deref(), row.encrypted), (Some("roce"), Some(encrypt == Encrypt::Required)));
            assert!(a.counter("uc_messages_sent") >= 5 && b.counter("uc_messages_received") >= 5);
            assert_eq!(a.counter("violations") + b.counter("violations"), 0);
            assert_eq!(a.counter("lane_resets") + b.counter("lane_resets"), 0);
            drop(stream);
            accepted.set_read_timeout(Some(PATIENCE)).unwrap();
            while accepted.receive_vec().unwrap().is_some() {}
            drop(accepted);
            eventually("nothing is left", || a.connections().is_empty() && b.connections().is_empty());
        }
    });
}

#[test]
fn messages_travel_both_ways_beside_a_lane_of_either_wire_in_the_clear_and_sealed() {
    travels_both_ways_beside_a_lane_of_either_wire(Flags::SEND, "uc-send");
}

#[test]
fn messages_travel_by_write_in_the_clear_and_sealed() {
    travels_both_ways_beside_a_lane_of_either_wire(Flags::WRITE, "uc-write");
}

#[test]
fn a_verb_holds_until_a_send_names_another() {
    bounded(|| {
        let (a, b) = (able(), able());
        let (stream, accepted) = pair(&a, &b);
        let mut next = 0;
        reaches(&stream, &accepted, &mut next, 100);
        assert_eq!((verb_of(&a, &stream).as_str(), a.counter("uc_writes_sent")), ("uc-send", 0));
        for (flags, verb) in
            [(Flags::WRITE, "uc-write"), (Flags::UC, "uc-send"), (Flags::UC | Flags::WRITE, "uc-write")]
        {
            stream.send_with(b"\0\0\0\0", flags).unwrap();
            reaches(&stream, &accepted, &mut next, 100);
            assert_eq!(verb_of(&a, &stream), verb);
        }
    });
}

#[test]
fn a_flood_is_lost_in_part_and_what_arrives_is_whole_in_order_and_once() {
    flood(Flags::SEND);
}

#[test]
fn a_flood_by_write_is_lost_in_part_and_what_arrives_is_whole_in_order_and_once() {
    flood(Flags::WRITE);
}

fn flood(verb: Flags) {
    bounded(move || {
        const COUNT: u32 = 3000;
        let (a, b) = (Host::started_on(Wire::Roce), Host::started_on(Wire::Roce));
        let (stream, accepted) = pair_by(&a, &b, verb);
        // Nobody reads meanwhile, and the sender is never held back for that.
        for number in 0..COUNT {
            stream.send(&message(number, 5000)).unwrap();
        }
        eventually("all have left", || a.counter("uc_messages_sent") == u64::from(COUNT));
        accepted.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut got = Vec::new();
        while let Ok(Some(message)) = accepted.receive_vec() {
            got.push(number_of(&message));
        }
        assert!(got.is_sorted_by(|a, b| a < b), "{got:?}");
        assert!(!got.is_empty() && got.len() < COUNT as usize, "{} arrived", got.len());
        // One more shows what is missing before it.
        let mut next = COUNT;
        reaches(&stream, &accepted, &mut next, 10);
        eventually("each message is received or counted as lost", || {
            let lost: u64 = ["missing", "torn", "ring_full"].iter().map(|l| b.counter(&format!("uc_lost_{l}"))).sum();
            let is_all = b.counter("uc_messages_received") + lost == a.counter("uc_messages_sent");
            if !is_all {
                // The last one may be lost itself.
                reaches(&stream, &accepted, &mut next, 10);
            }
            is_all
        });
        assert_eq!(a.counter("violations") + b.counter("violations"), 0);
    });
}

#[test]
fn a_lane_that_is_reset_goes_on_with_messages() {
    bounded(|| {
        let (a, b) = (able(), able());
        let (stream, accepted) = pair_by(&a, &b, Flags::WRITE);
        let mut next = (0, 0);
        for _ in 0..3 {
            reaches(&stream, &accepted, &mut next.0, 20_000);
            assert!(a.reset_lane(b.address()));
            reaches(&accepted, &stream, &mut next.1, 20_000);
        }
        assert_eq!(a.counter("violations") + b.counter("violations"), 0);
    });
}

#[test]
fn on_one_host_nothing_is_lost() {
    bounded(|| {
        const COUNT: u32 = 2000;
        let a = Host::started();
        let (client, server) = (a.session(), a.session());
        let listener = listen(&server, a.address());
        let at = listener.local_addr().unwrap();
        let connecting = thread::spawn(move || (MessageStream::connect_with(&client, at, options()).unwrap(), client));
        let (accepted, _) = listener.accept_timeout(PATIENCE).unwrap();
        let (stream, _client) = connecting.join().unwrap();
        assert_eq!((stream.path(), stream.transport()), (PathKind::Shm, Transport::Uc));
        let sender = thread::spawn(move || {
            for number in 0..COUNT {
                stream.send(&message(number, 3000)).unwrap();
            }
        });
        for number in 0..COUNT {
            assert_eq!(number_of(&accepted.receive_vec().unwrap().unwrap()), number);
        }
        assert_eq!(accepted.receive_vec().unwrap(), None);
        sender.join().unwrap();
    });
}

#[test]
fn hosts_that_take_rdma_over_tcp_alone_are_refused_by_name() {
    bounded(|| {
        for (of_a, of_b) in [(Wire::Iwarp, None), (Wire::Iwarp, Some(Wire::Iwarp))] {
            let a = Host::started_on(of_a);
            let b = of_b.map_or_else(able, Host::started_on);
            for (from, to) in [(&a, &b), (&b, &a)] {
                let listener = listen(&to.session(), to.address());
                let at = listener.local_addr().unwrap();
                let refused = MessageStream::connect_with(&from.session(), at, options()).unwrap_err();
                assert_eq!(refused.reason(), Some(Reason::NoUnreliable), "{refused}");
                assert!(refused.to_string().contains("wire = \"roce\""), "{refused}");
                assert_eq!(to.counter("accepts"), 0);
            }
        }
    });
}

#[test]
fn both_ends_must_ask_for_it_and_what_needs_every_message_is_refused() {
    bounded(|| {
        let (a, b) = (able(), able());
        let (client, server) = (a.session(), b.session());
        let listener = listen(&server, b.address());
        let unreliable = listener.local_addr().unwrap();
        let reliable = MessageListener::bind_with(&server, (b.address(), 0), ListenOptions::new()).unwrap();
        let plain = ConnectOptions::new().timeout(PATIENCE);
        let refused = MessageStream::connect_with(&client, unreliable, plain).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::WrongKind), "{refused}");
        let refused = MessageStream::connect_with(&client, reliable.local_addr().unwrap(), options()).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::WrongKind), "{refused}");
        let refused = Stream::connect_with(&client, unreliable).unwrap_err();
        assert_eq!(refused.reason(), Some(Reason::WrongKind), "{refused}");
        // A stream of bytes has no messages that could be lost one by one.
        let refused = options().connect(&client, unreliable).unwrap_err().to_string();
        assert!(refused.contains("UC") && refused.contains("MessageStream"), "{refused}");
        let read = plain.flags(Flags::UC | Flags::READ);
        let refused = MessageStream::connect_with(&client, unreliable, read).unwrap_err().to_string();
        assert!(refused.contains("UC has no READ"), "{refused}");
        let stream = MessageStream::connect_with(&client, unreliable, options()).unwrap();
        let refused = stream.call_vec(b"question").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(stream.send_with(b"x", Flags::RC).is_err() && stream.send_with(b"x", Flags::READ).is_err());
        stream.send_with(b"x", Flags::UC | Flags::SEND).unwrap();
        let longest = stream.len_max();
        stream.send(&vec![7; longest]).unwrap();
        let refused = stream.send(&vec![7; longest + 1]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    });
}
