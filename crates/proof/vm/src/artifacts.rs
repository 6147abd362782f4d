//! The guest's parts in `target/vm`: qemu, a static busybox, the layer of packages that only the guest has, and
//! kernels. Owns what is fetched and when it is fetched again. Nothing of it is installed on the machine.

use super::apt::{self, Apt, LIBRARIES};
use super::programs::on_path;
use super::{bzimage, modules, siw};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};
use std::cmp::Ordering;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Raised when what is kept in `target/vm` is made in another way than before.
const RECIPE: &str = "2";
const QEMU: &str = "qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// What every guest has: RDMA's own tools, addresses and captures.
const GUEST_PACKAGES: &[&str] = &[
    "ibverbs-providers",
    "ibverbs-utils",
    "rdmacm-utils",
    "perftest",
    "iproute2",
    "tcpdump",
    "ethtool",
    "iputils-ping",
];

/// Packages that are taken without what they depend on: rdma-core drags in udev and systemd, and the bindings need only
/// the libraries of [`GUEST_PACKAGES`].
const ALONE: &[&str] = &["python3-pyverbs"];

/// Everything that a boot needs.
#[derive(Debug, Clone)]
pub(super) struct Artifacts {
    pub(super) qemu: Qemu,
    pub(super) busybox: PathBuf,
    /// Root of the packages laid over the host's root in the guest.
    pub(super) layer: PathBuf,
    pub(super) kernel: Kernel,
    /// The module of the kernel's software iWARP device, where the guest has that one.
    pub(super) siw: Option<PathBuf>,
}

/// The kernel's software RDMA device that a guest has on `eth0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Device {
    /// Soft-RoCE, which stock kernels have.
    Rxe,
    /// Software iWARP, which is built from the kernel's source package.
    Siw,
}

impl Device {
    /// The name of the device in the guest; without the number it is the type that `rdma link add` takes.
    pub(super) fn name(self) -> &'static str {
        match self {
            Device::Rxe => "rxe0",
            Device::Siw => "siw0",
        }
    }
}

/// How qemu is started.
#[derive(Debug, Clone)]
pub(super) struct Qemu {
    pub(super) program: PathBuf,
    /// Directories of firmware; empty for an installed qemu, which knows them.
    pub(super) data: Vec<PathBuf>,
    /// Directory of its shared libraries, if it is an unpacked one.
    pub(super) libraries: Option<PathBuf>,
}

/// An unpacked kernel.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) vmlinux: PathBuf,
    pub(super) modules: PathBuf,
    /// The package it came from.
    pub(super) package: String,
}

/// Fetches what is missing in `dir`. One process at a time; others wait for it.
pub(super) fn prepare(dir: &Path, kernel: &str, packages: &[&str], device: Device) -> Result<Artifacts> {
    for program in apt::NEEDED {
        ensure!(on_path(program), "{program} is not on PATH: guests are made of Debian packages");
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let lock = File::create(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive).context("cannot lock target/vm")?;
    let mut store = Store { dir, apt: None };
    let recipe = dir.join("recipe");
    if std::fs::read_to_string(&recipe).is_ok_and(|text| text != RECIPE) {
        for part in ["qemu", "busybox", "layer", "kernel-6.1", "kernel-6.12", "siw-6.1", "siw-6.12"] {
            remove(&dir.join(part))?;
        }
    }
    std::fs::write(&recipe, RECIPE)?;
    let (qemu, busybox, layer) = (store.qemu()?, store.busybox()?, store.layer(packages)?);
    let unpacked = store.kernel(kernel)?;
    let siw = match device {
        Device::Rxe => None,
        Device::Siw => Some(store.siw(kernel, &unpacked.package)?),
    };
    Ok(Artifacts { qemu, busybox, layer, kernel: unpacked, siw })
}

struct Store<'d> {
    dir: &'d Path,
    apt: Option<Apt>,
}

impl Store<'_> {
    fn apt(&mut self) -> Result<&Apt> {
        if self.apt.is_none() {
            self.apt = Some(Apt::open(self.dir.join("apt"))?);
        }
        self.apt.as_ref().context("apt was opened just now")
    }

    fn qemu(&mut self) -> Result<Qemu> {
        if on_path(QEMU) {
            return Ok(Qemu { program: PathBuf::from(QEMU), data: vec![], libraries: None });
        }
        let root = self.dir.join("qemu");
        self.unpacked("qemu", &[QEMU_PACKAGE])?;
        let data = ["usr/share/qemu", "usr/share/seabios"].iter().map(|sub| root.join(sub)).collect();
        Ok(Qemu { program: root.join("usr/bin").join(QEMU), data, libraries: Some(root.join(LIBRARIES)) })
    }

    fn busybox(&mut self) -> Result<PathBuf> {
        let root = self.dir.join("busybox");
        if !root.join("usr/bin/busybox").exists() {
            // Downloaded by itself: it has no dependencies, and it must not displace an installed busybox.
            self.apt()?.unpack(&["busybox-static".to_owned()], &root)?;
        }
        let found = ["usr/bin/busybox", "bin/busybox"].iter().map(|sub| root.join(sub)).find(|path| path.exists());
        found.context("the package busybox-static has no busybox")
    }

    fn layer(&mut self, more: &[&str]) -> Result<PathBuf> {
        let (alone, more): (Vec<&str>, Vec<&str>) = more.iter().partition(|package| ALONE.contains(package));
        let wanted: Vec<&str> = GUEST_PACKAGES.iter().copied().chain(more).collect();
        self.unpacked("layer", &wanted)?;
        let root = self.dir.join("layer");
        for package in alone {
            // The package's list of documents is there once it is unpacked.
            if !root.join("usr/share/doc").join(package).exists() {
                self.apt()?.unpack(&[package.to_owned()], &root)?;
            }
        }
        apt::drop_merged_links(&root)?;
        Ok(root)
    }

    /// Makes `dir/name` hold all that `packages` need beyond what is installed on the machine. It only grows: packages
    /// wanted before stay. Resolved again when the machine's installed packages change.
    fn unpacked(&mut self, name: &str, packages: &[&str]) -> Result<()> {
        let root = self.dir.join(name);
        let stamp = self.dir.join(format!("{name}.stamp"));
        let have = self.dir.join(format!("{name}.packages"));
        let installed = fingerprint("/var/lib/dpkg/status")?;
        let old = if root.exists() { std::fs::read_to_string(&stamp).unwrap_or_default() } else { String::new() };
        let mut lines = old.lines();
        let same = lines.next() == Some(installed.as_str());
        let mut all: Vec<&str> = lines.collect();
        if same && packages.iter().all(|package| all.contains(package)) {
            return Ok(());
        }
        all.extend(packages);
        all.sort_unstable();
        all.dedup();
        let unpacked = if root.exists() { std::fs::read_to_string(&have).unwrap_or_default() } else { String::new() };
        let apt = self.apt()?;
        let missing: Vec<String> =
            apt.missing(&all)?.into_iter().filter(|entry| !unpacked.lines().any(|line| line == entry)).collect();
        std::fs::create_dir_all(&root)?;
        apt.unpack(&missing, &root)?;
        let known: Vec<&str> = unpacked.lines().chain(missing.iter().map(String::as_str)).collect();
        std::fs::write(&have, known.join("\n") + "\n")?;
        std::fs::write(&stamp, format!("{installed}\n{}\n", all.join("\n")))?;
        Ok(())
    }

    fn kernel(&mut self, series: &str) -> Result<Kernel> {
        let dir = self.dir.join(format!("kernel-{series}"));
        let kernel = |package: String| Kernel { vmlinux: dir.join("vmlinux"), modules: dir.join("modules"), package };
        if let Ok(package) = std::fs::read_to_string(dir.join("package")) {
            return Ok(kernel(package));
        }
        let apt = self.apt()?;
        let pattern = format!("^linux-image-{}\\.[0-9][^ ]*-amd64$", series.replace('.', "\\."));
        let found = apt.search(&pattern)?;
        let Some(package) = newest_stock(&found) else {
            bail!("no apt source of this machine, nor the neighbouring suites, have a kernel {series}");
        };
        let making = self.dir.join(format!("kernel-{series}.new"));
        remove(&making)?;
        let tree = making.join("tree");
        self.apt()?.unpack(&[package.to_owned()], &tree)?;
        let boot = tree.join("boot");
        bzimage::extract(&only_entry(&boot, "vmlinuz-")?, &making.join("vmlinux"))?;
        modules::collect(&only_entry(&tree.join("usr/lib/modules"), "")?, &making.join("modules"))?;
        remove(&tree)?;
        std::fs::write(making.join("package"), package)?;
        remove(&dir)?;
        std::fs::rename(&making, &dir)?;
        Ok(kernel(package.to_owned()))
    }
}

impl Store<'_> {
    /// The module for the kernel of `package`, built again when that one changes.
    fn siw(&mut self, series: &str, package: &str) -> Result<PathBuf> {
        let dir = self.dir.join(format!("siw-{series}"));
        let (module, recipe) = (dir.join("siw.ko"), siw::recipe(package));
        if module.exists() && std::fs::read_to_string(dir.join("recipe")).is_ok_and(|text| text == recipe) {
            return Ok(module);
        }
        // The build tools must not see a relative path.
        let making = self.dir.canonicalize()?.join(format!("siw-{series}.new"));
        remove(&making)?;
        eprintln!("vm: building siw for {package}");
        siw::build(self.apt()?, package, series, &making).context("cannot build the kernel's siw")?;
        std::fs::write(making.join("recipe"), recipe)?;
        remove(&dir)?;
        std::fs::rename(&making, &dir)?;
        Ok(module)
    }
}

/// The newest of these packages that is the distribution's ordinary kernel.
fn newest_stock(packages: &[String]) -> Option<&str> {
    let special = ["-cloud-", "-rt-", "-dbg", "-unsigned"];
    let stock = packages.iter().filter(|name| !special.iter().any(|part| name.contains(part)));
    stock.map(String::as_str).max_by(|a, b| by_numbers(a, b))
}

/// Compares names with numbers in them: `6.1.0-56` comes after `6.1.0-9`.
fn by_numbers(a: &str, b: &str) -> Ordering {
    let key = |name: &str| {
        let mut parts: Vec<(u64, String)> = vec![];
        for piece in name.split_inclusive(|letter: char| !letter.is_ascii_digit()) {
            let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
            parts.push((digits.parse().unwrap_or(0), piece[digits.len()..].to_owned()));
        }
        parts
    };
    key(a).cmp(&key(b))
}

fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut found: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)));
    found.sort();
    found.pop().with_context(|| format!("nothing named {prefix}* in {}", dir.display()))
}

fn fingerprint(path: &str) -> Result<String> {
    let meta = std::fs::metadata(path).with_context(|| format!("cannot read {path}"))?;
    Ok(format!("{} {}.{}", meta.len(), meta.mtime(), meta.mtime_nsec()))
}

fn remove(path: &Path) -> Result<()> {
    if path.exists() {
        std::fs::remove_dir_all(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stock_kernel_is_chosen() {
        let names: Vec<String> = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-60-cloud-amd64",
            "linux-image-6.1.0-61-rt-amd64",
            "linux-image-6.1.0-62-amd64-unsigned",
        ]
        .map(str::to_owned)
        .to_vec();
        assert_eq!(newest_stock(&names), Some("linux-image-6.1.0-56-amd64"));
        let backports = ["linux-image-6.12.95+deb12-amd64", "linux-image-6.12.117+deb12-amd64"].map(str::to_owned);
        assert_eq!(newest_stock(&backports), Some("linux-image-6.12.117+deb12-amd64"));
        assert_eq!(newest_stock(&[]), None);
    }
}
