//! Messages through real daemons: boundaries on both paths, and kinds that must agree.

use raas::{
    ConnectError, ConnectOptions, ListenOptions, Listener, MessageListener, MessageStream, PathKind, Reason, Stream,
};

use crate::hosts::{Host, PATIENCE, bounded, pattern};

#[test]
fn messages_keep_their_boundaries_and_kinds_must_agree() {
    bounded(|| {
        let (here, there) = (Host::started(), Host::started());
        for (client, path) in [(&here, PathKind::Lane), (&there, PathKind::Shm)] {
            let (near, far) = (client.session(), there.session());
            let listener = MessageListener::bind_with(&far, (there.address(), 0), ListenOptions::new()).unwrap();
            let streams = Listener::bind_with(&far, (there.address(), 0)).unwrap();
            let (to, other) = (listener.local_addr().unwrap(), streams.local_addr().unwrap());
            let refused = Stream::connect_with(&near, to).unwrap_err();
            assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
            let refused = MessageStream::connect_with(&near, other, ConnectOptions::new()).unwrap_err();
            assert!(matches!(refused, ConnectError::Refused { reason: Reason::WrongKind, .. }), "{refused}");
            std::thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let (server, _) = listener.accept_timeout(PATIENCE).unwrap();
                    server.set_read_timeout(Some(PATIENCE)).unwrap();
                    while let Some(message) = server.receive_vec().unwrap() {
                        server.send(&message).unwrap();
                    }
                });
                let client = MessageStream::connect_with(&near, to, ConnectOptions::new()).unwrap();
                assert_eq!(client.path(), path);
                client.set_read_timeout(Some(PATIENCE)).unwrap();
                for round in 0..200u8 {
                    let message = pattern(usize::from(round) * 97, round);
                    client.send(&message).unwrap();
                    assert!(client.receive_vec().unwrap().unwrap() == message, "message {round}");
                }
                client.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(client.receive_vec().unwrap(), None);
                server.join().unwrap();
            });
        }
    });
}
