//! `include/raas.h` is what cbindgen makes of the sources, and what C++ names is there.
//!
//! To write it anew: `RAAS_WRITE_HEADER=1 cargo test -p raas-ffi --test it header::`.

use std::fs;
use std::path::Path;

const SOURCES: [&str; 4] = ["target.rs", "flags.rs", "connections.rs", "transfers.rs"];

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let sources = SOURCES.iter().map(|name| root.join("src").join(name));
    let builder = sources.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut header = vec![];
    builder.generate().unwrap().write(&mut header);
    // rustdoc's heading for what a caller promises.
    String::from_utf8(header).unwrap().replace(" * # Safety\n", " * The caller's part:\n")
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/raas.h");
    let made = made();
    if std::env::var_os("RAAS_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "include/raas.h differs from the sources: RAAS_WRITE_HEADER=1 cargo test -p raas-ffi --test it header::"
    );
}

#[test]
fn every_function_is_on_the_man_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("man/raas.3")).unwrap();
    let header = made();
    let functions: Vec<&str> = header
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("raas_") && *word != "raas_target")
        .collect();
    assert!(functions.len() >= 18, "{functions:?}");
    for function in functions {
        assert!(page.contains(&format!("{function}(")), "raas(3) has no synopsis of {function}");
    }
}
