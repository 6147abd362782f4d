//! Streams by the verbs that programs name, between whole daemons, over both wires.

use std::io::{Read, Write};
use std::net::SocketAddr;

use raas::{ConnectOptions, Flags, ListenOptions, Stream};
use verbs::Wire;

use crate::hosts::{Host, PATIENCE, bounded, check_echo, eventually, pattern};

#[test]
fn streams_travel_by_the_verb_that_was_asked_for() {
    bounded(|| {
        for wire in [Wire::Roce, Wire::Iwarp] {
            let (a, b) = (Host::started_on(wire), Host::started_on(wire));
            let (client, server) = (a.session(), b.session());
            let to: SocketAddr = (b.address(), b.echo(&server)).into();
            for (flags, verb) in [(Flags::SEND, "send"), (Flags::READ, "read"), (Flags::RC | Flags::WRITE, "write_imm")]
            {
                let stream = ConnectOptions::new().flags(flags).connect(&client, to).unwrap();
                let id = stream.id();
                check_echo(stream.try_clone().unwrap(), 700_001, 9);
                let row = a.connections().into_iter().find(|row| row.id == id).unwrap();
                assert_eq!(row.verb.as_deref(), Some(verb), "{wire}: {row:?}");
                assert_eq!(row.verb_asked.as_deref(), Some(verb), "{wire}: {row:?}");
                assert!(row.verb_reason.as_ref().unwrap().contains("asked"), "{row:?}");
            }
            assert_eq!(a.counter("violations") + b.counter("violations"), 0);
            assert_eq!(a.counter("lane_resets") + b.counter("lane_resets"), 0);
            assert!(b.counter("reads_posted") > 0 && a.counter("sends_sent") > 700_000 / 4096);
        }
    });
}

#[test]
fn listeners_and_calls_name_verbs_too() {
    bounded(|| {
        let (a, b) = (Host::started(), Host::started());
        let (client, server) = (a.session(), b.session());
        let listener = ListenOptions::new().flags(Flags::SEND).bind(&server, (b.address(), 0)).unwrap();
        let mut stream = Stream::connect_with(&client, listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        for end in [&stream, &accepted] {
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut got = vec![0; 1000];
        accepted.write_all(&pattern(1000, 1)).unwrap();
        stream.read_exact(&mut got).unwrap();
        assert_eq!(got, pattern(1000, 1));
        let verb_of = |host: &Host, id| host.connections().into_iter().find(|row| row.id == id).unwrap().verb;
        assert_eq!(verb_of(&b, accepted.id()).as_deref(), Some("send"));
        for (flags, verb) in [(Flags::READ, "read"), (Flags::SEND, "send"), (Flags::empty(), "write_imm")] {
            assert_eq!(stream.write_with(&pattern(1000, 2), flags).unwrap(), 1000);
            accepted.read_exact(&mut got).unwrap();
            assert_eq!(got, pattern(1000, 2));
            eventually("the verb is shown", || verb_of(&a, stream.id()).as_deref() == Some(verb));
        }
        let refused = stream.write_with(b"x", Flags::UC).unwrap_err();
        assert!(refused.to_string().contains("UC"), "{refused}");
    });
}
