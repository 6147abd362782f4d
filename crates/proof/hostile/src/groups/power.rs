//! Power that goes at all hosts: every program, daemon and memory of the group is gone, and its directories are left.
//!
//! Owns what each file is after that. All that its owner had said to be synced is there; behind that nobody promised
//! anything, so it is cut somewhere, and a byte there may be another. It must never cut away what was said.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agree::{Journal, Kept};
use anyhow::{Context as _, Result, ensure};
use raas::{Region, RegionAccess, Session};
use rand::RngExt as _;
use rand::rngs::SmallRng;

use super::Field;
use super::member::{KEY, NAME};
use super::nemesis::{Fault, Kind};

/// How long all is dark, at most.
const DARK_MS_MAX: u64 = 200;

/// The directory of a member.
pub(super) fn directory(dir: &Path, host: usize) -> PathBuf {
    dir.join(format!("member{}", host + 1))
}

impl Field<'_> {
    /// All end at once, maybe after one whose file is an old one then; a majority comes back, that one with it. Who is to
    /// come later, and in words how much of the files was cut off.
    pub(super) fn cut_power(&mut self) -> Result<(Vec<Fault>, String)> {
        let count = self.place.ips.len();
        let old = if self.rng.random_range(0..2) == 0 { Some(self.rng.random_range(0..count)) } else { None };
        if let Some(old) = old {
            self.hit(Kind::Killed, old)?;
            self.go_on()?;
        }
        // None says or acknowledges more from here on, so what was acknowledged is by what they have said.
        for host in (0..count).filter(|host| Some(*host) != old) {
            self.hit(Kind::Still, host)?;
        }
        let said = (0..count).map(|host| self.said_of_file(host)).collect::<Result<Vec<Kept>>>()?;
        self.members.iter_mut().for_each(|member| drop(member.take()));
        for daemon in &mut self.daemons {
            daemon.take().context("a daemon")?.kill()?;
        }
        let mut cut = 0;
        for (host, said) in said.iter().enumerate() {
            let journal = directory(self.dir, host).join("journal");
            cut += cut_behind(&journal, said, &mut self.rng).with_context(|| format!("the file of {}", host + 1))?;
        }
        let dark = Duration::from_millis(self.rng.random_range(0..DARK_MS_MAX));
        self.pass(dark)?;
        for host in 0..count {
            self.daemons[host] = Some(self.start_daemon(host)?);
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_cached_key(|host| (Some(*host) != old, self.rng.random::<u32>()));
        let later = order.split_off(count / 2 + 1);
        for host in order {
            self.members[host] = Some(self.join(host)?);
        }
        let told = if cut > 0 { ", files cut" } else { ", files whole" };
        let told = format!("{}{told}", if old.is_some() { " with an old file" } else { "" });
        Ok((later.into_iter().map(|host| Fault::Process(Kind::Killed, host)).collect(), told))
    }

    /// What a member has said of its file, as its memory has it.
    fn said_of_file(&self, host: usize) -> Result<Kept> {
        let socket = self.dir.join(format!("{}.sock", self.place.ips[host]));
        let session = Session::builder().socket(socket).connect()?;
        let at = self.place.ips[host];
        let region = Region::open_for(&session, at, &format!("group/{NAME}"), KEY, RegionAccess::READ)?;
        let mut bytes = [0; Kept::BYTES];
        region.read(Kept::AT, &mut bytes)?;
        Kept::decode(&bytes).context("its words")
    }
}

/// Cuts a file behind what was said of it, anywhere; how many bytes.
fn cut_behind(journal: &Path, said: &Kept, rng: &mut SmallRng) -> Result<u64> {
    let mut bytes = fs::read(journal)?;
    let ends = Journal::ends(&bytes)?;
    // A file that was made anew and of which nothing was said yet was synced before it had its name.
    let Some((end, _)) = ends.iter().rev().find(|(_, kept)| kept == said) else {
        let last = ends.last().map(|(_, kept)| (kept.promised, kept.index));
        ensure!(last >= Some((said.promised, said.index)), "{said:?} is not in {ends:?}");
        return Ok(0);
    };
    let cut = rng.random_range(*end..=bytes.len());
    let length = bytes.len();
    bytes.truncate(cut);
    if cut > *end && rng.random_range(0..2) == 0 {
        let at = rng.random_range(*end..cut);
        bytes[at] ^= 1 << rng.random_range(0..8u32);
    }
    fs::write(journal, &bytes)?;
    Ok((length - cut) as u64)
}

#[cfg(test)]
mod tests {
    use agree::{Layout, Title};
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn what_was_said_is_never_cut_away() {
        let title =
            Title { group: 1, member: 1, number: 5, layout: Layout::new(64, 64).unwrap(), command_bytes_max: 24 };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let Some(agree::Ask::Replace(whole)) = agree::Scribe::new(Journal::new(title)).unwrap().ask() else {
            panic!("it begins with its file");
        };
        let said = Journal::ends(&whole).unwrap()[0].1;
        let mut rng = SmallRng::seed_from_u64(1);
        for rest in 0..50 {
            fs::write(&path, [whole.as_slice(), &vec![7; rest]].concat()).unwrap();
            cut_behind(&path, &said, &mut rng).unwrap();
            assert_eq!(fs::read(&path).unwrap()[..whole.len()], whole);
        }
        let mut more = said;
        more.index += 3;
        assert!(cut_behind(&path, &more, &mut rng).is_err(), "nothing says that much");
    }
}
