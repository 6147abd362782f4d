//! Programs that nothing follows, and whose calls find bytes or room each time: these never wait, and the program comes
//! back to the next daemon by them all the same (docs/operate/restart.md).

use std::io::{Read, Write};

use raas::{
    ConnectOptions, DatagramSocket, ListenOptions, Listener, MessageListener, MessageStream, PathKind, Session, Stream,
};
use verbs::WirePolicy;

use crate::hosts::{Host, PATIENCE, bounded, eventually};

/// More than a program takes byte by byte while the test waits for it, and less than a ring holds.
const UNREAD: usize = 50_000;

/// Two hosts, of which the first one's daemon dies. Nothing follows the session there.
struct Two {
    hosts: [Host; 2],
    near: Session,
    far: Session,
}

fn two() -> Two {
    let hosts = [0, 1].map(|_| {
        let mut host = Host::patient();
        (host.config.wire, host.config.tcp_direct) = (WirePolicy::Auto, true);
        host.start();
        host
    });
    let (near, far) = (hosts[0].unfollowed(), hosts[1].followed());
    Two { hosts, near, far }
}

impl Two {
    /// A stream: its end at the host whose daemon dies, and the other one.
    fn stream(&self) -> (Stream, Stream) {
        let listener = Listener::bind_with(&self.far, (self.hosts[1].address(), 0)).unwrap();
        let near = Stream::connect_with(&self.near, listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept_timeout(PATIENCE).unwrap();
        for stream in [&near, &far] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (near, far)
    }

    /// The daemon dies, and the program makes calls until it is at the next one.
    fn comes_back_by(&mut self, mut call: impl FnMut()) {
        let host = &mut self.hosts[0];
        host.hand_over();
        call();
        host.start();
        assert!(host.stat().apps.is_empty());
        eventually("the program comes back", || {
            call();
            !host.stat().apps.is_empty()
        });
    }
}

/// Writes until the bytes go by TCP, and then `last`; all but that is read.
fn until_direct(from: &Stream, to: &Stream) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; 1 << 20];
            while !buffer.contains(&9) {
                assert_ne!((&*to).read(&mut buffer).unwrap(), 0);
            }
        });
        eventually("the stream has its own TCP connection", || {
            (&*from).write_all(&vec![7; 1 << 20]).unwrap();
            from.path() == PathKind::TcpDirect
        });
        (&*from).write_all(&[9]).unwrap();
    });
}

#[test]
fn a_writer_comes_back_whose_ring_always_has_room() {
    bounded(|| {
        let mut two = two();
        let (near, far) = two.stream();
        two.comes_back_by(|| (&near).write_all(&[1]).unwrap());
        drop(near);
        let mut all = Vec::new();
        (&far).read_to_end(&mut all).unwrap();
        assert!(all.len() > 1 && all.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn a_reader_comes_back_whose_ring_is_never_empty() {
    bounded(|| {
        let mut two = two();
        let (near, far) = two.stream();
        (&far).write_all(&[1; UNREAD]).unwrap();
        eventually("it is there", || near.unread_bytes().unwrap() == UNREAD as u64);
        two.comes_back_by(|| (&near).read_exact(&mut [0]).unwrap());
        drop(far);
        (&near).read_to_end(&mut Vec::new()).unwrap();
    });
}

#[test]
fn a_writer_comes_back_whose_own_tcp_connection_always_has_room() {
    bounded(|| {
        let mut two = two();
        let (near, far) = two.stream();
        until_direct(&near, &far);
        let (mut sent, mut got, piece) = (0, 0, vec![3; 64 << 10]);
        two.comes_back_by(|| {
            (&near).write_all(&piece).unwrap();
            (&far).read_exact(&mut piece.clone()).unwrap();
            sent += piece.len();
            got += piece.len();
        });
        drop(near);
        got += (&far).read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(sent, got);
    });
}

#[test]
fn a_reader_comes_back_whose_own_tcp_connection_always_has_bytes() {
    bounded(|| {
        let mut two = two();
        let (near, far) = two.stream();
        until_direct(&far, &near);
        (&far).write_all(&[1; UNREAD]).unwrap();
        let mut got = 0;
        two.comes_back_by(|| {
            (&near).read_exact(&mut [0]).unwrap();
            got += 1;
        });
        drop(far);
        got += (&near).read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(got, UNREAD);
    });
}

#[test]
fn a_sender_and_a_receiver_of_messages_come_back() {
    bounded(|| {
        let mut two = two();
        let (near, far) = (two.near.clone(), two.far.clone());
        let listener = MessageListener::bind_with(&far, (two.hosts[1].address(), 0), ListenOptions::new()).unwrap();
        let near = MessageStream::connect_with(&near, listener.local_addr().unwrap(), ConnectOptions::new()).unwrap();
        let far = listener.accept_timeout(PATIENCE).unwrap().0;
        two.comes_back_by(|| near.send(b"a").unwrap());
        assert_eq!(far.receive_vec().unwrap().unwrap(), b"a");
        // Its second one is there when it has answered the first.
        (0..2000).for_each(|_| far.send(b"b").unwrap());
        assert_eq!(near.receive_vec().unwrap().unwrap(), b"b");
        let mut taken = 0;
        two.comes_back_by(|| {
            taken += 1;
            assert_eq!(near.receive_vec().unwrap().unwrap(), b"b");
        });
        assert!(taken > 1);
    });
}

#[test]
fn a_sender_of_datagrams_comes_back() {
    bounded(|| {
        let mut two = two();
        let far = DatagramSocket::bind_with(&two.far, (two.hosts[1].address(), 0)).unwrap();
        let near = DatagramSocket::bind_with(&two.near, ("0.0.0.0", 0)).unwrap();
        let to = far.local_addr().unwrap();
        near.send_to(b"a", to).unwrap();
        two.comes_back_by(|| assert_eq!(near.send_to(b"a", to).unwrap(), 1));
    });
}

#[test]
fn a_program_comes_back_by_calls_on_a_connection_of_its_host() {
    bounded(|| {
        let mut two = two();
        let listener = Listener::bind_with(&two.near, (two.hosts[0].address(), 0)).unwrap();
        let client = Stream::connect_with(&two.near, listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
        two.comes_back_by(|| {
            (&client).write_all(&[1]).unwrap();
            (&server).read_exact(&mut [0]).unwrap();
        });
    });
}
