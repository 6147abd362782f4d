//! The native part of the Python package `raas`: the client library's types as Python classes. The Python half of the
//! package (`python/raas`) makes standard sockets and asyncio streams of them.
//!
//! Owns the way between Python and the library: waiting without the interpreter's lock, buffers of Python objects, errors.
//! Unsafe code is in `bytes`, `dlpack`, `exports` and the buffers of `region`, `lend` and `tensor` alone.
//!
//! It must never hold the interpreter's lock while it waits. May use `raas`, `tensor`. Order of calls: that of the classes of
//! `socket` and `asyncio`.

mod address;
mod batch;
mod bytes;
mod datagram;
mod dlpack;
mod exports;
mod failure;
mod lend;
mod listener;
mod maybe_open;
mod message;
mod pool;
mod region;
mod session;
mod shown;
mod stream;
mod tensor;

use pyo3::prelude::*;

/// The native part of the package `raas`.
#[pymodule]
fn _raas(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RELEASE", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<session::Session>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<stream::Connecting>()?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<message::MessageStream>()?;
    module.add_class::<message::MessageListener>()?;
    module.add_class::<datagram::DatagramSocket>()?;
    module.add_class::<region::Region>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<lend::Lent>()?;
    module.add_class::<lend::View>()?;
    module.add_class::<pool::Pool>()?;
    module.add_class::<pool::Reader>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_function(wrap_pyfunction!(stream::connect, module)?)?;
    module.add_function(wrap_pyfunction!(stream::start_connect, module)?)?;
    module.add_function(wrap_pyfunction!(message::connect_messages, module)?)?;
    Ok(())
}
