//! Shared by the console's tests and its example.
#![allow(dead_code, reason = "each test binary and the example use a part of it")]

pub mod expect;
pub mod peer;
#[path = "../../../host/server/tests/common/port.rs"]
pub mod port;
pub mod sample;
