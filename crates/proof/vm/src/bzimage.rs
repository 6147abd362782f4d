//! The uncompressed kernel inside a bzImage: qemu starts it through its PVH entry in half the time. Owns the reading of
//! the x86 boot header (Documentation/arch/x86/boot.rst); the decompressors are the system's programs.

use anyhow::{Context, Result, bail, ensure};
use harness::child::{self, Stream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const DECOMPRESS_LIMIT: Duration = Duration::from_secs(120);
/// Offsets in the boot header, and its smallest version with a payload.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const VERSION_WITH_PAYLOAD: u16 = 0x0208;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;
/// The uncompressed size that the kernel's build appends to the payload; decompressors would call it garbage.
const SIZE_TRAILER_BYTES: usize = 4;

/// Program, its arguments and the first bytes of what it reads.
const FORMATS: &[(&[u8], &str)] = &[(b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x1f\x8b\x08", "gzip")];

/// Writes the ELF image of `bzimage` to `vmlinux`.
pub(super) fn extract(bzimage: &Path, vmlinux: &Path) -> Result<()> {
    let image = std::fs::read(bzimage).with_context(|| format!("cannot read {}", bzimage.display()))?;
    let payload = payload(&image).with_context(|| format!("{} is no bzImage", bzimage.display()))?;
    let Some((_, program)) = FORMATS.iter().find(|(magic, _)| payload.starts_with(magic)) else {
        bail!("the kernel's payload is compressed in a way unknown here");
    };
    // The gzip format checks its own trailer, so that one keeps it; the others carry theirs inside.
    let end = if *program == "gzip" { payload.len() } else { payload.len() - SIZE_TRAILER_BYTES };
    let packed = vmlinux.with_extension("packed");
    std::fs::write(&packed, &payload[..end])?;
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" -dc <\"$1\" >\"$2\"", program]).arg(&packed).arg(vmlinux);
    let done = child::run_quiet(&mut command, DECOMPRESS_LIMIT)?;
    std::fs::remove_file(&packed)?;
    let elf = std::fs::read(vmlinux).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    ensure!(elf, "{program} gave no ELF image: {} {}", done.describe(), done.text(Stream::Err));
    Ok(())
}

fn payload(image: &[u8]) -> Result<&[u8]> {
    ensure!(image.get(MAGIC..MAGIC + 4) == Some(b"HdrS"), "no boot header");
    let version = u16::from_le_bytes(field(image, VERSION)?);
    ensure!(version >= VERSION_WITH_PAYLOAD, "boot protocol {version:#x} has no payload field");
    let sectors = usize::from(field::<1>(image, SETUP_SECTORS)?[0]);
    let protected_mode = (sectors + 1) * SECTOR_BYTES;
    let start = protected_mode + usize::try_from(u32::from_le_bytes(field(image, PAYLOAD_OFFSET)?))?;
    let length = usize::try_from(u32::from_le_bytes(field(image, PAYLOAD_LENGTH)?))?;
    ensure!(length > SIZE_TRAILER_BYTES, "the payload is empty");
    image.get(start..start + length).context("the payload lies outside the file")
}

fn field<const N: usize>(image: &[u8], at: usize) -> Result<[u8; N]> {
    let bytes = image.get(at..at + N).context("the file ends inside the boot header")?;
    Ok(bytes.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Vec<u8> {
        let mut image = vec![0; 4096];
        image[SETUP_SECTORS] = 3;
        image[MAGIC..MAGIC + 4].copy_from_slice(b"HdrS");
        image[VERSION..VERSION + 2].copy_from_slice(&0x020f_u16.to_le_bytes());
        image[PAYLOAD_OFFSET..PAYLOAD_OFFSET + 4].copy_from_slice(&16_u32.to_le_bytes());
        image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&100_u32.to_le_bytes());
        image[2048 + 16] = 0xaa;
        image
    }

    #[test]
    fn the_payload_is_found() -> Result<()> {
        let image = image();
        let found = payload(&image)?;
        assert_eq!((found.len(), found[0]), (100, 0xaa));
        Ok(())
    }

    #[test]
    fn broken_images_are_refused() {
        assert!(payload(&[]).is_err());
        assert!(payload(&vec![0; 4096]).is_err());
        let mut outside = image();
        outside[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(payload(&outside).is_err());
        let mut old = image();
        old[VERSION..VERSION + 2].copy_from_slice(&0x0200_u16.to_le_bytes());
        assert!(payload(&old).is_err());
    }
}
