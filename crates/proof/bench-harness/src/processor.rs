//! Which processors the two ends of a bench keep to. Reads what the kernel says about them.

use anyhow::{Context, Result, ensure};

/// Processors that this process may use, in order.
pub(super) fn allowed() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("asking for the own processors")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// The first of them, and the first after it that is not the same core twice. Where all others are, the second.
pub(super) fn two_apart(allowed: &[usize]) -> Result<[usize; 2]> {
    ensure!(allowed.len() >= 2, "one processor only: both ends of a bench cannot have one each");
    let first = allowed[0];
    let path = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    let siblings = list(&std::fs::read_to_string(path).unwrap_or_default());
    let apart = allowed[1..].iter().find(|processor| !siblings.contains(processor));
    Ok([first, *apart.unwrap_or(&allowed[1])])
}

/// Reads `0,4-6`.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(list("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(list("3\n"), [3]);
        assert_eq!(list(""), Vec::<usize>::new());
    }

    #[test]
    fn two_ends_need_two_processors() {
        assert!(two_apart(&[3]).is_err());
        let [first, second] = two_apart(&[0, 1]).expect("two");
        assert_eq!((first, second), (0, 1));
        assert!(!allowed().expect("a list").is_empty());
    }
}
