//! What the owner of a pool knows of it: names, generations, blocks and pins.
//!
//! Owns the rule that no block is used again while it has a pin, and that its header is cleared before. It does no I/O and
//! has no clock, so the model of crate `rmem-sim` runs this very code.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::{Error, Holder};
use crate::extents::{Extents, block_bytes};
use crate::limits::{HEADER_BYTES, NAME_BYTES_MAX};

/// The headers in the pool's memory.
pub trait Marks {
    /// Sets the generation of the header at `at` to 0, before whatever is written to the pool afterwards. False: the
    /// memory cannot be reached now; the block is then kept.
    fn clear(&mut self, at: u64) -> bool;
}

/// Which tensor a reader asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The generation that it must be; none: whichever has the name.
    pub generation: Option<u64>,
}

/// A tensor that was found, with a pin on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The pin.
    pub pin: u64,
    /// The tensor.
    pub generation: u64,
    /// Where its header is in the pool.
    pub at: u64,
    /// Pins that it has.
    pub pins: u64,
}

/// Whether nobody looks by a loan any more. `is_back` is what the library says, and none if nobody can know: then it is
/// over when the pool's memory is another one (`epoch`) than that in which it was lent, or a later one (`lent`).
#[must_use]
pub fn is_over(is_back: Option<bool>, lent: u64, epoch: u64) -> bool {
    is_back.unwrap_or(lent != epoch)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// Its maker fills it.
    Filled,
    /// Under a name.
    Named(String),
    /// Nobody gets it any more.
    Freed,
}

#[derive(Debug)]
struct Tensor {
    at: u64,
    block: u64,
    bytes: u64,
    /// The last name that it had.
    name: String,
    state: State,
    pins: u64,
}

#[derive(Debug)]
struct Pin {
    generation: u64,
    reader: String,
    since: Duration,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Books {
    pool: String,
    extents: Extents,
    tensors: BTreeMap<u64, Tensor>,
    names: BTreeMap<String, u64>,
    names_max: usize,
    pins: BTreeMap<u64, Pin>,
    next_generation: u64,
    next_pin: u64,
}

impl Books {
    /// Of a pool of `bytes`, of which all but the first block of 256 are free.
    #[must_use]
    pub fn new(pool: &str, bytes: u64, names_max: usize) -> Self {
        let free = (bytes / HEADER_BYTES).saturating_sub(1) * HEADER_BYTES;
        Self {
            pool: pool.to_owned(),
            extents: Extents::new(HEADER_BYTES, free),
            tensors: BTreeMap::new(),
            names: BTreeMap::new(),
            names_max,
            pins: BTreeMap::new(),
            next_generation: 1,
            next_pin: 1,
        }
    }

    /// A block for a payload of so many bytes: its generation, and where its header goes. It is its maker's until
    /// [`Books::put`]. [`Error::NoRoom`] says who holds what was freed.
    pub fn make(&mut self, bytes: u64, now: Duration, marks: &mut impl Marks) -> Result<(u64, u64), Error> {
        let block = block_bytes(bytes);
        let taken = match self.extents.take(block) {
            Some(at) => Some(at),
            None => {
                self.collect(marks);
                self.extents.take(block)
            }
        };
        let Some(at) = taken else {
            let (free, largest) = (self.extents.free(), self.extents.largest());
            let (asked, held) = (block, self.holders(now));
            let pool = self.pool.clone();
            return Err(Error::NoRoom { pool, asked, free, largest, tensors: self.names.len(), held });
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        let tensor = Tensor { at, block, bytes, name: String::new(), state: State::Filled, pins: 0 };
        self.tensors.insert(generation, tensor);
        Ok((generation, at))
    }

    /// Gives a tensor that was filled a name. What had the name before is freed.
    pub fn put(&mut self, name: &str, generation: u64) -> Result<(), Error> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::BadName { bytes: name.len(), max: NAME_BYTES_MAX });
        }
        if !self.names.contains_key(name) && self.names.len() >= self.names_max {
            return Err(Error::TooManyNames { pool: self.pool.clone(), max: self.names_max });
        }
        let Some(tensor) = self.tensors.get_mut(&generation).filter(|tensor| tensor.state == State::Filled) else {
            return Err(Error::Freed { name: name.to_owned(), generation });
        };
        name.clone_into(&mut tensor.name);
        tensor.state = State::Named(name.to_owned());
        if let Some(before) = self.names.insert(name.to_owned(), generation) {
            self.end(before);
        }
        Ok(())
    }

    /// Takes a name away; nobody gets the tensor any more. Its generation, and how many pins it has.
    pub fn free(&mut self, name: &str) -> Result<(u64, u64), Error> {
        let generation = self.names.remove(name).ok_or_else(|| self.unknown(name))?;
        self.end(generation);
        Ok((generation, self.pins_of(generation)))
    }

    /// Gives up a tensor that was not put.
    pub fn drop_filled(&mut self, generation: u64) {
        if self.tensors.get(&generation).is_some_and(|tensor| tensor.state == State::Filled) {
            self.end(generation);
        }
    }

    fn end(&mut self, generation: u64) {
        if let Some(tensor) = self.tensors.get_mut(&generation) {
            tensor.state = State::Freed;
        }
    }

    /// Makes the blocks usable that are freed and have no pin.
    pub fn collect(&mut self, marks: &mut impl Marks) {
        let extents = &mut self.extents;
        self.tensors.retain(|_, tensor| {
            let is_over = tensor.state == State::Freed && tensor.pins == 0 && marks.clear(tensor.at);
            if is_over {
                extents.give_back(tensor.at, tensor.block);
            }
            !is_over
        });
    }

    /// Finds a tensor and pins it: its block stays as it is until [`Books::unpin`]. Only then may the reader be told.
    pub fn pin(&mut self, wanted: &Wanted, reader: &str, now: Duration) -> Result<Grant, Error> {
        let name = &wanted.name;
        let generation = match (self.names.get(name), wanted.generation) {
            (Some(current), Some(held)) if held != *current => {
                return Err(Error::Stale { name: name.clone(), held, current: *current });
            }
            (Some(current), _) => *current,
            (None, Some(generation)) if generation < self.next_generation => {
                return Err(Error::Freed { name: name.clone(), generation });
            }
            (None, _) => return Err(self.unknown(name)),
        };
        let Some(tensor) = self.tensors.get_mut(&generation) else { return Err(self.unknown(name)) };
        tensor.pins += 1;
        let (pin, at, pins) = (self.next_pin, tensor.at, tensor.pins);
        self.next_pin += 1;
        self.pins.insert(pin, Pin { generation, reader: reader.to_owned(), since: now });
        Ok(Grant { pin, generation, at, pins })
    }

    /// Nobody looks at a tensor by that pin any more. Where its header is, and how many pins it has left.
    pub fn unpin(&mut self, pin: u64) -> Option<(u64, u64)> {
        let Pin { generation, .. } = self.pins.remove(&pin)?;
        let tensor = self.tensors.get_mut(&generation)?;
        tensor.pins -= 1;
        Some((tensor.at, tensor.pins))
    }

    /// How many pins a tensor has.
    #[must_use]
    pub fn pins_of(&self, generation: u64) -> u64 {
        self.tensors.get(&generation).map_or(0, |tensor| tensor.pins)
    }

    /// Who holds which tensors, longest first.
    #[must_use]
    pub fn holders(&self, now: Duration) -> Vec<Holder> {
        let mut all: Vec<Holder> = self.pins.values().filter_map(|pin| self.holder(pin, now)).collect();
        all.sort_by_key(|holder| std::cmp::Reverse(holder.held));
        all
    }

    fn holder(&self, pin: &Pin, now: Duration) -> Option<Holder> {
        let tensor = self.tensors.get(&pin.generation)?;
        Some(Holder {
            reader: pin.reader.clone(),
            name: tensor.name.clone(),
            generation: pin.generation,
            bytes: tensor.bytes,
            is_freed: tensor.state == State::Freed,
            held: now.saturating_sub(pin.since),
        })
    }

    /// Names with their generations and bytes.
    pub fn names(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let bytes = |generation| self.tensors.get(generation).map_or(0, |tensor| tensor.bytes);
        self.names.iter().map(move |(name, generation)| (name.as_str(), *generation, bytes(generation)))
    }

    /// Bytes that no block has.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.extents.free()
    }

    fn unknown(&self, name: &str) -> Error {
        Error::Unknown { pool: self.pool.clone(), name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[derive(Default)]
    struct Cleared(Vec<u64>, bool);

    impl Marks for Cleared {
        fn clear(&mut self, at: u64) -> bool {
            self.0.push(at);
            !self.1
        }
    }

    fn wanted(name: &str, generation: Option<u64>) -> Wanted {
        Wanted { name: name.to_owned(), generation }
    }

    /// Room for one block of 512 bytes.
    fn small() -> (Books, Cleared, u64, u64) {
        let (mut books, mut marks) = (Books::new("p", 768, 2), Cleared::default());
        let (generation, at) = books.make(100, NOW, &mut marks).unwrap();
        books.put("a", generation).unwrap();
        (books, marks, generation, at)
    }

    #[test]
    fn a_block_with_a_pin_is_not_used_again_and_the_error_says_who_holds_it() {
        let (mut books, mut marks, generation, at) = small();
        let grant = books.pin(&wanted("a", None), "reader", NOW).unwrap();
        assert_eq!((grant.generation, grant.at), (generation, at));
        assert_eq!(books.free("a").unwrap(), (generation, 1));
        let later = Duration::from_secs(9);
        let Err(Error::NoRoom { held, .. }) = books.make(100, later, &mut marks) else { panic!("there was room") };
        assert_eq!((held[0].reader.as_str(), held[0].name.as_str(), held[0].held), ("reader", "a", later));
        assert!(marks.0.is_empty(), "a header was cleared under a pin");
        books.unpin(grant.pin);
        books.unpin(grant.pin);
        let (next, again) = books.make(100, later, &mut marks).unwrap();
        assert_eq!((marks.0, again), (vec![at], at));
        assert!(next > generation);
    }

    #[test]
    fn a_block_whose_header_cannot_be_cleared_is_kept() {
        let (mut books, mut marks, ..) = small();
        books.free("a").unwrap();
        marks.1 = true;
        assert!(matches!(books.make(100, NOW, &mut marks), Err(Error::NoRoom { .. })));
        marks.1 = false;
        assert!(books.make(100, NOW, &mut marks).is_ok());
    }

    #[test]
    fn each_way_in_which_a_reference_is_over_has_its_error() {
        let mut marks = Cleared::default();
        let mut books = Books::new("p", 1 << 20, 2);
        let make = |books: &mut Books, marks: &mut Cleared| books.make(8, NOW, marks).unwrap().0;
        let first = make(&mut books, &mut marks);
        assert!(matches!(books.pin(&wanted("a", Some(first)), "r", NOW), Err(Error::Freed { .. })));
        books.put("a", first).unwrap();
        assert!(matches!(books.put("b", first), Err(Error::Freed { .. })), "put twice");
        let second = make(&mut books, &mut marks);
        books.put("a", second).unwrap();
        let stale = books.pin(&wanted("a", Some(first)), "r", NOW);
        assert!(matches!(stale, Err(Error::Stale { held, current, .. }) if (held, current) == (first, second)));
        assert_eq!(books.pin(&wanted("a", Some(second)), "r", NOW).unwrap().generation, second);
        books.free("a").unwrap();
        assert!(matches!(books.pin(&wanted("a", Some(second)), "r", NOW), Err(Error::Freed { .. })));
        assert!(matches!(books.pin(&wanted("a", None), "r", NOW), Err(Error::Unknown { .. })));
        assert!(matches!(books.pin(&wanted("a", Some(99)), "r", NOW), Err(Error::Unknown { .. })));
        assert!(matches!(books.free("a"), Err(Error::Unknown { .. })));
    }

    #[test]
    fn names_are_bounded_and_a_name_that_is_there_can_be_put_again() {
        let mut marks = Cleared::default();
        let mut books = Books::new("p", 1 << 20, 2);
        let mut make = || books.make(8, NOW, &mut marks).unwrap().0;
        let made = [make(), make(), make()];
        books.put("a", made[0]).unwrap();
        books.put("b", made[1]).unwrap();
        assert!(matches!(books.put("c", made[2]), Err(Error::TooManyNames { max: 2, .. })));
        assert!(matches!(books.put("", made[2]), Err(Error::BadName { .. })));
        books.put("b", made[2]).unwrap();
        assert_eq!(books.names().map(|(name, ..)| name).collect::<Vec<_>>(), ["a", "b"]);
    }
}
