//! The devices under RaaS and its rivals: which figures each has, and what a daemon and a native program are told.

use clap::ValueEnum;

/// A device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    /// The software NIC, in network namespaces of this machine.
    #[default]
    Softnic,
    /// The kernel's soft-RoCE through rdma-core, in a guest (docs/proof/guests.md).
    Rxe,
}

/// What the kernel's device is measured for: 8 and 9 are about programs, and 10 needs more hosts than one kernel's
/// devices can be.
const OF_RXE: [u32; 6] = [1, 2, 6, 7, 11, 12];

impl Device {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Softnic => "softnic",
            Self::Rxe => "rxe",
        }
    }

    pub(super) fn has(self, figure: u32) -> bool {
        self == Self::Softnic || OF_RXE.contains(&figure)
    }

    /// The name of a figure's files.
    pub(super) fn name_of(self, figure: u32) -> String {
        match self {
            Self::Softnic => format!("fig{figure:02}"),
            Self::Rxe => format!("fig{figure:02}-rxe"),
        }
    }

    /// Points of a line, at most, where nothing else was asked for: an emulated processor takes seconds for each.
    pub(super) fn points(self) -> usize {
        match self {
            Self::Softnic => usize::MAX,
            Self::Rxe => 3,
        }
    }

    /// Seconds of one side at one point in one round; those of an emulated processor hold little.
    pub(super) fn seconds(self, is_quick: bool) -> f64 {
        match (self, is_quick) {
            (Self::Softnic, false) => 0.25,
            (Self::Softnic, true) => 0.1,
            (Self::Rxe, _) => 0.4,
        }
    }

    /// A daemon's configuration. What leaves the lane shows nothing of the device.
    pub(super) fn configuration(self, wire: &str) -> String {
        let device = match self {
            Self::Softnic => format!("wire = \"{wire}\""),
            Self::Rxe => "device = \"rdma-core\"".to_owned(),
        };
        format!("{device}\ntcp_direct = \"off\"\n")
    }

    /// What `nativebench` calls it.
    pub(super) fn native(self) -> &'static str {
        match self {
            Self::Softnic => "softnic",
            Self::Rxe => "rdma-core",
        }
    }
}
