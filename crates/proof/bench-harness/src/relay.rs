//! The relay between two namespaces, bench/src/linkrelay: what it is told, and what it tells.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::place::{End, INTERFACE, Place};
use super::process::{Beside, READY_WITHIN};
use harness::packages;
use harness::repo::Repo;

/// Name of the tap that moves into the server's namespace, until it is there.
const FAR: &str = "bench-far";
/// Frames that a tap holds until the relay reads them: what comes while it waits for a processor.
const TAP_FRAMES: &str = "8192";
/// The relay goes before every other program of the machine: a frame that waits for a processor is late.
const AT_ONCE: [&str; 3] = ["chrt", "--fifo", "1"];

/// What the link is like.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LinkShape {
    pub(super) seed: u64,
    /// Of each direction; 0 for as many as the relay carries.
    pub(super) rate_bits_per_s: u64,
    /// Packets that wait at most.
    pub(super) queue_packets: u32,
    /// A packet that finds more than these before it is marked in place of waiting for a loss, if its sender asked for it.
    pub(super) mark_above_packets: Option<u32>,
    /// Delay of both directions together.
    pub(super) rtt_us: u64,
    /// Of each direction.
    pub(super) loss_per_million: u32,
}

impl LinkShape {
    fn to_json(self) -> Value {
        json!({
            "seed": self.seed, "rate_bits_per_s": self.rate_bits_per_s, "queue_packets": self.queue_packets,
            "mark_above_packets": self.mark_above_packets, "delay_ns": self.rtt_us * 1000 / 2,
            "loss_per_million": self.loss_per_million,
        })
    }
}

/// What became of frames since the shape was set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Carried {
    pub(super) frames: u64,
    pub(super) lost: u64,
    pub(super) queue_full: u64,
    /// Frames that met so long a queue that those of senders which asked for marks were marked.
    pub(super) marked: u64,
    /// Frames that the relay had no room for, or a tap did not take: then the relay was the limit, not the link.
    pub(super) relay_dropped: u64,
    /// How much later than due frames left: the median, and one of a hundred.
    pub(super) late_us: [f64; 2],
}

impl Carried {
    fn read(json: &Value) -> Option<Self> {
        let sum = |key: &str| Some(json["there"][key].as_u64()? + json["back"][key].as_u64()?);
        Some(Self {
            frames: sum("frames")?,
            lost: sum("lost")?,
            queue_full: sum("queue_full")?,
            marked: sum("marked")?,
            relay_dropped: sum("refused")? + sum("overrun")?,
            late_us: [json["late"]["p50_us"].as_f64()?, json["late"]["p99_us"].as_f64()?],
        })
    }
}

/// The running relay.
#[derive(Debug)]
pub(super) struct Relay {
    process: Beside,
    /// Whether it goes before every other program.
    pub(super) at_once: bool,
}

impl Relay {
    /// Each end in a namespace, joined by a relay between two taps; without daemons.
    pub(super) fn two_hosts(repo: &Repo, name: &str, mtu: u32) -> Result<(Place, Self)> {
        let place = Place::two_namespaces(repo, name)?;
        let relay = Self::start(&place)?;
        let pid = place.other_pid();
        place.set_up(End::Client, &["link", "set", FAR, "netns", pid.as_str(), "name", INTERFACE])?;
        place.bring_up(mtu)?;
        for end in [End::Client, End::Server] {
            place.set_up(end, &["link", "set", INTERFACE, "txqueuelen", TAP_FRAMES])?;
        }
        place.grow_tcp_buffers()?;
        Ok((place, relay))
    }

    /// Starts it at the client's end; both of its taps are there.
    fn start(place: &Place) -> Result<Self> {
        let program = place.program("bench");
        let at_once = packages::is_here(AT_ONCE[0]) && may(&AT_ONCE);
        let first: &[&str] = if at_once { &AT_ONCE } else { &[] };
        let words = [first, &[program.as_str(), "linkrelay", "--near", INTERFACE, "--far", FAR]].concat();
        let mut process = Beside::start(&mut place.command(End::Client, &words))?;
        process.wait_line("ready", READY_WITHIN).context("the relay")?;
        Ok(Self { process, at_once })
    }

    /// From here on the link is like this.
    pub(super) fn set(&mut self, shape: LinkShape) -> Result<()> {
        self.process.say(&format!("set {}", shape.to_json()))?;
        self.process.wait_line("set", READY_WITHIN)?;
        Ok(())
    }

    /// What became of frames since then.
    pub(super) fn carried(&mut self) -> Result<Carried> {
        self.process.say("stats")?;
        let line = self.process.wait_line("stats ", READY_WITHIN)?;
        let json: Value = serde_json::from_str(&line).with_context(|| format!("the relay says {line}"))?;
        Carried::read(&json).with_context(|| format!("the relay says {line}"))
    }
}

/// Whether this user may start programs like that.
fn may(words: &[&str]) -> bool {
    let [program, arguments @ ..] = words else { return false };
    Command::new(program).args(arguments).arg("true").output().is_ok_and(|ended| ended.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_count_and_a_dropping_relay_is_told_from_a_lossy_link() {
        let way = |n: u64| json!({"frames": 10 * n, "lost": n, "queue_full": 2 * n, "marked": 5 * n, "refused": 3 * n, "overrun": n});
        let told = json!({"there": way(1), "back": way(10), "late": {"p50_us": 1.5, "p99_us": 9.0, "max_us": 90.0}});
        let found =
            Carried { frames: 110, lost: 11, queue_full: 22, marked: 55, relay_dropped: 44, late_us: [1.5, 9.0] };
        assert_eq!(Carried::read(&told), Some(found));
        assert_eq!(Carried::read(&json!({})), None);
    }

    #[test]
    fn each_direction_has_half_of_the_round_trip() {
        let shape = LinkShape {
            seed: 7,
            rate_bits_per_s: 5,
            queue_packets: 100,
            mark_above_packets: None,
            rtt_us: 1000,
            loss_per_million: 10_000,
        };
        assert_eq!(shape.to_json()["delay_ns"], 500_000);
    }
}
