//! Kernel modules for the guest: finds each wanted module and what it depends on, in an order in which they can be
//! inserted, and stores them uncompressed. Owns the lists of wanted modules. Dependencies are read from the modules
//! themselves, so no kmod is needed.

use anyhow::{Context, Result, bail};
use harness::child::{self, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DECOMPRESS_LIMIT: Duration = Duration::from_secs(60);
/// Longest chain of dependencies followed.
const DEPTH_MAX: u32 = 32;

/// Modules without which the guest does not start: devices and file systems of its root.
pub(super) const BOOT: &[&str] = &["virtio_pci", "virtio_console", "9p", "9pnet_virtio", "overlay"];
/// Modules for the work in it. A name with `?` may be missing: kernels differ in what is built in or renamed.
/// The generic checksum comes before rxe, which asks for it by name and would otherwise fail to start. Kernel TLS asks for
/// AES-GCM when a connection gets its keys.
pub(super) const WORK: &[&str] = &[
    "virtio_net",
    "crc32_generic?",
    "crc32_pclmul?",
    "crc32c_generic?",
    "crc32c_intel?",
    "libcrc32c?",
    "ib_uverbs",
    "ib_umad?",
    "rdma_ucm",
    "rdma_rxe",
    "veth",
    "dummy",
    "tun",
    "bridge",
    "sch_netem",
    "sch_fq?",
    "tcp_bbr?",
    "tls",
    "aes_generic?",
    "ctr?",
    "ghash_generic?",
    "gcm?",
    "aesni_intel?",
];

/// Copies the modules of `tree` (`.../lib/modules/VERSION`) into `out`, with the insertion orders in `boot.list` and
/// `work.list`.
pub(super) fn collect(tree: &Path, out: &Path) -> Result<()> {
    let mut finder = Finder { files: BTreeMap::new(), builtin: builtin(tree)?, taken: BTreeSet::new() };
    index(tree, &mut finder.files)?;
    std::fs::create_dir_all(out)?;
    for (list, wanted) in [("boot.list", BOOT), ("work.list", WORK)] {
        let mut order = vec![];
        for name in wanted {
            let (name, optional) = name.strip_suffix('?').map_or((*name, false), |name| (name, true));
            if optional && !finder.knows(name) {
                continue;
            }
            finder.take(name, out, &mut order, 0)?;
        }
        std::fs::write(out.join(list), order.join("\n") + "\n")?;
    }
    Ok(())
}

struct Finder {
    files: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
    taken: BTreeSet<String>,
}

impl Finder {
    fn knows(&self, name: &str) -> bool {
        self.files.contains_key(name) || self.builtin.contains(name)
    }

    fn take(&mut self, name: &str, out: &Path, order: &mut Vec<String>, depth: u32) -> Result<()> {
        if self.builtin.contains(name) || !self.taken.insert(name.to_owned()) {
            return Ok(());
        }
        let Some(file) = self.files.get(name) else { bail!("this kernel has no module {name}") };
        if depth > DEPTH_MAX {
            bail!("module {name}: dependencies nest too deep");
        }
        let stored = out.join(format!("{name}.ko"));
        decompress(file, &stored)?;
        let bytes = std::fs::read(&stored)?;
        for needed in depends(&bytes) {
            self.take(&needed, out, order, depth + 1)?;
        }
        order.push(format!("{name}.ko"));
        Ok(())
    }
}

fn index(dir: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            index(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `crc32c-intel.ko.xz` is the module `crc32c_intel`.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let (stem, packing) = name.split_once(".ko")?;
    matches!(packing, "" | ".xz" | ".zst" | ".gz").then(|| stem.replace('-', "_"))
}

fn builtin(tree: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(tree.join("modules.builtin")).context("the kernel lists no built-in modules")?;
    Ok(text.lines().filter_map(|line| module_name(Path::new(line))).collect())
}

fn decompress(file: &Path, stored: &Path) -> Result<()> {
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => {
            std::fs::copy(file, stored).with_context(|| format!("cannot copy {}", file.display()))?;
            return Ok(());
        }
    };
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" -dc <\"$1\" >\"$2\"", program]).arg(file).arg(stored);
    let done = child::run_quiet(&mut command, DECOMPRESS_LIMIT)?;
    if !done.success() {
        bail!("{program} {}: {} {}", file.display(), done.describe(), done.text(Stream::Err));
    }
    Ok(())
}

/// The `depends=` entry of a module's `.modinfo`: NUL-terminated strings.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else { return vec![] };
    let value = &module[at + key.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let text = String::from_utf8_lossy(&value[..end]).into_owned();
    text.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_module() {
        assert_eq!(
            depends(b"\x7fELF..\0license=GPL\0depends=ib-core,udp_tunnel\0retpoline=Y\0"),
            ["ib_core", "udp_tunnel"]
        );
        assert!(depends(b"..\0depends=\0x").is_empty());
        assert!(depends(b"nothing").is_empty());
    }

    #[test]
    fn modules_are_ordered_after_what_they_need() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("vm-modules-{}", std::process::id()));
        let (tree, out) = (dir.join("tree"), dir.join("out"));
        std::fs::create_dir_all(&tree)?;
        std::fs::write(tree.join("modules.builtin"), "kernel/drivers/virtio/virtio_pci.ko\n")?;
        for name in BOOT.iter().chain(WORK).filter(|name| !name.ends_with('?') && **name != "virtio_pci") {
            let needs = if *name == "rdma_rxe" { "ib-core" } else { "" };
            std::fs::write(tree.join(format!("{name}.ko")), format!("x\0depends={needs}\0"))?;
        }
        std::fs::write(tree.join("ib-core.ko"), "x\0depends=\0")?;
        collect(&tree, &out)?;
        let boot = std::fs::read_to_string(out.join("boot.list"))?;
        let work = std::fs::read_to_string(out.join("work.list"))?;
        std::fs::remove_dir_all(&dir)?;
        assert!(!boot.contains("virtio_pci") && boot.contains("9p.ko"), "{boot}");
        assert!(work.find("ib_core.ko") < work.find("rdma_rxe.ko"), "{work}");
        assert!(!work.contains("crc32_generic"), "{work}");
        Ok(())
    }
}
