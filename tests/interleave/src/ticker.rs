//! The thread that ticks while policies are running.

use protocol::Ticker;
use world::{Arc, AtomicUsize, Ordering};

#[path = "../../../host/wasm/src/ticker/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "its own crate uses more of it, and in other places")]
mod protocol;

mod world {
    pub use crate::world::{
        Arc, AtomicBool, AtomicUsize, Builder, JoinHandle, Ordering, check, fence, park, yield_now,
    };

    /// Counts ticks.
    pub type Epoch = Arc<AtomicUsize>;

    /// The smallest possible number.
    pub const IDLE_TICKS: u32 = 1;

    pub fn tick(epoch: &Epoch) {
        epoch.fetch_add(1, Ordering::Relaxed);
        yield_now();
    }
}

#[test]
fn call_is_ticked_even_if_the_ticker_was_about_to_sleep() {
    world::check(2, || {
        let epoch = Arc::new(AtomicUsize::new(0));
        let ticker = Ticker::start(Arc::clone(&epoch)).unwrap();
        for _ in 0..2 {
            let _running = ticker.enter();
            let before = epoch.load(Ordering::Relaxed);
            while epoch.load(Ordering::Relaxed) == before {
                world::yield_now();
            }
        }
    });
}
