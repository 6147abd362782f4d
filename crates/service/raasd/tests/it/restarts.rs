//! Listeners live through a daemon's restart: one error, and then the connections of the next daemon.

use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use raas::{
    AcceptError, Fallback, ListenOptions, Listener, MessageListener, MessageStream, Reason, Session, SessionError,
    Stream,
};
use rustix::event::{PollFd, PollFlags, poll};

use crate::hosts::{Host, PATIENCE, bounded, eventually};

fn says_hello(stream: &mut impl Read) {
    let mut got = [0; 5];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
}

fn say_hello(host: &Host, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect_with(&host.session(), to).unwrap();
    stream.write_all(b"hello").unwrap();
    stream
}

fn is_loss(error: &AcceptError) -> bool {
    matches!(error, AcceptError::Session(SessionError::Lost { reason: Reason::ShuttingDown | Reason::DaemonLost }))
}

#[test]
fn a_loop_over_incoming_sees_one_error_for_each_loss() {
    bounded(|| {
        let mut host = Host::started();
        let listener = Listener::bind_with(&host.session(), (host.address(), 0)).unwrap();
        let (at, errors) = (listener.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
        let (accepted, streams) = mpsc::channel();
        let counted = Arc::clone(&errors);
        std::thread::spawn(move || {
            for stream in &listener {
                match stream {
                    Ok(stream) => accepted.send(stream).unwrap(),
                    Err(e) => {
                        assert!(is_loss(&e), "{e}");
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
        for losses in 1..=3 {
            let _client = say_hello(&host, at);
            says_hello(&mut streams.recv_timeout(PATIENCE).unwrap());
            host.stop();
            eventually("the loss is told", || errors.load(Ordering::SeqCst) == losses);
            // Time for a loop that spins to do so.
            std::thread::sleep(Duration::from_millis(300));
            host.start();
            eventually("the port is open again", || Stream::connect_with(&host.session(), at).is_ok());
            streams.recv_timeout(PATIENCE).unwrap();
            assert_eq!(errors.load(Ordering::SeqCst), losses);
        }
    });
}

#[test]
fn several_threads_at_one_listener_and_several_listeners_of_one_session_go_on() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.session();
        let listeners: Vec<_> =
            (0..3).map(|_| Arc::new(Listener::bind_with(&session, (host.address(), 0)).unwrap())).collect();
        let (accepted, streams) = mpsc::channel();
        for listener in &listeners {
            for _ in 0..3 {
                let (listener, accepted) = (Arc::clone(listener), accepted.clone());
                std::thread::spawn(move || {
                    loop {
                        let _ = listener.accept().map(|(stream, _)| accepted.send(stream));
                    }
                });
            }
        }
        host.stop();
        std::thread::sleep(Duration::from_millis(100));
        host.start();
        for listener in &listeners {
            let mut client = None;
            eventually("the port is open again", || {
                client = Stream::connect_with(&host.session(), listener.local_addr().unwrap()).ok();
                client.is_some()
            });
            client.unwrap().write_all(b"hello").unwrap();
            says_hello(&mut streams.recv_timeout(PATIENCE).unwrap());
        }
        eventually("they share one session", || host.stat().apps.len() == 1);
        // Which is the one that others of the lost session get.
        assert!(!session.is_usable());
        let next = session.reattach().unwrap();
        assert_eq!(next.number(), session.reattach().unwrap().number());
        assert!(next.is_usable());
    });
}

#[test]
fn a_listener_that_does_not_block_and_one_of_messages_go_on() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.session();
        let polled = Listener::bind_with(&session, (host.address(), 0)).unwrap();
        polled.set_nonblocking(true).unwrap();
        let messages = MessageListener::bind_with(&session, (host.address(), 0), ListenOptions::new()).unwrap();
        let fd = polled.ready_fd().unwrap();
        host.stop();
        let mut losses = 0;
        let mut accept = |until: &mut dyn FnMut(u32) -> bool| loop {
            while polled.readiness().unwrap().is_empty() {
                if until(losses) {
                    return None;
                }
                let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&wait)).unwrap();
            }
            match polled.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(e) if is_loss(&e) => losses += 1,
                Err(AcceptError::WouldBlock) => {}
                Err(e) => panic!("{e}"),
            }
        };
        assert!(accept(&mut |losses| losses == 1).is_none());
        host.start();
        let error = messages.accept_timeout(PATIENCE).unwrap_err();
        assert!(is_loss(&error), "{error}");
        let (mut client, at, own) = (None, polled.local_addr().unwrap(), host.session());
        let mut stream = accept(&mut |_| {
            client = client.take().or_else(|| Stream::connect_with(&own, at).ok());
            false
        })
        .unwrap();
        client.unwrap().write_all(b"hello").unwrap();
        says_hello(&mut stream);
        assert_eq!(losses, 1);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| messages.accept_timeout(PATIENCE).unwrap().0);
            let mut client = None;
            eventually("the port is open again", || {
                client =
                    MessageStream::connect_with(&own, messages.local_addr().unwrap(), raas::ConnectOptions::new()).ok();
                client.is_some()
            });
            client.unwrap().send(b"hello").unwrap();
            assert_eq!(accepting.join().unwrap().receive_vec().unwrap().unwrap(), b"hello");
        });
    });
}

#[test]
fn kernel_tcp_beside_it_is_served_meanwhile() {
    bounded(|| {
        let mut host = Host::started();
        let session = host.session();
        let options = ListenOptions::new().fallback(Fallback::Tcp);
        let listener = options.bind(&session, (host.address(), 0)).unwrap();
        let at = listener.local_addr().unwrap();
        host.stop();
        let error = listener.accept_timeout(PATIENCE).unwrap_err();
        assert!(is_loss(&error), "{error}");
        let mut over_tcp = std::net::TcpStream::connect(at).unwrap();
        over_tcp.write_all(b"hello").unwrap();
        let (mut stream, _) = listener.accept_timeout(PATIENCE).unwrap();
        says_hello(&mut stream);
        assert!(matches!(listener.accept_timeout(Duration::from_millis(50)), Err(AcceptError::TimedOut(_))));
        host.start();
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
            let mut client = None;
            eventually("the port is open again", || {
                client = Stream::connect_with(&host.session(), at).ok();
                client.is_some()
            });
            client.unwrap().write_all(b"hello").unwrap();
            let mut stream = accepting.join().unwrap();
            assert_eq!(stream.path(), raas::PathKind::Shm);
            says_hello(&mut stream);
        });
    });
}

#[test]
fn a_port_that_another_program_took_is_told_once_and_waited_for() {
    bounded(|| {
        let mut host = Host::started();
        let listener = Listener::bind_with(&host.session(), (host.address(), 0)).unwrap();
        let at = listener.local_addr().unwrap();
        host.stop();
        assert!(is_loss(&listener.accept_timeout(PATIENCE).unwrap_err()));
        host.start();
        let thief = Listener::bind_with(&host.session(), at).unwrap();
        let error = listener.accept_timeout(PATIENCE).unwrap_err();
        assert!(matches!(error, AcceptError::NotListening(_)), "{error}");
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::AddrInUse);
        assert!(matches!(listener.accept_timeout(Duration::from_millis(100)), Err(AcceptError::TimedOut(_))));
        drop(thief);
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| listener.accept_timeout(PATIENCE).unwrap().0);
            eventually("the port is open again", || Stream::connect_with(&host.session(), at).is_ok());
            accepting.join().unwrap();
        });
        drop(listener);
        eventually("its port is closed with it", || Listener::bind_with(&host.session(), at).is_ok());
    });
}

#[test]
fn tasks_see_one_error_and_the_next_connection() {
    bounded(|| {
        let mut host = Host::started();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let session: Session = host.session();
        let options = ListenOptions::new();
        let listener =
            runtime.block_on(raas::aio::Listener::bind_with(&session, (host.address(), 0), options)).unwrap();
        let at = listener.get_ref().local_addr().unwrap();
        let mut incoming = Box::pin(listener.incoming());
        host.stop();
        let mut next =
            || runtime.block_on(poll_fn(|context| futures_core::Stream::poll_next(incoming.as_mut(), context)));
        let error = next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
        let caller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            host.start();
            let mut client = None;
            eventually("the port is open again", || {
                client = Stream::connect_with(&host.session(), at).ok();
                client.is_some()
            });
            (client, host)
        });
        let stream = next().unwrap().unwrap();
        assert_eq!(stream.get_ref().path(), raas::PathKind::Shm);
        caller.join().unwrap();
    });
}
