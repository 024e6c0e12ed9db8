//! Threads that spin, to take processor time from a benchmark as another busy process would.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Spinning threads; dropping it stops them.
pub struct Neighbours {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbours {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// If the system refuses a thread.
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
            // The threads can't panic.
            let _ = thread.join();
        }
    }
}

/// Share of its throughput that a process with `threads` threads keeps if the scheduler gives `neighbours` more threads
/// equal time.
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
    fn fair_share_gives_all_threads_equal_time() {
        assert!((fair_share(2, 2, 1) - 2.0 / 3.0).abs() < 1e-12);
        assert!((fair_share(2, 2, 2) - 0.5).abs() < 1e-12);
        assert!((fair_share(8, 2, 3) - 1.0).abs() < 1e-12);
        assert!((fair_share(2, 1, 1) - 1.0).abs() < 1e-12);
        assert!((fair_share(2, 4, 0) - 1.0).abs() < 1e-12);
    }
}
