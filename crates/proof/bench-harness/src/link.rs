//! A link between two ends of one network namespace, with a kernel's RDMA device on each: soft-RoCE's sockets are in the
//! initial namespace, so its hosts cannot be namespaces. `nicbench link` makes it (bench/src/nicbench/veth.rs).

use std::process::Command;

use anyhow::{Result, ensure};

use super::process::{Beside, READY_WITHIN};

/// Addresses of client and server; `nicbench link` says which it made.
const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];

/// It is removed with this.
#[derive(Debug)]
pub(crate) struct Link(Option<Beside>);

impl Link {
    /// `nicbench link` as a command.
    pub(crate) fn make(command: &mut Command) -> Result<Self> {
        let mut holder = Beside::start(command)?;
        let made = holder.wait_line("ready ", READY_WITHIN)?;
        ensure!(made == ADDRESSES.join(" "), "`nicbench link` has the addresses {made}, not {ADDRESSES:?}");
        Ok(Self(Some(holder)))
    }

    /// The address of the client, or of the server.
    pub(crate) fn address(&self, is_server: bool) -> &'static str {
        ADDRESSES[usize::from(is_server)]
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(holder) = self.0.take() {
            holder.end();
        }
    }
}
