//! Threads that find out what may follow a token while the device computes the step before anybody asks: a mask
//! for a large vocabulary takes a while, and a step that waited for it would make everybody in it wait.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::mask::Mask;

/// Masks that may be asked for ahead at once: more than sequences run. Beyond, a draw computes its own.
const QUEUED: usize = 4_096;
/// Automata recurse over what clients wrote.
const STACK_BYTES: usize = 64 << 20;

/// Hands masks to the threads. They end with the last clone.
#[derive(Clone)]
pub struct Ahead(SyncSender<Job>);

/// What is to be found out.
pub struct Job {
    /// Whose.
    pub mask: Arc<Mask>,
    /// Tokens before `token`.
    pub after: usize,
    /// What was drawn.
    pub token: u32,
}

impl Ahead {
    /// Starts the threads: half of the processors', since steps need theirs.
    pub fn start() -> std::io::Result<Self> {
        let (send, receive) = sync_channel(QUEUED);
        let receive = Arc::new(Mutex::new(receive));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() / 2).clamp(1, 8);
        for _ in 0..threads {
            let receive = Arc::clone(&receive);
            let thread = std::thread::Builder::new().name("masks".to_owned()).stack_size(STACK_BYTES);
            thread.spawn(move || {
                while let Some(job) = next(&receive) {
                    job.mask.prepare(job.after, job.token);
                }
            })?;
        }
        Ok(Self(send))
    }

    /// Has it found out, soon. Never waits.
    pub fn ask(&self, job: Job) {
        // Where the queue is full the draw does it.
        let _ = self.0.try_send(job);
    }
}

fn next(jobs: &Mutex<Receiver<Job>>) -> Option<Job> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}
