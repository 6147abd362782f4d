//! The names and versions that the library exports are those of its version script, and every one of them can be had.

use libloading::os::unix::Library;

/// Names with their node, as the version script has them; no node: any version is answered.
fn named() -> Vec<(String, Option<String>)> {
    let (mut node, mut names) = (String::new(), Vec::new());
    for line in include_str!("../../nodes.map").lines().map(str::trim) {
        if let Some(opened) = line.strip_suffix(" {") {
            opened.clone_into(&mut node);
        } else if let Some(name) = line.strip_prefix("# private ") {
            names.push((name.to_owned(), None));
        } else if let Some(name) = line.strip_suffix(';').filter(|name| !name.contains(['*', '}'])) {
            names.push((name.to_owned(), Some(node.clone())));
        }
    }
    names
}

#[test]
fn every_name_is_there_at_its_version() {
    // SAFETY: the library has no initialiser of its own.
    let library = unsafe { Library::new(env!("CARGO_BIN_EXE_raas-libibverbs")) }.expect("it is built");
    let handle = library.into_raw();
    let names = named();
    assert_eq!(names.len(), 152, "{names:?}");
    for (name, node) in names {
        let name = format!("{name}\0");
        let node = node.map(|node| format!("{node}\0"));
        // SAFETY: an open handle, and words that end with a zero.
        let found = unsafe {
            match &node {
                Some(node) => libc::dlvsym(handle, name.as_ptr().cast(), node.as_ptr().cast()),
                None => libc::dlsym(handle, name.as_ptr().cast()),
            }
        };
        assert!(!found.is_null(), "{name} {node:?}");
    }
}
