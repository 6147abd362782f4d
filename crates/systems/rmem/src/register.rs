//! A register of any length that is read and written in one round trip, and never torn.
//!
//! Owns its words: the *newest* word names a time and a slot, and each writer has two slots. A writer writes the slot
//! that its own last value is not in, and in the same round trip raises the newest word to its time and slot: the bytes
//! are there first. A reader reads all with one READ and takes the slot that the newest word names, if that slot has
//! the same time and its checksum; otherwise it read while somebody wrote, and reads again. A writer whose time was not
//! the newest guesses again, behind the one that it found: so a write takes a second round trip only after others wrote.

use crate::client::{Attempts, Client};
use crate::error::Error;
use crate::layout::Layout;
use crate::memory::{Atomic, Chain, Memory};
use crate::object::{bytes_of, words_of};
use crate::place::{Placement, mix};
use crate::ptr::{Address, Ptr};

/// Clients that ever write a register, at most.
pub const WRITERS_MAX: u64 = 16;
/// Bytes of a register's value, at most.
pub const REGISTER_BYTES_MAX: u64 = 1024;

const KIND: u64 = u64::from_le_bytes(*b"rmem reg");
/// Kind, writers and bytes, writers that came, newest.
const HEAD_WORDS: u64 = 4;
/// Bits of the newest word that name the slot.
const SLOT_BITS: u32 = 8;

/// A value of up to 1 KiB that up to 16 clients write and any number reads. Linearizable; `read` is one READ, `write` one
/// WRITE and one atomic in one round trip, unless somebody else writes meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register {
    at: Ptr<[u64; 4]>,
    writers: u64,
    bytes: u64,
}

/// The right to write a register, which one client has.
#[derive(Debug)]
pub struct RegisterWriter {
    register: Register,
    number: u64,
    /// Its value's slot is the other one.
    turn: u64,
    /// The newest time that it knows of.
    time: u64,
    last: Last,
}

/// How a writer's last write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Known,
    /// By an error: its slot may be the newest.
    Unknown,
    /// Its future was dropped: it may still come to its end.
    Going,
}

impl Register {
    /// Makes one for values of at most `bytes` bytes and for that many writers, which counts those who die. Its first
    /// value is empty.
    pub async fn create<M: Memory>(
        client: &mut Client<M>,
        bytes: u64,
        writers: u64,
        place: impl Placement,
    ) -> Result<Self, Error> {
        let limits = [("the length of a register", bytes, REGISTER_BYTES_MAX), ("its writers", writers, WRITERS_MAX)];
        for (what, value, max) in limits {
            if value == 0 || value > max {
                return Err(Error::OutOfRange { what, value, max });
            }
        }
        let mut register = Self { at: Ptr::NULL, writers, bytes };
        register.at = client.allocate(Layout::words(register.words())?, place, 0).await?.cast();
        let mut words = vec![0; register.words() as usize];
        (words[0], words[1]) = (KIND, writers << 32 | bytes);
        client.fill(register.at.address(), &words).await?;
        Ok(register)
    }

    /// The register at a pointer. One READ.
    pub async fn open<M: Memory>(client: &Client<M>, at: Ptr<[u64; 4]>) -> Result<Self, Error> {
        let [found, sizes] = client.words(at.address()).await?;
        let (writers, bytes) = (sizes >> 32, sizes & u64::from(u32::MAX));
        let is_it = found == KIND && (1..=WRITERS_MAX).contains(&writers) && (1..=REGISTER_BYTES_MAX).contains(&bytes);
        if is_it { Ok(Self { at, writers, bytes }) } else { Err(Error::WrongKind { wanted: "register", found }) }
    }

    /// Where it is.
    pub fn ptr(&self) -> Ptr<[u64; 4]> {
        self.at
    }

    /// Newest word as it was, checksum, length, bytes.
    fn slot_words(&self) -> u64 {
        3 + self.bytes.div_ceil(8)
    }

    fn words(&self) -> u64 {
        HEAD_WORDS + 2 * self.writers * self.slot_words()
    }

    fn newest(&self) -> Address {
        self.at.address().plus(HEAD_WORDS - 1)
    }

    /// The right to write, for this client. One atomic. [`Error::OutOfRange`] if as many came before as may.
    pub async fn writer<M: Memory>(&self, client: &Client<M>) -> Result<RegisterWriter, Error> {
        let number = client.memory().atomic(self.at.address().plus(2), Atomic::Add(1)).await?;
        if number >= self.writers {
            let what = "the number of a register's writer";
            return Err(Error::OutOfRange { what, value: number + 1, max: self.writers });
        }
        Ok(RegisterWriter { register: *self, number, turn: 0, time: 0, last: Last::Known })
    }

    /// The value.
    pub async fn read<M: Memory>(&self, client: &mut Client<M>) -> Result<Vec<u8>, Error> {
        let mut attempts = Attempts::new("reading a register");
        // From the newest word on.
        let mut words = vec![0; (self.words() - HEAD_WORDS + 1) as usize];
        loop {
            client.begin(&mut attempts).await?;
            client.memory().read(self.newest(), &mut words).await?;
            let (newest, slots) = (words[0], &words[1..]);
            if newest == 0 {
                return Ok(Vec::new());
            }
            let (number, each) = (newest & ((1 << SLOT_BITS) - 1), self.slot_words() as usize);
            let Some([time, sum, value @ ..]) = slots.chunks_exact(each).nth(number as usize) else {
                return Err(Error::WrongKind { wanted: "register's slot", found: newest });
            };
            if *time == newest && *sum == checksum(newest, value) {
                return Ok(bytes_of(value));
            }
        }
    }
}

fn checksum(newest: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(newest ^ KIND), |sum, word| mix(sum.rotate_left(7) ^ word))
}

impl RegisterWriter {
    /// Stores a value of at most the register's length. After [`Error::OutcomeUnknown`] it may be stored or not. If the
    /// future of a write is dropped, this writer is of no use any more: each further write fails with that error.
    pub async fn write<M: Memory>(&mut self, client: &mut Client<M>, value: &[u8]) -> Result<(), Error> {
        let Self { register, number, last, .. } = *self;
        if value.len() as u64 > register.bytes {
            let (what, value) = ("the length of a register's value", value.len() as u64);
            return Err(Error::OutOfRange { what, value, max: register.bytes });
        }
        match last {
            Last::Known => {}
            Last::Unknown => self.look(client).await?,
            Last::Going => {
                let why = "a write of this writer was dropped before its end: get another writer".to_owned();
                return Err(Error::OutcomeUnknown { node: register.at.address().node, why });
            }
        }
        let mut padded = words_of(value);
        padded.resize(register.slot_words() as usize - 2, 0);
        let slot = number * 2 + self.turn;
        let place = register.at.address().plus(HEAD_WORDS + slot * register.slot_words());
        let mut attempts = Attempts::new("writing a register");
        loop {
            client.begin(&mut attempts).await?;
            let newest = (self.time + 1) << SLOT_BITS | slot;
            let mut words = vec![newest, checksum(newest, &padded)];
            words.extend_from_slice(&padded);
            let mut chain = Chain::new();
            chain.write(place, words);
            let raise = chain.atomic(register.newest(), Atomic::Max(newest));
            self.last = Last::Going;
            let result = client.memory().chain(chain).await;
            self.last = if result.is_ok() { Last::Known } else { Last::Unknown };
            let found = result?[raise].first().copied().unwrap_or(0);
            self.time = (self.time + 1).max(found >> SLOT_BITS);
            if found < newest {
                self.turn ^= 1;
                return Ok(());
            }
        }
    }

    /// After an error: the slot that readers look at must not be the one that is written next.
    async fn look<M: Memory>(&mut self, client: &Client<M>) -> Result<(), Error> {
        let newest = client.word(self.register.newest()).await?;
        self.time = self.time.max(newest >> SLOT_BITS);
        let mine = self.number * 2 + self.turn;
        if newest != 0 && newest & ((1 << SLOT_BITS) - 1) == mine {
            self.turn ^= 1;
        }
        self.last = Last::Known;
        Ok(())
    }
}
