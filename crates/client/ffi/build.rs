//! Gives the shared library its soname.

fn main() {
    // The number grows when a program that was linked with an older library could not run with this one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libraas.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
