//! How threads meet, in every order of their steps (with a bounded number of forced switches) and with every value
//! that the C++ memory model lets a load see. Who is never woken ends in a deadlock that loom names.
//!
//! A protocol that is to be checked takes threads and atomics from `super::world` and is compiled here once more, from
//! the same file, with loom's. That leaves its source as it is: no type parameters for atomics, and no build with
//! `cfg(loom)`. Sequentially consistent accesses are to be written as fences: loom takes the former for mere acquire
//! and release.
//!
//! A workspace of its own: loom switches features of crates on that half of the project's dependencies are built upon.
#![cfg(test)]

mod channel;
mod mailbox;
mod pool;
mod ticker;
mod world;
