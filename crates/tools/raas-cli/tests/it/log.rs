//! A daemon whose log cannot be written: the reader of the pipe is gone, the disk is full, the reader stands still. It
//! serves on, ends on SIGTERM with code 0, and says how many lines were lost once it can.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::rig::{WATCHDOG, address, raas};
use raas::{Listener, Session, Stream};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

/// A daemon with everything logged to `stderr`; killed if the test fails.
struct Logging {
    child: Child,
    ip: IpAddr,
    dir: tempfile::TempDir,
}

impl Logging {
    fn start(stderr: impl Into<Stdio>) -> Self {
        let (dir, ip) = (tempfile::tempdir().unwrap(), address());
        let mut command: Command = raas();
        command.args(["--log", "debug", "daemon", "--device", "softnic", "--listen", &ip.to_string()]);
        command.arg("--socket").arg(dir.path().join("raasd.sock"));
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let (ready, said) = mpsc::channel();
        let stdout = child.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = ready.send(line);
        });
        let daemon = Self { child, ip, dir };
        let line = said.recv_timeout(WATCHDOG).expect("the daemon says that it is ready, or ends");
        assert!(line.starts_with("ready socket="), "{line:?}");
        daemon
    }

    fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("raasd.sock")
    }

    /// Programs that are refused: a line of log for each.
    fn log_lines(&self, lines: u32) {
        let address = SocketAddrUnix::new(self.socket()).unwrap();
        for _ in 0..lines {
            let stranger = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            connect(&stranger, &address).unwrap();
            send(&stranger, b"this is no Hello", SendFlags::NOSIGNAL).unwrap();
            let mut answer = [0; 512];
            let (bytes, _) = recv(&stranger, &mut answer, RecvFlags::empty()).unwrap();
            assert!(bytes > 0, "a refusal");
        }
    }

    /// Sessions, each with a connection that carries bytes, while lines are logged.
    fn serves(&self) {
        for i in 0..5 {
            self.log_lines(10);
            let session = Session::builder().socket(self.socket()).name("log").connect().unwrap();
            let listener = Listener::bind_with(&session, (self.ip, 7000 + i)).unwrap();
            let mut sender = Stream::connect_with(&session, (self.ip, 7000 + i)).unwrap();
            let (mut receiver, _) = listener.accept_timeout(WATCHDOG).unwrap();
            sender.write_all(b"carried").unwrap();
            let mut got = [0; 7];
            receiver.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"carried");
        }
    }

    fn terminate(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < WATCHDOG, "SIGTERM is ignored");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pipe() -> (File, OwnedFd) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (File::from(read), write)
}

/// Full before the daemon's first word.
fn fill(pipe: &OwnedFd) {
    let bytes = vec![b'-'; fcntl_getpipe_size(pipe).unwrap()];
    File::from(pipe.try_clone().unwrap()).write_all(&bytes).unwrap();
}

#[test]
fn the_reader_of_the_log_is_gone() {
    let (reader, writer) = pipe();
    let daemon = Logging::start(writer);
    drop(reader);
    daemon.serves();
    daemon.terminate();
}

#[test]
fn the_disk_of_the_log_is_full() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let daemon = Logging::start(full);
    daemon.serves();
    daemon.terminate();
}

#[test]
fn nobody_reads_the_log_and_then_somebody_does() {
    let (mut reader, writer) = pipe();
    fcntl_setpipe_size(&writer, 4096).unwrap();
    fill(&writer);
    let daemon = Logging::start(writer);
    // More than the queue holds: a later reader learns that lines are missing.
    daemon.log_lines(6000);
    daemon.serves();
    let (line, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut piece) {
            text.extend_from_slice(&piece[..n]);
            if String::from_utf8_lossy(&text).contains("lines of the log were lost") {
                let _ = line.send(());
            }
        }
    });
    lines.recv_timeout(WATCHDOG).expect("the daemon says how many lines were lost");
    daemon.serves();
    daemon.terminate();
}

#[test]
fn sigterm_ends_a_daemon_whose_log_nobody_reads() {
    let (_reader, writer) = pipe();
    fill(&writer);
    let daemon = Logging::start(writer);
    daemon.serves();
    daemon.terminate();
}
