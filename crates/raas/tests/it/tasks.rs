//! Streams and listeners for tasks of tokio, on both paths.

use std::net::SocketAddr;
use std::time::Duration;

use raas::aio::{Listener, Stream};
use raas::{ConnectOptions, ListenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, Options};
use crate::world::{PATHS, pattern};

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

#[test]
fn tasks_move_bytes_both_ways_at_once() {
    let _watchdog = Watchdog::start("tasks_move_bytes_both_ways_at_once");
    for (host, path) in PATHS {
        run(async {
            let daemon = FakeDaemon::start();
            let (near, far) = (daemon.session(), daemon.session());
            let options = ListenOptions::new().ring_bytes(4096);
            let listener = Listener::bind_with(&far, "0.0.0.0:0", options).await.unwrap();
            let to = SocketAddr::new(host.parse().unwrap(), listener.get_ref().local_addr().port());
            let options = ConnectOptions::new().ring_bytes(4096);
            let (client, server) = tokio::join!(Stream::connect_with(&near, to, &options), listener.accept());
            let (client, server) = (client.unwrap(), server.unwrap().0);
            assert_eq!(client.get_ref().path(), path);
            let (a, b) = (pattern(400_000, 1), pattern(300_000, 2));
            let exchange = async |stream: Stream, send: &[u8], expect: &[u8]| {
                let (mut reader, mut writer) = tokio::io::split(stream);
                let writing = async {
                    writer.write_all(send).await.unwrap();
                    writer.shutdown().await.unwrap();
                };
                let reading = async {
                    let mut got = Vec::new();
                    reader.read_to_end(&mut got).await.unwrap();
                    assert!(got == expect, "{} of {} bytes, or wrong ones", got.len(), expect.len());
                };
                tokio::join!(writing, reading);
            };
            tokio::join!(exchange(client, &a, &b), exchange(server, &b, &a));
        });
    }
}

#[test]
fn dropped_futures_lose_nothing() {
    let _watchdog = Watchdog::start("dropped_futures_lose_nothing");
    for (host, _) in PATHS {
        run(async {
            let daemon = FakeDaemon::start();
            let (near, far) = (daemon.session(), daemon.session());
            let listener = Listener::bind_with(&far, "0.0.0.0:0", ListenOptions::new()).await.unwrap();
            let soon = Duration::from_millis(5);
            assert!(tokio::time::timeout(soon, listener.accept()).await.is_err(), "nobody connects yet");
            let to = SocketAddr::new(host.parse().unwrap(), listener.get_ref().local_addr().port());
            let options = ConnectOptions::new();
            let (client, server) = tokio::join!(Stream::connect_with(&near, to, &options), listener.accept());
            let (mut client, mut server) = (client.unwrap(), server.unwrap().0);
            let mut got = [0; 5];
            assert!(tokio::time::timeout(soon, client.read_exact(&mut got)).await.is_err(), "nothing to read yet");
            server.write_all(b"later").await.unwrap();
            client.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"later");
        });
    }
    let mute = FakeDaemon::start_with(Options { mute: true, ..Options::default() });
    run(async {
        let session = mute.session();
        let connecting = ConnectOptions::new().start(&session, "127.0.0.2:9".parse().unwrap()).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(20), connecting).await.is_err());
    });
    while mute.facts().cancelled == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn incoming_ends_with_the_session() {
    let _watchdog = Watchdog::start("incoming_ends_with_the_session");
    run(async {
        let mut daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "0.0.0.0:0", ListenOptions::new()).await.unwrap();
        let mut incoming = listener.incoming();
        let next =
            std::future::poll_fn(|context| futures_core::Stream::poll_next(std::pin::Pin::new(&mut incoming), context));
        let end = async { daemon.die() };
        let (next, ()) = tokio::join!(next, end);
        assert!(next.is_none());
    });
}
