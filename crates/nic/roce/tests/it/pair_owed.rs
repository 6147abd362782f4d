//! A target of one-sided WRITEs that sleeps between the packets that come: how many acknowledgements it sends, and that
//! nobody waits for one that it keeps back.
//!
//! `cargo nextest run -p roce --test it pair_owed:: --no-capture` prints the counts.

#![expect(clippy::disallowed_macros, reason = "it prints the counts")]

use crate::pair::*;
use verbs::*;

const MIB: u64 = 1 << 20;
/// Bytes of one WRITE: four packets.
const WRITE_BYTES: u32 = 4096;
/// 10 Gbit/s.
const RATE: u64 = 1_250_000_000;
/// WRITEs that the initiator has under way at most; a quarter of its queue is signalled at a time.
const UNDER_WAY: u64 = 128;
/// The initiator looks for one completion in so many WRITEs.
const SIGNALLED: u64 = 64;

/// What two ends did while so many bytes were written.
#[derive(Debug)]
struct Told {
    /// Acknowledgements that the target sent.
    acks: u64,
    /// Times that the target slept.
    sleeps: u64,
    /// Acknowledgements that were asked for.
    asked: u64,
    /// How long it took.
    took: std::time::Duration,
}

/// Writes so many bytes. The target arms its CQ whenever so many packets came, as an owner that sleeps does; 0: it
/// polls, and never sleeps.
fn write(world: &mut World, [a, b]: &[End; 2], bytes: u64, packets_a_sleep: u64) -> Told {
    let before = world.nics[1].counters_detail();
    let (mut posted, mut done, mut sleeps, mut slept_at) = (0, 0, 0, before.rx_packets);
    let writes = bytes / u64::from(WRITE_BYTES);
    world.seen.clear();
    let begun = world.now;
    world.run_until("all WRITEs", |world| {
        let rx_packets = world.nics[1].counters_detail().rx_packets;
        if packets_a_sleep > 0 && rx_packets - slept_at >= packets_a_sleep {
            world.nics[1].req_notify_cq(b.cq, false).expect("the CQ");
            (sleeps, slept_at) = (sleeps + 1, rx_packets);
        }
        done += a.poll(world).iter().map(|c| if c.status == Status::Success { SIGNALLED } else { 0 }).sum::<u64>();
        while posted < writes && posted < done + UNDER_WAY {
            posted += 1;
            let flags = if posted % SIGNALLED == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.try_send(world, posted, SendOp::Write(b.remote(0)), 0, WRITE_BYTES, flags).expect("posted");
        }
        done >= writes
    });
    assert_eq!(done, writes, "every completion is a success");
    let asked = world.seen.iter().filter(|seen| seen.from == 0 && seen.bytes[8] & 0x80 != 0).count() as u64;
    let acks = world.nics[1].counters_detail().acks_sent - before.acks_sent;
    Told { acks, sleeps, asked, took: world.now - begun }
}

/// Two of our own, with a line of 10 Gbit/s.
fn of_our_own() -> (World, [End; 2]) {
    let mut world = World::new(Setup { rate: Some(RATE), ..Setup::default() });
    world.record = true;
    let wish = Wish { budget: Some(4 << 20), ..Wish::default() };
    let ends = connect_with(&mut world, [&wish, &wish]);
    // The window opens, and a round trip is known.
    write(&mut world, &ends, MIB, 0);
    (world, ends)
}

#[test]
fn a_target_that_sleeps_after_each_batch_does_not_acknowledge_each() {
    const MEBIBYTES: u64 = 16;
    // A window of 256 packets is asked about four times.
    const ASKED_A_MIB: u64 = 16;
    let mut polling = None;
    for packets_a_sleep in [0, 64, 16, 4, 1] {
        let (mut world, ends) = of_our_own();
        let told = write(&mut world, &ends, MEBIBYTES * MIB, packets_a_sleep);
        let [acks, asked, sleeps] = [told.acks, told.asked, told.sleeps].map(|n| n as f64 / MEBIBYTES as f64);
        println!(
            "asleep after {packets_a_sleep:2} packets: {acks:7.1} ACKs a MiB, {asked:5.1} asked for, {sleeps:7.1} sleeps"
        );
        for nic in &world.nics {
            let counters = nic.counters_detail();
            assert_eq!((counters.retransmits, counters.timeouts, counters.probes), (0, 0, 0), "{counters:?}");
        }
        assert_eq!(told.asked, MEBIBYTES * ASKED_A_MIB, "an early ACK brings no request");
        // One more in each half millisecond, when it goes to sleep.
        let early = told.took.as_micros() as u64 / 500 + 1;
        assert!(told.acks <= told.asked + early, "{told:?}");
        assert!(packets_a_sleep == 0 || told.sleeps >= MEBIBYTES * 1024 / packets_a_sleep, "{told:?}");
        let polling = *polling.get_or_insert(told.took);
        assert!(told.took <= polling, "{:?} beside {polling:?} when it polls", told.took);
    }
}
