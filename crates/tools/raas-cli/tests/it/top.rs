//! `raas top` on a real pseudo terminal: it shows the host, takes keys, and leaves the terminal as it was, whatever ends
//! it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::rig::{Cluster, raas, run, wait_until};
use raas::{Listener, Stream};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Of a terminal: to the other screen, and back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A command on a terminal of 80 columns.
struct OnTerminal {
    child: Child,
    terminal: std::fs::File,
    slave: std::fs::File,
    shown: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
}

fn follow(mut from: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let into = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&into);
    std::thread::spawn(move || {
        let mut part = [0; 4096];
        // A terminal whose last user left cannot be read.
        while let Ok(n @ 1..) = from.read(&mut part) {
            all.lock().unwrap().extend_from_slice(&part[..n]);
        }
    });
    into
}

impl OnTerminal {
    fn start(mut command: Command) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = std::fs::OpenOptions::new().read(true).write(true).open(name).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(Stdio::piped()).env("TERM", "xterm-256color");
        let mut child = command.spawn().unwrap();
        let terminal = std::fs::File::from(master);
        let shown = follow(terminal.try_clone().unwrap());
        let stderr = follow(child.stderr.take().unwrap());
        Self { child, terminal, slave, shown, stderr }
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// What a person sees: a program writes only what changed.
    fn screen(&self) -> String {
        let mut terminal = vt100::Parser::new(24, 80, 0);
        terminal.process(&self.shown.lock().unwrap());
        terminal.screen().contents()
    }

    /// Waits until a person sees this.
    fn wait_for(&mut self, text: &str) {
        wait_until(text, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "ended with {ended:?}: {}", String::from_utf8_lossy(&self.stderr.lock().unwrap()));
            self.screen().contains(text)
        });
    }

    fn press(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).unwrap();
    }

    /// Whether the terminal takes lines and shows what is typed, as a shell wants it.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits for its end: the code, and what it said on stderr.
    fn end(mut self) -> (i32, String) {
        wait_until("its end", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code().expect("no signal killed it");
        wait_until("the first screen again", || self.shown().contains(LEAVE));
        assert!(self.is_cooked(), "the terminal is as it was");
        let said = String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned();
        (code, said)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_shows_the_host_takes_keys_and_ends_with_q() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.daemon(), cluster.daemon());
    let server = Listener::bind_with(&b.session("server"), (b.ip, 7000)).unwrap();
    let client = a.session("a client");
    let mut stream = Stream::connect_with(&client, (b.ip, 7000)).unwrap();
    stream.write_all(b"something").unwrap();
    let _accepted = server.accept().unwrap();
    let mut top = OnTerminal::start(a.command(&["top", "--interval", "0.1"]));
    top.wait_for("raas top: softnic");
    top.wait_for("a client");
    assert!(top.shown().contains(ENTER), "the shell's screen is kept");
    assert!(!top.is_cooked());
    // Another table, and only what fits, in each table.
    top.press(&format!("3/{}", b.ip));
    top.wait_for(&format!("{}/0", b.ip));
    top.press("\r2");
    top.wait_for(&format!("{}:7000", b.ip));
    top.press("q");
    assert_eq!(top.end(), (0, String::new()));
}

#[test]
fn signals_and_a_daemon_that_goes_end_it_and_leave_the_terminal_as_it_was() {
    let cluster = Cluster::new();
    let mut daemon = cluster.daemon();
    for signal in [Signal::INT, Signal::TERM] {
        let mut top = OnTerminal::start(daemon.command(&["top"]));
        top.wait_for("raas top: softnic");
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        assert_eq!(top.end(), (0, String::new()), "{signal:?}");
    }
    let mut top = OnTerminal::start(daemon.command(&["top", "--interval", "0.1"]));
    top.wait_for("raas top: softnic");
    daemon.process.kill();
    let (code, said) = top.end();
    assert_eq!(code, 3, "{said}");
    assert!(said.starts_with("raas: ") && said.contains("daemon"), "{said}");
}

#[test]
fn without_terminal_or_daemon_it_says_so() {
    let ended = run(raas().args(["top"]));
    assert_eq!(ended.code(), 2, "{ended:?}");
    assert!(ended.stderr.contains("raas stat --watch"), "{ended:?}");
    let mut command = raas();
    command.args(["top", "--socket", "/nonexistent/raasd.sock"]);
    let mut top = OnTerminal::start(command);
    wait_until("its end", || top.child.try_wait().unwrap().is_some());
    assert_eq!(top.child.wait().unwrap().code(), Some(3));
    assert!(!top.shown().contains(ENTER), "the terminal was not touched");
}
