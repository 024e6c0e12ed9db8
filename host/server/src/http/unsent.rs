//! Counts the responses that are not sent yet, so that a shutdown can wait for them. A body that hyper has taken may
//! still be in its buffers: a response counts until the connection has been flushed behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// The requests on a listener's connections whose responses are not sent yet. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Unsent(Arc<State>);

#[derive(Debug, Default)]
struct State {
    count: watch::Sender<usize>,
    /// Later requests are not counted.
    closed: AtomicBool,
}

impl Unsent {
    /// Completes when every response so far is sent or abandoned. From now on none is counted: after a drain they are
    /// refusals, which come for as long as clients do.
    pub async fn all_sent(&self) {
        self.0.closed.store(true, Ordering::Release);
        let mut count = self.0.count.subscribe();
        let _ = count.wait_for(|&count| count == 0).await;
    }

    /// Counts a request. Returns false if it is not counted.
    pub(super) fn begin(&self) -> bool {
        if self.0.closed.load(Ordering::Acquire) {
            return false;
        }
        self.0.count.send_modify(|count| *count += 1);
        true
    }

    /// A counted response is sent or abandoned.
    pub(super) fn end(&self) {
        self.0.count.send_modify(|count| *count -= 1);
    }
}
