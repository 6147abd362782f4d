//! The tutorial's load of its set: keys of 0..4096, half of them there, as many insertions as removals.

use crate::choice::Choice;
use anyhow::Result;
use rmem::{Client, ListSet, Pool, RoundRobin, Wait};

use super::simple::{Seat, mcs_lock, mcs_unlock, spin_lock, spin_unlock, word};
use super::{Case, Hosts};

const KEYS: u64 = 4096;

/// The set alone, and the same set under one lock.
pub(crate) fn cases(hosts: &Hosts) -> Result<Vec<Case<'_>>> {
    let mut client = hosts.client(0)?;
    let set = ListSet::create(&mut client, RoundRobin).wait()?;
    // From the greatest key down each insertion is at the list's beginning.
    for key in (0..KEYS).rev().step_by(2) {
        set.insert(&mut client, key).wait()?;
    }
    let (spin, mcs) = (word(&mut client, RoundRobin)?, word(&mut client, RoundRobin)?);
    client.leave().wait()?;
    let free = move || {
        hosts.rate(|_, _, number| {
            let mut choice = Choice::new(number + 1);
            Ok(move |client: &mut Client<Pool>| {
                let key = choice.below(KEYS);
                if choice.below(2) == 0 {
                    set.insert(client, key).wait()?;
                } else {
                    set.remove(client, key).wait()?;
                }
                Ok(())
            })
        })
    };
    let spinning = move || {
        hosts.rate(|_, _, number| {
            let mut choice = Choice::new(number + 1);
            Ok(move |client: &mut Client<Pool>| {
                let key = choice.below(KEYS);
                spin_lock(client.memory(), spin)?;
                if choice.below(2) == 0 {
                    set.insert(client, key).wait()?;
                } else {
                    set.remove(client, key).wait()?;
                }
                spin_unlock(client.memory(), spin)
            })
        })
    };
    let queued = move || {
        hosts.rate(|client, _, number| {
            let (mut choice, seat) = (Choice::new(number + 1), Seat::new(client)?);
            Ok(move |client: &mut Client<Pool>| {
                let key = choice.below(KEYS);
                mcs_lock(client.memory(), mcs, seat)?;
                if choice.below(2) == 0 {
                    set.insert(client, key).wait()?;
                } else {
                    set.remove(client, key).wait()?;
                }
                mcs_unlock(client.memory(), mcs, seat)
            })
        })
    };
    let sides: Vec<super::Side<'_>> = vec![
        ("list set", Box::new(free)),
        ("set under a spin lock", Box::new(spinning)),
        ("set under an MCS lock", Box::new(queued)),
    ];
    Ok(vec![Case { name: "intset".to_owned(), sides }])
}
