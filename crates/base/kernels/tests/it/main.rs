//! Kernels: the built-in ones and those of users.

mod builtin;
mod sorted;
mod user;
