//! The snippets of the pages. Each block of Rust is a doc test of this crate; blocks for a shell, of C and of Python are
//! those of its integration test. Owns nothing that ships: it is here so that a page cannot show what does not work.
//!
//! It must never hide a block from its test. May use nothing of the house. Order of calls: none.
#![forbid(unsafe_code)]

/// Makes the blocks of Rust in pages doc tests; a test compares the list with the pages.
macro_rules! pages {
    ($($name:ident: $path:literal,)*) => {
        /// The pages that have blocks of Rust, from the root of the repository.
        pub const PAGES: &[&str] = &[$($path),*];
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../../../", $path))]
            pub struct $name;
        )*
    };
}

pages! {
    Readme: "README.md",
    Hello: "docs/start/hello.md",
    Client: "docs/use/client.md",
    Messages: "docs/use/messages.md",
    Datagrams: "docs/use/datagrams.md",
    Unreliable: "docs/use/unreliable.md",
    Regions: "docs/use/regions.md",
    ByReference: "docs/use/by-reference.md",
    Kernels: "docs/use/kernels.md",
    Rpc: "docs/use/rpc.md",
    Structures: "docs/use/structures.md",
    Tensors: "docs/use/tensors.md",
    Groups: "docs/use/groups.md",
}
