//! Members' files in the model, and the scribes that write them.
//!
//! Owns what a file is after power went: all that was synced, and of the rest a beginning, maybe with a wrong byte. The end
//! of a program alone takes nothing that it had written.

use agree::{Ask, Journal, Scribe, Title};

use super::Stage;
use super::program::{COMMAND_BYTES_MAX, GROUP, layout};
use crate::world::World;

/// A file, as the disk and the system's cache have it.
#[derive(Debug, Default)]
pub(super) struct File {
    /// What a sync said that is there; of a directory nothing is there at first.
    durable: Option<Vec<u8>>,
    /// What was appended since.
    unsynced: Vec<u8>,
    /// Another file that takes its place, or has when nobody heard of it.
    other: Option<Vec<u8>>,
}

/// A member's scribe and its file.
#[derive(Debug, Default)]
pub(super) struct Desk {
    pub(super) file: File,
    scribe: Option<Scribe>,
    /// A write that was begun: it ends with another step.
    has_begun: bool,
    /// The number of the file.
    number: u64,
    /// The next look at the memory.
    look_at: u64,
}

impl File {
    fn begin(&mut self, ask: &Ask) {
        match ask {
            Ask::Append(bytes) => self.unsynced.extend(bytes),
            Ask::Replace(bytes) => self.other = Some(bytes.clone()),
            Ask::Read { .. } | Ask::Publish { .. } => {}
        }
    }

    fn end(&mut self) {
        if let Some(other) = self.other.take() {
            (self.durable, self.unsynced) = (Some(other), vec![]);
        }
        let unsynced = std::mem::take(&mut self.unsynced);
        self.durable.iter_mut().for_each(|bytes| bytes.extend(&unsynced));
    }

    /// The program ends with a write under way, which may be done or not.
    fn outlive(&mut self, world: &World) {
        if self.other.is_some() && world.below(2) == 0 {
            self.other = None;
        }
        self.end();
    }

    /// Power goes: of what was not synced any part may be there.
    fn lose(&mut self, world: &World) {
        if world.below(2) == 0 {
            self.other = None;
        }
        let kept = world.below(self.unsynced.len() as u64 + 1) as usize;
        self.unsynced.truncate(kept);
        if world.below(2) == 0
            && let Some(byte) = self.unsynced.last_mut()
        {
            *byte ^= 0x40;
        }
        self.end();
    }
}

impl Desk {
    pub(super) fn new(number: u64) -> Self {
        Self { number, ..Self::default() }
    }

    /// The program ends; power goes or not.
    pub(super) fn close(&mut self, is_power: bool, world: &World) {
        (self.scribe, self.has_begun) = (None, false);
        if is_power { self.file.lose(world) } else { self.file.outlive(world) }
    }
}

impl Stage {
    /// The program opens its file, and makes of it what its host's memory was, if that is not there.
    pub(super) fn open_file(&mut self, program: usize) {
        let desk = &mut self.desks[program];
        let Some(layout) = layout() else { return };
        let (group, member, number) = (GROUP, program as u8, desk.number);
        let title = Title { group, member, number, layout, command_bytes_max: COMMAND_BYTES_MAX as u64 };
        let journal = match desk.file.durable.as_deref().map(Journal::decode) {
            None => Journal::new(title),
            Some(Ok(journal)) => journal,
            Some(Err(error)) => return self.wrong(format!("member {program}: {error}")),
        };
        let restored = journal.restore();
        let Ok(mut scribe) = Scribe::new(journal) else { return };
        let mut state = self.world.state();
        let crate::world::State { nodes, keepers, .. } = &mut *state;
        let Some(memory) = nodes[program].as_mut() else { return };
        let mut write = |offset: u64, bytes: &[u8]| {
            for (at, word) in super::program::words(bytes).into_iter().enumerate() {
                memory[offset as usize / 8 + at] = word;
            }
        };
        if !keepers[program].is_whole {
            restored.iter().for_each(|(offset, bytes)| write(*offset, bytes));
        }
        while let Some(ask) = scribe.ask() {
            desk.file.begin(&ask);
            desk.file.end();
            if let Ask::Publish { offset, bytes } = &ask {
                write(*offset, bytes);
            }
            scribe.on_done();
        }
        keepers[program].is_whole = true;
        desk.scribe = Some(scribe);
    }

    /// Whether the scribe can do something.
    pub(super) fn can_write(&self, program: usize, now: u64) -> bool {
        let desk = &self.desks[program];
        let is_due = |scribe: &Scribe| now >= desk.look_at || scribe.ask().is_some();
        self.programs[program].is_awake(now) && desk.scribe.as_ref().is_some_and(is_due)
    }

    /// One step of a scribe: a look, a read, the begin or the end of a write.
    pub(super) fn write(&mut self, program: usize) {
        let desk = &mut self.desks[program];
        let Some(scribe) = desk.scribe.as_mut() else { return };
        let Some(ask) = scribe.ask() else {
            desk.look_at = self.world.now_us() + self.world.below(self.period_us / 4 + 1);
            return scribe.look();
        };
        let mut state = self.world.state();
        let memory = state.nodes[program].as_mut();
        match (&ask, memory) {
            (Ask::Read { offset, bytes }, Some(memory)) => {
                let words = &memory[*offset as usize / 8..(*offset as usize + bytes) / 8];
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                scribe.on_read(&bytes);
            }
            (Ask::Publish { offset, bytes }, Some(memory)) => {
                for (at, word) in super::program::words(bytes).into_iter().enumerate() {
                    memory[*offset as usize / 8 + at] = word;
                }
                scribe.on_done();
            }
            (Ask::Append(_) | Ask::Replace(_), _) if !desk.has_begun => {
                desk.file.begin(&ask);
                desk.has_begun = true;
            }
            (Ask::Append(_) | Ask::Replace(_), _) => {
                desk.file.end();
                desk.has_begun = false;
                self.synced += 1;
                scribe.on_done();
            }
            // The daemon is down, and its memory is where it was when it is back.
            (Ask::Read { .. } | Ask::Publish { .. }, None) => {}
        }
    }
}
