//! Bytes of a stream straight out of and into registered memory: one gathered send, one scattered receive.
//!
//! The kernel copies between its buffers and the mapping itself, so that no Rust reference to mapped bytes exists; what
//! somebody else writes meanwhile tears bytes and nothing worse.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use shm::Region;

/// Pieces of one call: what the kernel takes without allocating (`UIO_FASTIOV` is 8) matters less than calls.
pub(crate) const PIECES_MAX: usize = 64;

/// A piece of memory for one call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Piece<'a> {
    /// Bytes of the process that nobody else writes.
    Own(&'a [u8]),
    /// So many bytes of a region from an offset on.
    Mapped(&'a Region, u64, usize),
}

impl Piece<'_> {
    /// Where it is, if it lies in its region and, to be filled, may be written.
    fn vector(&self, is_filled: bool) -> Option<libc::iovec> {
        match self {
            Self::Own(bytes) if !is_filled => {
                Some(libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() })
            }
            Self::Own(_) => None,
            Self::Mapped(region, offset, len) => mapped(region, *offset, *len, is_filled),
        }
    }
}

/// The place of a piece of a region: within its bounds, and writable if it `is_filled`.
fn mapped(region: &Region, offset: u64, len: usize, is_filled: bool) -> Option<libc::iovec> {
    let end = offset.checked_add(len as u64)?;
    if end > region.len() || is_filled && !region.is_writable() {
        return None;
    }
    let offset = usize::try_from(offset).ok()?;
    // Memory of a program need not be mapped: the kernel, which alone goes there, says so.
    let start = region.as_ptr().wrapping_add(offset);
    Some(libc::iovec { iov_base: start.cast(), iov_len: len })
}

fn refused() -> io::Error {
    io::ErrorKind::InvalidInput.into()
}

/// Sends the first [`PIECES_MAX`] pieces with one call, without blocking; says how many bytes the kernel took.
pub(crate) fn send<'a>(fd: BorrowedFd<'_>, pieces: impl Iterator<Item = Piece<'a>>) -> io::Result<usize> {
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; PIECES_MAX];
    let mut count = 0;
    for (slot, piece) in vectors.iter_mut().zip(pieces) {
        slot.write(piece.vector(false).ok_or_else(refused)?);
        count += 1;
    }
    // SAFETY: `msghdr` is a plain C structure for which zero bytes are valid; its padding must be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr().cast();
    header.msg_iovlen = count as _;
    // SAFETY: the first `count` vectors were written above. Each leads to bytes of a slice, or of a mapping whose bounds
    // `mapped` checked, and both are borrowed until the call returns; the kernel only reads there.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives with one call, without blocking, into pieces of regions (at most [`PIECES_MAX`] - 1) and then into `buffer`;
/// says how many bytes came.
pub(crate) fn recv<'a>(
    fd: BorrowedFd<'_>,
    pieces: impl Iterator<Item = (&'a Region, u64, usize)>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; PIECES_MAX];
    let mut count = 0;
    let Some((last, vectors_before)) = vectors.split_last_mut() else { return Err(refused()) };
    for (slot, (region, offset, len)) in vectors_before.iter_mut().zip(pieces) {
        slot.write(mapped(region, offset, len, true).ok_or_else(refused)?);
        count += 1;
    }
    let own = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    vectors_before.get_mut(count).unwrap_or(last).write(own);
    count += 1;
    // SAFETY: `msghdr` is a plain C structure for which zero bytes are valid; its padding must be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vectors.as_mut_ptr().cast();
    header.msg_iovlen = count as _;
    // SAFETY: the first `count` vectors were written above. Each leads to bytes of an exclusive slice, or of a writable
    // mapping whose bounds `mapped` checked and which nothing makes slices of; both are borrowed until the call returns.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn pieces_leave_and_arrive_in_order() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let region = Region::anonymous(4096).unwrap();
        region.write(10, b"mapped").unwrap();
        let pieces = [Piece::Own(b"<"), Piece::Mapped(&region, 10, 6), Piece::Own(b">")];
        assert_eq!(send(a.as_fd(), pieces.into_iter()).unwrap(), 8);
        let mut got = [0; 8];
        b.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"<mapped>");
        a.write_all(b"0123456789").unwrap();
        let mut tail = [0; 16];
        let into = [(&region, 100, 3), (&region, 4092, 4)];
        assert_eq!(recv(b.as_fd(), into.into_iter(), &mut tail).unwrap(), 10);
        let mut seen = [0; 3];
        region.read(100, &mut seen).unwrap();
        assert_eq!((&seen, &tail[..3]), (b"012", &b"789"[..]));
        assert_eq!(recv(b.as_fd(), into.into_iter(), &mut tail).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        assert_eq!(recv(b.as_fd(), into.into_iter(), &mut tail).unwrap(), 0);
    }

    #[test]
    fn a_piece_outside_of_its_region_is_refused_before_the_call() {
        let (a, _b) = UnixStream::pair().unwrap();
        let region = Region::anonymous(4096).unwrap();
        for (offset, len) in [(4096, 1), (u64::MAX, 1), (0, 4097), (4000, usize::MAX)] {
            let sent = send(a.as_fd(), [Piece::Mapped(&region, offset, len)].into_iter());
            assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{offset} {len}");
            let received = recv(a.as_fd(), [(&region, offset, len)].into_iter(), &mut []);
            assert_eq!(received.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{offset} {len}");
        }
    }
}
