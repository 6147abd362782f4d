//! Which system calls the daemon may make, by a filter in the kernel (seccomp).
//!
//! Owns the lists: what may be called, and what of it may not be called with certain arguments. A call that is on no list
//! fails with ENOSYS, because the C library and Rust's take that as "an older kernel" and go another way; what only an
//! attacker calls fails with EPERM. With `sandbox_violation = "kill"` both end the process.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use crate::sandbox::OnViolation;

/// What a daemon needs.
const ALLOWED: &[i64] = &[
    // Descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ioctl,
    libc::SYS_pipe2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_splice,
    // Files: which ones is Landlock's and the file system's to say.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_unlinkat,
    libc::SYS_linkat,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_umask,
    // Sockets.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_signalfd4,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_memfd_create,
    libc::SYS_membarrier,
    libc::SYS_get_mempolicy,
    libc::SYS_mbind,
    libc::SYS_pkey_alloc,
    // Threads and signals.
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_prctl,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_kill,
    // Of the spawner, when the daemon ends.
    libc::SYS_wait4,
    libc::SYS_tgkill,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    // What the machine and the process are.
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_capget,
];

/// Calls that newer processors' tables do not have any more; libraries still make them.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_link,
    libc::SYS_mkdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_getdents,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_getrlimit,
    libc::SYS_getpgrp,
    libc::SYS_arch_prctl,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[i64] = &[];

/// What only somebody calls who has taken the daemon over.
const FORBIDDEN: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_tkill,
    libc::SYS_kcmp,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_personality,
    libc::SYS_seccomp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_fsconfig,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_setup,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_lookup_dcookie,
    libc::SYS_fanotify_init,
];

/// Families of sockets: of this host, of the network, and what the kernel says of addresses and devices.
const FAMILIES: &[i32] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Requests of ioctl: of sockets and descriptors, of terminals what they are, of RDMA devices all (`RDMA_VERBS_IOCTL`).
const REQUESTS: &[u64] = &[
    0x5421,      // FIONBIO
    0x5450,      // FIONCLEX
    0x5451,      // FIOCLEX
    0x541b,      // FIONREAD
    0x5411,      // TIOCOUTQ, SIOCOUTQ
    0x5401,      // TCGETS
    0x5413,      // TIOCGWINSZ
    0x8910,      // SIOCGIFNAME
    0x8912,      // SIOCGIFCONF
    0x8913,      // SIOCGIFFLAGS
    0x8915,      // SIOCGIFADDR
    0x891b,      // SIOCGIFNETMASK
    0x8921,      // SIOCGIFMTU
    0x8927,      // SIOCGIFHWADDR
    0x8933,      // SIOCGIFINDEX
    0x8946,      // SIOCETHTOOL, which libibverbs asks for the speed of a port
    0x8982,      // SIOCGIFVLAN
    0xc018_1b01, // RDMA_VERBS_IOCTL
];
/// Requests of `prctl`: names of threads and of memory, and questions.
const PRCTLS: &[i32] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_DUMPABLE,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_GET_SECCOMP,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_VMA,
    0x4155_5856, // PR_GET_AUXV, by which rustix learns the size of a page
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;
type Outcome<T> = Result<T, String>;

/// Filters the calls of this process, for ever; says how.
pub(super) fn filter(on_violation: OnViolation) -> Outcome<String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|_| {
        format!("no filter is known for {}; x86_64, aarch64 and riscv64 have one", std::env::consts::ARCH)
    })?;
    let (unlisted, refused) = match on_violation {
        OnViolation::Refuse => (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Errno(libc::EPERM as u32)),
        OnViolation::Kill => (SeccompAction::KillProcess, SeccompAction::KillProcess),
    };
    // The filter that was set last says which error it is. It also ends the setting of filters, so the first allows that.
    let mut setting = allowed();
    setting.insert(libc::SYS_seccomp, Vec::new());
    let listed = compile(setting, unlisted, SeccompAction::Allow, arch)?;
    let refusals = compile(refusals()?, SeccompAction::Allow, refused, arch)?;
    // Its flags lie in memory, where no filter can look. The C library then takes `clone`.
    let newer = Rules::from([(libc::SYS_clone3, Vec::new())]);
    let newer = compile(newer, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)?;
    for program in [&listed, &newer, &refusals] {
        apply_filter_all_threads(program).map_err(|e| {
            format!("{e}; does the container's own filter allow seccomp(2), and has the kernel CONFIG_SECCOMP_FILTER?")
        })?;
    }
    let mode = rustix::thread::secure_computing_mode().map_err(|e| format!("whether it holds cannot be read: {e}"))?;
    if mode != rustix::thread::SecureComputingMode::Filter {
        return Err(format!("the kernel says {mode:?} after the filter was set"));
    }
    let others = match on_violation {
        OnViolation::Refuse => "others fail",
        OnViolation::Kill => "others kill the daemon",
    };
    Ok(format!("system calls are filtered: {} may be made, {others}", ALLOWED.len() + ALLOWED_HERE.len()))
}

fn compile(rules: Rules, other: SeccompAction, listed: SeccompAction, arch: TargetArch) -> Outcome<BpfProgram> {
    let filter = SeccompFilter::new(rules, other, listed, arch).map_err(|e| e.to_string())?;
    BpfProgram::try_from(filter).map_err(|e: seccompiler::BackendError| e.to_string())
}

fn allowed() -> Rules {
    ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect()
}

/// What is refused: calls that nobody needs, and arguments of those that are needed.
fn refusals() -> Outcome<Rules> {
    let mut rules: Rules = FORBIDDEN.iter().map(|call| (*call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    for call in
        [libc::SYS_fork, libc::SYS_vfork, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_symlink]
    {
        rules.insert(call, Vec::new());
    }
    let own = u64::from(std::process::id());
    let none_of = |arg: u8, values: &[u64]| -> Outcome<Vec<SeccompRule>> {
        let each = values.iter().map(|value| condition(arg, SeccompCmpOp::Ne, *value)).collect::<Outcome<Vec<_>>>()?;
        Ok(vec![SeccompRule::new(each).map_err(|e| e.to_string())?])
    };
    let masked = |arg: u8, mask: u64, value: u64| condition(arg, SeccompCmpOp::MaskedEq(mask), value);
    let one = |rule: SeccompCondition| SeccompRule::new(vec![rule]).map_err(|e| e.to_string());
    let numbers = |list: &[i32]| list.iter().map(|n| u64::from(n.unsigned_abs())).collect::<Vec<_>>();
    // No raw packets, whatever the family.
    let mut sockets = none_of(0, &numbers(FAMILIES))?;
    let raw = u64::from(libc::SOCK_RAW.unsigned_abs());
    for family in [libc::AF_INET, libc::AF_INET6] {
        let of = condition(0, SeccompCmpOp::Eq, u64::from(family.unsigned_abs()))?;
        sockets.push(SeccompRule::new(vec![of, masked(1, 0xf, raw)?]).map_err(|e| e.to_string())?);
    }
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_ioctl, none_of(1, REQUESTS)?);
    rules.insert(libc::SYS_prctl, none_of(0, &numbers(PRCTLS))?);
    // Threads, and no processes.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    rules.insert(libc::SYS_clone, vec![one(masked(0, thread, 0)?)?]);
    // Signals to itself.
    rules.insert(libc::SYS_kill, none_of(0, &[own])?);
    rules.insert(libc::SYS_tgkill, none_of(0, &[own])?);
    // No memory becomes code that was written before.
    let (write, exec) = (u64::from(libc::PROT_WRITE.unsigned_abs()), u64::from(libc::PROT_EXEC.unsigned_abs()));
    rules.insert(libc::SYS_mmap, vec![one(masked(2, write | exec, write | exec)?)?]);
    rules.insert(libc::SYS_mprotect, vec![one(masked(2, exec, exec)?)?]);
    Ok(rules)
}

fn condition(arg: u8, operator: SeccompCmpOp, value: u64) -> Outcome<SeccompCondition> {
    SeccompCondition::new(arg, SeccompCmpArgLen::Dword, operator, value).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_fit_the_kernels_bound_and_the_lists_do_not_overlap() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
        let programs = [
            compile(allowed(), SeccompAction::Errno(38), SeccompAction::Allow, arch).unwrap(),
            compile(refusals().unwrap(), SeccompAction::Allow, SeccompAction::Errno(1), arch).unwrap(),
        ];
        // BPF_MAXINSNS
        assert!(programs.iter().all(|program| program.len() <= 4096));
        let both: Vec<_> =
            FORBIDDEN.iter().filter(|call| ALLOWED.contains(call) || ALLOWED_HERE.contains(call)).collect();
        assert!(both.is_empty(), "{both:?}");
        let all = allowed().len();
        assert_eq!(all, ALLOWED.len() + ALLOWED_HERE.len(), "a call stands twice");
    }
}
