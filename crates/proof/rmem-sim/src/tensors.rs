//! Pools of `tensor` on a model: an owner, readers that map and readers that copy, and everything that may end between two
//! steps.
//!
//! The code that is judged is the code that ships: [`tensor::Books`], [`tensor::is_over`], [`tensor::confirm`] and the
//! header. Each word of a tensor is its generation. A reader that maps looks at any moment while it holds a tensor, and may
//! only see that; a reader that copies takes the words in any order, looks at the header, and may only be told that all is
//! well if they are those.
//!
//! What regions promise is modelled as docs/inside/tensor.md has it: a loan is said to be back only when nobody looks by
//! it, with one exception that is drawn (`early`): a loan of another host that is over while its READs still go on.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tensor::{Books, DType, Error, Grant, HEADER_BYTES, Header, Layout, Marks, Wanted, confirm, is_over};

const NAMES: [&str; 3] = ["a", "b", "c"];
const POOL: u64 = 77;
/// Room for a handful of tensors.
const POOL_BYTES: u64 = 4096;
const HEADER_WORDS: usize = HEADER_BYTES as usize / 8;
const WORDS_MAX: u64 = 60;
const READERS: usize = 5;
/// Drafts that the owner fills at a time.
const DRAFTS_MAX: usize = 2;

/// A story: how long, and which faults come, each in so many of a thousand steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorPlan {
    /// Decides everything.
    pub seed: u64,
    /// Steps.
    pub steps: u32,
    /// A reader dies, and another comes in its place.
    pub deaths: u32,
    /// The owner revokes the pool.
    pub revokes: u32,
    /// The owner's daemon ends: the pool moves, and nobody can say any more what was lent on the host.
    pub restarts: u32,
    /// A loan of another host is over while its READs go on.
    pub early: u32,
}

/// What a story had in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorStory {
    /// Tensors that were put.
    pub puts: u64,
    /// Blocks that were used again.
    pub reused: u64,
    /// Looks by a mapping.
    pub looks: u64,
    /// Looks by a mapping of memory that the pool has left.
    pub old_looks: u64,
    /// Copies that were confirmed.
    pub confirmed: u64,
    /// Copies of which the header said that they are others by now.
    pub caught: u64,
    /// References that were over.
    pub stale: u64,
    /// Times without room.
    pub no_room: u64,
}

type Memory = Rc<RefCell<Vec<u64>>>;

/// How a reader looks at what it was lent.
#[derive(Debug)]
enum Look {
    /// It has the memory mapped.
    Mapped(Memory),
    /// It copies: words that it still has to take, and those that it has.
    Copying { left: Vec<usize>, taken: Vec<u64> },
}

#[derive(Debug)]
struct Held {
    pin: u64,
    at: usize,
    header: Header,
    look: Look,
}

#[derive(Debug, Default)]
struct Reader {
    is_far: bool,
    asks: Option<Wanted>,
    held: Option<Held>,
    known: Vec<(String, u64)>,
}

/// A loan as the library of the owner has it.
#[derive(Debug, Clone, Copy)]
struct Loan {
    epoch: u64,
    /// What it says when it is asked.
    is_back: Option<bool>,
    is_far: bool,
}

#[derive(Debug)]
struct Filling {
    generation: u64,
    at: usize,
    words: usize,
    filled: usize,
}

struct Words<'a> {
    memory: &'a Memory,
    is_reached: bool,
}

impl Marks for Words<'_> {
    fn clear(&mut self, at: u64) -> bool {
        if self.is_reached {
            self.memory.borrow_mut()[at as usize / 8] = 0;
        }
        self.is_reached
    }
}

struct Model {
    rng: StdRng,
    now: Duration,
    books: Books,
    memory: Memory,
    epoch: u64,
    loans: BTreeMap<u64, Loan>,
    filling: Vec<Filling>,
    readers: Vec<Reader>,
    /// What a judge knows: which generation has a name.
    truth: BTreeMap<&'static str, u64>,
    used: BTreeSet<usize>,
    /// A restart is half done: what is left is the move, or that loans are unknown.
    is_moving: Option<bool>,
    story: TensorStory,
}

fn layout(words: u64) -> Result<Layout, String> {
    Layout::new(DType::U64, &[words]).map_err(|e| e.to_string())
}

impl TensorPlan {
    /// Plays it. An error says what must not be.
    pub fn play(&self) -> Result<TensorStory, String> {
        let readers = (0..READERS).map(|n| Reader { is_far: n % 2 == 1, ..Reader::default() }).collect();
        let mut model = Model {
            rng: StdRng::seed_from_u64(self.seed),
            now: Duration::ZERO,
            books: Books::new("pool", POOL_BYTES, NAMES.len()),
            memory: Rc::new(RefCell::new(vec![0; POOL_BYTES as usize / 8])),
            epoch: 1,
            loans: BTreeMap::new(),
            filling: Vec::new(),
            readers,
            truth: BTreeMap::new(),
            used: BTreeSet::new(),
            is_moving: None,
            story: TensorStory::default(),
        };
        for step in 0..self.steps {
            model.now += Duration::from_millis(1);
            let done = if model.draws(self.deaths) {
                model.kill_reader()
            } else if model.draws(self.revokes) {
                model.revoke()
            } else if model.draws(self.restarts) {
                model.restart()
            } else if model.draws(self.early) {
                model.end_early()
            } else if model.rng.random_range(0..3) == 0 {
                model.owner()
            } else {
                model.reader()
            };
            done.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        Ok(model.story)
    }
}

impl Model {
    fn draws(&mut self, of_thousand: u32) -> bool {
        self.rng.random_range(0..1000) < of_thousand
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.rng.random_range(0..NAMES.len())]
    }

    // ---- the owner

    fn owner(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..10) {
            0 | 1 => self.make(),
            2 => self.free(),
            3 => {
                self.sweep();
                Ok(())
            }
            _ => self.fill(),
        }
    }

    fn make(&mut self) -> Result<(), String> {
        if self.filling.len() >= DRAFTS_MAX {
            return Ok(());
        }
        let words = self.rng.random_range(0..=WORDS_MAX);
        let is_reached = self.rng.random_range(0..10) != 0;
        let mut marks = Words { memory: &self.memory, is_reached };
        match self.books.make(words * 8, self.now, &mut marks) {
            Ok((generation, at)) => {
                let at = at as usize / 8;
                let header = Header { generation, pool: POOL, layout: layout(words)? };
                self.memory.borrow_mut()[at..at + HEADER_WORDS].copy_from_slice(&as_words(&header.to_bytes()));
                self.story.reused += u64::from(!self.used.insert(at));
                self.filling.push(Filling { generation, at, words: words as usize, filled: 0 });
                Ok(())
            }
            Err(Error::NoRoom { .. }) => {
                self.story.no_room += 1;
                self.sweep();
                Ok(())
            }
            Err(other) => Err(other.to_string()),
        }
    }

    /// Writes a few words of a draft, or gives it a name.
    fn fill(&mut self) -> Result<(), String> {
        if self.filling.is_empty() {
            return Ok(());
        }
        let number = self.rng.random_range(0..self.filling.len());
        let draft = &mut self.filling[number];
        for _ in 0..self.rng.random_range(1..20) {
            if draft.filled < draft.words {
                self.memory.borrow_mut()[draft.at + HEADER_WORDS + draft.filled] = draft.generation;
                draft.filled += 1;
            }
        }
        if draft.filled < draft.words {
            return Ok(());
        }
        let (draft, name) = (self.filling.swap_remove(number), self.name());
        if self.rng.random_range(0..8) == 0 {
            self.books.drop_filled(draft.generation);
            return Ok(());
        }
        self.books.put(name, draft.generation).map_err(|e| e.to_string())?;
        self.truth.insert(name, draft.generation);
        self.story.puts += 1;
        Ok(())
    }

    fn free(&mut self) -> Result<(), String> {
        let name = self.name();
        match (self.books.free(name), self.truth.remove(name)) {
            (Ok((generation, _)), Some(known)) if generation == known => Ok(()),
            (Err(Error::Unknown { .. }), None) => Ok(()),
            (found, known) => Err(format!("`{name}` was {known:?}, and free says {found:?}")),
        }
    }

    fn sweep(&mut self) {
        let epoch = self.epoch;
        let books = &mut self.books;
        self.loans.retain(|pin, loan| {
            let is_kept = !is_over(loan.is_back, loan.epoch, epoch);
            if !is_kept {
                books.unpin(*pin);
            }
            is_kept
        });
    }

    /// The pool goes to other memory, and drafts are made again.
    fn move_pool(&mut self) {
        let copy = self.memory.borrow().clone();
        self.memory = Rc::new(RefCell::new(copy));
        self.epoch += 1;
        for draft in std::mem::take(&mut self.filling) {
            self.books.drop_filled(draft.generation);
        }
    }

    fn revoke(&mut self) -> Result<(), String> {
        self.move_pool();
        self.loans.values_mut().for_each(|loan| loan.is_back = Some(true));
        self.end_copies();
        Ok(())
    }

    /// The owner's daemon ends, and the next one is there: two steps, each of which may come first. Readers of other hosts
    /// have nothing from the end on; of those of this host nobody can say any more what they hold.
    fn restart(&mut self) -> Result<(), String> {
        let is_move_due = self.is_moving.take().unwrap_or_else(|| {
            let is_lost_first = self.rng.random_range(0..2) == 0;
            self.is_moving = Some(is_lost_first);
            !is_lost_first
        });
        if is_move_due {
            self.move_pool();
        } else {
            for loan in self.loans.values_mut().filter(|loan| loan.is_back == Some(false)) {
                loan.is_back = loan.is_far.then_some(true);
            }
        }
        self.end_copies();
        Ok(())
    }

    /// READs of other hosts fail: the way to the pool's memory is another one.
    fn end_copies(&mut self) {
        let far = self.readers.iter_mut().filter(|reader| reader.is_far);
        far.for_each(|reader| reader.held = None);
    }

    fn end_early(&mut self) -> Result<(), String> {
        let far: Vec<u64> = self.loans.iter().filter(|(_, loan)| loan.is_far).map(|(pin, _)| *pin).collect();
        if !far.is_empty() {
            let pin = far[self.rng.random_range(0..far.len())];
            self.loans.entry(pin).and_modify(|loan| loan.is_back = Some(true));
        }
        Ok(())
    }

    // ---- readers

    fn kill_reader(&mut self) -> Result<(), String> {
        let number = self.rng.random_range(0..READERS);
        let is_far = self.readers[number].is_far;
        let was = std::mem::replace(&mut self.readers[number], Reader { is_far, ..Reader::default() });
        if let Some(held) = was.held {
            self.back(held.pin);
        }
        Ok(())
    }

    fn back(&mut self, pin: u64) {
        if let Some(loan) = self.loans.get_mut(&pin).filter(|loan| loan.is_back == Some(false)) {
            loan.is_back = Some(true);
        }
    }

    fn reader(&mut self) -> Result<(), String> {
        let number = self.rng.random_range(0..READERS);
        if let Some(held) = self.readers[number].held.take() {
            return self.look(number, held);
        }
        if let Some(wanted) = self.readers[number].asks.take() {
            return self.answer(number, &wanted);
        }
        let known = &self.readers[number].known;
        let wanted = if known.is_empty() || self.rng.random_range(0..2) == 0 {
            Wanted { name: NAMES[self.rng.random_range(0..NAMES.len())].to_owned(), generation: None }
        } else {
            let (name, generation) = known[self.rng.random_range(0..known.len())].clone();
            Wanted { name, generation: Some(generation) }
        };
        self.readers[number].asks = Some(wanted);
        Ok(())
    }

    /// The owner's program answers: it pins, and then lends.
    fn answer(&mut self, number: usize, wanted: &Wanted) -> Result<(), String> {
        let current = self.truth.get(wanted.name.as_str()).copied();
        match (self.books.pin(wanted, "reader", self.now), current) {
            (Ok(grant), Some(current))
                if grant.generation == current && wanted.generation.is_none_or(|g| g == current) =>
            {
                self.grant(number, wanted, grant)
            }
            (Err(Error::Stale { held, current: said, .. }), Some(current))
                if said == current && Some(held) == wanted.generation && held != current =>
            {
                self.story.stale += 1;
                Ok(())
            }
            (Err(Error::Freed { .. }), None) if wanted.generation.is_some() => {
                self.story.stale += 1;
                Ok(())
            }
            (Err(Error::Unknown { .. }), None) if wanted.generation.is_none() => Ok(()),
            (found, _) => Err(format!("{wanted:?} is {current:?}, and the owner says {found:?}")),
        }
    }

    fn grant(&mut self, number: usize, wanted: &Wanted, grant: Grant) -> Result<(), String> {
        let at = grant.at as usize / 8;
        let bytes: Vec<u8> =
            self.memory.borrow()[at..at + HEADER_WORDS].iter().flat_map(|word| word.to_le_bytes()).collect();
        let header = Header::from_bytes(&bytes).ok_or("a tensor without a header was granted")?;
        if header.generation != grant.generation {
            return Err(format!("{grant:?} has the header of {}", header.generation));
        }
        let words = header.layout.bytes() as usize / 8;
        let is_far = self.readers[number].is_far;
        self.loans.insert(grant.pin, Loan { epoch: self.epoch, is_back: Some(false), is_far });
        let look = if is_far {
            let mut left: Vec<usize> = (0..words).collect();
            left.shuffle(&mut self.rng);
            Look::Copying { left, taken: Vec::new() }
        } else {
            Look::Mapped(Rc::clone(&self.memory))
        };
        self.readers[number].known.push((wanted.name.clone(), grant.generation));
        self.readers[number].held = Some(Held { pin: grant.pin, at, header, look });
        Ok(())
    }

    fn look(&mut self, number: usize, mut held: Held) -> Result<(), String> {
        let generation = held.header.generation;
        let words = held.header.layout.bytes() as usize / 8;
        let is_over = match &mut held.look {
            Look::Mapped(memory) => {
                if words > 0 {
                    let word = memory.borrow()[held.at + HEADER_WORDS + self.rng.random_range(0..words)];
                    if word != generation {
                        return Err(format!("a mapping of {generation} shows {word}"));
                    }
                }
                self.story.looks += 1;
                self.story.old_looks += u64::from(!Rc::ptr_eq(memory, &self.memory));
                self.rng.random_range(0..12) == 0
            }
            Look::Copying { left, taken } => match left.split_off(left.len().saturating_sub(8)) {
                some if !some.is_empty() => {
                    let memory = self.memory.borrow();
                    taken.extend(some.iter().map(|word| memory[held.at + HEADER_WORDS + word]));
                    false
                }
                _ => {
                    let found: Vec<u8> = self.memory.borrow()[held.at..held.at + HEADER_WORDS]
                        .iter()
                        .flat_map(|word| word.to_le_bytes())
                        .collect();
                    match confirm("it", &held.header, &found) {
                        Ok(()) if taken.iter().all(|word| *word == generation) => self.story.confirmed += 1,
                        Ok(()) => return Err(format!("{taken:?} was confirmed as {generation}")),
                        Err(_) => self.story.caught += 1,
                    }
                    true
                }
            },
        };
        if is_over {
            self.back(held.pin);
        } else {
            self.readers[number].held = Some(held);
        }
        Ok(())
    }
}

fn as_words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}
