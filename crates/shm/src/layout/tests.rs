//! The numbers of docs/shm-layout.md, and headers of hostile makers.
