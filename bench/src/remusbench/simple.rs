//! The simple locks that ALock is measured beside: a compare-and-swap spin lock, and an MCS lock (Mellor-Crummey and
//! Scott 1991). Both treat all clients alike.

use anyhow::{Result, ensure};
use rmem::{Address, Atomic, Client, Layout, Memory, On, Placement, Pool, Wait};

use super::PATIENCE_US;

/// Somebody has the lock, or: the lock has come.
const SET: u64 = 1;

pub(crate) fn word(client: &mut Client<Pool>, place: impl Placement) -> Result<Address> {
    Ok(client.make(place, &0u64).wait()?.address())
}

/// What waits must end.
fn check(begin: u64, memory: &Pool) -> Result<()> {
    ensure!(memory.now_us() - begin < PATIENCE_US, "a lock was not given back");
    Ok(())
}

pub(crate) fn spin_lock(memory: &Pool, lock: Address) -> Result<()> {
    let begin = memory.now_us();
    for attempt in 1.. {
        if memory.atomic(lock, Atomic::CompareSwap { expected: 0, new: SET }).wait()? == 0 {
            return Ok(());
        }
        check(begin, memory)?;
        memory.pause(attempt).wait();
    }
    Ok(())
}

pub(crate) fn spin_unlock(memory: &Pool, lock: Address) -> Result<()> {
    Ok(memory.write(lock, &[0]).wait()?)
}

/// A seat of an MCS lock: whether the lock has come, and who is next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    at: Address,
    bits: u64,
}

impl Seat {
    /// In memory of the client's host.
    pub(crate) fn new(client: &mut Client<Pool>) -> Result<Self> {
        let node = client.memory().home().unwrap_or(0);
        let ptr = client.allocate(Layout::words(2)?, On(node), 0).wait()?;
        Ok(Self { at: ptr.address(), bits: ptr.bits() })
    }
}

fn place(bits: u64) -> Address {
    rmem::Ptr::<()>::from_bits(bits).address()
}

pub(crate) fn mcs_lock(memory: &Pool, lock: Address, seat: Seat) -> Result<()> {
    memory.write(seat.at, &[0, 0]).wait()?;
    let before = memory.atomic(lock, Atomic::Swap(seat.bits)).wait()?;
    if before == 0 {
        return Ok(());
    }
    memory.write(place(before).plus(1), &[seat.bits]).wait()?;
    wait_for(memory, seat.at).map(drop)
}

pub(crate) fn mcs_unlock(memory: &Pool, lock: Address, seat: Seat) -> Result<()> {
    let op = Atomic::CompareSwap { expected: seat.bits, new: 0 };
    if memory.atomic(lock, op).wait()? == seat.bits {
        return Ok(());
    }
    let next = wait_for(memory, seat.at.plus(1))?;
    Ok(memory.write(place(next), &[SET]).wait()?)
}

/// What stands there as soon as it is not 0.
fn wait_for(memory: &Pool, at: Address) -> Result<u64> {
    let begin = memory.now_us();
    for attempt in 1.. {
        let mut found = [0];
        memory.read(at, &mut found).wait()?;
        if found != [0] {
            return Ok(found[0]);
        }
        check(begin, memory)?;
        memory.pause(attempt).wait();
    }
    Ok(0)
}
