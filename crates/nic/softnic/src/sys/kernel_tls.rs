//! TLS in the kernel (`CONFIG_TLS`, module `tls`): a TCP socket that makes records of what is sent, and opens those that
//! come. The handshake is the caller's: the kernel gets the keys of both directions, one by one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use records::RecordKey;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The name of the protocol above TCP (`tcp(7)`, TCP_ULP), as a C string.
const PROTOCOL: &[u8] = b"tls\0";
/// The level of its options, `linux/socket.h`.
const SOL_TLS: i32 = 282;
/// Its options, `linux/tls.h`.
const TLS_TX: i32 = 1;
const TLS_RX: i32 = 2;
const TLS_1_3_VERSION: u16 = 0x0304;
const TLS_CIPHER_AES_GCM_128: u16 = 51;

/// Bytes of `struct tls12_crypto_info_aes_gcm_128` (`linux/tls.h`): version and cipher, in the machine's order; the last
/// eight bytes of the IV; the key; the first four bytes of the IV, and the number of the first record.
const CRYPTO_INFO_BYTES: usize = 2 + 2 + 8 + 16 + 4 + 8;

/// A direction of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// What is sent.
    Sends,
    /// What comes.
    Receives,
}

/// Whether the kernel has it, loaded. One without says ENOENT. A process with CAP_NET_ADMIN has it loaded so.
pub(crate) fn is_there() -> bool {
    let flags = SocketFlags::CLOEXEC;
    let Ok(fd) = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None) else { return false };
    // The kernel looks for the protocol first, and finds afterwards that the socket has no peer.
    attach(fd.as_fd()).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
}

/// Puts it above TCP on a connection. Nothing changes before it has keys.
pub(crate) fn attach(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_bytes(fd, libc::IPPROTO_TCP, libc::TCP_ULP, PROTOCOL)
}

/// From the next byte on one direction of a connection is records, the first of which is number 0.
///
/// `TLS_RX_EXPECT_NO_PAD` (Linux 6.0) is not set, although it saves a copy: with it the kernel decrypts into the receiver's
/// memory and looks at the tag afterwards, so that bytes of a forged record lie there.
pub(crate) fn begin(fd: BorrowedFd<'_>, direction: Direction, key: &RecordKey) -> io::Result<()> {
    let info = crypto_info(key);
    match direction {
        Direction::Sends => set_bytes(fd, SOL_TLS, TLS_TX, &info),
        Direction::Receives => set_bytes(fd, SOL_TLS, TLS_RX, &info),
    }
}

/// How many records of a direction the kernel has made or opened. Refused for one that it was not given. A kernel before
/// 5.11 refuses it for [`Direction::Receives`] too.
pub(crate) fn records(fd: BorrowedFd<'_>, direction: Direction) -> io::Result<u64> {
    let name = match direction {
        Direction::Sends => TLS_TX,
        Direction::Receives => TLS_RX,
    };
    // What the kernel was given, with the number of the next record; the key is not looked at.
    let mut info = [0; CRYPTO_INFO_BYTES];
    get_bytes(fd, SOL_TLS, name, &mut info)?;
    let [.., a, b, c, d, e, f, g, h] = info;
    Ok(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

fn crypto_info(key: &RecordKey) -> [u8; CRYPTO_INFO_BYTES] {
    let mut info = [0; CRYPTO_INFO_BYTES];
    info[0..2].copy_from_slice(&TLS_1_3_VERSION.to_ne_bytes());
    info[2..4].copy_from_slice(&TLS_CIPHER_AES_GCM_128.to_ne_bytes());
    info[4..12].copy_from_slice(&key.iv[4..]);
    info[12..28].copy_from_slice(&key.key);
    info[28..32].copy_from_slice(&key.iv[..4]);
    info
}

fn set_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of a slice that lives during the call, and the kernel only reads it.
    let rc =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills all of `value`, or fails.
fn get_bytes(fd: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> io::Result<()> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the pointer is that of a slice that lives during the call, and the kernel writes no more than the length says,
    // which is the slice's.
    let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut length) };
    match rc {
        0 if length as usize == value.len() => Ok(()),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn literal_bytes_of_what_the_kernel_is_told() {
        let key = RecordKey { key: [7; 16], iv: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] };
        let mut expected = [0x0304_u16.to_ne_bytes(), 51_u16.to_ne_bytes()].concat();
        expected.extend([5, 6, 7, 8, 9, 10, 11, 12]);
        expected.extend([7; 16]);
        expected.extend([1, 2, 3, 4]);
        expected.extend([0; 8]);
        assert_eq!(crypto_info(&key)[..], expected);
        // The same as the C library's headers have it.
        assert_eq!(CRYPTO_INFO_BYTES, size_of::<libc::tls12_crypto_info_aes_gcm_128>());
        assert_eq!((SOL_TLS, TLS_TX, TLS_RX), (libc::SOL_TLS, libc::TLS_TX, libc::TLS_RX));
        assert_eq!((TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_128), (libc::TLS_1_3_VERSION, libc::TLS_CIPHER_AES_GCM_128));
    }

    /// What is found without a connection is what a connection finds.
    #[test]
    fn a_kernel_has_it_for_each_connection_or_for_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let attached = attach(near.as_fd());
        println!("kernel TLS: {attached:?}");
        assert_eq!(attached.is_ok(), is_there(), "{attached:?}");
        if let Err(error) = attached {
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}");
        }
    }
}
