//! Keeps the event stream open: connects, hands events on, and after a failure tries again with growing
//! pauses. It never gives up, because a host that restarts is the case it is made for; every attempt
//! looks up the token again, since the new host has a new one.

use std::sync::Arc;
use std::time::Duration;

use infer_api::admin::AdminEvent;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::{Client, ConnError};

/// First pause after a failure; it doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(4);
/// A stream that is silent for so long is taken for dead. Snapshots come at least once a second, but a host
/// sends them between steps, and a step of a large model on a busy machine may take a while.
const SILENCE: Duration = Duration::from_secs(30);

/// What the feed reports.
#[derive(Debug)]
pub enum Report {
    /// The stream is open.
    Connected,
    /// A recording begins to play.
    Replaying,
    /// A recording is over.
    Ended,
    /// A recording can't be played further, and why.
    Broken(String),
    /// Something happened on the host.
    Event(AdminEvent),
    /// The stream broke or could not be opened.
    Lost {
        /// Why.
        error: ConnError,
        /// When the next attempt is made.
        retry_in: Duration,
    },
}

/// Runs until the receiver is gone. `again` makes it begin anew, with a whole snapshot.
pub async fn run<M: From<Report>>(client: Client, hz: u32, again: Arc<Notify>, out: Sender<M>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let error = match client.events(hz).await {
            Ok(mut events) => {
                if out.send(Report::Connected.into()).await.is_err() {
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
                            if out.send(Report::Event(event).into()).await.is_err() {
                                return;
                            }
                        }
                        Ok(Err(error)) => break Some(error),
                        Err(_) => {
                            break Some(ConnError::Lost(format!(
                                "no word from the host for {} s",
                                SILENCE.as_secs()
                            )));
                        }
                    }
                }
            }
            Err(error) => Some(error),
        };
        let Some(error) = error else { continue };
        if out.send(Report::Lost { error, retry_in: pause }.into()).await.is_err() {
            return;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
