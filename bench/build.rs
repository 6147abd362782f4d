//! Links the program at fixed addresses. At others the loader would write every pointer of its constants when it starts:
//! a megabyte of memory of each process, for code of which a load runs a small part, and `bench figures` counts the
//! memory of applications.

fn main() {
    println!("cargo::rustc-link-arg-bins=-no-pie");
    println!("cargo::rerun-if-changed=build.rs");
}
