//! Many clients that take turns in few seats.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raas_rpc::{CallInfo, Client, Server, Transport};

use crate::hosts::{Places, TRANSPORTS, bounded, eventually};

fn echo(_: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
    Ok(request.to_vec())
}

const GROUP: u16 = 3;
const CLIENTS: u32 = 24;

#[test]
fn many_busy_clients_take_turns_and_the_memory_they_use_does_not_grow_with_them() {
    bounded(|| {
        for places in Places::both() {
            let server = places.serve(Server::builder().group(GROUP).widest(GROUP), echo);
            let clients: Vec<Client> =
                (0..CLIENTS).map(|_| places.client(&server, Transport::Scale, Client::builder())).collect();
            let is_over = AtomicBool::new(false);
            let calls: Vec<u64> = std::thread::scope(|scope| {
                let call = |(number, client): (usize, &Client)| {
                    let (client, is_over) = (client.clone(), &is_over);
                    scope.spawn(move || {
                        let mut calls = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            let request = [number as u32, calls as u32].map(u32::to_le_bytes).concat();
                            assert_eq!(client.call(&request).unwrap(), request);
                            calls += 1;
                        }
                        calls
                    })
                };
                let threads: Vec<_> = clients.iter().enumerate().map(call).collect();
                eventually("a hundred slices", || server.counters().slices > 100);
                is_over.store(true, Ordering::Relaxed);
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let served = server.counters();
            assert!(calls.iter().all(|calls| *calls > 0), "everybody had turns: {calls:?}");
            assert_eq!(served.executed, calls.iter().sum::<u64>(), "each once");
            let in_turn: u64 = clients.iter().map(|client| client.counters().in_turn).sum();
            assert!(in_turn > 0 && served.fetches > 0, "{in_turn} {served:?}");
            assert!(served.seats <= 4 * u64::from(GROUP), "{served:?}");
        }
    });
}

/// Has one call of each client under way, and looks at each in turn, until each has had so many.
fn go_round(clients: &[Client], calls: u64) -> u64 {
    let begin = |client: &Client| client.begin(b"a", Some(Duration::from_secs(60))).unwrap();
    let mut under_way: Vec<_> = clients.iter().map(|client| (begin(client), 0)).collect();
    while under_way.iter().any(|(_, ended)| *ended < calls) {
        for (client, (call, ended)) in clients.iter().zip(&mut under_way) {
            if call.is_ended() {
                assert!(call.is_ended(), "it was said");
                assert_eq!(std::mem::replace(call, begin(client)).wait().unwrap(), b"a");
                *ended += 1;
            }
        }
        std::thread::yield_now();
    }
    let rest = under_way.into_iter().map(|(call, ended)| {
        assert_eq!(call.wait().unwrap(), b"a");
        ended + 1
    });
    rest.sum()
}

#[test]
fn one_thread_asks_many_clients_in_turn() {
    bounded(|| {
        for places in Places::both() {
            for transport in TRANSPORTS {
                let server = places.serve(Server::builder().group(1), echo);
                let connect = |_| places.client(&server, transport, Client::builder());
                let clients: Vec<Client> = (0..CLIENTS).map(connect).collect();
                let calls = go_round(&clients, 50);
                let counters = server.counters();
                assert_eq!(counters.executed, calls, "each once, {transport}: {counters:?}");
                assert!(counters.seats <= 12 + 3, "{counters:?}");
            }
        }
    });
}

#[test]
fn idle_clients_cost_no_seat_and_no_fetch() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder().group(GROUP), echo);
        let connect = || places.client(&server, Transport::Scale, Client::builder());
        let idle: Vec<Client> = (0..CLIENTS).map(|_| connect()).collect();
        let busy = connect();
        for _ in 0..200 {
            assert_eq!(busy.call(b"a").unwrap(), b"a");
        }
        let (served, counters) = (server.counters(), busy.counters());
        assert_eq!((served.seats, served.slices), (1, 0), "{served:?}");
        assert!(served.fetches <= counters.requests - counters.in_turn, "{served:?} {counters:?}");
        // They are there all the same.
        for client in &idle {
            assert_eq!(client.call(b"b").unwrap(), b"b");
        }
    });
}

#[test]
fn clients_that_leave_in_their_turn_or_while_they_wait_take_nothing_with_them() {
    bounded(|| {
        for places in Places::both() {
            let server = places.serve(Server::builder().group(GROUP), |_: &CallInfo, request: &[u8]| {
                std::thread::sleep(Duration::from_micros(200));
                Ok(request.to_vec())
            });
            let stays = places.client(&server, Transport::Scale, Client::builder());
            for round in 0..20u32 {
                let clients: Vec<Client> =
                    (0..12).map(|_| places.client(&server, Transport::Scale, Client::builder())).collect();
                let calls: Vec<_> = clients.iter().map(|client| client.begin(b"x", None).unwrap()).collect();
                // Some have their answer, some have a turn, some wait.
                assert_eq!(stays.call(&round.to_le_bytes()).unwrap(), round.to_le_bytes());
                drop((calls, clients));
            }
            eventually("the clients' end", || server.counters().slabs == 1);
            assert_eq!(stays.call(b"y").unwrap(), b"y");
            assert_eq!(server.counters().refused, 0);
        }
    });
}
