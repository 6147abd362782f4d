//! Tensors by name: by reference on one host, by READ between hosts.
//!
//! A [`Pool`] is a region of `raas` with tensors in it. Its owner makes a tensor, fills it where it lies, and puts it under
//! a name. A [`Reader`] gets it: on the pool's host it has the tensor mapped and no byte is copied; from another host it
//! fetches it by one READ straight into a pool of its own.
//!
//! ```no_run
//! use raas::Session;
//! use tensor::{DType, Layout, Pool, Reader};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let session = Session::global()?;
//!     let pool = Pool::create(&session, "weights", 64 << 20)?;
//!     let draft = pool.make(Layout::new(DType::F32, &[2, 3])?)?;
//!     draft.write(0, &[0; 24])?; // or fill it by its address
//!     pool.put("layer0", draft)?;
//!
//!     // Another program, on any host, with the pool's key:
//!     let reader = Reader::open(&session, "127.0.0.1".parse()?, "weights", pool.key())?;
//!     let layer = reader.get("layer0")?;
//!     println!("{:?} at {:?}", layer.layout().shape(), layer.as_ptr()?);
//!     Ok(())
//! }
//! ```
//!
//! **A stale tensor reference is an error, never other bytes**: docs/inside/tensor.md says why. How to use it:
//! docs/use/tensors.md.
//!
//! Owns names, generations and pins. It must never use a tensor's memory again while a reader may look at it. May use
//! `raas`. Order of calls: a [`Pool`] and its tensors, then readers.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod books;
mod counts;
mod draft;
mod dtype;
mod error;
mod extents;
mod header;
mod layout;
mod limits;
mod pool;
mod reader;
mod serve;
mod shelf;
mod tensor;
mod wire;

pub use books::{Books, Grant, Marks, Wanted, is_over};
pub use counts::Counts;
pub use draft::Draft;
pub use dtype::DType;
pub use error::{Error, Holder};
pub use header::Header;
pub use layout::Layout;
pub use limits::{DIMS_MAX, HEADER_BYTES, NAME_BYTES_MAX, TENSOR_BYTES_MAX};
pub use pool::{Pool, PoolOptions};
pub use reader::Reader;
pub use tensor::{Tensor, TensorRef, confirm};
