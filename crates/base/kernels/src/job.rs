//! A run: a program, and the fuel that is left to it.
//!
//! Owns that a run ends once, with an answer that fits or a failure.

use std::fmt;

use crate::failure::Failure;
use crate::fuel::Fuel;
use crate::library::Library;
use crate::program::{Program, Step};
use crate::request::Request;
use crate::view::View;

/// How far a run is after a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It goes on in the next slice.
    More,
    /// It has its answer.
    Done(Vec<u8>),
    /// It ended without one.
    Failed(Failure),
}

/// One run of a kernel.
pub struct Job {
    program: Box<dyn Program>,
    fuel_max: u64,
    spent: u64,
    answer_max: usize,
}

impl Job {
    /// Begins a run of what a request names; nothing of it has run yet. The answer has at most `answer_max` bytes.
    pub fn begin(request: &[u8], library: &Library, fuel_max: u64, answer_max: usize) -> Result<Self, Failure> {
        let request = Request::parse(request).map_err(|e| Failure::bad(e.to_string()))?;
        let program = library.program(&request)?;
        Ok(Self { program, fuel_max, spent: 0, answer_max })
    }

    /// Gives it a slice of fuel, over these regions. The first is the one that the request is about.
    ///
    /// With it: how much it spent, which may be a step more than the slice.
    pub fn run(&mut self, views: &[View], slice: u64) -> (Progress, u64) {
        let mut fuel = Fuel::new(slice.min(self.fuel_max.saturating_sub(self.spent)));
        let step = self.program.run(views, &mut fuel);
        // A slice costs something whatever it does.
        let spent = fuel.spent().max(1);
        self.spent = self.spent.saturating_add(spent);
        let progress = match step {
            Err(failure) => Progress::Failed(failure),
            Ok(Step::Done(answer)) if answer.len() > self.answer_max => {
                let (bytes, max) = (answer.len() as u64, self.answer_max as u64);
                Progress::Failed(Failure::AnswerTooLong { bytes, max })
            }
            Ok(Step::Done(answer)) => Progress::Done(answer),
            Ok(Step::More) if self.spent >= self.fuel_max => {
                Progress::Failed(Failure::OutOfFuel { limit: self.fuel_max })
            }
            Ok(Step::More) => Progress::More,
        };
        (progress, spent)
    }

    /// Runs to its end at once.
    pub fn finish(mut self, views: &[View]) -> Result<Vec<u8>, Failure> {
        loop {
            match self.run(views, u64::MAX).0 {
                Progress::More => {}
                Progress::Done(answer) => return Ok(answer),
                Progress::Failed(failure) => return Err(failure),
            }
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("spent", &self.spent).field("fuel_max", &self.fuel_max).finish_non_exhaustive()
    }
}
