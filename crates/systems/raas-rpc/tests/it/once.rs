//! At most one execution of each call, whatever is lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use raas_rpc::{CallError, CallInfo, Client, Server, Transport};

use crate::hosts::{Places, TRANSPORTS, bounded, eventually};

/// How often each call was executed.
type Log = Arc<Mutex<HashMap<Vec<u8>, u32>>>;

fn logging(log: &Log) -> impl Fn(&CallInfo, &[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static {
    let log = Arc::clone(log);
    move |_: &CallInfo, request: &[u8]| {
        *log.lock().unwrap().entry(request.to_vec()).or_default() += 1;
        let mut response = request.to_vec();
        response.resize(900, 7);
        Ok(response)
    }
}

#[test]
fn responses_that_are_lost_are_sent_again_and_no_call_is_executed_twice() {
    bounded(|| {
        let places = Places::far();
        let log = Log::default();
        let server = places.serve(Server::builder().window(256).clients_max(4), logging(&log));
        let client =
            places.client(&server, Transport::Herd, Client::builder().window(256).datagram_ring_bytes(16 << 10));
        // Nobody receives while so many responses come that they do not fit into the socket's ring.
        let calls: Vec<_> = (0..256u32).map(|number| client.begin(&number.to_le_bytes(), None).unwrap()).collect();
        eventually("all are executed", || server.counters().executed == 256);
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(call.wait().unwrap()[..4], (number as u32).to_le_bytes());
        }
        let log = log.lock().unwrap();
        assert_eq!((log.len(), log.values().max()), (256, Some(&1)));
        assert!(client.counters().repeats > 0, "nothing was lost, so the test shows nothing: {:?}", client.counters());
        assert!(server.counters().repeated > 0);
    });
}

#[test]
fn broken_lanes_lose_no_call_and_repeat_none() {
    bounded(|| {
        let places = Places::far();
        for transport in TRANSPORTS {
            let log = Log::default();
            let server = places.serve(Server::builder(), logging(&log));
            let client = places.client(&server, transport, Client::builder());
            let peer = places.server.session().addresses()[0];
            for number in 0..300u32 {
                if number % 50 == 25 {
                    let socket = places.client_host().socket();
                    assert!(raas::inspect::reset_lane(Some(socket), peer).unwrap());
                }
                let answer = client.call_within(&number.to_le_bytes(), Duration::from_secs(60));
                assert_eq!(answer.unwrap()[..4], number.to_le_bytes(), "{transport}");
            }
            let log = log.lock().unwrap();
            assert_eq!((log.len(), log.values().max()), (300, Some(&1)), "{transport}");
        }
    });
}

#[test]
fn a_server_that_comes_back_without_memory_makes_outcomes_unknown_and_then_serves() {
    bounded(|| {
        for transport in TRANSPORTS {
            let places = Places::far();
            let has_begun = Arc::new(AtomicBool::new(false));
            let begins = Arc::clone(&has_begun);
            let slow = move |_: &CallInfo, request: &[u8]| {
                if request == b"slow" {
                    begins.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(300));
                }
                Ok(request.to_vec())
            };
            let server = places.serve(Server::builder(), slow.clone());
            let at = server.local_addr();
            let client = places.client(&server, transport, Client::builder());
            assert_eq!(client.call(b"a").unwrap(), b"a");
            let call = client.begin(b"slow", Some(Duration::from_secs(60))).unwrap();
            let waiting = std::thread::spawn(move || call.wait());
            eventually("the old server has it", || has_begun.load(Ordering::SeqCst));
            drop(server);
            let session = places.server.session();
            let again = Server::builder().session(session).serve(at, slow).unwrap();
            let outcome = waiting.join().unwrap();
            // The old server may have answered before it ended.
            assert!(
                matches!(&outcome, Err(CallError::OutcomeUnknown)) || outcome == Ok(b"slow".to_vec()),
                "{outcome:?}"
            );
            // A request that was written for the old server before its end was noticed may have been executed too.
            let answer = loop {
                match client.call_within(b"b", Duration::from_secs(60)) {
                    Err(CallError::OutcomeUnknown) => {}
                    answer => break answer,
                }
            };
            assert_eq!(answer.unwrap(), b"b", "{transport}");
            assert_eq!(again.counters().executed, 1, "{transport}: what the old server had is not executed again");
        }
    });
}

#[test]
fn a_server_that_stays_away_is_unreachable() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), |_: &CallInfo, request: &[u8]| Ok(request.to_vec()));
        let settings = Client::builder().reconnect_for(Duration::from_millis(200)).timeout(None);
        let client = places.client(&server, Transport::Messages, settings);
        drop(server);
        let error = client.call(b"x").unwrap_err();
        assert!(matches!(error, CallError::Unreachable { .. }), "{error}");
    });
}
