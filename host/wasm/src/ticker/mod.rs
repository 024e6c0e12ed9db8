//! The thread that advances an engine's epoch. One per loader: it ticks every millisecond while some call is
//! running and sleeps otherwise.

mod protocol;

pub(crate) use protocol::{Running, Ticker};

/// What the protocol is made of. `tests/interleave` gives it another one.
mod world {
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    pub use std::thread::{Builder, JoinHandle, park};

    /// What ticks.
    pub type Epoch = wasmtime::Engine;

    /// Ticks without a call after which the thread sleeps until the next one. Waking it costs a call microseconds,
    /// a tick costs the machine as much: steps that follow each other find it awake, and a console that looks at an
    /// idle host a few times a second (each look asks for the pressure) doesn't keep it so.
    pub const IDLE_TICKS: u32 = 10;

    /// Waits for the next tick.
    pub fn tick(epoch: &Epoch) {
        std::thread::sleep(crate::deadline::TICK);
        epoch.increment_epoch();
    }
}
