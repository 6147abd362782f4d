//! Histories of what clients saw, over services that are killed.

mod etcd;
mod kv;
mod processes;
