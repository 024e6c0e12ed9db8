//! What reaches the console besides inputs: the reports of the feed, the responses to requests, and the lines
//! of a recording, played at their pace. The format of a recording is not known here (`record`), nor what the
//! news change (`state`).

use std::time::Duration;

use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until};

use crate::conn::feed::Update;
use crate::record::Player;
use crate::state::{Message, Millis, Report};

/// A message, with its time if it comes from a recording.
pub(super) struct News {
    pub(super) at: Option<Millis>,
    pub(super) message: Message,
}

impl<T: Into<Message>> From<T> for News {
    fn from(message: T) -> Self {
        Self { at: None, message: message.into() }
    }
}

impl From<Update> for Message {
    fn from(update: Update) -> Self {
        Self::Feed(match update {
            Update::Connected => Report::Connected,
            Update::Event(event) => Report::Event(event),
            Update::Lost { error, retry_in } => Report::Lost { why: error.to_string(), retry_in },
        })
    }
}

/// Plays a recording at `speed` times its pace.
pub(super) async fn play(mut player: Player, speed: f64, out: Sender<News>) {
    let start = Instant::now();
    let end = loop {
        let (at, message) = match player.read() {
            Ok(Some(line)) => line,
            Ok(None) => break Report::Ended,
            Err(error) => break Report::Broken(error.to_string()),
        };
        sleep_until(start + Duration::from_millis(at).div_f64(speed)).await;
        if out.send(News { at: Some(at), message }).await.is_err() {
            return;
        }
    };
    let _ = out.send(end.into()).await;
}
