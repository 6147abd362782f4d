//! The C interface: its header, and programs that use it.

mod header;
mod programs;
