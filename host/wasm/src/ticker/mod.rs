//! The thread that advances an engine's epoch. One per loader: it ticks every millisecond while a call is
//! running and sleeps otherwise.

mod protocol;

pub(crate) use protocol::{Running, Ticker};

/// The protocol's primitives. `tests/interleave` replaces them.
mod world {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    pub use std::thread::{Builder, JoinHandle, park};

    /// What ticks.
    pub type Epoch = wasmtime::Engine;

    /// Ticks without a call after which the thread sleeps until the next one. Waking it costs a call
    /// microseconds, and a tick costs the machine as much: steps in close succession find it awake, and a
    /// console that polls an idle host a few times a second (each poll asks for the pressure) doesn't keep it
    /// awake.
    pub const IDLE_TICKS: u32 = 10;

    /// Waits for the next tick.
    pub fn tick(epoch: &Epoch) {
        std::thread::sleep(crate::deadline::TICK);
        epoch.increment_epoch();
    }
}
