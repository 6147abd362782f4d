//! A process that wants a place among the NICs of a port.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
};

use super::{ADDRESSES_MAX, HEAD_BYTES, HELLO, Share, addresses, name, octets, qpns};

/// How long the agent may take to answer: it makes sockets meanwhile.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of an answer at most: words of a refusal, or addresses.
const ANSWER_BYTES: usize = 4096;

/// Why there is no place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The agent refused, and said why.
    #[error("the agent of this port refuses: {0}")]
    Refused(String),
    /// Another user has the agent's name: what he gives may be no sockets of the port.
    #[error("the NICs of this port are of user {agent}, who has it for all of them (you are {own})")]
    OtherUser {
        /// Who.
        agent: u32,
        /// This process's user.
        own: u32,
    },
    /// What answered is no agent of this release.
    #[error("what has the agent's name gave an answer that is none: end the programs that use it, and start again")]
    Garbled,
    /// More addresses than can be asked for at once.
    #[error("{0} addresses: {ADDRESSES_MAX} at most can be shared")]
    TooMany(usize),
    /// The agent ended, or a call failed.
    #[error("the agent of this port cannot be asked: {0}")]
    Os(#[from] io::Error),
}

impl From<Errno> for ShareError {
    fn from(error: Errno) -> Self {
        Self::Os(error.into())
    }
}

/// Asks the agent of a port for a place at these addresses. `None`: there is no agent.
pub fn join(port: u16, wanted: &[IpAddr]) -> Result<Option<Share>, ShareError> {
    if wanted.len() > ADDRESSES_MAX {
        return Err(ShareError::TooMany(wanted.len()));
    }
    let lease = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&lease, &name(port)?) {
        Err(Errno::CONNREFUSED) => return Ok(None),
        other => other?,
    }
    // The name is anybody's to take, and who has it gives the sockets.
    let (agent, own) = (socket_peercred(&lease)?.uid.as_raw(), rustix::process::geteuid().as_raw());
    if agent != own {
        return Err(ShareError::OtherUser { agent, own });
    }
    set_socket_timeout(&lease, Timeout::Recv, Some(ANSWERS_WITHIN))?;
    let mut words = HELLO.to_vec();
    words.extend(wanted.iter().flat_map(|address| octets(*address)));
    match rustix::net::send(&lease, &words, SendFlags::NOSIGNAL) {
        // It ended at this moment.
        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
        other => other?,
    };
    answer(lease)
}

fn answer(lease: OwnedFd) -> Result<Option<Share>, ShareError> {
    let mut words = [0_u8; ANSWER_BYTES];
    let mut room = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ADDRESSES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut room);
    let mut parts = [io::IoSliceMut::new(&mut words)];
    let got = rustix::net::recvmsg(&lease, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let got = match got {
        Ok(message) => message.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            sockets.extend(passed);
        }
    }
    if got == 0 {
        return Ok(None);
    }
    let said = words.get(..got).unwrap_or(&[]);
    let (head, rest) = said.split_first_chunk::<HEAD_BYTES>().ok_or(ShareError::Garbled)?;
    let number = |at: usize| head.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    if number(0) != 0 {
        return Err(ShareError::Refused(String::from_utf8_lossy(rest).into_owned()));
    }
    let named = addresses(rest).filter(|named| named.len() == sockets.len()).ok_or(ShareError::Garbled)?;
    let sockets = named.into_iter().zip(sockets).collect();
    Ok(Some(Share { sockets, qpns: qpns(number(4), number(8)), _lease: lease }))
}
