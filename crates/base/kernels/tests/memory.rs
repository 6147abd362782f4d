//! What a module costs its daemon: no more than its price, whatever is in it, and nothing when it is gone.
#![cfg(feature = "wasm")]

use std::alloc::System;

use cap::Cap;
use kernels::{MODULE_BYTES_MAX, UserKernel};

#[global_allocator]
static HEAP: Cap<System> = Cap::new(System, usize::MAX);

/// The function that each module has.
const RUN: &str = r#"(func $f (export "run") (local i32 i64 f64) @)"#;

/// A module of nearly the largest size that can be read: `part` is repeated at `@` of `frame`, `#` is the repetition's
/// number.
fn largest(frame: &str, part: &str) -> Vec<u8> {
    let module = |count: usize| {
        let parts: String = (0..count).map(|n| part.replace('#', &n.to_string())).collect();
        let text = format!(r#"(module {} (memory (export "memory") 1))"#, frame.replace('@', &parts));
        wat::parse_str(text).unwrap()
    };
    let (one, some) = (module(1).len(), module(101).len());
    let mut count = (MODULE_BYTES_MAX - one) * 100 / (some - one).max(1);
    // Less where a limit of the sandbox comes first, or numbers are longer.
    loop {
        let wasm = module(count);
        if wasm.len() <= MODULE_BYTES_MAX && UserKernel::new(&wasm).is_ok() {
            return wasm;
        }
        count -= count / 8 + 1;
    }
}

fn check(frame: &str, part: &str) {
    let wasm = largest(frame, part);
    let before = HEAP.allocated();
    let kernel = UserKernel::new(&wasm).unwrap();
    let held = (HEAP.allocated() - before) as u64;
    drop(kernel);
    // Before anything is said, for which the test keeps memory.
    let left = HEAP.allocated();
    println!("{held:>9} bytes for {:>6}, {:>3} each: {part:.60}", wasm.len(), held / wasm.len() as u64);
    let price = UserKernel::held_bytes(wasm.len());
    assert!(held <= price, "{held} bytes, and the price is {price}: {part}");
    assert!(left <= before, "something of it is left: {part}");
}

#[test]
fn no_module_costs_more_than_its_price_and_none_leaves_anything() {
    let args = "(local.get 0)".repeat(32);
    let i32s = "i32 ".repeat(32);
    let many = format!(
        r#"(type $t (func (param {i32s}) (result {i32s}))) (func $g (type $t) unreachable)
           (func (export "run") (local i32) {args} @ unreachable)"#
    );
    let branches = format!(
        r#"(type $t (func (param {i32s}) (result {i32s})))
           (func (export "run") (local i32) {args} (block (type $t) (block (type $t) (br_table 0 @ (local.get 0))))
               unreachable)"#
    );
    let branch = r#"(func (export "run") (local i32) (drop (block (result i32) (block (result i32)
        (br_table 0 @ (local.get 0) (local.get 0))))))"#;
    let table = format!("{RUN} (table 1 funcref) (elem (i32.const 0) func @)");
    let table = table.replacen('@', "", 1);
    let outside = RUN.replace('@', "") + " @";
    let one = format!(r#"(func $g (param {i32s}) (result i32) unreachable) {RUN}"#);
    let call = format!("(drop (call $g {args}))");
    let modules: &[(&str, &str)] = &[
        (&many, "(call $g)"),
        (&branches, "1 "),
        (branch, "1 "),
        (&one, &call),
        (RUN, "(local.get 0) (br_if 0) "),
        (RUN, "(drop (i32.eqz (local.get 0)))"),
        (RUN, "(drop (f64.add (local.get 2) (f64.const #)))"),
        (RUN, "(i64.store offset=# (local.get 0) (i64.const #))"),
        (RUN, "(memory.copy (local.get 0) (i32.const 70000) (i32.const 70000))"),
        (RUN, "(if (local.get 0) (then) (else))"),
        (RUN, "(loop (br_if 0 (local.get 0)))"),
        (&RUN.replace("@)", "@ unreachable)"), "(i32.const #)"),
        (&RUN.replace("@)", "@ unreachable)"), "(local.get 0)"),
        (&outside, "(func (result i32) (i32.add (i32.const 1) (i32.const 2)))"),
        (&outside, "(export \"#\" (func $f))"),
        (&outside, "(data \"\")"),
        (&outside, "(global i32 (i32.const 0))"),
        (&format!("@ {}", RUN.replace('@', "")), "(import \"region\" \"bytes\" (func (param i32) (result i64)))"),
        (&table, "$f "),
    ];
    modules.iter().for_each(|(frame, part)| check(frame, part));
}
