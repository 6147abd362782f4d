//! A client that chooses its transport, and says why.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raas::Session;
use raas_rpc::{CallInfo, Choice, Client, Reason, Server, Transport};
use rustix::thread::Uid;

use crate::hosts::{Places, bounded, host_with};

/// Somebody else than who runs the tests.
const OTHER: u32 = 54_321;

fn echo(_: &CallInfo, request: &[u8]) -> Result<Vec<u8>, String> {
    Ok(request.to_vec())
}

fn auto(places: &Places, server: &Server) -> Client {
    places.client(server, Transport::Auto, Client::builder())
}

/// Calls until the client's choice is such; how many calls that took.
fn call_until(client: &Client, is_so: impl Fn(&Choice) -> bool) -> u64 {
    let began = Instant::now();
    let mut calls = 0u64;
    while !is_so(&client.choice()) {
        assert!(began.elapsed() < Duration::from_secs(100), "after {calls} calls: {}", client.choice());
        assert_eq!(client.call(&calls.to_le_bytes()).unwrap(), calls.to_le_bytes());
        calls += 1;
    }
    calls
}

#[test]
fn short_calls_leave_messages_and_each_is_executed_once() {
    bounded(|| {
        for (places, to) in Places::both().iter().zip([Transport::Rfp, Transport::Herd]) {
            let server = places.serve(Server::builder(), echo);
            let client = auto(places, &server);
            let first = client.choice();
            assert_eq!((first.transport, first.reason), (Transport::Messages, Reason::Unknown));
            let calls = call_until(&client, |choice| choice.transport == to);
            let reason = client.choice().reason;
            match to {
                Transport::Rfp => assert_eq!(reason, Reason::OneHost),
                _ => assert!(matches!(reason, Reason::FewClients { clients: 1..=4 }), "{reason}"),
            }
            for _ in 0..100 {
                assert_eq!(client.call(b"x").unwrap(), b"x");
            }
            let counters = client.counters();
            assert_eq!(server.counters().executed, calls + 100, "{counters:?}");
            assert!(counters.changes >= 1 && counters.reconnects == 0, "{counters:?}");
        }
    });
}

#[test]
fn threads_and_tasks_go_on_while_the_transport_is_changed() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), echo);
        let client = auto(&places, &server);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let calls = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..3u8 {
                let (client, calls, runtime) = (client.clone(), &calls, &runtime);
                scope.spawn(move || {
                    while client.counters().changes == 0 {
                        let answer = match number {
                            0 => runtime.block_on(client.call_async([number; 8], None)),
                            _ => client.call(&[number; 8]),
                        };
                        assert_eq!(answer.unwrap(), [number; 8]);
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(server.counters().executed, calls.into_inner(), "{:?}", client.counters());
    });
}

#[test]
fn a_slow_service_and_rare_calls_have_messages() {
    bounded(|| {
        let places = Places::far();
        let pause = Arc::new(AtomicU64::new(0));
        let pauses = Arc::clone(&pause);
        let server = places.serve(Server::builder(), move |_: &CallInfo, request: &[u8]| {
            std::thread::sleep(Duration::from_millis(pauses.load(Ordering::Relaxed)));
            Ok(request.to_vec())
        });
        let client = auto(&places, &server);
        call_until(&client, |choice| choice.transport == Transport::Herd);
        pause.store(2, Ordering::Relaxed);
        call_until(&client, |choice| matches!(choice.reason, Reason::SlowService { takes } if takes.as_micros() > 500));
        assert_eq!(client.transport(), Transport::Messages);
        pause.store(0, Ordering::Relaxed);
        let is_rare = |choice: &Choice| {
            std::thread::sleep(Duration::from_millis(6));
            matches!(choice.reason, Reason::Rare { .. })
        };
        call_until(&client, is_rare);
        assert_eq!(client.transport(), Transport::Messages);
    });
}

#[test]
fn a_client_of_a_server_with_many_takes_turns() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder(), echo);
        let others: Vec<Client> =
            (0..44).map(|_| places.client(&server, Transport::Messages, Client::builder())).collect();
        let client = auto(&places, &server);
        call_until(&client, |choice| choice.transport == Transport::Scale);
        assert!(matches!(client.choice().reason, Reason::ManyClients { clients: 45..=48 }), "{}", client.choice());
        drop(others);
        call_until(&client, |choice| choice.transport == Transport::Herd);
    });
}

#[test]
fn a_client_that_may_not_have_the_memory_has_messages_and_says_so() {
    bounded(|| {
        let places = Places::far();
        let server = places.serve(Server::builder().workers(0), echo);
        let client = auto(&places, &server);
        call_until(&client, |choice| matches!(choice.reason, Reason::NoMemory { .. }));
        assert!(client.choice().to_string().contains("does not offer transport"), "{}", client.choice());
        assert_eq!(client.transport(), Transport::Messages);
        assert_eq!(client.call(b"x").unwrap(), b"x");
        let named = Client::builder().session(places.client_host().session()).transport(Transport::Herd);
        assert!(named.connect(server.local_addr()).is_err(), "a named transport is never another one");
    });
}

#[test]
fn another_users_client_has_messages_and_says_so() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "only root can be several users");
        eprintln!("SKIP several users: only root can be others");
        return;
    }
    bounded(|| {
        let open = || {
            let host = host_with(|config| config.socket_mode = 0o666);
            let directory = host.socket().parent().unwrap();
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755)).unwrap();
            host
        };
        for places in [Places { server: open(), far: None }, Places { server: open(), far: Some(open()) }] {
            let server = places.serve(Server::builder(), echo);
            let calls = || {
                let uid = Uid::from_raw(OTHER);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                let session = Session::connect(places.client_host().socket()).unwrap();
                let settings = |transport| Client::builder().session(&session).transport(transport);
                let client = settings(Transport::Auto).connect(server.local_addr()).unwrap();
                call_until(&client, |choice| matches!(choice.reason, Reason::NoMemory { .. }));
                assert!(client.choice().to_string().contains("belongs to user"), "{}", client.choice());
                assert_eq!(client.transport(), Transport::Messages);
                assert_eq!(client.call(b"x").unwrap(), b"x");
                for named in [Transport::Rfp, Transport::Herd, Transport::Scale] {
                    let refused = settings(named).connect(server.local_addr()).unwrap_err();
                    assert!(refused.to_string().contains("belongs to user"), "{named}: {refused}");
                }
            };
            std::thread::scope(|scope| scope.spawn(calls).join().unwrap());
        }
    });
}
