//! How the shared library is linked: with the soname of libibverbs, and each of its names at its version. Rust's own kind
//! of shared library (`cdylib`) brings a version script of its own, beside which linkers take no second one.

use std::path::Path;

/// The version script.
const NODES: &str = "nodes.map";

fn main() {
    println!("cargo::rerun-if-changed={NODES}");
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("Cargo sets it");
    let path = Path::new(&folder).join(NODES);
    let nodes = std::fs::read_to_string(&path).expect("the version script is beside build.rs");
    let script = format!("-Wl,--version-script={}", path.display());
    for argument in ["-shared", "-Wl,-soname,libibverbs.so.1", &script] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    // A name that nothing refers to is not taken out of the library crate unless the linker is asked for it.
    for name in nodes.lines().filter_map(name_of) {
        println!("cargo::rustc-link-arg-bins=-Wl,-u,{name}");
    }
}

/// The name that a line of the script exports.
fn name_of(line: &str) -> Option<&str> {
    let line = line.trim();
    let private = line.strip_prefix("# private ");
    private.or_else(|| line.strip_suffix(';').filter(|name| !name.contains(['*', '}'])))
}
