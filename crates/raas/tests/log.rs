//! What the library logs of kernel TCP. A program of its own: a subscriber of one thread is not heard for sure while other
//! threads come to the same lines for the first time.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use raas::{ConnectOptions, Fallback, ListenOptions, Session, SessionError};

fn nobody() -> Result<Session, SessionError> {
    let dir = tempfile::tempdir().unwrap();
    Session::connect(dir.path().join("nobody.sock"))
}

/// What the log of this thread says.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_says_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    tracing::subscriber::with_default(subscriber, || {
        let listener = ListenOptions::new().fallback(Fallback::Tcp).listen(nobody(), "127.0.0.1:0").unwrap();
        let asked = ConnectOptions::new().fallback(Fallback::Tcp);
        let _client = asked.dial(nobody(), listener.local_addr()).unwrap();
        listener.accept().unwrap();
    });
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("WARN") && text.contains("tcp-fallback") && text.contains("no RaaS daemon"), "{text}");
    assert!(text.contains("accepted over kernel TCP"), "{text}");
}
