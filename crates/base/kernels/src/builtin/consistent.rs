//! Consistency: bytes that somebody writes meanwhile are read again until their checksum is right.

use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::limits::ANSWER_BYTES_MAX;
use crate::program::{Program, Step};
use crate::request::{Call, write_answer};
use crate::view::View;

/// Bytes of the answer beside the bytes that were read, at most.
const ANSWER_HEAD_BYTES: usize = 16;

/// Reads bytes until the checksum that stands elsewhere in the region is theirs: CRC-32C, as a number of 8 bytes in the
/// owner's byte order. The answer is the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consistent {
    /// Where the bytes begin.
    pub offset: u64,
    /// How many they are: at most 880.
    pub bytes: u32,
    /// Where the checksum is.
    pub checksum_at: u64,
    /// How often to look at most. Between two looks others have their turns.
    pub tries_max: u32,
}

impl Consistent {
    /// The checksum that a writer is to store for these bytes.
    pub fn checksum(bytes: &[u8]) -> u64 {
        crc32c::crc32c(bytes).into()
    }
}

impl Call for Consistent {
    const NAME: &'static str = "consistent";
    type Answer = Vec<u8>;
}

/// How often it has looked.
pub(crate) struct Reread {
    args: Consistent,
    tries: u32,
}

impl Reread {
    pub(crate) fn program(args: Consistent) -> Result<Box<dyn Program>, Failure> {
        let max = ANSWER_BYTES_MAX - ANSWER_HEAD_BYTES;
        if args.bytes as usize > max || args.tries_max == 0 {
            let Consistent { bytes, tries_max, .. } = args;
            return Err(Failure::bad(format!("{bytes} bytes in {tries_max} tries: at most {max}, in at least 1")));
        }
        Ok(Box::new(Self { args, tries: 0 }))
    }
}

impl Program for Reread {
    fn run(&mut self, views: &[View], fuel: &mut Fuel) -> Result<Step, Failure> {
        let view = crate::view::of(views, 0)?;
        let mut bytes = vec![0; self.args.bytes as usize];
        // The checksum first and again: a writer that changes both between is seen.
        let before = view.word(self.args.checksum_at, fuel)?;
        view.read(self.args.offset, &mut bytes, fuel)?;
        fuel.touch(bytes.len() as u64);
        if before == Consistent::checksum(&bytes) && view.word(self.args.checksum_at, fuel)? == before {
            return Ok(Step::Done(write_answer(&bytes)));
        }
        self.tries += 1;
        if self.tries >= self.args.tries_max {
            return Err(Failure::NotConsistent { tries: self.tries });
        }
        // The writer may need this core to go on.
        Ok(Step::More)
    }
}
