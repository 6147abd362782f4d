//! The guest's initramfs: busybox, the modules and the two guest scripts in a cpio archive ("newc",
//! Documentation/driver-api/early-userspace/buffer-format.rst). It is written for each boot, so it is never stale.

use anyhow::{Context, Result};
use cpio::newc::{Builder, trailer};
use std::io::Write;
use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
/// Mount points that the first script uses.
const DIRECTORIES: &[&str] = &["bin", "modules", "proc", "sys", "dev", "host", "layer", "rw", "root"];

/// Builds the archive from the static `busybox`, the collected `modules` directory, the module `more` that is inserted
/// after those, and the scripts in `scripts`.
pub(super) fn build(busybox: &Path, modules: &Path, more: Option<&Path>, scripts: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for name in DIRECTORIES {
        archive.add(name, DIRECTORY, &[])?;
    }
    archive.add_file("bin/busybox", busybox)?;
    archive.add_file("init", &scripts.join("guest-init"))?;
    archive.add_file("stage2", &scripts.join("guest-stage2"))?;
    for entry in std::fs::read_dir(modules).with_context(|| format!("cannot read {}", modules.display()))? {
        let entry = entry?;
        archive.add_file(&format!("modules/{}", entry.file_name().to_string_lossy()), &entry.path())?;
    }
    if let Some(more) = more {
        archive.add_file("modules/more.ko", more)?;
    }
    Ok(trailer(archive.bytes)?)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add_file(&mut self, name: &str, path: &Path) -> Result<()> {
        let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        self.add(name, PROGRAM, &data)
    }

    fn add(&mut self, name: &str, mode: u32, data: &[u8]) -> Result<()> {
        self.entries += 1;
        let length = u32::try_from(data.len()).with_context(|| format!("{name} does not fit into a cpio archive"))?;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let builder = Builder::new(name).ino(self.entries).mode(mode).nlink(links);
        let mut entry = builder.write(&mut self.bytes, length);
        entry.write_all(data)?;
        entry.finish()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_guest_finds_its_programs_and_modules() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let modules = dir.path().join("modules");
        std::fs::create_dir(&modules)?;
        for (name, text) in
            [("busybox", "b"), ("guest-init", "i"), ("guest-stage2", "s"), ("modules/x.ko", "odd"), ("y.ko", "more")]
        {
            std::fs::write(dir.path().join(name), text)?;
        }
        let bytes = build(&dir.path().join("busybox"), &modules, Some(&dir.path().join("y.ko")), dir.path())?;
        let mut found = vec![];
        let mut rest = &bytes[..];
        loop {
            let mut reader = cpio::newc::Reader::new(rest)?;
            if reader.entry().is_trailer() {
                break;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut text = String::new();
            reader.read_to_string(&mut text)?;
            rest = reader.finish()?;
            found.push((name, mode, text));
        }
        assert!(found.contains(&("proc".to_owned(), DIRECTORY, String::new())), "{found:?}");
        assert!(found.contains(&("init".to_owned(), PROGRAM, "i".to_owned())), "{found:?}");
        assert!(found.contains(&("modules/x.ko".to_owned(), PROGRAM, "odd".to_owned())), "{found:?}");
        assert!(found.contains(&("modules/more.ko".to_owned(), PROGRAM, "more".to_owned())), "{found:?}");
        assert_eq!(found.len(), DIRECTORIES.len() + 5);
        Ok(())
    }
}
