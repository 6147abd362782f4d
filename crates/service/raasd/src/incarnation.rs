//! What the daemons that serve one socket hand on to each other, whatever ends them: how many there were, and a secret.
//!
//! Owns the bytes in the lock file beside the socket, which only the daemon that holds the lock reads and writes. It must
//! never use a secret that another user could have read.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use plane::Tickets;

/// Bytes of the secret.
pub(crate) const SECRET_BYTES: usize = plane::TICKET_SECRET_BYTES;
/// First bytes of the file.
const MAGIC: [u8; 8] = *b"RAASINC1";
/// Magic, count, secret.
const FILE_BYTES: usize = 8 + 8 + SECRET_BYTES;
/// Numbers of connections and the like that one daemon gives.
const NUMBERS: u64 = 1 << 30;
/// So many daemons have numbers of their own, below `plane::CONNECTING_END`.
const RANGES: u64 = 1 << 10;

/// Which daemon of this socket it is.
#[derive(Clone)]
pub(crate) struct Incarnation {
    /// Daemons before it.
    count: u64,
    secret: [u8; SECRET_BYTES],
}

impl Incarnation {
    /// The next one. `fresh` is its secret if there is none that can be used.
    pub(crate) fn begin(file: &File, fresh: [u8; SECRET_BYTES]) -> io::Result<Self> {
        let meta = file.metadata()?;
        let own = rustix::process::geteuid().as_raw();
        let is_private = meta.uid() == own && meta.mode() & 0o077 == 0;
        let next = match read(file)?.filter(|_| is_private) {
            Some(last) => Self { count: last.count.wrapping_add(1), secret: last.secret },
            None => Self { count: 0, secret: fresh },
        };
        if meta.uid() == own {
            file.set_permissions(Permissions::from_mode(0o600))?;
            let mut bytes = Vec::with_capacity(FILE_BYTES);
            bytes.extend(MAGIC);
            bytes.extend(next.count.to_le_bytes());
            bytes.extend(next.secret);
            file.write_all_at(&bytes, 0)?;
        }
        Ok(next)
    }

    /// What seals tickets.
    pub(crate) fn tickets(&self) -> Tickets {
        Tickets::new(self.secret)
    }

    /// Numbers that this daemon gives begin behind this one, so that those of what outlives a daemon stay its own.
    pub(crate) fn first_number(&self) -> u64 {
        self.count % RANGES * NUMBERS
    }

    /// Whether this daemon gave a number, and not one before it.
    pub(crate) fn gave(&self, number: u64) -> bool {
        number / NUMBERS == self.count % RANGES
    }
}

impl std::fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incarnation").field("count", &self.count).finish_non_exhaustive()
    }
}

/// What the last daemon left; none if it left nothing that can be read.
fn read(file: &File) -> io::Result<Option<Incarnation>> {
    let mut bytes = [0; FILE_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let (magic, rest) = bytes.split_at(8);
    let (count, secret) = rest.split_at(8);
    let (Ok(count), Ok(secret)) = (count.try_into(), secret.try_into()) else { return Ok(None) };
    Ok((magic == MAGIC).then(|| Incarnation { count: u64::from_le_bytes(count), secret }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_has_numbers_of_its_own_and_all_one_secret() {
        let file = tempfile::tempfile().unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        let first = Incarnation::begin(&file, [1; SECRET_BYTES]).unwrap();
        let second = Incarnation::begin(&file, [2; SECRET_BYTES]).unwrap();
        assert_eq!((first.first_number(), second.first_number()), (0, NUMBERS));
        assert!(first.gave(NUMBERS - 1) && !first.gave(NUMBERS));
        assert!(second.gave(NUMBERS) && !second.gave(NUMBERS - 1));
        assert_eq!((first.secret, second.secret), ([1; SECRET_BYTES], [1; SECRET_BYTES]));
        const { assert!(NUMBERS * RANGES <= plane::CONNECTING_END) };
    }

    #[test]
    fn a_secret_that_others_could_read_is_not_used() {
        let file = tempfile::tempfile().unwrap();
        Incarnation::begin(&file, [1; SECRET_BYTES]).unwrap();
        file.set_permissions(Permissions::from_mode(0o644)).unwrap();
        assert_eq!(Incarnation::begin(&file, [2; SECRET_BYTES]).unwrap().secret, [2; SECRET_BYTES]);
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        file.write_all_at(b"no magic", 0).unwrap();
        assert_eq!(Incarnation::begin(&file, [3; SECRET_BYTES]).unwrap().secret, [3; SECRET_BYTES]);
    }
}
