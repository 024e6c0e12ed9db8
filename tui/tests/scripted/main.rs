//! The console without a real host: its screens, its connection to a scripted host, and what it prints for a recording.
//!
//! One binary with a module for each concept. Alone stays the console in a terminal with a real host (`terminal`),
//! which takes longest.

#[path = "../support/mod.rs"]
mod support;

mod connection;
mod readme;
mod screens;
