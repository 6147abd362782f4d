//! How paths are resolved to the modules that define what they name.

use super::*;

/// Each use as `from -> to`, of a crate of inline modules.
fn uses(source: &str) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("lib.rs");
    std::fs::write(&file, source).expect("written");
    let modules = Modules::read(&file, dir.path()).expect("read");
    modules.uses().iter().map(|used| format!("{} -> {}", modules.path(used.from), modules.path(used.to))).collect()
}

#[test]
fn a_name_counts_for_its_definer_not_for_who_passes_it_on() {
    let source = "mod facade { pub use crate::inner::Thing; } mod inner { pub struct Thing; } \
                  mod user { use crate::facade::Thing; } mod other { use crate::facade; fn f(_: facade::Thing) {} }";
    assert_eq!(uses(source), ["facade -> inner", "user -> inner", "other -> facade", "other -> inner"]);
}

#[test]
fn paths_in_code_types_and_macros_are_seen() {
    let source = "mod a { pub fn f() {} pub struct S; pub const C: u8 = 0; } mod b { fn g() { crate::a::f() } } \
                  mod c { fn g(_: super::a::S) {} } mod d { fn g() { println!(\"{}\", crate::a::C); } }";
    assert_eq!(uses(source), ["b -> a", "c -> a", "d -> a"]);
}

#[test]
fn globs_renames_and_groups_are_followed() {
    let source = "mod a { pub mod x { pub struct X; } pub struct A; } mod b { use crate::a::{self as z, x::*}; fn f(_: z::A) {} } \
                  mod c { pub use crate::a::*; } mod d { fn f(_: crate::c::A) {} }";
    assert_eq!(uses(source), ["b -> a", "b -> a::x", "c -> a", "d -> a"]);
}

#[test]
fn other_crates_visibility_and_locals_are_not_uses() {
    let source = "mod limits { pub(in crate) struct L; } mod b { use std::fmt; use ::limits::L; fn f(limits: u8) -> u8 { limits } \
                  pub(in crate::limits) fn g(_: fmt::Error) {} }";
    assert_eq!(uses(source), [""; 0]);
}
