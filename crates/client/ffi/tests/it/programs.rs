//! The C and C++ examples, built against the installed library as a user would, between two daemons on two addresses.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use raas_embedded::Embedded;

const KEY: [u8; 32] = [7; 32];

/// A host of its own: addresses of the loopback network that no other test process has.
fn host(last: u8) -> (IpAddr, Embedded) {
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = IpAddr::from([127, 160 | (b & 31), c, last]);
    (address, raas_embedded::builder(address).key(&KEY).start().unwrap())
}

/// The library, installed by its own script.
struct Installed(tempfile::TempDir);

impl Installed {
    /// None: a tool is missing, which was said.
    fn new(test: &str, tools: &[&str]) -> Option<Self> {
        for tool in tools.iter().chain(&["sh", "pkg-config"]) {
            let there = Command::new(tool).arg(if *tool == "sh" { "-c" } else { "--version" }).arg(":").output();
            if there.is_err() {
                println!("SKIP {test}: {tool} is not installed");
                return None;
            }
        }
        let place = tempfile::tempdir().unwrap();
        let libraries = std::env::current_exe().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        run(Command::new("sh").arg(script).arg(libraries.parent().unwrap()).arg(place.path()));
        Some(Self(place))
    }

    fn pkg_config(&self, args: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(args).arg("raas").env("PKG_CONFIG_PATH", self.0.path().join("lib/pkgconfig"));
        run(&mut command).split_whitespace().map(str::to_owned).collect()
    }

    /// Builds a program against it, with every warning an error.
    fn build(&self, source: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let program = self.0.path().join(source.file_stem().unwrap());
        let (compiler, standard) = match source.extension().unwrap().to_str().unwrap() {
            "cpp" => ("c++", "-std=c++17"),
            _ => ("cc", "-std=gnu11"),
        };
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program).arg(&source);
        run(command.args(self.pkg_config(&["--cflags", "--libs"])));
        program
    }

    fn command(&self, program: &Path, daemon: &Embedded) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.0.path().join("lib")).env("RAAS_SOCKET", daemon.socket());
        command
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A server, and the port that its first line names.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> (Self, String) {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let server = Self(child);
        let port = line.trim().rsplit_once(':').unwrap_or_else(|| panic!("the server said {line:?}")).1.to_owned();
        (server, port)
    }

    fn ended_well(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn echo_in_c_between_two_daemons_and_on_one_host() {
    let Some(library) = Installed::new("C examples", &["cc"]) else { return };
    let (server, client) = (library.build("examples/c/echo_server.c"), library.build("examples/c/echo_client.c"));
    let ((_, here), (there_ip, there)) = (host(1), host(2));
    let address = there_ip.to_string();
    let (serving, port) = Server::start(library.command(&server, &there).args([&address, "0", "3"]));
    // Between hosts; more than the rings hold, so that both ends must find their way back from EAGAIN.
    for bytes in ["0", "20000001"] {
        let said = run(library.command(&client, &here).args([&address, &port, bytes]));
        assert_eq!(said, format!("{bytes} bytes came back\n"));
    }
    let said = run(library.command(&client, &there).args([&address, &port, "20000001"]));
    assert_eq!(said, "20000001 bytes came back\n");
    serving.ended_well();
    let refused = library.command(&client, &here).args([&address, &port, "1"]).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && words.contains("(no-listener)"), "{words}");
}

#[test]
fn datagrams_in_c_between_two_daemons() {
    let Some(library) = Installed::new("C datagrams", &["cc"]) else { return };
    let program = library.build("examples/c/datagrams.c");
    let ((_, here), (there_ip, there)) = (host(3), host(4));
    let address = there_ip.to_string();
    // More than are asked for: one that is sent again counts twice.
    let (_serving, port) = Server::start(library.command(&program, &there).args(["serve", &address, "0", "1000000"]));
    let said = run(library.command(&program, &here).args(["ask", &address, &port, "500"]));
    assert_eq!(said, "500 datagrams came back\n");
}

#[test]
fn messages_on_uc_in_c_between_two_daemons_and_on_one_host() {
    let Some(library) = Installed::new("C messages on UC", &["cc"]) else { return };
    let program = library.build("examples/c/unreliable.c");
    let ((_, here), (there_ip, there)) = (host(11), host(12));
    let address = there_ip.to_string();
    for (asking, verb) in [(&here, "SEND"), (&here, "WRITE"), (&there, "SEND"), (&there, "WRITE")] {
        let (serving, port) = Server::start(library.command(&program, &there).args(["serve", &address, "0", verb]));
        let said = run(library.command(&program, asking).args(["ask", &address, &port, "200", verb]));
        assert_eq!(said, "200 messages came back\n", "{verb}");
        serving.ended_well();
    }
}

#[test]
fn echo_in_cpp_between_two_daemons() {
    let Some(library) = Installed::new("C++ example", &["cc", "c++"]) else { return };
    let program = library.build("examples/c/echo.cpp");
    let ((_, here), (there_ip, there)) = (host(5), host(6));
    let address = there_ip.to_string();
    let (serving, port) = Server::start(library.command(&program, &there).args(["serve", &address, "0"]));
    let said = run(library.command(&program, &here).args(["ask", &address, &port, "1000003"]));
    assert_eq!(said, "1000003 bytes came back\n");
    serving.ended_well();
}

#[test]
fn refusals_fork_and_poll_in_c() {
    let Some(library) = Installed::new("C refusals", &["cc"]) else { return };
    let program = library.build("tests/c/refusals.c");
    let (address, daemon) = host(7);
    let said = run(library.command(&program, &daemon).arg(address.to_string()));
    assert_eq!(said, "all refused as they should be\n");
}

#[test]
fn a_static_library_needs_no_shared_one() {
    let Some(library) = Installed::new("static C example", &["cc"]) else { return };
    let lib = library.0.path().join("lib");
    for shared in ["libraas.so", "libraas.so.0"] {
        std::fs::remove_file(lib.join(shared)).unwrap();
    }
    let program = library.0.path().join("static_client");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/c/echo_client.c");
    let mut command = Command::new("cc");
    command.arg("-o").arg(&program).arg(source).args(library.pkg_config(&["--static", "--cflags", "--libs"]));
    run(&mut command);
    let (address, daemon) = host(8);
    let refused = library.command(&program, &daemon).args([&address.to_string(), "9", "1"]).output().unwrap();
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("(no-listener)"), "{words}");
}
