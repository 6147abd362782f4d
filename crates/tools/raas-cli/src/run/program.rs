//! What kind of program a file is, as far as that decides whether a library can be preloaded.
//!
//! Owns the reading of ELF headers. It must believe no length in a file.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a file that say what it is.
const HEAD: usize = 4096;
/// Scripts whose interpreters are scripts.
const SCRIPTS_MAX: u32 = 4;
/// Headers of one program at most.
const HEADERS_MAX: usize = 256;
/// Bytes of a path that are looked at.
const PATH_BYTES_MAX: u64 = 4096;
/// Bytes of notes that are looked at.
const NOTES_MAX: u64 = 64 << 10;

const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

/// A program that is to be started.
#[derive(Debug)]
pub(super) struct Program {
    /// Its file.
    pub(super) path: PathBuf,
}

/// Why a program cannot be started at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotFound {
    #[error("there is no program `{}`{}", .0.display(), if *.1 { " in $PATH" } else { "" })]
    Nowhere(PathBuf, bool),
    #[error("{}: may not be executed", .0.display())]
    NotExecutable(PathBuf),
}

/// Why a program's sockets stay with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotOurs {
    Static,
    Go,
    /// The name of its dynamic linker.
    OtherLibrary(String),
    OtherIds,
    Capabilities,
    OtherMachine,
    Unknown(String),
}

impl fmt::Display for NotOurs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Static => {
                "it is statically linked, so no library can be loaded before it: take a build of it that is linked \
                 dynamically with glibc, or have it use the library `raas` itself"
            }
            Self::Go => {
                "it is a Go program, which makes system calls without the C library: have it use the library `raas` \
                 itself, by cgo"
            }
            Self::OtherLibrary(linker) => {
                return write!(
                    f,
                    "its C library is not glibc (its dynamic linker is {linker}), so this library cannot be loaded \
                     before it: take a build of it for glibc, or have it use the library `raas` itself"
                );
            }
            Self::OtherIds => {
                "it is setuid or setgid, so the dynamic linker ignores LD_PRELOAD: start it as its user, or without that bit"
            }
            Self::Capabilities => "it has file capabilities, so the dynamic linker ignores LD_PRELOAD",
            Self::OtherMachine => "it is for another machine than this library",
            Self::Unknown(what) => return write!(f, "what it is cannot be found out: {what}"),
        };
        f.write_str(words)
    }
}

impl From<io::Error> for NotOurs {
    fn from(error: io::Error) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl Program {
    /// Finds a program as a shell does.
    pub(super) fn find(name: &OsStr) -> Result<Self, NotFound> {
        let has_slash = name.as_encoded_bytes().contains(&b'/');
        let places: Vec<PathBuf> = if has_slash {
            vec![PathBuf::from(name)]
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|dir| dir.join(name)).collect()
        };
        let files: Vec<&PathBuf> = places.iter().filter(|place| place.is_file()).collect();
        if let Some(path) = files.iter().find(|path| is_executable(path)) {
            return Ok(Self { path: path.to_path_buf() });
        }
        Err(match files.first() {
            Some(path) => NotFound::NotExecutable(path.to_path_buf()),
            None => NotFound::Nowhere(PathBuf::from(name), !has_slash),
        })
    }

    /// Whether a preloaded library gets its sockets.
    pub(super) fn judge(&self) -> Result<(), NotOurs> {
        judge(&self.path, 0)
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
}

fn judge(path: &Path, depth: u32) -> Result<(), NotOurs> {
    let file = File::open(path)?;
    let meta = file.metadata()?;
    let (euid, egid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let gains_uid = meta.mode() & SETUID != 0 && meta.uid() != euid;
    let gains_gid = meta.mode() & SETGID != 0 && meta.gid() != egid;
    let mut head = vec![0; HEAD];
    let mut len = 0;
    while len < HEAD {
        match (&file).read(&mut head[len..])? {
            0 => break,
            n => len += n,
        }
    }
    head.truncate(len);
    if let Some(script) = head.strip_prefix(b"#!") {
        // The bits of a script mean nothing.
        let line = script.split(|b| *b == b'\n').next().unwrap_or_default();
        let words: Vec<&[u8]> = line.split(u8::is_ascii_whitespace).filter(|w| !w.is_empty()).collect();
        return judge_interpreter(&words, depth);
    }
    if gains_uid || gains_gid {
        return Err(NotOurs::OtherIds);
    }
    let mut none = [0u8; 0];
    if euid != 0 && rustix::fs::fgetxattr(&file, "security.capability", &mut none).is_ok_and(|n| n > 0) {
        return Err(NotOurs::Capabilities);
    }
    elf(&file, &head)
}

fn judge_interpreter(words: &[&[u8]], depth: u32) -> Result<(), NotOurs> {
    use std::os::unix::ffi::OsStrExt;
    if depth >= SCRIPTS_MAX {
        return Err(NotOurs::Unknown("scripts that name each other".into()));
    }
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    match words {
        [] => Err(NotOurs::Unknown("a script without an interpreter".into())),
        // `env` starts what it finds in $PATH.
        [env, name, ..] if path(env).file_name().is_some_and(|n| n == "env") && !name.starts_with(b"-") => {
            let found = Program::find(OsStr::from_bytes(name)).map_err(|e| NotOurs::Unknown(e.to_string()))?;
            judge(&found.path, depth + 1)
        }
        [interpreter, ..] => judge(&path(interpreter), depth + 1),
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Looks at the headers of an ELF file of 64 bits.
fn elf(file: &File, head: &[u8]) -> Result<(), NotOurs> {
    if !head.starts_with(b"\x7fELF") {
        return Err(NotOurs::Unknown("neither an ELF file nor a script".into()));
    }
    let machine = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let found = number(head, 18).map(u16::from_le_bytes);
    if head.get(4..6) != Some(&[2, 1]) || found != Some(machine) {
        return Err(NotOurs::OtherMachine);
    }
    let cut = || NotOurs::Unknown("an ELF file that is cut off".into());
    let at = number(head, 32).map(u64::from_le_bytes).ok_or_else(cut)?;
    let size = usize::from(number(head, 54).map(u16::from_le_bytes).ok_or_else(cut)?);
    let count = usize::from(number(head, 56).map(u16::from_le_bytes).ok_or_else(cut)?).min(HEADERS_MAX);
    if size < 56 {
        return Err(cut());
    }
    let mut table = vec![0; size * count];
    file.read_exact_at(&mut table, at)?;
    let (mut linker, mut is_dynamic, mut is_go) = (None, false, false);
    for header in table.chunks_exact(size) {
        match number(header, 0).map(u32::from_le_bytes) {
            Some(PT_INTERP) => linker = Some(text_of(file, header, PATH_BYTES_MAX)),
            Some(PT_DYNAMIC) => is_dynamic = true,
            Some(PT_NOTE) => is_go |= has_go_note(file, header),
            _ => {}
        }
    }
    match linker.filter(|_| is_dynamic) {
        _ if is_go => Err(NotOurs::Go),
        None => Err(NotOurs::Static),
        Some(linker) => {
            let linker = String::from_utf8_lossy(&linker).trim_end_matches('\0').to_owned();
            let name = linker.rsplit('/').next().unwrap_or_default();
            // On every machine glibc's is called so, wherever it lies.
            if name.starts_with("ld-linux") { Ok(()) } else { Err(NotOurs::OtherLibrary(linker)) }
        }
    }
}

/// What a header names in the file, at most so many bytes.
fn text_of(file: &File, header: &[u8], most: u64) -> Vec<u8> {
    let word = |at| number(header, at).map_or(0, u64::from_le_bytes);
    let (at, len) = (word(8), word(32).min(most));
    let mut text = vec![0; usize::try_from(len).unwrap_or(0)];
    match file.read_exact_at(&mut text, at) {
        Ok(()) => text,
        Err(_) => Vec::new(),
    }
}

/// Whether a note of this header is the build id that Go's linker writes (name `Go`, type 4).
fn has_go_note(file: &File, header: &[u8]) -> bool {
    let notes = text_of(file, header, NOTES_MAX);
    let mut at = 0;
    while let (Some(name), Some(rest), Some(kind)) =
        (number(&notes, at), number(&notes, at + 4), number(&notes, at + 8))
    {
        let (name, rest, kind) = (u32::from_le_bytes(name), u32::from_le_bytes(rest), u32::from_le_bytes(kind));
        if kind == 4 && name == 4 && notes.get(at + 12..at + 16) == Some(b"Go\0\0") {
            return true;
        }
        let padded = |n: u32| (n as usize).next_multiple_of(4);
        at += 12 + padded(name) + padded(rest);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_this_machine_are_judged() {
        let shell = Program::find(OsStr::new("sh")).unwrap();
        assert_eq!(shell.judge(), Ok(()));
        assert!(matches!(Program::find(OsStr::new("no-such-program-here")), Err(NotFound::Nowhere(..))));
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        for (text, is_ours) in [
            ("#!/bin/sh\n", true),
            ("#!/usr/bin/env sh\n", true),
            ("#!\n", false),
            ("neither\n", false),
            ("\x7fELF\x02\x01", false),
        ] {
            std::fs::write(&script, text).unwrap();
            assert!(matches!(Program::find(script.as_os_str()), Err(NotFound::NotExecutable(_))));
            assert_eq!(judge(&script, 0).is_ok(), is_ours, "{text:?}");
        }
    }

    #[test]
    fn programs_of_another_c_library_are_known_by_their_dynamic_linker() {
        const AT: usize = 64 + 2 * 56;
        let program = |linker: &str| {
            let mut bytes = vec![0u8; AT];
            bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
            bytes[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
            (bytes[32], bytes[54], bytes[56]) = (64, 56, 2);
            (bytes[64], bytes[64 + 56]) = (PT_INTERP as u8, PT_DYNAMIC as u8);
            (bytes[64 + 8], bytes[64 + 32]) = (AT as u8, linker.len() as u8 + 1);
            bytes.extend_from_slice(linker.as_bytes());
            bytes.push(0);
            bytes
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("program");
        for linker in ["/lib/ld-musl-x86_64.so.1", "/system/bin/linker64", ""] {
            std::fs::write(&file, program(linker)).unwrap();
            assert_eq!(judge(&file, 0), Err(NotOurs::OtherLibrary(linker.to_owned())));
        }
        for linker in ["/lib64/ld-linux-x86-64.so.2", "/nix/store/glibc/lib/ld-linux-aarch64.so.1"] {
            std::fs::write(&file, program(linker)).unwrap();
            assert_eq!(judge(&file, 0), Ok(()));
        }
    }

    #[test]
    fn a_program_that_is_cut_off_anywhere_is_no_panic() {
        let whole = std::fs::read(Program::find(OsStr::new("sh")).unwrap().path).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cut");
        // Before the end of the program headers, which a dynamic program has seven of at least.
        for len in (0..64 + 7 * 56).step_by(7) {
            std::fs::write(&file, &whole[..len.min(whole.len())]).unwrap();
            assert!(judge(&file, 0).is_err(), "{len}");
        }
    }
}
