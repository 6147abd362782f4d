//! The load of ALock's paper: each thread takes and gives back locks by chance, a share of them of its own host.

use crate::choice::Choice;
use anyhow::Result;
use rmem::{ALock, ALockSeat, Address, Client, On, Pool, Wait};

use super::simple::{Seat, mcs_lock, mcs_unlock, spin_lock, spin_unlock, word};
use super::{Case, Hosts, PATIENCE_US};

const LOCKS: [u64; 3] = [20, 100, 1000];
/// Of 100 operations, those on locks of the thread's own host.
const LOCALITIES: [u64; 4] = [50, 85, 95, 100];
const HOSTS: u64 = 2;

/// The lock that a thread of a host takes next: half of the locks lie on each host.
fn choose(choice: &mut Choice, host: usize, count: u64, locality: u64) -> usize {
    let is_own = choice.below(100) < locality;
    let node = if is_own { host as u64 } else { 1 - host as u64 };
    (choice.below(count / HOSTS) * HOSTS + node) as usize
}

pub(crate) fn cases(hosts: &Hosts) -> Result<Vec<Case<'_>>> {
    let mut client = hosts.client(0)?;
    let mut cases = vec![];
    for count in LOCKS {
        let (mut alocks, mut spins, mut queues) = (vec![], vec![], vec![]);
        for number in 0..count {
            let place = On((number % HOSTS) as u8);
            alocks.push(ALock::create(&mut client, place).wait()?);
            spins.push(word(&mut client, place)?);
            queues.push(word(&mut client, place)?);
        }
        for locality in LOCALITIES {
            let (alocks, spins, queues) = (alocks.clone(), spins.clone(), queues.clone());
            let sides: Vec<super::Side<'_>> = vec![
                ("ALock", Box::new(move || alock(hosts, &alocks, locality))),
                ("spin lock", Box::new(move || spin(hosts, &spins, locality))),
                ("MCS lock", Box::new(move || mcs(hosts, &queues, locality))),
            ];
            cases.push(Case { name: format!("locks {count}, locality {locality}%"), sides });
        }
    }
    client.leave().wait()?;
    Ok(cases)
}

fn alock(hosts: &Hosts, locks: &[ALock], locality: u64) -> Result<f64> {
    hosts.rate(|client, host, number| {
        let (mut choice, mut seat) = (Choice::new(number + 1), ALockSeat::new(client).wait()?);
        Ok(move |client: &mut Client<Pool>| {
            let lock = locks[choose(&mut choice, host, locks.len() as u64, locality)];
            let guard = lock.lock(client, &mut seat, PATIENCE_US).wait()?;
            Ok(guard.unlock(client, PATIENCE_US).wait()?)
        })
    })
}

fn spin(hosts: &Hosts, locks: &[Address], locality: u64) -> Result<f64> {
    hosts.rate(|_, host, number| {
        let mut choice = Choice::new(number + 1);
        Ok(move |client: &mut Client<Pool>| {
            let lock = locks[choose(&mut choice, host, locks.len() as u64, locality)];
            spin_lock(client.memory(), lock)?;
            spin_unlock(client.memory(), lock)
        })
    })
}

fn mcs(hosts: &Hosts, locks: &[Address], locality: u64) -> Result<f64> {
    hosts.rate(|client, host, number| {
        let (mut choice, seat) = (Choice::new(number + 1), Seat::new(client)?);
        Ok(move |client: &mut Client<Pool>| {
            let lock = locks[choose(&mut choice, host, locks.len() as u64, locality)];
            mcs_lock(client.memory(), lock, seat)?;
            mcs_unlock(client.memory(), lock, seat)
        })
    })
}
