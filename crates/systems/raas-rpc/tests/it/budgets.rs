//! What a call costs in verbs, by the daemons' own counters.

use raas_embedded::Embedded;
use raas_rpc::{CallInfo, Client, Server, Transport};

use crate::hosts::{Places, TRANSPORTS, bounded};

/// Operations of the programs of a host: READs, WRITEs, atomics.
fn operations(host: &Embedded) -> (u64, u64, u64) {
    let stat = raas::inspect::stat(Some(host.socket())).unwrap();
    stat.apps.iter().fold((0, 0, 0), |sum, app| (sum.0 + app.reads, sum.1 + app.writes, sum.2 + app.atomics))
}

/// Datagrams to other hosts that a host's engine sent; each is one UD SEND.
fn sends(host: &Embedded) -> u64 {
    let stat = raas::inspect::stat(Some(host.socket())).unwrap();
    stat.counters.iter().find(|(name, _)| name == "datagrams_sent").unwrap().1
}

fn echo(_: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
    Ok(request.to_vec())
}

const CALLS: u64 = 50;

#[test]
fn rfp_takes_one_write_and_its_fetches_and_no_operation_of_the_server() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), echo);
        let client = places.client(&server, Transport::Rfp, Client::builder());
        for _ in 0..CALLS {
            client.call(&[5; 32]).unwrap();
        }
        let counters = client.counters();
        let (reads, writes, atomics) = operations(places.client_host());
        // A request is one WRITE. On a busy machine the rule may ask for a reply, which is a request again.
        assert_eq!((writes, atomics), (counters.requests, 0), "{counters:?}");
        assert_eq!(counters.requests, CALLS + counters.repeats, "{counters:?}");
        assert_eq!(reads, counters.fetches, "{counters:?}");
        let answers = counters.fetches - counters.failed_fetches + counters.datagrams;
        assert!(answers >= CALLS, "{counters:?}");
        assert_eq!(operations(&places.server), (0, 0, 0), "in-bound only");
        assert_eq!(server.counters().datagrams, counters.datagrams);
    });
}

#[test]
fn herd_takes_one_write_and_one_send() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), echo);
        let client = places.client(&server, Transport::Herd, Client::builder());
        let before = sends(&places.server);
        for _ in 0..CALLS {
            client.call(&[5; 32]).unwrap();
        }
        let counters = client.counters();
        let (reads, writes, atomics) = operations(places.client_host());
        assert_eq!((reads, writes, atomics), (0, CALLS + counters.repeats, 0), "{counters:?}");
        assert_eq!(operations(&places.server), (0, 0, 0));
        // Of two repeats the server may see the later one alone.
        let datagrams = server.counters().datagrams;
        assert!((CALLS..=CALLS + counters.repeats).contains(&datagrams), "{datagrams} {counters:?}");
        assert_eq!(sends(&places.server) - before, datagrams, "each response is one SEND");
        // A response that fits into no datagram lies in its slot: the datagram says so, and two READs fetch it.
        client.call(&[5; 4096]).unwrap();
        let after = client.counters();
        assert_eq!(operations(places.client_host()).0, after.fetches);
        assert!(after.fetches >= 2, "{after:?}");
    });
}

#[test]
fn a_turn_takes_one_write_and_one_send_and_its_begin_one_read_more() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), echo);
        let client = places.client(&server, Transport::Scale, Client::builder());
        let before = sends(&places.server);
        for _ in 0..CALLS {
            client.call(&[5; 32]).unwrap();
        }
        let (counters, served) = (client.counters(), server.counters());
        // In its turn a client writes the request, otherwise its word: one WRITE.
        assert_eq!(operations(places.client_host()), (0, counters.requests, 0), "{counters:?}");
        assert_eq!(counters.requests, CALLS + counters.repeats, "{counters:?}");
        // Of what was not written in a turn the server fetched several at once, or each by one READ.
        assert!(counters.in_turn > 0 && counters.in_turn < counters.requests, "{counters:?}");
        assert!((1..=counters.requests - counters.in_turn).contains(&served.fetches), "{counters:?} {served:?}");
        assert_eq!(operations(&places.server), (served.fetches, 0, 0), "{served:?}");
        assert!((CALLS..=CALLS + counters.repeats).contains(&served.datagrams), "{counters:?} {served:?}");
        assert_eq!(sends(&places.server) - before, served.datagrams, "each response is one SEND");
        assert_eq!((served.slices, served.seats), (0, 1), "nobody else wanted its seat: {served:?}");
    });
}

#[test]
fn on_one_host_no_verb_carries_a_call() {
    bounded(|| {
        let [places, _] = Places::both();
        let server = places.serve(Server::builder(), echo);
        for transport in TRANSPORTS {
            let client = places.client(&server, transport, Client::builder());
            for _ in 0..CALLS {
                client.call(&[5; 32]).unwrap();
            }
        }
        assert_eq!(operations(&places.server), (0, 0, 0));
        assert_eq!(sends(&places.server), 0);
    });
}
