//! Shuts a host down without losing a stream: drains, waits for what runs, closes what is left.
//!
//! Deliberately absent: signals (`cli::serve`), which decide how long to wait.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::maybe_done;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::RunningServer;
use crate::app::App;
use crate::cache_file::SAVING;
use crate::engine::EngineThread;

/// How long connections of a plane may take to close after the last response.
const CLOSE_TIME: Duration = Duration::from_secs(5);
/// How long the current step may take to finish at shutdown.
const LAST_STEP: Duration = Duration::from_secs(30);
/// How long all that comes after the drain may take: the last step, connections, the last traces. `infer.service` and
/// the other files of `deploy` allow as much.
const AFTER_DRAIN: Duration = Duration::from_secs(60);

impl RunningServer {
    /// Refuses new requests from now on, until an operator takes it back.
    pub fn drain(&self) {
        self.app.drain();
    }

    /// Completes when the engine has stopped on its own: it failed an internal check, or lost the device.
    pub async fn engine_stopped(&self) {
        self.engine.handle.stopped().await;
    }

    /// The longest time that a shutdown takes.
    pub fn longest_shutdown(&self) -> Duration {
        self.app.config.bounds.drain_timeout + AFTER_DRAIN + self.saving()
    }

    /// How long it takes to save the prefix cache, if that is wanted.
    fn saving(&self) -> Duration {
        if self.app.config.cache_file.is_some() { SAVING } else { Duration::ZERO }
    }

    /// Drains, waits for open streams, then closes everything.
    pub async fn shutdown(self) {
        self.finish_streams().await;
        self.close().await;
    }

    /// Refuses new requests, waits for running ones and until their responses are sent, at most for the drain timeout.
    pub async fn finish_streams(&self) {
        self.app.end();
        let bound = self.app.config.bounds.drain_timeout;
        let finished = async {
            self.engine.handle.idle().await;
            self.app.unsent.all_sent().await;
        };
        if tokio::time::timeout(bound, finished).await.is_err() {
            tracing::warn!("streams did not finish within {} s (--drain-timeout)", bound.as_secs());
        }
    }

    /// Closes everything. Streams that still run end with an error event.
    pub async fn close(self) {
        self.close_within(CLOSE_TIME).await;
    }

    /// Like `close`, with another time for the connections to close.
    pub async fn close_within(self, close_time: Duration) {
        self.app.end();
        let most = LAST_STEP + self.saving();
        let handle = self.engine.handle.clone();
        let mut ended = pin!(maybe_done(stop(self.engine, most)));
        let streams = handle.live();
        if streams > 0 {
            tracing::warn!(streams, "cutting streams that did not finish");
            // Stopping the engine sends them the event while their connections are still open. Saving its cache can wait
            // until they are closed.
            tokio::select! {
                () = ended.as_mut() => {}
                () = handle.stopped() => {}
            }
        }
        self.shutdown.send_replace(true);
        ended_within(close_time, [self.planes.data].into_iter().chain(self.publishing)).await;
        let app = Arc::clone(&self.app);
        let _ = tokio::task::spawn_blocking(move || app.traces.flush()).await;
        ended.await;
        close_state(&self.app).await;
        // Until here it has shown that the cache was being saved.
        self.end.send_replace(true);
        ended_within(close_time, [self.planes.control]).await;
        tracing::info!("stopped");
    }
}

/// Saves what has changed last of the policies. A disk that hangs is left behind.
async fn close_state(app: &App) {
    let Some(keeper) = app.served().ok().and_then(|served| served.policies.keeper().cloned()) else { return };
    let most = app.config.bounds.last_save;
    let closed = tokio::task::spawn_blocking(move || keeper.close());
    if tokio::time::timeout(most, closed).await.is_err() {
        tracing::error!("the last changes of policies were not saved within {} s", most.as_secs());
    }
}

/// Waits for tasks that end at the same time, and ends those that take longer.
async fn ended_within(time: Duration, tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    let deadline = Instant::now() + time;
    for task in tasks {
        let abort = task.abort_handle();
        if tokio::time::timeout_at(deadline, task).await.is_err() {
            abort.abort();
        }
    }
}

/// Stops the engine thread. One that hangs in its device is left behind.
async fn stop(engine: EngineThread, most: Duration) {
    let ended = tokio::task::spawn_blocking(move || engine.stop());
    if tokio::time::timeout(most, ended).await.is_err() {
        let hangs = if most > LAST_STEP { "its step or the disk of --cache-file" } else { "its step" };
        tracing::error!("the engine did not stop within {} s: {hangs} hangs", most.as_secs());
    }
}
