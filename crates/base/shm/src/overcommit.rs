//! What the system promises when memory is asked for.

/// Whether the system counts every page that it promised (`vm.overcommit_memory` is 2). A memfd's pages are promised
/// when they are first touched. If the system is at its limit then, that access raises SIGBUS, whichever process makes
/// it.
pub fn overcommit_is_strict() -> bool {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2")
}
