//! One boot: the run directory, one qemu per guest, their output and exit codes. Owns the contract with
//! tests/vm/guest-stage2. A guest that hangs, panics or ends without an exit code is an error with its kernel log,
//! never a silent success.

use super::artifacts::{Artifacts, Device, Qemu};
use super::initramfs;
use anyhow::{Context, Result};
use harness::child::{self, Ended, Running, Stream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The command ran past its time.
pub(super) const TIMED_OUT: i32 = 124;
/// The guest gave no exit code: it did not start, or its kernel died.
pub(super) const NO_GUEST: i32 = 125;
/// Time the other guest has after one has failed: it may be waiting for the failed one.
const AFTER_FAILURE: Duration = Duration::from_secs(60);
/// Lines of a kernel log shown when a guest fails to start.
const LOG_LINES: usize = 60;
/// Environment that tests read, handed from the host to the guest.
const PASSED_ENV: &[&str] = &["RAAS_", "RUST_", "PROPTEST_", "NEXTEST"];

/// What to boot and run.
#[derive(Debug, Clone)]
pub(super) struct Boot {
    /// 1 or 2.
    pub(super) guests: u32,
    pub(super) device: Device,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    /// MTU of eth0; 4096-byte RDMA packets need at least 4200.
    pub(super) mtu: u32,
    pub(super) timeout: Duration,
    /// Host directory that all guests see, writable, at `$VM_RESULTS`.
    pub(super) results: PathBuf,
    /// The command's words, run in the repository's root in every guest.
    pub(super) command: Vec<String>,
}

/// What came of one guest.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: i32,
    pub(super) took: Duration,
    pub(super) lines: Vec<(Stream, String)>,
}

/// Boots and waits for the end; lines go to `on_line` with the guest's number as they come.
pub(super) fn run(
    artifacts: &Artifacts,
    boot: &Boot,
    root: &Path,
    runs: &Path,
    mut on_line: impl FnMut(u32, Stream, &str),
) -> Result<Vec<Outcome>> {
    let dir = run_directory(runs)?;
    std::fs::create_dir_all(&boot.results)?;
    let results = boot.results.canonicalize()?;
    let (kernel, siw) = (&artifacts.kernel, artifacts.siw.as_deref());
    let image = initramfs::build(&artifacts.busybox, &kernel.modules, siw, &root.join("tests/vm"))?;
    std::fs::write(dir.join("initramfs"), image)?;
    let mut guests = vec![];
    for index in 1..=boot.guests {
        let own = dir.join(index.to_string());
        std::fs::create_dir_all(&own)?;
        std::fs::write(own.join("env"), environment(boot, index, root))?;
        std::fs::write(own.join("cmd"), boot.command.iter().map(|word| quoted(word) + " ").collect::<String>() + "\n")?;
        // Started from this thread: a child tied to its parent's death is tied to the thread that made it.
        guests.push(child::spawn(&mut qemu(artifacts, boot, &dir, &results, index))?);
    }
    let failed_at_ms = AtomicU64::new(u64::MAX);
    let ends = wait_all(&mut guests, boot, &dir, &failed_at_ms, &mut on_line);
    let mut outcomes = vec![];
    for (index, ended) in (1..).zip(ends) {
        outcomes.push(outcome(&dir, index, ended?));
    }
    // Kept for a look when something went wrong; the next runs sweep it away.
    if outcomes.iter().all(|outcome| outcome.code == 0) {
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    } else {
        eprintln!("vm: kernel logs are in {}", dir.display());
    }
    Ok(outcomes)
}

fn wait_all(
    guests: &mut [Running],
    boot: &Boot,
    dir: &Path,
    failed_at_ms: &AtomicU64,
    on_line: &mut dyn FnMut(u32, Stream, &str),
) -> Vec<Result<Ended>> {
    let start = Instant::now();
    let elapsed_ms = || u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
    let grace_ms = u64::try_from(AFTER_FAILURE.as_millis()).unwrap_or(u64::MAX);
    let expired = |took: Duration| {
        took >= boot.timeout || elapsed_ms() >= failed_at_ms.load(Ordering::Relaxed).saturating_add(grace_ms)
    };
    let (sender, lines) = channel();
    std::thread::scope(|scope| {
        let mut waits = vec![];
        for (index, guest) in (1..).zip(guests) {
            let (sender, expired) = (sender.clone(), &expired);
            waits.push(scope.spawn(move || {
                let ended = guest.wait(expired, &mut |stream, line| {
                    // The receiver lives until all senders are gone.
                    let _ = sender.send((index, stream, line.to_owned()));
                });
                if exit_code(dir, index) != Some(0) {
                    failed_at_ms.fetch_min(elapsed_ms(), Ordering::Relaxed);
                }
                ended
            }));
        }
        drop(sender);
        for (index, stream, line) in lines {
            on_line(index, stream, &line);
        }
        waits.into_iter().map(|wait| wait.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a waiter failed")))).collect()
    })
}

fn outcome(dir: &Path, index: u32, ended: Ended) -> Outcome {
    let code = match (exit_code(dir, index), ended.status) {
        (Some(code), _) => code,
        (None, None) => {
            show_log(dir, index, &ended.describe());
            TIMED_OUT
        }
        (None, Some(status)) => {
            show_log(dir, index, &format!("gave no exit code (qemu: {status})"));
            NO_GUEST
        }
    };
    Outcome { code, took: ended.took, lines: ended.lines }
}

fn show_log(dir: &Path, index: u32, what: &str) {
    eprintln!("vm: guest {index} {what}; the end of its kernel log:");
    let log = std::fs::read(dir.join(index.to_string()).join("console.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let lines: Vec<&str> = log.lines().collect();
    eprintln!("{}", lines[lines.len().saturating_sub(LOG_LINES)..].join("\n"));
}

fn exit_code(dir: &Path, index: u32) -> Option<i32> {
    std::fs::read_to_string(dir.join(index.to_string()).join("rc")).ok()?.trim().parse().ok()
}

/// A fresh directory for this boot; those of earlier, failed ones go when they are not of a living process.
fn run_directory(runs: &Path) -> Result<PathBuf> {
    static BOOTS: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(runs)?;
    for entry in std::fs::read_dir(runs)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('-').next().unwrap_or_default();
        if owner != std::process::id().to_string() && !Path::new("/proc").join(owner).exists() {
            std::fs::remove_dir_all(entry.path())?;
        }
    }
    let dir = runs.join(format!("{}-{}", std::process::id(), BOOTS.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&dir)?;
    Ok(dir.canonicalize()?)
}

fn environment(boot: &Boot, index: u32, root: &Path) -> String {
    let peer = if boot.guests == 2 { 3 - index } else { index };
    let mut variables: Vec<(String, String)> =
        std::env::vars().filter(|(key, _)| PASSED_ENV.iter().any(|prefix| key.starts_with(prefix))).collect();
    for key in ["PATH", "HOME", "CI", "TMPDIR"] {
        variables.extend(std::env::var(key).map(|value| (key.to_owned(), value)));
    }
    let own = [
        ("VM_NAME", format!("vm{index}")),
        ("VM_INDEX", index.to_string()),
        ("VM_GUESTS", boot.guests.to_string()),
        ("VM_IP", format!("192.168.77.{index}")),
        ("VM_PEER_IP", format!("192.168.77.{peer}")),
        ("VM_IP6", format!("fd00:77::{index}")),
        ("VM_PEER_IP6", format!("fd00:77::{peer}")),
        ("VM_MTU", boot.mtu.to_string()),
        ("VM_RDMA_DEVICE", boot.device.name().to_owned()),
        ("VM_RESULTS", "/run/results".to_owned()),
        ("VM_CWD", root.display().to_string()),
    ];
    variables.extend(own.map(|(key, value)| (key.to_owned(), value)));
    variables.iter().map(|(key, value)| format!("export {key}={}\n", quoted(value))).collect()
}

fn qemu(artifacts: &Artifacts, boot: &Boot, dir: &Path, results: &Path, index: u32) -> Command {
    let Qemu { program, data, libraries } = &artifacts.qemu;
    let mut command = Command::new(program);
    command.current_dir(dir);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries).env("QEMU_MODULE_DIR", libraries.join("qemu"));
    }
    for path in data {
        command.arg("-L").arg(path);
    }
    // The clock is qemu's own and steady; without the word, the kernel distrusts it and perftest prints infinities. On
    // a busy host the kernel's own test of the timer, ten ticks within a loop, fails and ends the boot: the timer
    // works, so none.
    let kernel_line = format!(
        "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off random.trust_cpu=on tsc=reliable no_timer_check \
         guest.index={index}"
    );
    let (cpus, memory) = (boot.cpus.to_string(), boot.memory_mib.to_string());
    let serial = format!("file:{index}/console.log");
    let network = if boot.guests == 1 {
        "user,id=net,restrict=on,ipv6=off".to_owned()
    } else {
        let peer = 3 - index;
        format!("dgram,id=net,local.type=unix,local.path=net.{index},remote.type=unix,remote.path=net.{peer}")
    };
    let card = format!("virtio-net-pci,netdev=net,mac=52:54:00:77:00:0{index},speed=10000,duplex=full,romfile=");
    let share = |path: &Path, tag: &str, more: &str| {
        // A comma in a path is written twice in qemu's options.
        let path = path.display().to_string().replace(',', ",,");
        format!("local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}")
    };
    command.args(["-M", "q35"]);
    // The first that works. Emulated, a guest is ten times as slow.
    if virtualises() {
        command.args(["-accel", "kvm"]);
    }
    command.args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.args(["-smp", &cpus, "-m", &memory, "-initrd", "initramfs", "-append", &kernel_line]);
    command.arg("-kernel").arg(&artifacts.kernel.vmlinux);
    command.args(["-serial", &serial, "-device", "virtio-serial-pci"]);
    command.args(["-chardev", "file,id=out,path=/proc/self/fd/1", "-device", "virtserialport,chardev=out,name=out"]);
    command.args(["-chardev", "file,id=err,path=/proc/self/fd/2", "-device", "virtserialport,chardev=err,name=err"]);
    command.args(["-virtfs", &share(Path::new("/"), "host", ",readonly=on")]);
    command.args(["-virtfs", &share(&artifacts.layer, "layer", ",readonly=on")]);
    command.args(["-virtfs", &share(dir, "run", ""), "-virtfs", &share(results, "results", "")]);
    command.args(["-netdev", &network, "-device", &card]);
    command
}

/// Whether the processor can run guests by itself. `/dev/kvm` alone says nothing: it may be there, and open, inside of a
/// virtual machine that has no part of the processor's virtualisation.
fn virtualises() -> bool {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    has_flag(&text) && std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Whether a processor of `/proc/cpuinfo` has Intel's or AMD's virtualisation.
fn has_flag(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter_map(|line| line.strip_prefix("flags")?.split_once(':'));
    flags.flat_map(|(_, flags)| flags.split_whitespace()).any(|flag| flag == "vmx" || flag == "svm")
}

/// `word` as one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() -> Result<()> {
        for word in ["plain", "two words", "it's", "$HOME `x` \"q\" \\", ""] {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("printf %s {}", quoted(word))]);
            let ended = child::run_quiet(&mut command, Duration::from_secs(60))?;
            assert_eq!(ended.text(Stream::Out), word);
        }
        Ok(())
    }

    #[test]
    fn virtualisation_is_read_from_the_flags() {
        assert!(has_flag("processor\t: 0\nflags\t\t: fpu svm sse\n"));
        assert!(!has_flag("flags\t\t: fpu svm_lock sse\nmodel name\t: vmx\n"));
    }

    #[test]
    fn each_guest_knows_itself_and_its_peer() {
        let boot = Boot {
            guests: 2,
            device: Device::Rxe,
            cpus: 1,
            memory_mib: 512,
            mtu: 1500,
            timeout: Duration::from_secs(1),
            results: PathBuf::new(),
            command: vec![],
        };
        let second = environment(&boot, 2, Path::new("/repo"));
        assert!(second.contains("VM_IP='192.168.77.2'") && second.contains("VM_PEER_IP='192.168.77.1'"), "{second}");
        assert!(second.contains("VM_RDMA_DEVICE='rxe0'"), "{second}");
        let alone = environment(&Boot { guests: 1, device: Device::Siw, ..boot }, 1, Path::new("/repo"));
        assert!(alone.contains("VM_PEER_IP='192.168.77.1'") && alone.contains("VM_RDMA_DEVICE='siw0'"), "{alone}");
    }
}
