//! The libraries that a program asks for, as far as one of them must be loaded before all others.
//!
//! Owns the reading of ELF's dynamic section. It must believe no length in a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Runtimes that end the program if another library comes before them.
const FIRST: &[&str] =
    &["libasan.so", "libhwasan.so", "liblsan.so", "libtsan.so", "libclang_rt.asan", "libclang_rt.hwasan"];
/// Bytes of a table that are looked at.
const TABLE_MAX: usize = 1 << 20;
/// Bytes of a name.
const NAME_MAX: usize = 256;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// Bytes of an entry of the dynamic section, and of a program header.
const ENTRY: usize = 16;
const HEADER: usize = 56;

/// The runtime of a sanitizer that the program loads, which is to be first of all.
pub(super) fn sanitizer(path: &Path) -> Option<String> {
    needed(&File::open(path).ok()?)?.into_iter().find(|name| FIRST.iter().any(|first| name.starts_with(first)))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn piece(file: &File, at: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).ok()?.min(TABLE_MAX)];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The names of what it needs. None: it is no dynamic program of 64 bits.
fn needed(file: &File) -> Option<Vec<String>> {
    let head = piece(file, 0, 64)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let count = u16::from_le_bytes(head.get(56..58)?.try_into().ok()?);
    let headers = piece(file, word(&head, 32)?, u64::from(count) * HEADER as u64)?;
    let of_kind =
        |kind: u32| headers.chunks_exact(HEADER).filter(move |header| header.starts_with(&kind.to_le_bytes()));
    let dynamic = of_kind(PT_DYNAMIC).next()?;
    let entries = piece(file, word(dynamic, 8)?, word(dynamic, 32)?)?;
    let values = |kind: u64| {
        entries.chunks_exact(ENTRY).filter(move |entry| word(entry, 0) == Some(kind)).filter_map(|entry| word(entry, 8))
    };
    // An address of the loaded program, which some part of the file is loaded to.
    let names = values(DT_STRTAB).next()?;
    let at = of_kind(PT_LOAD).find_map(|header| {
        let within =
            names.checked_sub(word(header, 16)?).filter(|within| word(header, 32).is_some_and(|len| *within < len))?;
        word(header, 8)?.checked_add(within)
    })?;
    Some(values(DT_NEEDED).filter_map(|offset| name(file, at.checked_add(offset)?)).collect())
}

/// The name that begins there.
fn name(file: &File, at: u64) -> Option<String> {
    let mut bytes = [0; NAME_MAX];
    let len = file.read_at(&mut bytes, at).ok()?;
    let end = bytes[..len].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_needs_is_read_and_a_file_that_is_cut_off_is_no_panic() {
        let own = std::env::current_exe().unwrap();
        let whole = std::fs::read(&own).unwrap();
        let names = needed(&File::open(&own).unwrap()).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert_eq!(sanitizer(&own), None);
        let dir = tempfile::tempdir().unwrap();
        let cut = dir.path().join("cut");
        for len in (0..4000).step_by(61) {
            std::fs::write(&cut, &whole[..len.min(whole.len())]).unwrap();
            assert_eq!(sanitizer(&cut), None);
        }
        // Lengths and places that are none.
        for at in [32, 56, 64 + 8, 64 + 32] {
            let mut wrong = whole[..whole.len().min(1 << 16)].to_vec();
            wrong[at..at + 2].fill(0xff);
            std::fs::write(&cut, wrong).unwrap();
            assert_eq!(sanitizer(&cut), None);
        }
    }
}
