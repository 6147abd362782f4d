//! The suites that run in guests, one boot each, and which stage of the test command runs which. Owns what each needs:
//! guests, kernel, packages, command, judges, and the least number of its cases. suite.rs runs them.

use super::artifacts::Device;

/// One suite: what is built on the host, then booted and run.
#[derive(Debug)]
pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) guests: u32,
    /// Kernel series, `6.1` or `6.12`.
    pub(super) kernel: &'static str,
    pub(super) device: Device,
    /// MTU of the guests' network.
    pub(super) mtu: u32,
    /// Packages that the guest needs beyond the usual ones.
    pub(super) packages: &'static [&'static str],
    /// It needs this repository's programs.
    pub(super) programs: bool,
    /// Run in every guest, in the repository's root.
    pub(super) command: &'static [&'static str],
    /// Run on the host afterwards, with the guest's results and packages: a judge of captures need not be emulated.
    pub(super) judges: Option<&'static str>,
    /// Fewer cases than this, over all guests, is a failure.
    pub(super) cases_min: u64,
    pub(super) timeout_s: u64,
    /// Only with `--full`.
    pub(super) full_only: bool,
}

/// Of the service between two guests.
const SERVICE_CASES: u64 = 44;
/// The suite's cases, each in one direction; of two captures the packets and their ICRCs, and 35 opcodes.
const INTEROP_CASES: u64 = 219 + 2 * 2 + 35;
/// 17 runs, 16 captures.
const INTEROP_CASES_THOROUGH: u64 = 17 * 219 + 16 * 2 + 35;

/// What the suites of siw need: the dissector, and librdmacm for the script that is their application.
const SIW_PACKAGES: &[&str] = &["tshark", "python3-pyverbs"];

/// Both ends of ten connections of the exercise and of its four rounds, of rping and two programs of perftest; the capture.
const SIW_CASES: u64 = 2 * (10 + 4 + 1 + 2) + 1;
/// With five broken rules, an rping and four programs more.
const SIW_CASES_LONG: u64 = SIW_CASES + 2 * (5 + 1 + 4);
/// Of one capture the FPDUs, five opcodes, and what tshark says.
const SIW_JUDGEMENTS: u64 = 1 + 5 + 1;

/// Both ends of 13 connections in each direction, and of the two rounds.
const SIW_INTEROP_ROUND: u64 = 2 * 2 * (13 + 1);
/// One round, both ends of three more exercises with their rounds, of two rpings, of three programs of perftest, and the
/// capture.
const SIW_INTEROP_CASES: u64 = SIW_INTEROP_ROUND + 2 * (3 + 3 + 2 + 3) + 1;
/// With the five Terminate messages that our end must send.
const SIW_INTEROP_JUDGEMENTS: u64 = SIW_JUDGEMENTS + 5;

/// That the kernel has TLS, nine of each of five pairs of daemons, and the tests of encrypted connections.
const KERNEL_TLS_CASES: u64 = 1 + 5 * 9 + 6 + 7;
/// With the two tests of daemons that take minutes.
const KERNEL_TLS_CASES_THOROUGH: u64 = KERNEL_TLS_CASES + 2;

/// Of the stage `vm`.
const SUITES: &[Suite] = &[
    Suite {
        name: "stock",
        about: "between two guests the service on rdma-core, real files both ways; then in the first each case of the \
                conformance suite between the software NIC and rxe in one of the two directions; tshark and an independent ICRC check \
                judge every packet",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 4200,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/stock"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: SERVICE_CASES + INTEROP_CASES,
        timeout_s: 1800,
        full_only: false,
    },
    Suite {
        name: "rxe-smoke",
        about: "kernel rxe talks to itself in one guest",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 11,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "rxe-pair",
        about: "kernel rxe talks between two guests",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 24,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "interop-thorough",
        about: "the same with each address family beside each MTU, clean and faulty, in each direction",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/interop-suite", "thorough"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: INTEROP_CASES_THOROUGH,
        timeout_s: 2400,
        full_only: true,
    },
    Suite {
        name: "interop-6.12",
        about: "the same judged by the newer kernel, whose rxe was rewritten in part",
        guests: 1,
        kernel: "6.12",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["tshark"],
        programs: true,
        command: &["tests/vm/interop-suite", "thorough"],
        judges: Some("tests/vm/interop-judges"),
        cases_min: INTEROP_CASES_THOROUGH,
        timeout_s: 2400,
        full_only: true,
    },
    Suite {
        name: "service-mixed",
        about: "the service with rxe on one host and the software NIC on the other",
        guests: 2,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/service-pair", "rdma-core", "softnic"],
        judges: None,
        cases_min: 45,
        timeout_s: 400,
        full_only: true,
    },
    Suite {
        name: "overcommit",
        about: "what a daemon does with memory that the system promised to nobody",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/overcommit"],
        judges: None,
        cases_min: 6,
        timeout_s: 200,
        full_only: true,
    },
    Suite {
        name: "kernel-tls",
        about: "encrypted lanes over TCP with the kernel's TLS at both ends, at one, and at none; the words of files are looked \
                for on the wire, and somebody on the path changes records",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/kernel-tls"],
        judges: None,
        cases_min: KERNEL_TLS_CASES,
        timeout_s: 1500,
        full_only: true,
    },
    Suite {
        name: "kernel-tls-thorough",
        about: "the same with daemons whose keys wear out under a stream, and with each kind of forgery on a lane between them",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: true,
        command: &["tests/vm/kernel-tls", "thorough"],
        judges: None,
        cases_min: KERNEL_TLS_CASES_THOROUGH,
        timeout_s: 1500,
        full_only: true,
    },
    Suite {
        name: "siw-smoke",
        about: "kernel siw (iWARP) talks to itself in one guest; tshark and an independent CRC check judge every FPDU",
        guests: 1,
        kernel: "6.1",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: false,
        command: &["tests/vm/siw-tools"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_CASES + SIW_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "siw-interop",
        about: "our TCP wire against siw in both directions, rping too; tshark and an independent CRC check judge every FPDU",
        guests: 1,
        kernel: "6.1",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: true,
        command: &["tests/vm/siw-interop"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_INTEROP_CASES + SIW_INTEROP_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "siw-interop-6.12",
        about: "the same with the newer kernel's siw, and with the segments of Ethernet too",
        guests: 1,
        kernel: "6.12",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: true,
        command: &["tests/vm/siw-interop", "long"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_INTEROP_CASES + SIW_INTEROP_ROUND + SIW_INTEROP_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "siw-smoke-6.12",
        about: "the same and more with the newer kernel's siw",
        guests: 1,
        kernel: "6.12",
        device: Device::Siw,
        mtu: 1500,
        packages: SIW_PACKAGES,
        programs: false,
        command: &["tests/vm/siw-tools", "long"],
        judges: Some("tests/vm/siw-judges"),
        cases_min: SIW_CASES_LONG + SIW_JUDGEMENTS,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "rxe-smoke-6.12",
        about: "the same with the newer kernel",
        guests: 1,
        kernel: "6.12",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/rxe-tools"],
        judges: None,
        cases_min: 11,
        timeout_s: 600,
        full_only: true,
    },
];

/// Of the stage `packaging`, which has built the package.
const PACKAGING: &[Suite] = &[
    Suite {
        name: "package",
        about: "the Debian package under systemd: installed, started, used by its group and by services under `raas run`, \
                killed, upgraded, removed, purged",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &["systemd", "redis-server", "redis-tools"],
        programs: false,
        command: &["tests/vm/package"],
        judges: None,
        cases_min: 46,
        timeout_s: 600,
        full_only: true,
    },
    Suite {
        name: "pods",
        about: "the Kubernetes manifests without Kubernetes: two nodes, daemons and pods with the users, rights and mounts of theirs",
        guests: 1,
        kernel: "6.1",
        device: Device::Rxe,
        mtu: 1500,
        packages: &[],
        programs: false,
        command: &["tests/vm/pods"],
        judges: None,
        cases_min: 11,
        timeout_s: 600,
        full_only: true,
    },
];

/// A stage of the test command that runs suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Vm,
    Packaging,
}

/// The stage's suites that are due.
pub(super) fn due(stage: Stage, full: bool) -> impl Iterator<Item = &'static Suite> {
    let suites = match stage {
        Stage::Vm => SUITES,
        Stage::Packaging => PACKAGING,
    };
    suites.iter().filter(move |suite| full || !suite.full_only)
}

/// All suites.
pub(super) fn all() -> impl Iterator<Item = &'static Suite> {
    SUITES.iter().chain(PACKAGING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_have_unique_names_and_cases() {
        let mut names: Vec<&str> = all().map(|suite| suite.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        assert!(all().all(|suite| suite.cases_min > 0 && (1..=2).contains(&suite.guests)));
    }
}
