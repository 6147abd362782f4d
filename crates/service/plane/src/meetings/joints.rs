//! Ends of one connection in two network namespaces of this host: containers. Addresses prove nothing there, because
//! whoever makes a namespace gives it any. So each end sends a word to the address of the other one, by its own
//! namespace's routes, and the daemon believes two ends that have heard the word which it gave to the other.
//!
//! A word is heard by who can receive at that address. That may be another program in the namespace of the true end, so
//! both ends must be one user's: it can do nothing to the other end that it could not do before.

use std::collections::{BTreeMap, BTreeSet};

use control::{MeetProof, MeetStep};

use super::Tuple;
use crate::ClientId;

/// Ends that may be the other end of one, and are asked for a proof at once.
const JOINTS_PER_END_MAX: usize = 4;
/// Ends with the addresses of one that are looked at: each in a namespace of its own.
const LOOKS_MAX: usize = 64;
/// Words that one end may say wrongly.
const WRONG_MAX: u8 = 8;

/// One end: whose, and its request.
pub(super) type EndKey = (ClientId, u64);

/// A network namespace: none is the daemon's own.
pub(super) type Namespace = Option<u64>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Connected,
    Accepted,
}

/// Two ends that may be those of one connection. The one that connected is the first.
#[derive(Debug)]
struct Joint {
    ends: [EndKey; 2],
    /// What each end is to hear.
    words: Option<[u64; 2]>,
    heard: [bool; 2],
}

#[derive(Debug)]
struct End {
    place: (Tuple, Side, Namespace),
    uid: u32,
    /// Where it hears words.
    port: Option<u16>,
    is_asked: bool,
    wrong: u8,
    joints: BTreeSet<u64>,
}

/// What is to be said to an end.
pub(super) type Say = (EndKey, MeetStep);

/// What came of a proof.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Proved {
    Nothing,
    /// The end that connected, and the one that accepted.
    Joined(EndKey, EndKey),
    /// It says words that it did not hear.
    Lies,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Joints {
    ends: BTreeMap<EndKey, End>,
    by_place: BTreeMap<(Tuple, Side, Namespace), EndKey>,
    joints: BTreeMap<u64, Joint>,
    last: u64,
}

impl Joints {
    /// An end waits. Ends of other users in other namespaces which might be the other one: they are not asked.
    pub(super) fn add(
        &mut self,
        (key, uid): (EndKey, u32),
        place @ (tuple, side, namespace): (Tuple, Side, Namespace),
        words: &mut dyn FnMut() -> u64,
        say: &mut Vec<Say>,
    ) -> Vec<EndKey> {
        self.by_place.insert(place, key);
        let end = End { place, uid, port: None, is_asked: false, wrong: 0, joints: BTreeSet::new() };
        self.ends.insert(key, end);
        let other = if side == Side::Connected { Side::Accepted } else { Side::Connected };
        let others = self.by_place.range((tuple, other, None)..=(tuple, other, Some(u64::MAX)));
        let others = others.filter(|((.., of), _)| *of != namespace).map(|(_, other)| *other).take(LOOKS_MAX);
        let (mut candidates, mut strangers) = (Vec::new(), Vec::new());
        for other in others {
            match self.ends.get(&other) {
                Some(end) if end.uid == uid && end.joints.len() < JOINTS_PER_END_MAX => candidates.push(other),
                Some(end) if end.uid != uid => strangers.push(other),
                _ => {}
            }
        }
        for other in candidates.into_iter().take(JOINTS_PER_END_MAX) {
            self.last += 1;
            let ends = if side == Side::Connected { [key, other] } else { [other, key] };
            self.joints.insert(self.last, Joint { ends, words: None, heard: [false; 2] });
            for key in ends {
                let Some(end) = self.ends.get_mut(&key) else { continue };
                end.joints.insert(self.last);
                if !std::mem::replace(&mut end.is_asked, true) {
                    say.push((key, MeetStep::Open));
                }
            }
            self.begin(self.last, words, say);
        }
        strangers
    }

    /// It waits no more.
    pub(super) fn remove(&mut self, key: EndKey) {
        let Some(end) = self.ends.remove(&key) else { return };
        if self.by_place.get(&end.place) == Some(&key) {
            self.by_place.remove(&end.place);
        }
        for number in end.joints {
            for other in self.joints.remove(&number).into_iter().flat_map(|joint| joint.ends) {
                if let Some(other) = self.ends.get_mut(&other) {
                    other.joints.remove(&number);
                }
            }
        }
    }

    /// An end says something. `words` are fresh and random.
    pub(super) fn hear(
        &mut self,
        key: EndKey,
        proof: MeetProof,
        words: &mut dyn FnMut() -> u64,
        say: &mut Vec<Say>,
    ) -> Proved {
        let Some(end) = self.ends.get_mut(&key) else { return Proved::Nothing };
        match proof {
            MeetProof::Port(port) => {
                end.port = end.is_asked.then_some(port);
                for number in end.joints.clone() {
                    self.begin(number, words, say);
                }
                Proved::Nothing
            }
            MeetProof::Heard(word) => self.heard(key, word),
            MeetProof::Stream { .. } | MeetProof::Stays { .. } => Proved::Nothing,
        }
    }

    fn heard(&mut self, key: EndKey, word: u64) -> Proved {
        let Some(end) = self.ends.get_mut(&key) else { return Proved::Nothing };
        for number in &end.joints {
            let Some(joint) = self.joints.get_mut(number) else { continue };
            let side = usize::from(joint.ends[1] == key);
            if joint.words.is_some_and(|words| words[side] == word) {
                joint.heard[side] = true;
                return if joint.heard == [true; 2] {
                    Proved::Joined(joint.ends[0], joint.ends[1])
                } else {
                    Proved::Nothing
                };
            }
        }
        // A stranger may send anything to its port, which it says as well.
        end.wrong = end.wrong.saturating_add(1);
        if end.wrong > WRONG_MAX { Proved::Lies } else { Proved::Nothing }
    }

    /// Gives both ends their words once both can hear.
    fn begin(&mut self, number: u64, word: &mut dyn FnMut() -> u64, say: &mut Vec<Say>) {
        let Some(joint) = self.joints.get_mut(&number).filter(|joint| joint.words.is_none()) else { return };
        let ports = joint.ends.map(|end| self.ends.get(&end).and_then(|end| end.port));
        if let [Some(first), Some(second)] = ports {
            let words = [word(), word()];
            joint.words = Some(words);
            // Each sends what the other is to hear.
            say.push((joint.ends[0], MeetStep::Send { port: second, word: words[1] }));
            say.push((joint.ends[1], MeetStep::Send { port: first, word: words[0] }));
        }
    }
}
