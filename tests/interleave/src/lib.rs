//! Concurrent protocols under loom: every interleaving up to a bounded number of preemptions, and every value that the
//! C++ memory model allows a load to return. A lost wake-up shows as a deadlock, which loom reports.
//!
//! A checked protocol imports threads and atomics from `super::world`. Its file is compiled a second time here, where
//! that module is loom's. The shipped source therefore needs neither type parameters for atomics nor `cfg(loom)`.
//! It must express sequential consistency by fences, because loom weakens `SeqCst` accesses to acquire and release.
//!
//! A workspace of its own: loom enables features of crates that half of the project's dependencies share.
#![cfg(test)]

mod channel;
mod log;
mod mailbox;
mod pool;
mod ticker;
mod world;
