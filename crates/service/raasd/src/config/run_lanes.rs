//! Which connections of programs under `raas run` go over lanes to other hosts (docs/use/run.md).

use std::str::FromStr;

/// `run_lanes`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RunLanes {
    /// Those to which a lane gives something: its device is RDMA hardware, or it encrypts, or it has a second path.
    #[default]
    Auto,
    /// All whose other end is under `raas run` too.
    Always,
}

impl FromStr for RunLanes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            _ => Err(format!("\"{text}\" is not allowed; use \"auto\" or \"always\"")),
        }
    }
}
