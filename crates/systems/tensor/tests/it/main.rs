//! Tensors between programs of one host and of two.

mod ends;
mod hosts;
mod share;
