//! Keeps the event stream open: connects, forwards events, and reconnects after a failure with growing
//! pauses. It never gives up, so that the console survives a restart of the host. Each attempt looks the
//! token up again, because the restarted host has a new one.

use std::sync::Arc;
use std::time::Duration;

use infer_api::admin::AdminEvent;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::{Client, ConnError};

/// First pause after a failure; each further one doubles it up to `LAST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// A stream that is silent for this long is considered dead. Updates come at least once a second, but only
/// between engine steps, and a step of a large model on a busy machine can take many seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// What the feed reports.
#[derive(Debug)]
pub enum Update {
    /// The stream is open.
    Connected,
    /// The host sent an event.
    Event(AdminEvent),
    /// The stream broke or could not be opened.
    Lost {
        /// Why.
        error: ConnError,
        /// Time until the next attempt.
        retry_in: Duration,
    },
}

/// Runs until the receiver is dropped. Notify `again` to restart the stream with a whole snapshot.
pub async fn run<M: From<Update>>(client: Client, hz: u32, again: Arc<Notify>, out: Sender<M>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match client.events(hz).await {
            Ok(mut events) => {
                if out.send(Update::Connected.into()).await.is_err() {
                    return;
                }
                loop {
                    let next = tokio::select! {
                        next = timeout(SILENCE, events.next()) => next,
                        () = again.notified() => break None,
                    };
                    match next {
                        Ok(Ok(event)) => {
                            pause = FIRST_PAUSE;
                            if out.send(Update::Event(event).into()).await.is_err() {
                                return;
                            }
                        }
                        Ok(Err(error)) => break Some(error),
                        Err(_) => {
                            break Some(ConnError::Lost(format!(
                                "the host has sent nothing for {} s",
                                SILENCE.as_secs()
                            )));
                        }
                    }
                }
            }
            Err(error) => Some(error),
        };
        let Some(error) = error else { continue };
        if out.send(Update::Lost { error, retry_in: pause }.into()).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
