//! Streams and listeners for tasks of tokio, on both paths.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use raas::aio::{Listener, MessageListener, MessageStream, Stream};
use raas::{
    ConnectOptions, Fallback, FallbackCause, ListenOptions, PathKind, Reason, Session, SessionError, StreamError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Watchdog;
use crate::fake_daemon::{FakeDaemon, HERE, Options};
use crate::world::{PATHS, pattern};

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// Bytes both ways at once, to the end.
async fn exchange(client: Stream, server: Stream) {
    let (a, b) = (pattern(400_000, 1), pattern(300_000, 2));
    let one_way = async |stream: Stream, send: &[u8], expect: &[u8]| {
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
    tokio::join!(one_way(client, &a, &b), one_way(server, &b, &a));
}

fn nobody() -> Result<Session, SessionError> {
    let dir = tempfile::tempdir().unwrap();
    Session::connect(dir.path().join("nobody.sock"))
}

#[test]
fn without_a_daemon_tasks_go_over_kernel_tcp() {
    let _watchdog = Watchdog::start("without_a_daemon_tasks_go_over_kernel_tcp");
    run(async {
        let asked = ConnectOptions::new().fallback(Fallback::Tcp);
        let options = ListenOptions::new().fallback(Fallback::Tcp);
        let listener = Listener::listen(nobody(), "127.0.0.1:0", options).await.unwrap();
        let to = listener.get_ref().local_addr().unwrap();
        let soon = Duration::from_millis(5);
        assert!(tokio::time::timeout(soon, listener.accept()).await.is_err(), "nobody connects yet");
        for _ in 0..2 {
            let (client, server) = tokio::join!(Stream::dial(nobody(), to, &asked), listener.accept());
            let (mut client, server) = (client.unwrap(), server.unwrap().0);
            assert_eq!(client.get_ref().fallback(), Some(FallbackCause::NoDaemon));
            let mut got = [0; 1];
            assert!(tokio::time::timeout(soon, client.read_exact(&mut got)).await.is_err(), "nothing to read yet");
            exchange(client, server).await;
        }
        // A reset is reported as on the other paths.
        let (client, server) = tokio::join!(Stream::dial(nobody(), to, &asked), listener.accept());
        let (mut client, server) = (client.unwrap(), server.unwrap().0);
        client.write_all(b"unread").await.unwrap();
        while server.get_ref().unread_bytes().unwrap() < 6 {
            tokio::task::yield_now().await;
        }
        drop(server);
        let error = client.read_exact(&mut [0; 1]).await.unwrap_err();
        assert_eq!(StreamError::reason_of(&error), Some(Reason::ResetByPeer), "{error:?}");
        let refused = Stream::dial(nobody(), to, &ConnectOptions::new()).await.unwrap_err();
        assert!(refused.to_string().contains("raas daemon"), "not asked for: {refused}");
    });
}

#[test]
fn a_listener_with_a_daemon_takes_both_kinds_for_tasks() {
    let _watchdog = Watchdog::start("a_listener_with_a_daemon_takes_both_kinds_for_tasks");
    run(async {
        let daemon = FakeDaemon::start();
        let (near, far) = (daemon.session(), daemon.session());
        let options = ListenOptions::new().fallback(Fallback::Tcp);
        let listener = Listener::bind_with(&far, (HERE, 0), options).await.unwrap();
        let to = listener.get_ref().local_addr().unwrap();
        for over_tcp in [true, false, true] {
            let connecting = async {
                if over_tcp {
                    let asked = ConnectOptions::new().fallback(Fallback::Tcp);
                    Stream::dial(nobody(), to, &asked).await
                } else {
                    Stream::connect_with(&near, to, &ConnectOptions::new()).await
                }
            };
            let (client, server) = tokio::join!(connecting, listener.accept());
            let (client, server) = (client.unwrap(), server.unwrap().0);
            assert_eq!(server.get_ref().path() == PathKind::Tcp, over_tcp);
            exchange(client, server).await;
        }
        // No daemon there: the task's connection goes over kernel TCP too.
        let elsewhere = std::net::TcpListener::bind("127.0.0.3:0").unwrap();
        let asked = ConnectOptions::new().fallback(Fallback::Tcp);
        let mut stream = Stream::connect_with(&near, elsewhere.local_addr().unwrap(), &asked).await.unwrap();
        assert_eq!(stream.get_ref().fallback(), Some(FallbackCause::PeerUnreachable));
        stream.write_all(b"ping").await.unwrap();
        let mut got = [0; 4];
        elsewhere.accept().unwrap().0.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"ping");
    });
}

#[test]
fn messages_keep_their_boundaries_for_tasks() {
    let _watchdog = Watchdog::start("messages_keep_their_boundaries_for_tasks");
    for (host, path) in PATHS {
        run(async {
            let daemon = FakeDaemon::start();
            let (near, far) = (daemon.session(), daemon.session());
            let options = ListenOptions::new().ring_bytes(4096);
            let listener = MessageListener::bind_with(&far, "0.0.0.0:0", options).await.unwrap();
            let to = SocketAddr::new(host.parse().unwrap(), listener.get_ref().local_addr().unwrap().port());
            let options = ConnectOptions::new().ring_bytes(4096);
            let (client, server) = tokio::join!(MessageStream::connect_with(&near, to, &options), listener.accept());
            let (client, server) = (client.unwrap(), server.unwrap().0);
            assert_eq!(client.get_ref().path(), path);
            let soon = Duration::from_millis(5);
            assert!(tokio::time::timeout(soon, server.receive_vec()).await.is_err(), "nothing was sent yet");
            let max = client.get_ref().len_max();
            // More than the ring holds at once, so that both sides wait in turn.
            let sizes: Vec<usize> = (0..200).map(|i| [0, 1, max, 77, max / 2 + i][i % 5]).collect();
            let sending = async {
                for (i, &size) in sizes.iter().enumerate() {
                    client.send(&pattern(size, i as u32)).await.unwrap();
                }
                assert!(client.send(&vec![0; max + 1]).await.is_err(), "longer than the connection carries");
                client.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            };
            let receiving = async {
                for (i, &size) in sizes.iter().enumerate() {
                    let got = server.receive_vec().await.unwrap().unwrap();
                    assert!(got == pattern(size, i as u32), "message {i} of {size} bytes");
                }
                assert!(server.receive(&mut [0; 8]).await.unwrap().is_none());
            };
            tokio::join!(sending, receiving);
            // The other way round a stream is no message.
            let refused = Stream::connect_with(&near, to, &ConnectOptions::new()).await.unwrap_err();
            assert_eq!(refused.reason(), Some(Reason::WrongKind), "{refused:?}");
        });
    }
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
            let to = SocketAddr::new(host.parse().unwrap(), listener.get_ref().local_addr().unwrap().port());
            let options = ConnectOptions::new().ring_bytes(4096);
            let (client, server) = tokio::join!(Stream::connect_with(&near, to, &options), listener.accept());
            let (client, server) = (client.unwrap(), server.unwrap().0);
            assert_eq!(client.get_ref().path(), path);
            exchange(client, server).await;
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
            let to = SocketAddr::new(host.parse().unwrap(), listener.get_ref().local_addr().unwrap().port());
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
fn incoming_tells_the_loss_of_the_daemon_once_and_goes_on() {
    let _watchdog = Watchdog::start("incoming_tells_the_loss_of_the_daemon_once_and_goes_on");
    run(async {
        let mut daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "0.0.0.0:0", ListenOptions::new()).await.unwrap();
        let mut incoming = listener.incoming();
        let mut next = async || {
            let next = |context: &mut std::task::Context<'_>| {
                futures_core::Stream::poll_next(std::pin::Pin::new(&mut incoming), context)
            };
            std::future::poll_fn(next).await
        };
        let end = async { daemon.die() };
        let (first, ()) = tokio::join!(next(), end);
        let error = first.unwrap().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted, "{error}");
        // What comes after it: the tests of the daemon's restarts.
        assert!(tokio::time::timeout(Duration::from_millis(50), next()).await.is_err(), "it waits");
    });
}

#[test]
fn the_halves_of_a_stream_go_to_two_tasks() {
    let _watchdog = Watchdog::start("the_halves_of_a_stream_go_to_two_tasks");
    run(async {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = Listener::bind_with(&session, "0.0.0.0:0", ListenOptions::new()).await.unwrap();
        let to = (HERE, listener.local_addr().unwrap().port());
        let options = ConnectOptions::new();
        let (client, server) = tokio::join!(Stream::connect_with(&session, to, &options), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        assert_eq!((client.path(), server.path()), (PathKind::Shm, PathKind::Shm));
        assert_eq!(client.peer_addr().unwrap(), server.local_addr().unwrap());
        client.set_nodelay(true).unwrap();
        let echo = tokio::spawn(async move {
            let (mut reader, mut writer) = server.into_split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap()
        });
        let (mut reader, mut writer) = client.into_split();
        assert_eq!(reader.peer_addr().unwrap(), writer.peer_addr().unwrap());
        let sent = pattern(500_000, 3);
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            writer.write_all(&sent).await.unwrap();
            // Dropping it ends the writing.
        });
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        assert!(got == expected);
        writing.await.unwrap();
        assert_eq!(echo.await.unwrap(), 500_000);
    });
}

#[test]
fn a_call_that_was_given_up_leaves_the_connection_out_of_step() {
    let _watchdog = Watchdog::start("a_call_that_was_given_up_leaves_the_connection_out_of_step");
    run(async {
        let daemon = FakeDaemon::start();
        let session = daemon.session();
        let listener = MessageListener::bind_with(&session, "0.0.0.0:0", ListenOptions::new()).await.unwrap();
        let to = (HERE, listener.local_addr().unwrap().port());
        let options = ConnectOptions::new();
        let (client, server) = tokio::join!(MessageStream::connect_with(&session, to, &options), listener.accept());
        let (client, server) = (client.unwrap(), server.unwrap().0);
        let answering = async {
            let request = server.receive_vec().await.unwrap().unwrap();
            server.send(&request).await.unwrap();
        };
        let (reply, ()) = tokio::join!(client.call_vec(b"first"), answering);
        assert_eq!(reply.unwrap(), b"first");
        let answering = async {
            let request = server.receive_vec().await.unwrap().unwrap();
            server.send(&request).await.unwrap();
        };
        let mut buffer = [0; 64];
        let (len, ()) = tokio::join!(client.call(b"into a buffer", &mut buffer), answering);
        assert_eq!(&buffer[..len.unwrap()], b"into a buffer");
        let soon = Duration::from_millis(20);
        assert!(tokio::time::timeout(soon, client.call_vec(b"second")).await.is_err());
        server.send(b"late").await.unwrap();
        let error = client.call_vec(b"third").await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");
    });
}
