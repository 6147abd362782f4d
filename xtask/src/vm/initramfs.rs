//! The guest's initramfs: busybox, the modules and the two guest scripts in a cpio archive ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst). Written anew for each boot, so it is never stale.

use anyhow::{Context, Result};
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
/// Mount points that the first script uses.
const DIRECTORIES: &[&str] = &["bin", "modules", "proc", "sys", "dev", "host", "layer", "rw", "root"];

/// Builds the archive from the static `busybox`, the collected `modules` directory and the scripts in `scripts`.
pub(super) fn build(busybox: &Path, modules: &Path, scripts: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.add(name, DIRECTORY, &[]);
    }
    archive.add_file("bin/busybox", busybox)?;
    archive.add_file("init", &scripts.join("guest-init"))?;
    archive.add_file("stage2", &scripts.join("guest-stage2"))?;
    for entry in std::fs::read_dir(modules).with_context(|| format!("cannot read {}", modules.display()))? {
        let entry = entry?;
        archive.add_file(&format!("modules/{}", entry.file_name().to_string_lossy()), &entry.path())?;
    }
    Ok(archive.finish())
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add_file(&mut self, name: &str, path: &Path) -> Result<()> {
        let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add(name, PROGRAM, &data);
        Ok(())
    }

    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        // inode, mode, uid, gid, links, mtime, size, device and rdevice (major, minor), name with its NUL, check.
        let fields = [self.entries, mode, 0, 0, links, 0, length(data.len()), 0, 0, 0, 0, length(name.len() + 1), 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.add("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("names and kernel modules are far below 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_sized() {
        let mut archive = Archive::default();
        archive.add("a", PROGRAM, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[54..62], b"00000005", "size of the data");
        // 110 bytes of header and the name's 2 are 112, a multiple of 4.
        assert_eq!(&bytes[112..117], b"hello");
        assert_eq!(&bytes[120..126], b"070701", "the next entry is aligned");
        assert_eq!(bytes.len() % 4, 0);
    }
}
