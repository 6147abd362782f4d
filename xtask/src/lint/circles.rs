//! No circle among the modules of a crate. Two modules stand beside each other if they have the same parent, and what
//! is below a module counts as part of it. A circle is a round of modules beside each other in which each names
//! something of the next. A module and what is below it are one: a child may use its parent and a parent its children.

use super::modules::{Id, Modules, Use};
use anyhow::Result;
use harness::repo::{Package, Repo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Each circle of each package.
pub(super) fn check(repo: &Repo) -> Result<Vec<String>> {
    let found: Result<Vec<Vec<String>>> = repo.packages.iter().map(|package| of_package(repo, package)).collect();
    Ok(found?.concat())
}

/// The circles of every target of a package, tests and examples included.
pub(super) fn of_package(repo: &Repo, package: &Package) -> Result<Vec<String>> {
    let mut findings = vec![];
    for target in package.targets.iter().filter(|target| target.kinds != ["custom-build"]) {
        let modules = Modules::read(&target.source, &repo.root)?;
        let found = circles(&modules).into_iter();
        findings.extend(found.map(|circle| format!("{} ({}): {circle}", package.name, target.name)));
    }
    Ok(findings)
}

/// A circle for each group of modules that cannot be told apart by who uses whom.
fn circles(modules: &Modules) -> Vec<String> {
    let mut beside: BTreeMap<Id, BTreeMap<(Id, Id), String>> = BTreeMap::new();
    for Use { from, to, place } in modules.uses() {
        if let Some((parent, from, to)) = siblings(modules, from, to) {
            beside.entry(parent).or_default().entry((from, to)).or_insert(place);
        }
    }
    let mut found = vec![];
    for (parent, edges) in &beside {
        let mut told = BTreeSet::new();
        for start in edges.keys().map(|(from, _)| *from) {
            if told.contains(&start) {
                continue;
            }
            if let Some(circle) = shortest(edges, start) {
                let group = group(edges, start);
                found.push(said(modules, *parent, edges, &circle, &group));
                told.extend(group);
            }
        }
    }
    found
}

/// The modules beside each other that `from` and `to` are, or are below of, and their parent; `None` if one is below
/// the other.
fn siblings(modules: &Modules, from: Id, to: Id) -> Option<(Id, Id, Id)> {
    let [from, to] = [from, to].map(|id| {
        let mut line: Vec<Id> = std::iter::successors(Some(id), |id| modules.parent(*id)).collect();
        line.reverse();
        line
    });
    let split = from.iter().zip(&to).position(|(from, to)| from != to)?;
    Some((from[split - 1], from[split], to[split]))
}

/// The shortest round from `start` back to it, with `start` at both ends.
fn shortest(edges: &BTreeMap<(Id, Id), String>, start: Id) -> Option<Vec<Id>> {
    let mut came_from: BTreeMap<Id, Id> = BTreeMap::new();
    let mut ahead = VecDeque::from([start]);
    while let Some(at) = ahead.pop_front() {
        for next in edges.keys().filter(|(from, _)| *from == at).map(|(_, to)| *to) {
            if came_from.contains_key(&next) {
                continue;
            }
            came_from.insert(next, at);
            if next == start {
                let mut round = vec![start];
                let mut step = at;
                while step != start {
                    round.push(step);
                    step = came_from[&step];
                }
                round.push(start);
                round.reverse();
                return Some(round);
            }
            ahead.push_back(next);
        }
    }
    None
}

/// Everything that `start` reaches and that reaches `start`.
fn group(edges: &BTreeMap<(Id, Id), String>, start: Id) -> BTreeSet<Id> {
    let reached = |forward: bool| {
        let mut seen = BTreeSet::from([start]);
        let mut ahead = vec![start];
        while let Some(at) = ahead.pop() {
            let next = edges.keys().map(|(from, to)| if forward { (*from, *to) } else { (*to, *from) });
            ahead.extend(next.filter(|(from, _)| *from == at).map(|(_, to)| to).filter(|to| seen.insert(*to)));
        }
        seen
    };
    reached(true).intersection(&reached(false)).copied().collect()
}

fn said(
    modules: &Modules,
    parent: Id,
    edges: &BTreeMap<(Id, Id), String>,
    circle: &[Id],
    group: &BTreeSet<Id>,
) -> String {
    let names: Vec<String> = group.iter().map(|id| modules.path(*id)).collect();
    let mut text = format!("{} modules of {} in a circle: {}", group.len(), modules.path(parent), names.join(", "));
    for step in circle.windows(2) {
        let (from, to) = (step[0], step[1]);
        let place = &edges[&(from, to)];
        text.push_str(&format!("\n         {} -> {}: {place}", modules.path(from), modules.path(to)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A crate of these files, in a directory of its own.
    fn crate_of(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        circles(&Modules::read(&dir.path().join("lib.rs"), Path::new(dir.path())).expect("read"))
    }

    #[test]
    fn two_modules_that_use_each_other_are_a_circle_with_its_lines() {
        let found = crate_of(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;\npub struct A(B);"),
            ("b.rs", "pub struct B;\nfn f(_: super::a::A) {}"),
            ("c.rs", "use crate::a::A;"),
        ]);
        assert_eq!(
            found,
            [
                "2 modules of crate in a circle: a, b\n         a -> b: a.rs:1: crate::b::B\n         b -> a: b.rs:2: super::a::A"
            ]
        );
    }

    #[test]
    fn what_is_below_a_module_is_part_of_it() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod x; mod y; pub use x::X;"),
            ("a/x.rs", "pub struct X; fn f() { crate::b::g() }"),
            ("a/y.rs", "pub struct Y;"),
            ("b/mod.rs", "pub fn g() {} use crate::a::X;"),
        ];
        assert_eq!(crate_of(&files).len(), 1, "a::x uses b and b uses a::x");
        let mut straight = files;
        straight[4].1 = "pub fn g() {}";
        assert_eq!(crate_of(&straight), [""; 0]);
    }

    #[test]
    fn a_child_and_its_parent_may_use_each_other_and_its_brothers_may_not() {
        let family =
            [("lib.rs", "mod a;"), ("a.rs", "mod x; mod y; pub struct A; use x::X;"), ("a/y.rs", "use super::A;")];
        let with = |x: &'static str| crate_of(&[family[0], family[1], family[2], ("a/x.rs", x)]);
        assert_eq!(with("use super::A; pub struct X(A);"), [""; 0]);
        let brothers = [("lib.rs", "mod a;"), ("a.rs", "mod x; mod y;"), ("a/x.rs", "use super::y;")];
        assert_eq!(crate_of(&[brothers[0], brothers[1], brothers[2], ("a/y.rs", "use super::x;")]).len(), 1);
    }

    #[test]
    fn tests_may_use_everything() {
        let found = crate_of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a; } #[cfg(all(test, unix))] use crate::a;"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
