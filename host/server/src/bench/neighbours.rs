//! Threads that want a core and do nothing with it, as a busy process beside a host does.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Spin until they are dropped.
pub struct Neighbours {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbours {
    /// Starts so many.
    ///
    /// # Errors
    /// Where the system gives no threads.
    pub fn start(count: usize) -> Result<Self, String> {
        let mut neighbours = Self { stop: Arc::default(), threads: Vec::new() };
        for _ in 0..count {
            let stop = Arc::clone(&neighbours.stop);
            let spin = move || {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            };
            let thread = std::thread::Builder::new().name("neighbour".to_owned()).spawn(spin);
            neighbours.threads.push(thread.map_err(|error| format!("--neighbours: {error}"))?);
        }
        Ok(neighbours)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // They do nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// What `threads` threads have left of their cores where `neighbours` more want as much.
#[must_use]
pub fn fair_share(cores: usize, threads: usize, neighbours: usize) -> f64 {
    let (cores, threads) = (cores as f64, threads as f64);
    let with = threads * (cores / (threads + neighbours as f64)).min(1.0);
    with / threads.min(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fair_share_is_that_of_equal_threads() {
        assert!((fair_share(2, 2, 1) - 2.0 / 3.0).abs() < 1e-12);
        assert!((fair_share(2, 2, 2) - 0.5).abs() < 1e-12);
        assert!((fair_share(8, 2, 3) - 1.0).abs() < 1e-12);
        assert!((fair_share(2, 1, 1) - 1.0).abs() < 1e-12);
        assert!((fair_share(2, 4, 0) - 1.0).abs() < 1e-12);
    }
}
