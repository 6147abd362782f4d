//! Which calls of one client were executed, and what came of them.
//!
//! Owns at-most-once: a call is begun only if no request with its number was begun before, and its response is kept until
//! the client has it. It must never forget a number that may still be asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::frame::Status;

/// Calls that a client has under way at most; a server may allow fewer.
pub const WINDOW_MAX: u16 = 256;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) payload: Arc<Vec<u8>>,
    pub(crate) run_us: u32,
}

#[derive(Debug)]
enum Entry {
    Running,
    Done(Outcome),
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nobody began it: the caller must, and then tell the outcome.
    Begin,
    /// It was executed: this is the response.
    Again(Outcome),
    /// It runs.
    Running,
    /// The client has given it up, or has its response.
    Over,
    /// No client that follows the protocol sends this number.
    OutOfWindow,
}

/// The calls of one client.
#[derive(Debug)]
pub(crate) struct Once {
    /// All calls below have ended for the client.
    floor: u64,
    window: u64,
    calls: BTreeMap<u64, Entry>,
}

impl Once {
    pub(crate) fn new(window: u16) -> Self {
        Self { floor: 1, window: u64::from(window), calls: BTreeMap::new() }
    }

    /// The client came back with another window; what is known of its calls stays.
    pub(crate) fn set_window(&mut self, window: u16) {
        self.window = self.window.max(u64::from(window));
    }

    /// A request came, by a client for which all calls below `floor` have ended.
    pub(crate) fn on_request(&mut self, sequence: u64, floor: u64) -> Verdict {
        // A floor above its own call is none.
        if floor > sequence || sequence >= floor.max(self.floor).saturating_add(self.window) {
            return Verdict::OutOfWindow;
        }
        if floor > self.floor {
            self.floor = floor;
            self.calls = self.calls.split_off(&floor);
        }
        if sequence < self.floor {
            return Verdict::Over;
        }
        match self.calls.get(&sequence) {
            Some(Entry::Done(outcome)) => Verdict::Again(outcome.clone()),
            Some(Entry::Running) => Verdict::Running,
            None => {
                self.calls.insert(sequence, Entry::Running);
                Verdict::Begin
            }
        }
    }

    /// The client gives a call up: it is not begun any more. Says whether that was so.
    pub(crate) fn on_cancel(&mut self, sequence: u64) -> bool {
        let is_open = sequence >= self.floor && sequence < self.floor.saturating_add(self.window);
        if is_open && !self.calls.contains_key(&sequence) {
            let nothing = Outcome { status: Status::Late, payload: Arc::default(), run_us: 0 };
            self.calls.insert(sequence, Entry::Done(nothing));
            return true;
        }
        false
    }

    /// A call that was begun has ended.
    pub(crate) fn on_done(&mut self, sequence: u64, outcome: Outcome) {
        // Below the floor nobody asks for it any more.
        if let Some(entry) = self.calls.get_mut(&sequence) {
            *entry = Entry::Done(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(byte: u8) -> Outcome {
        Outcome { status: Status::Done, payload: Arc::new(vec![byte]), run_us: 0 }
    }

    #[test]
    fn a_call_is_begun_once_and_its_response_kept_until_the_client_has_it() {
        let mut once = Once::new(4);
        assert_eq!(once.on_request(1, 1), Verdict::Begin);
        assert_eq!(once.on_request(1, 1), Verdict::Running);
        once.on_done(1, outcome(9));
        assert_eq!(once.on_request(1, 1), Verdict::Again(outcome(9)));
        assert_eq!(once.on_request(3, 2), Verdict::Begin, "out of order");
        assert_eq!(once.on_request(1, 1), Verdict::Over, "the client had its response");
        assert_eq!(once.on_request(2, 2), Verdict::Begin);
        assert_eq!(once.calls.len(), 2, "what the client has is forgotten");
    }

    #[test]
    fn numbers_outside_of_the_window_are_not_begun() {
        let mut once = Once::new(4);
        assert_eq!(once.on_request(5, 1), Verdict::OutOfWindow);
        assert_eq!(once.on_request(2, 3), Verdict::OutOfWindow, "a floor above its own call");
        assert_eq!(once.on_request(1 << 40, 1 << 40), Verdict::Begin, "it may jump");
        assert_eq!(once.on_request(1, 1), Verdict::Over);
    }

    #[test]
    fn what_is_given_up_is_not_begun_and_what_runs_goes_on() {
        let mut once = Once::new(4);
        assert!(once.on_cancel(1));
        assert!(matches!(once.on_request(1, 1), Verdict::Again(Outcome { status: Status::Late, .. })));
        assert_eq!(once.on_request(2, 1), Verdict::Begin);
        assert!(!once.on_cancel(2));
        assert!(!once.on_cancel(100), "it holds no more numbers than the window");
        once.on_done(2, outcome(1));
        assert_eq!(once.on_request(2, 1), Verdict::Again(outcome(1)));
    }
}
