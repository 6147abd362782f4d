//! A kernel in flight: the code that daemons run, over the model's words.
//!
//! Owns what a slice sees. It has fuel for one access, and each word of it is from some moment since the slice before:
//! as it was then, or as it is now.

use kernels::{ANSWER_BYTES_MAX, Call, FUEL_MAX, Failure, Job, Library, Progress, Request, Sorted, Sought, View};
use raas::RegionError;
use rand::RngExt;
use rand::rngs::StdRng;
use rmem::Error;
use shm::Region;

/// Of so many runs one finds the line of its host full.
const FULL_ONCE_IN: u32 = 20;
/// Room for an answer where frames are short.
const SHORT_ANSWER_BYTES: usize = 48;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Search {
    node: u8,
    job: Option<Job>,
    /// The node's words at the slice before.
    words: Vec<u64>,
    region: Option<Region>,
    outcome: Option<Result<Sought, Error>>,
}

fn failed(node: u8, failure: Failure) -> Error {
    Error::Region { node, cause: RegionError::Kernel { name: "model".to_owned(), failure } }
}

impl Search {
    pub(crate) fn new(node: u8, search: &Sorted, rng: &mut StdRng) -> Self {
        let answer_max = if rng.random_range(0..4) == 0 { SHORT_ANSWER_BYTES } else { ANSWER_BYTES_MAX };
        let args = search.args();
        let request = Request { name: Sorted::NAME, args: &args }.to_bytes();
        let begun = match request {
            _ if rng.random_range(0..FULL_ONCE_IN) == 0 => Err(Failure::QueueFull { max: 1 }),
            Ok(request) => Job::begin(&request, &Library::new(), FUEL_MAX, answer_max),
            Err(why) => Err(Failure::BadArguments { words: why.to_string() }),
        };
        let (job, outcome) = match begun {
            Ok(job) => (Some(job), None),
            Err(failure) => (None, Some(Err(failed(node, failure)))),
        };
        Self { node, job, words: Vec::new(), region: None, outcome }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.outcome.is_some()
    }

    pub(crate) fn outcome(self) -> Result<Sought, Error> {
        self.outcome.unwrap_or(Err(failed(self.node, Failure::Revoked)))
    }

    /// Lets it have a slice.
    pub(crate) fn step(&mut self, nodes: &[Option<Vec<u64>>], rng: &mut StdRng) {
        let node = self.node;
        let done = match nodes.get(usize::from(node)) {
            Some(Some(now)) => self.slice(now, rng).unwrap_or_else(|why| Some(Err(why))),
            Some(None) => Some(Err(Error::NodeLost { node, why: "the model's node is dead".to_owned() })),
            None => Some(Err(Error::NoNode { node, nodes: nodes.len() })),
        };
        self.outcome = done;
    }

    fn slice(&mut self, now: &[u64], rng: &mut StdRng) -> Result<Option<Result<Sought, Error>>, Error> {
        let node = self.node;
        let lost = |why: String| Error::NodeLost { node, why };
        let region = match &self.region {
            Some(region) => region.clone(),
            None => {
                let region = Region::anonymous(now.len() * 8).map_err(|e| lost(e.to_string()))?;
                self.words = vec![0; now.len()];
                self.refresh(&region, now, |_| true).map_err(&lost)?;
                self.region.insert(region).clone()
            }
        };
        self.refresh(&region, now, |_| rng.random_range(0..2) == 0).map_err(&lost)?;
        let Some(job) = &mut self.job else { return Ok(None) };
        let (progress, _) = job.run(&[View::new(region.clone(), true, false)], 1);
        self.refresh(&region, now, |_| true).map_err(&lost)?;
        Ok(match progress {
            Progress::More => None,
            Progress::Done(answer) => {
                let unread = || lost("an answer that cannot be read".to_owned());
                Some(Sorted::answer(&answer).ok_or_else(unread))
            }
            Progress::Failed(failure) => Some(Err(failed(node, failure))),
        })
    }

    /// Brings words up to date, those of which `which` says so.
    fn refresh(&mut self, region: &Region, now: &[u64], mut which: impl FnMut(usize) -> bool) -> Result<(), String> {
        for (at, (seen, now)) in self.words.iter_mut().zip(now).enumerate() {
            if seen != now && which(at) {
                *seen = *now;
                region.write(at as u64 * 8, &now.to_ne_bytes()).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }
}
