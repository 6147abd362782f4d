//! What the kernel must and should be able to do, each found out by doing it.

use std::net::{Ipv4Addr, UdpSocket};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};
use rustix::net::sockopt;

use super::finding::{Code, Findings};

/// Bytes of the segment that is made for a look.
const SEGMENT_BYTES: u64 = 4096;
/// What segments are sealed with.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

/// Seals, batches of datagrams, receive buffers.
pub(super) fn look(findings: &mut Findings) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    match sealed_segment() {
        Ok(()) => findings.ok("kernel", release.as_str(), format!("Linux {release}: shared memory can be sealed")),
        Err(e) => findings.fail(
            "kernel",
            Code::Failed,
            release.as_str(),
            format!("Linux {release}: no sealed shared memory (memfd_create, F_SEAL_FUTURE_WRITE): {e}"),
            "use Linux 5.1 or newer, and allow memfd_create in the container's seccomp profile",
        ),
    }
    match softnic::udp_batches() {
        Ok((gso, gro)) if gso > 1 && gro > 1 => {
            findings.ok("udp-offload", gso, format!("UDP GSO ({gso} packets a call) and GRO"));
        }
        Ok((gso, gro)) => findings.warn(
            "udp-offload",
            gso,
            format!("UDP GSO of {gso} packets, GRO of {gro}: without both the software NIC reaches a sixth of its throughput"),
            "use Linux 5.0 or newer, and allow UDP_SEGMENT and UDP_GRO in the sandbox",
        ),
        Err(e) => findings.fail(
            "udp-offload",
            Code::Failed,
            "none",
            format!("no UDP socket: {e}"),
            "allow UDP sockets in the sandbox; the software NIC needs one",
        ),
    }
    receive_buffer(findings);
}

fn sealed_segment() -> std::io::Result<()> {
    let file = memfd_create("raas-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, SEGMENT_BYTES)?;
    fcntl_add_seals(&file, SEALS)?;
    match fcntl_get_seals(&file)?.contains(SEALS) {
        true => Ok(()),
        false => Err(std::io::Error::other("the seals do not hold")),
    }
}

/// The buffer that the software NIC would get with the rights of this user.
fn receive_buffer(findings: &mut Findings) {
    let wanted = softnic::RCVBUF_BYTES_DEFAULT;
    let granted = || -> std::io::Result<usize> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // The kernel doubles what is asked for.
        if sockopt::set_socket_recv_buffer_size_force(&socket, wanted / 2).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, wanted / 2)?;
        }
        Ok(sockopt::socket_recv_buffer_size(&socket)?)
    };
    match granted() {
        Ok(bytes) if bytes >= wanted => findings.ok("udp-buffer", bytes, format!("{bytes} bytes of receive buffer")),
        Ok(bytes) => findings.warn(
            "udp-buffer",
            bytes,
            format!(
                "{bytes} bytes of receive buffer for this user, the software NIC asks for {wanted}: windows are smaller"
            ),
            &format!("sysctl -w net.core.rmem_max={}, or run the daemon with CAP_NET_ADMIN", wanted / 2),
        ),
        // That no socket can be made was said above.
        Err(_) => {}
    }
}
