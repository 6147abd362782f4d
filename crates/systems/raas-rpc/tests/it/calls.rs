//! What a caller sees, on every transport.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use raas_rpc::{CallError, CallInfo, Client, OpenError, Refusal, ServeError, Server, Transport};

use crate::hosts::{Places, TRANSPORTS, bounded, eventually};

fn reverse(_: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
    match request {
        b"fail" => Err("as asked".into()),
        b"panic" => panic!("as asked"),
        b"long" => Ok(vec![1; 5000]),
        _ => Ok(request.iter().rev().copied().collect()),
    }
}

/// Calls of `wait` stand before it while it is closed.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set(&self, is_open: bool) {
        *self.is_open.lock().unwrap() = is_open;
        self.opened.notify_all();
    }

    /// As [`reverse`], with `wait` besides.
    fn service(self: &Arc<Self>) -> impl Fn(&CallInfo, &[u8]) -> Result<Vec<u8>, String> + Send + Sync + 'static {
        let gate = Arc::clone(self);
        move |info, request| match request {
            b"wait" => {
                drop(gate.opened.wait_while(gate.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
                Ok(b"waited".to_vec())
            }
            _ => reverse(info, request),
        }
    }
}

fn request(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[test]
fn calls_of_all_lengths_are_answered_and_each_failure_has_its_error() {
    bounded(|| {
        for places in Places::both() {
            let server = places.serve(Server::builder(), reverse);
            for transport in TRANSPORTS {
                let client = places.client(&server, transport, Client::builder());
                for len in [0, 1, 7, 32, 224, 225, 900, 1000, 1024, 4000, 4096] {
                    let bytes = request(len, len);
                    let answer = client.call(&bytes).unwrap_or_else(|e| panic!("{transport} {len}: {e}"));
                    assert!(answer == reversed(&bytes), "{transport} {len}");
                }
                assert_eq!(client.call(b"fail"), Err(CallError::Failed("as asked".into())));
                assert_eq!(client.call(b"panic"), Err(CallError::Panicked));
                assert_eq!(client.call(b"long"), Err(CallError::ResponseTooLong { max: 4096 }));
                let too_long = CallError::RequestTooLong { len: 4097, max: 4096 };
                assert_eq!(client.call(&[0; 4097]), Err(too_long));
                assert_eq!(client.call(b"abc").unwrap(), b"cba", "{transport}: after all that");
            }
            assert_eq!(server.counters().refused, 0);
        }
    });
}

#[test]
fn many_threads_have_calls_under_way_on_one_client() {
    bounded(|| {
        for places in Places::both() {
            let server = places.serve(Server::builder().window(32), reverse);
            for transport in TRANSPORTS {
                let client = places.client(&server, transport, Client::builder().window(32));
                std::thread::scope(|scope| {
                    for thread in 0..6 {
                        let client = client.clone();
                        scope.spawn(move || {
                            for round in 0..60 {
                                let requests: Vec<_> = (0..3).map(|i| request(thread, 9 + round * 5 + i)).collect();
                                let begin = |bytes: &Vec<u8>| client.begin(bytes, None).unwrap();
                                let calls: Vec<_> = requests.iter().map(begin).collect();
                                for (call, bytes) in calls.into_iter().zip(&requests) {
                                    assert!(call.wait().unwrap() == reversed(bytes), "{transport}");
                                }
                            }
                        });
                    }
                });
                assert_eq!(client.counters().calls, 6 * 60 * 3);
            }
            assert_eq!(server.counters().executed, TRANSPORTS.len() as u64 * 6 * 60 * 3, "each once");
        }
    });
}

/// A call that `give_up` makes and gives up, behind another one, is not executed, if the server hears of it before that one
/// ends: for that it has longer each time.
fn not_begun(gate: &Gate, client: &Client, server: &Server, give_up: impl Fn()) {
    let mut pause = Duration::from_millis(20);
    loop {
        let before = server.counters().executed;
        gate.set(false);
        let slow = client.begin(b"wait", None).unwrap();
        give_up();
        std::thread::sleep(pause);
        gate.set(true);
        assert_eq!(slow.wait().unwrap(), b"waited");
        assert_eq!(client.call(b"ab").unwrap(), b"ba");
        if server.counters().executed == before + 2 {
            return;
        }
        assert!(pause < Duration::from_secs(20), "it was begun each time");
        pause *= 2;
    }
}

#[test]
fn a_deadline_ends_the_wait_and_what_was_not_begun_is_not_executed() {
    bounded(|| {
        for places in Places::both() {
            for transport in TRANSPORTS {
                let gate = Arc::new(Gate::default());
                let server = places.serve(Server::builder(), gate.service());
                let client = places.client(&server, transport, Client::builder());
                let late = CallError::DeadlineExceeded { after: Duration::from_millis(30), was_sent: true };
                not_begun(&gate, &client, &server, || {
                    assert_eq!(client.call_within(b"x", Duration::from_millis(30)), Err(late.clone()), "{transport}");
                });
                not_begun(&gate, &client, &server, || drop(client.begin(b"y", None).unwrap()));
            }
        }
    });
}

#[test]
fn a_full_window_makes_callers_wait_and_says_when_nothing_was_sent() {
    bounded(|| {
        let places = Places::far();
        for transport in TRANSPORTS {
            let gate = Arc::new(Gate::default());
            let server = places.serve(Server::builder(), gate.service());
            let client = places.client(&server, transport, Client::builder().window(2));
            let calls = [client.begin(b"wait", None).unwrap(), client.begin(b"wait", None).unwrap()];
            let after = Duration::from_millis(20);
            let full = client.call_within(b"x", after);
            assert_eq!(full, Err(CallError::DeadlineExceeded { after, was_sent: false }), "{transport}");
            // Nobody waits for the two: the one that wants room looks for their responses.
            gate.set(true);
            assert_eq!(client.call(b"ab").unwrap(), b"ba", "{transport}");
            for call in calls {
                assert_eq!(call.wait().unwrap(), b"waited");
            }
        }
    });
}

#[test]
fn tasks_call_and_tower_calls() {
    bounded(|| {
        for places in Places::both() {
            let gate = Arc::new(Gate::default());
            let server = places.serve(Server::builder(), gate.service());
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            for transport in TRANSPORTS {
                let client = places.client(&server, transport, Client::builder().window(4));
                runtime.block_on(async {
                    let tasks: Vec<_> = (0..24)
                        .map(|number| {
                            let client = client.clone();
                            tokio::spawn(async move {
                                let bytes = request(number, 10 + number);
                                assert!(client.call_async(bytes.clone(), None).await.unwrap() == reversed(&bytes));
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                    gate.set(false);
                    let late = client.call_async(b"wait", Some(Duration::from_millis(20))).await;
                    gate.set(true);
                    assert!(matches!(late, Err(CallError::DeadlineExceeded { was_sent: true, .. })), "{transport}");
                    let mut tower = client.clone();
                    std::future::poll_fn(|cx| tower_service::Service::poll_ready(&mut tower, cx)).await.unwrap();
                    let answer = tower_service::Service::call(&mut tower, b"tower".to_vec()).await.unwrap();
                    assert_eq!(answer, b"rewot", "{transport}");
                });
            }
        }
    });
}

#[test]
fn clients_come_and_go_and_leave_no_slab_behind() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder().clients_max(8).forget_after(Duration::ZERO), reverse);
        for transport in [Transport::Rfp, Transport::Herd, Transport::Scale] {
            for round in 0..30 {
                let clients = [0, 1, 2].map(|_| places.client(&server, transport, Client::builder()));
                for client in &clients {
                    let bytes = request(round, 100);
                    assert!(client.call(&bytes).unwrap() == reversed(&bytes), "{transport} {round}");
                }
                assert!(server.counters().slabs >= 3);
                drop(clients);
                eventually("the clients' end", || server.counters().slabs == 0);
            }
        }
        // All that there are.
        let _clients: Vec<_> = (0..8).map(|_| places.client(&server, Transport::Messages, Client::builder())).collect();
        let session = places.client_host().session();
        let one_more = Client::builder().session(session).connect(server.local_addr());
        assert!(matches!(one_more, Err(OpenError::Refused(Refusal::TooManyClients { max: 8 }))));
    });
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder().workers(0).window(4), reverse);
        let session = places.client_host().session();
        let connect = |transport, window| {
            Client::builder().session(session).transport(transport).window(window).connect(server.local_addr())
        };
        let refused = connect(Transport::Herd, 4);
        assert!(matches!(refused, Err(OpenError::Refused(Refusal::NotOffered(Transport::Herd)))), "{refused:?}");
        let refused = connect(Transport::Messages, 5);
        assert!(matches!(refused, Err(OpenError::Refused(Refusal::Window { asked: 5, max: 4 }))), "{refused:?}");
        let refused = connect(Transport::Messages, 0);
        assert!(matches!(refused, Err(OpenError::Setting { name: "window", .. })), "{refused:?}");
        let narrow = Server::builder().session(places.server.session()).group(8).widest(7);
        let refused = narrow.serve((places.server.session().addresses()[0], 0), reverse).err();
        assert!(matches!(refused, Some(ServeError::Setting { name: "widest", value: 7, .. })), "{refused:?}");
        // Something else than a client.
        let stream = raas::MessageStream::connect_with(session, server.local_addr(), raas::ConnectOptions::new());
        let stream = stream.unwrap();
        stream.send(b"GET / HTTP/1.1").unwrap();
        assert!(stream.receive_vec().unwrap().is_some(), "it is told");
        drop(stream);
        assert_eq!(connect(Transport::Messages, 4).unwrap().call(b"ab").unwrap(), b"ba");
    });
}

#[test]
fn slow_services_make_rfp_switch_to_replies_and_quick_ones_back() {
    bounded(|| {
        let places = Places::far();
        let pause = Arc::new(AtomicU64::new(20));
        let pauses = Arc::clone(&pause);
        let server = places.serve(Server::builder(), move |_: &CallInfo, request: &[u8]| {
            std::thread::sleep(Duration::from_millis(pauses.load(Ordering::Relaxed)));
            Ok(request.to_vec())
        });
        let client = places.client(&server, Transport::Rfp, Client::builder());
        let slow = || assert_eq!(client.call(b"slow").unwrap(), b"slow");
        // On a busy machine few fetches fit into a pause, and only a long one is slow.
        while client.counters().switches_to_reply == 0 && pause.load(Ordering::Relaxed) < 10_000 {
            (0..2).for_each(|_| slow());
            pause.fetch_add(pause.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        (0..2).for_each(|_| slow());
        let counters = client.counters();
        assert_eq!((counters.switches_to_reply, counters.switches_to_fetch), (1, 0), "{counters:?}");
        assert!(counters.datagrams >= 2, "{counters:?}");
        pause.store(0, Ordering::Relaxed);
        let began = Instant::now();
        while client.counters().switches_to_fetch == 0 && began.elapsed() < Duration::from_secs(30) {
            assert_eq!(client.call(b"quick").unwrap(), b"quick");
        }
        assert_eq!(client.counters().switches_to_fetch, 1);
    });
}
