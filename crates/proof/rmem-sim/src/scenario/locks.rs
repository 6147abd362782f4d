//! Stories about the locks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmem::{ALock, ALockSeat, Error, LeaseLock, Memory, On, Ptr};

use super::{LEASE_US, Play, Stage};
use crate::history::History;

/// So long that only a death lets somebody wait in vain.
const PATIENCE_US: u64 = 150 * LEASE_US;
const LOCK_LEASE_US: u64 = 2 * LEASE_US;

// ---- the lock with cohorts

/// What it protects is read and written in parts: two words that are always the same outside of the lock.
async fn alock_life(stage: Stage, number: usize, inside: Arc<Mutex<(u32, usize)>>) {
    let life = async {
        let mut client = stage.join(number).await?;
        let (lock, data) = if number == 0 {
            let lock = ALock::create(&mut client, On(1)).await?;
            let data: Ptr<[u64; 2]> = client.make(On(1), &[0, 0]).await?;
            let both = client_pair(&mut client, lock.ptr(), data).await?;
            stage.name(&client, both).await?;
            (lock, data)
        } else {
            let at: Ptr<[Ptr<()>; 2]> = stage.find(&client).await?;
            let [lock, data] = client.load(at).await?;
            (ALock::open(&client, lock.cast()).await?, data.cast())
        };
        let mut seat = ALockSeat::new(&mut client).await?;
        for _ in 0..stage.scenario.operations {
            let guard = lock.lock(&mut client, &mut seat, PATIENCE_US).await?;
            {
                let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
                inside.0 += 1;
                if inside.0 != 1 {
                    stage.wrong(format!("{} clients have the lock", inside.0));
                }
            }
            let [one, other] = client.load(data).await?;
            if one != other {
                stage.wrong(format!("{one} and {other} under the lock"));
            }
            client.store(data, &[one + 1, one + 1]).await?;
            {
                let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
                *inside = (inside.0 - 1, inside.1 + 1);
            }
            guard.unlock(&mut client, PATIENCE_US).await?;
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

async fn client_pair<T, U>(client: &mut super::Mine, one: Ptr<T>, other: Ptr<U>) -> Result<Ptr<[Ptr<()>; 2]>, Error> {
    client.make(On(0), &[one.cast(), other.cast()]).await
}

async fn alock_audit(stage: Stage, inside: Arc<Mutex<(u32, usize)>>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let at: Ptr<[Ptr<()>; 2]> = stage.find(&client).await?;
        let [_, data] = client.load(at).await?;
        let [one, _] = client.load::<[u64; 2]>(data.cast()).await?;
        let (holders, done) = *inside.lock().unwrap_or_else(PoisonError::into_inner);
        // Who died inside may have stored.
        if (one as usize) < done || one as usize > done + holders as usize {
            stage.wrong(format!("{done} additions were done, and {one} are there"));
        }
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn alock(stage: &Stage) -> Play {
    let inside = Arc::new(Mutex::new((0, 0)));
    let lives = (0..stage.scenario.clients).map(|n| Box::pin(alock_life(stage.clone(), n, inside.clone())) as _);
    let counted = inside.clone();
    Play {
        lives: lives.collect(),
        audit: Box::pin(alock_audit(stage.clone(), inside)),
        judge: Box::new(|| Ok(())),
        calls: Box::new(move || counted.lock().unwrap_or_else(PoisonError::into_inner).1),
        words: None,
    }
}

// ---- the lock with a lease

/// An addition under the lock: what was found, if it is known.
#[derive(Debug, Clone, Copy)]
struct Added(Option<u64>);

fn apply(state: &u64, Added(found): &Added) -> Option<u64> {
    found.is_none_or(|found| found == *state).then_some(state + 1)
}

/// Until when each client is sure to have the lock, by the model's time.
type Sure = Arc<Mutex<BTreeMap<usize, u64>>>;

async fn lease_life(stage: Stage, number: usize, (history, sure): (History<Added>, Sure)) {
    let life = async {
        let mut client = stage.join(number).await?;
        let (lock, data) = if number == 0 {
            let lock = LeaseLock::create(&mut client, Duration::from_micros(LOCK_LEASE_US), On(1)).await?;
            let data: Ptr<u64> = client.make(On(0), &0).await?;
            let both = client_pair(&mut client, lock.ptr(), data).await?;
            stage.name(&client, both).await?;
            (lock, data)
        } else {
            let at: Ptr<[Ptr<()>; 2]> = stage.find(&client).await?;
            let [lock, data] = client.load(at).await?;
            (LeaseLock::open(&client, lock.cast()).await?, data.cast())
        };
        for _ in 0..stage.scenario.operations {
            let guard = lock.lock(&mut client, PATIENCE_US).await?;
            let skew = client.memory().now_us() - stage.world.now_us();
            {
                let mut sure = sure.lock().unwrap_or_else(PoisonError::into_inner);
                let now = stage.world.now_us();
                if let Some((other, until)) = sure.iter().find(|(_, until)| **until > now) {
                    stage.wrong(format!(
                        "client {other} is sure of the lock until {until}, and {number} has it at {now}"
                    ));
                }
                sure.insert(number, guard.sure_until_us() - skew);
            }
            if guard.was_taken_over() {
                stage.taken_over();
            }
            add(&mut client, data, guard.token(), &history).await?;
            sure.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
            match guard.unlock(&client).await {
                Err(Error::LockLost { .. }) => {}
                other => other?,
            }
        }
        Ok(client)
    };
    stage.over(life.await).await;
}

/// Adds 1 to what the lock protects, unless a later holder was there.
async fn add(client: &mut super::Mine, data: Ptr<u64>, token: u64, history: &History<Added>) -> Result<(), Error> {
    const COUNT_BITS: u32 = 32;
    let call = history.ask(0, Added(None));
    let found = client.load(data).await?;
    let (last, count) = (found >> COUNT_BITS, found & ((1 << COUNT_BITS) - 1));
    if last <= token && client.compare_exchange(data, found, token << COUNT_BITS | (count + 1)).await?.is_ok() {
        history.end(call, Added(Some(count)));
    }
    Ok(())
}

async fn lease_audit(stage: Stage, history: History<Added>) {
    let audit = async {
        let mut client = stage.join(stage.scenario.clients).await?;
        let at: Ptr<[Ptr<()>; 2]> = stage.find(&client).await?;
        let [lock, data] = client.load(at).await?;
        let lock = LeaseLock::open(&client, lock.cast()).await?;
        // Whoever died, the lock comes after a lease, or two if what the dead one had in flight was its renewal.
        let guard = lock.lock(&mut client, 8 * LOCK_LEASE_US).await?;
        add(&mut client, data.cast(), guard.token(), &history).await?;
        guard.unlock(&client).await?;
        Ok(client)
    };
    stage.over(audit.await).await;
}

pub(super) fn lease_lock(stage: &Stage) -> Play {
    let (history, sure) = (History::new(&stage.world), Sure::default());
    let life = |n| Box::pin(lease_life(stage.clone(), n, (history.clone(), Arc::clone(&sure)))) as _;
    let (judged, counted) = (history.clone(), history.clone());
    Play {
        lives: (0..stage.scenario.clients).map(life).collect(),
        audit: Box::pin(lease_audit(stage.clone(), history.clone())),
        judge: Box::new(move || judged.judge(&0, apply)),
        calls: Box::new(move || counted.ended()),
        words: None,
    }
}
