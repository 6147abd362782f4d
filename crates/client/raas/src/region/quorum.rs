//! Waiting for some of several operations.
//!
//! Owns which of them have ended, and the one place where a thread sleeps for all of them. It must never let one that
//! stands still delay the others, nor take anything back.

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::task::{Wake, Waker};
use std::time::Duration;

use control::debug_says_the_words;

use super::error::RegionError;
use super::pending::{Ended, Pending};
use crate::attachment::Attachment;
use crate::error::SessionError;
use crate::park::Parker;
use crate::patience::{Next, Patience, WaitPolicy};

/// A quorum cannot be had, or not be waited for.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// So many have failed, or there are so few, that those left are not enough. What was done stays done, and those
    /// that have not ended go on: [`Quorum::late`] tells of them.
    #[error("{needed} of {of} had to be done, and {} failed{}", failures.len(), first_of(failures))]
    OutOfReach {
        /// How many had to be done.
        needed: usize,
        /// How many there are.
        of: usize,
        /// Those that failed, by number, each with the error of [`Ended::check`].
        failures: Vec<(usize, RegionError)>,
    },
    /// The caller cannot wait: it is a forked child, or the system refused something. The operations go on.
    #[error(transparent)]
    Session(#[from] SessionError),
}

fn first_of(failures: &[(usize, RegionError)]) -> String {
    failures.first().map_or_else(String::new, |(number, error)| format!("; number {number}: {error}"))
}

debug_says_the_words!(QuorumError);

impl From<QuorumError> for std::io::Error {
    fn from(e: QuorumError) -> Self {
        let kind = match &e {
            QuorumError::OutOfReach { failures, .. } => {
                failures.first().map_or(std::io::ErrorKind::InvalidInput, |(_, error)| Self::from(error.clone()).kind())
            }
            QuorumError::Session(error) => Self::from(error.clone()).kind(),
        };
        Self::new(kind, e)
    }
}

#[derive(Debug)]
enum State {
    Going(Pending),
    /// With what [`Ended::check`] says of it.
    Ended(Ended, Result<(), RegionError>),
}

impl State {
    fn ended(ended: Ended) -> Self {
        let result = ended.check();
        Self::Ended(ended, result)
    }
}

#[derive(Debug)]
struct Member {
    state: State,
    /// The caller has had a look that could show its end.
    is_told: bool,
}

impl Member {
    fn going(&self) -> Option<&Pending> {
        if let State::Going(pending) = &self.state { Some(pending) } else { None }
    }

    fn result(&self) -> Option<&Result<(), RegionError>> {
        if let State::Ended(_, result) = &self.state { Some(result) } else { None }
    }
}

/// Several submissions, of any hosts, of which some must be done: so an entry is copied to five hosts and counts when
/// three have it.
///
/// Each member is what [`Batch::submit`](crate::Batch::submit) returned, and has a number from 0 on. It is *done* when
/// all operations of its batch are. A host that stands still, or is gone, delays nobody who waits for the others.
///
/// ```no_run
/// use std::time::Duration;
///
/// use raas::{Batch, Completion, Quorum, QuorumError, Region};
///
/// fn replicate(logs: &[Region], at: u64, entry: &[u8]) -> Result<Quorum, QuorumError> {
///     let mut quorum = Quorum::new(logs.len() / 2 + 1);
///     for log in logs {
///         let mut batch = Batch::new();
///         batch.write_as(log, at, entry, Completion::Acked);
///         quorum.add(batch.submit());
///     }
///     while !quorum.wait_timeout(Duration::from_secs(1))? {
///         println!("no majority yet");
///     }
///     Ok(quorum)
/// }
///
/// /// With the next entry, or whenever there is time: what became of the others.
/// fn collect(quorum: &mut Quorum) -> bool {
///     for (number, result) in quorum.late() {
///         println!("host {number} came late: {result:?}");
///     }
///     quorum.is_over()
/// }
/// ```
///
/// Dropping it takes nothing back, as with [`Pending`]: what has not ended runs to its end, and what it uses lives until
/// then.
#[derive(Debug)]
#[must_use = "dropped, nobody learns how the operations ended"]
pub struct Quorum {
    needed: usize,
    members: Vec<Member>,
    parker: Arc<Parker>,
}

/// Wakes the thread of a parker, which may sleep on the descriptors of a session.
struct Alert {
    parker: Arc<Parker>,
    home: Arc<Attachment>,
}

impl Wake for Alert {
    fn wake(self: Arc<Self>) {
        if !self.parker.notify() {
            self.home.kick();
        }
    }
}

impl Quorum {
    /// Without members. `needed` of them must be done; with 0 it is reached at once.
    pub fn new(needed: usize) -> Self {
        Self { needed, members: Vec::new(), parker: Arc::default() }
    }

    /// One more, as it came from [`Batch::submit`](crate::Batch::submit): a refused one has failed. Returns its number.
    pub fn add(&mut self, submitted: Result<Pending, RegionError>) -> usize {
        let state = match submitted {
            Ok(pending) => State::Going(pending),
            Err(error) => State::ended(Ended::new(vec![Err(error)])),
        };
        self.members.push(Member { state, is_told: false });
        self.members.len() - 1
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// How a member ended, as far as the calls of this type have seen it; a refused one as a batch of one operation.
    /// `None`: it has not ended, or there is none of that number.
    pub fn ended(&self, number: usize) -> Option<&Ended> {
        match &self.members.get(number)?.state {
            State::Ended(ended, _) => Some(ended),
            State::Going(_) => None,
        }
    }

    /// Whether all members have ended, as far as the calls of this type have seen it.
    pub fn is_over(&self) -> bool {
        self.going().next().is_none()
    }

    /// The members that have ended since a call that waits said how it ended, or since the last call of this, by number:
    /// whether each was done. It does not wait, as [`Quorum::try_wait`].
    pub fn late(&mut self) -> Vec<(usize, Result<(), RegionError>)> {
        self.look();
        let untold = self.members.iter_mut().enumerate().filter(|(_, member)| !member.is_told);
        let told = untold.filter_map(|(number, member)| {
            let result = member.result()?.clone();
            member.is_told = true;
            Some((number, result))
        });
        told.collect()
    }

    // ---- waiting

    /// Waits until as many as are needed are done, without end.
    pub fn wait(&mut self) -> Result<(), QuorumError> {
        self.wait_for(None).map(drop)
    }

    /// As [`Quorum::wait`], at most for `timeout`. False: it is not decided yet.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<bool, QuorumError> {
        self.wait_for(Some(timeout))
    }

    /// Whether as many as are needed are done; an error if that cannot be any more. It does not wait, and makes a system
    /// call only now and then, as [`Pending::try_take`].
    pub fn try_wait(&mut self) -> Result<bool, QuorumError> {
        self.check_fork()?;
        self.look();
        self.verdict().unwrap_or(Ok(false))
    }

    /// As [`Quorum::wait`], for tasks. Dropping the future takes nothing back.
    #[cfg(feature = "tokio")]
    pub async fn wait_async(&mut self) -> Result<(), QuorumError> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    #[cfg(feature = "tokio")]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), QuorumError>> {
        self.look();
        if let Some(verdict) = self.verdict() {
            return Poll::Ready(verdict.map(drop));
        }
        let mut has_news = false;
        for member in &mut self.members {
            if let State::Going(pending) = &mut member.state {
                has_news |= pending.poll_ended(context.waker())?;
            }
        }
        if has_news {
            self.look();
        }
        self.verdict().map_or(Poll::Pending, |verdict| Poll::Ready(verdict.map(drop)))
    }

    fn wait_for(&mut self, timeout: Option<Duration>) -> Result<bool, QuorumError> {
        self.check_fork()?;
        self.look();
        if let Some(verdict) = self.verdict() {
            return verdict;
        }
        // One session is followed by this thread, and the others by their watchers.
        let Some(home) = self.going().find_map(Pending::attachment).map(Arc::clone) else { return Ok(false) };
        // The daemon may need this very processor, so that spinning would delay the answer.
        let policy = WaitPolicy { spins: 0, ..home.config.policy };
        let mut patience = Patience::new(policy, &home.turns, timeout);
        loop {
            match patience.pause() {
                Next::Look(_) => {}
                Next::GiveUp => return Ok(false),
                Next::Block => {
                    let alert =
                        Waker::from(Arc::new(Alert { parker: Arc::clone(&self.parker), home: Arc::clone(&home) }));
                    let armed = self.going().map(|pending| pending.arm(&home, &self.parker, &alert));
                    let _armed = armed.collect::<Result<Vec<_>, _>>()?;
                    home.block(&self.parker, patience.deadline(), &mut || self.going().any(Pending::has_news))?;
                }
            }
            self.look();
            if let Some(verdict) = self.verdict() {
                return verdict;
            }
        }
    }

    fn going(&self) -> impl Iterator<Item = &Pending> {
        self.members.iter().filter_map(Member::going)
    }

    /// A forked child sees nothing of its parent's end.
    fn check_fork(&self) -> Result<(), SessionError> {
        self.going().find_map(Pending::attachment).map_or(Ok(()), |attachment| attachment.check_fork())
    }

    /// Takes the ends that there are.
    fn look(&mut self) {
        for member in &mut self.members {
            if let State::Going(pending) = &mut member.state
                && let Some(ended) = pending.try_take()
            {
                member.state = State::ended(ended);
            }
        }
    }

    /// What is decided of it. Whoever is told may ask for all that has ended by now.
    fn verdict(&mut self) -> Option<Result<bool, QuorumError>> {
        let done = self.members.iter().filter(|member| matches!(member.result(), Some(Ok(())))).count();
        if done < self.needed && done + self.going().count() >= self.needed {
            return None;
        }
        self.members.iter_mut().for_each(|member| member.is_told |= member.going().is_none());
        if done >= self.needed {
            return Some(Ok(true));
        }
        let failed = |(number, member): (usize, &Member)| Some((number, member.result()?.clone().err()?));
        let failures = self.members.iter().enumerate().filter_map(failed).collect();
        Some(Err(QuorumError::OutOfReach { needed: self.needed, of: self.members.len(), failures }))
    }
}
