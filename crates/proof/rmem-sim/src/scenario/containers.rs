//! Stories about the set, the map and the queue.

use std::collections::VecDeque;

use rmem::{ByKey, Error, ListSet, Map, Placement, Queue, RoundRobin};

use super::{Mine, Play, Stage};
use crate::history::History;

const KEYS: u64 = 3;

/// Between operations a client sometimes looks at the epoch, so that blocks are soon used again.
async fn rest(stage: &Stage, client: &mut Mine) -> Result<(), Error> {
    if stage.world.below(2) == 0 { client.renew().await } else { Ok(()) }
}

// ---- the set

#[derive(Debug, Clone, Copy)]
enum OfSet {
    Insert(Option<bool>),
    Remove(Option<bool>),
    Contains(Option<bool>),
}

fn apply_set(state: &bool, act: &OfSet) -> Option<bool> {
    let (found, right, then) = match act {
        OfSet::Insert(found) => (found, !state, true),
        OfSet::Remove(found) => (found, *state, false),
        OfSet::Contains(found) => (found, *state, *state),
    };
    found.is_none_or(|found| found == right).then_some(then)
}

async fn use_set<P: Placement>(
    stage: &Stage,
    client: &mut Mine,
    set: &ListSet<P>,
    history: &History<OfSet>,
) -> Result<(), Error> {
    let key = 1 + stage.world.below(KEYS);
    let (call, end): (_, fn(Option<bool>) -> OfSet) = match stage.world.below(5) {
        0 | 1 => (history.ask(key, OfSet::Insert(None)), OfSet::Insert),
        2 | 3 => (history.ask(key, OfSet::Remove(None)), OfSet::Remove),
        _ => (history.ask(key, OfSet::Contains(None)), OfSet::Contains),
    };
    let found = match end(None) {
        OfSet::Insert(_) => set.insert(client, key).await?,
        OfSet::Remove(_) => set.remove(client, key).await?,
        OfSet::Contains(_) => set.contains(client, key).await?,
    };
    history.end(call, end(Some(found)));
    rest(stage, client).await
}

async fn set_life(stage: Stage, number: usize, history: History<OfSet>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let set = if number == 0 {
            let set = ListSet::create(&mut client, RoundRobin).await?;
            stage.name(&client, set.ptr()).await?;
            set
        } else {
            ListSet::open(&client, stage.find(&client).await?, RoundRobin).await?
        };
        for _ in 0..stage.scenario.operations {
            use_set(&stage, &mut client, &set, &history).await?;
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn set_audit(stage: Stage, history: History<OfSet>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let set = ListSet::open(&client, stage.find(&client).await?, RoundRobin).await?;
        let mut keys = Vec::new();
        for key in 1..=KEYS {
            let call = history.ask(key, OfSet::Contains(None));
            let found = set.contains(&mut client, key).await?;
            history.end(call, OfSet::Contains(Some(found)));
            keys.extend(found.then_some(key));
            set.insert(&mut client, key).await?;
            set.remove(&mut client, key).await?;
        }
        let left = set.keys(&mut client, 100).await?;
        if !left.is_empty() {
            stage.wrong(format!("keys {left:?} are in a set of which all were removed"));
        }
        stage.settle(&mut client).await?;
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn set(stage: &Stage) -> Play {
    let history = History::new(&stage.world);
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(set_life(stage.clone(), n, history.clone())) as _);
    let (judged, counted) = (history.clone(), history.clone());
    Play {
        lives: lives.collect(),
        audit: Box::pin(set_audit(stage.clone(), history)),
        judge: Box::new(move || judged.judge(&false, apply_set)),
        calls: Box::new(move || counted.ended()),
        words: None,
    }
}

// ---- the map

#[derive(Debug, Clone, Copy)]
enum OfMap {
    /// The value, and whether the key was new.
    Put(u64, Option<bool>),
    /// The value found, or 0.
    Get(Option<u64>),
    Remove(Option<u64>),
}

/// The key's value, 0 if it has none.
fn apply_map(state: &u64, act: &OfMap) -> Option<u64> {
    let sees = |found: &Option<u64>| found.is_none_or(|found| found == *state);
    match act {
        OfMap::Put(value, is_new) => is_new.is_none_or(|is_new| is_new == (*state == 0)).then_some(*value),
        OfMap::Get(found) => sees(found).then_some(*state),
        OfMap::Remove(found) => sees(found).then_some(0),
    }
}

/// Values of different lengths, in which every byte says which one it is.
fn bytes_of(value: u64) -> Vec<u8> {
    vec![value as u8; (value % 40 + 1) as usize]
}

fn value_of(stage: &Stage, bytes: Option<Vec<u8>>) -> u64 {
    let Some(bytes) = bytes else { return 0 };
    let value = u64::from(bytes.first().copied().unwrap_or(0));
    if bytes != bytes_of(value) {
        stage.wrong(format!("a torn value: {bytes:?}"));
    }
    value
}

async fn map_life(stage: Stage, number: usize, history: History<OfMap>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let map = if number == 0 {
            let map = Map::create(&mut client, 2, ByKey).await?;
            stage.name(&client, map.ptr()).await?;
            map
        } else {
            Map::open(&client, stage.find(&client).await?, ByKey).await?
        };
        for operation in 0..stage.scenario.operations {
            let key = stage.world.below(KEYS);
            let value = number as u64 * 40 + operation % 40 + 1;
            match stage.world.below(6) {
                0 | 1 => {
                    let call = history.ask(key, OfMap::Put(value, None));
                    let is_new = map.put(&mut client, key, &bytes_of(value)).await?;
                    history.end(call, OfMap::Put(value, Some(is_new)));
                }
                2 => {
                    let call = history.ask(key, OfMap::Remove(None));
                    let found = map.remove(&mut client, key).await?;
                    history.end(call, OfMap::Remove(Some(value_of(&stage, found))));
                }
                way => {
                    let call = history.ask(key, OfMap::Get(None));
                    let found = match way {
                        3 => map.get(&mut client, key).await?,
                        _ => map.get_by_kernel(&mut client, key).await?,
                    };
                    history.end(call, OfMap::Get(Some(value_of(&stage, found))));
                }
            }
            rest(&stage, &mut client).await?;
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn map_audit(stage: Stage, history: History<OfMap>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let map = Map::open(&client, stage.find(&client).await?, ByKey).await?;
        for key in 0..KEYS {
            let call = history.ask(key, OfMap::Remove(None));
            let found = map.remove(&mut client, key).await?;
            history.end(call, OfMap::Remove(Some(value_of(&stage, found))));
        }
        stage.settle(&mut client).await?;
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn map(stage: &Stage) -> Play {
    let history = History::new(&stage.world);
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(map_life(stage.clone(), n, history.clone())) as _);
    let (judged, counted) = (history.clone(), history.clone());
    Play {
        lives: lives.collect(),
        audit: Box::pin(map_audit(stage.clone(), history)),
        judge: Box::new(move || judged.judge(&0, apply_map)),
        calls: Box::new(move || counted.ended()),
        words: None,
    }
}

// ---- the queue

#[derive(Debug, Clone, Copy)]
enum OfQueue {
    Push(u64),
    /// `Some(None)`: it was empty.
    Pop(Option<Option<u64>>),
}

fn apply_queue(state: &VecDeque<u64>, act: &OfQueue) -> Option<VecDeque<u64>> {
    let mut state = state.clone();
    match act {
        OfQueue::Push(value) => state.push_back(*value),
        OfQueue::Pop(found) => {
            let first = state.pop_front();
            if found.is_some_and(|found| found != first) {
                return None;
            }
        }
    }
    Some(state)
}

async fn queue_life(stage: Stage, number: usize, history: History<OfQueue>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let queue = if number == 0 {
            let queue = Queue::create(&mut client, RoundRobin).await?;
            stage.name(&client, queue.ptr()).await?;
            queue
        } else {
            Queue::open(&client, stage.find(&client).await?, RoundRobin).await?
        };
        for operation in 0..stage.scenario.operations {
            if stage.world.below(2) == 0 {
                let value = number as u64 * 1000 + operation;
                let call = history.ask(0, OfQueue::Push(value));
                queue.push(&mut client, value).await?;
                history.end(call, OfQueue::Push(value));
            } else {
                let call = history.ask(0, OfQueue::Pop(None));
                let found = queue.pop(&mut client).await?;
                history.end(call, OfQueue::Pop(Some(found)));
            }
            rest(&stage, &mut client).await?;
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn queue_audit(stage: Stage, history: History<OfQueue>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let queue = Queue::open(&client, stage.find(&client).await?, RoundRobin).await?;
        loop {
            let call = history.ask(0, OfQueue::Pop(None));
            let found = queue.pop(&mut client).await?;
            history.end(call, OfQueue::Pop(Some(found)));
            if found.is_none() {
                break;
            }
        }
        stage.settle(&mut client).await?;
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn queue(stage: &Stage) -> Play {
    let history = History::new(&stage.world);
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(queue_life(stage.clone(), n, history.clone())) as _);
    let (judged, counted) = (history.clone(), history.clone());
    Play {
        lives: lives.collect(),
        audit: Box::pin(queue_audit(stage.clone(), history)),
        judge: Box::new(move || judged.judge(&VecDeque::new(), apply_queue)),
        calls: Box::new(move || counted.ended()),
        words: None,
    }
}
