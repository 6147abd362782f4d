//! Histories of what clients saw, over services that are killed.

mod kv;
mod processes;
