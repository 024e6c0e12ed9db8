//! Sends the requests that the state wants made, lists folders for it, and puts the outcomes into words. When
//! a request is due and what its response changes is not decided here but in `state`.

use infer_api::admin::SwapAnswer;

use crate::conn::{Client, ConnError};
use crate::files;
use crate::state::blocks::{Under, Wanted};
use crate::state::{Effect, Message};

/// Sends an effect's request to the host; the response is a message to the state.
pub(super) async fn ask(client: &Client, effect: Effect) -> Option<Message> {
    let words = |error: ConnError| error.to_string();
    let done = |what: String, result: Result<(), ConnError>| {
        Message::Done(match result {
            Ok(()) => Ok(what),
            Err(error @ ConnError::Unanswered(_)) => Err(format!("{what}? {error}")),
            Err(error) => Err(format!("failed: {what}: {error}")),
        })
    };
    let swapped = |kind: String, verb: &'static str, result: Result<SwapAnswer, ConnError>| {
        let result = result.map_err(|error| match error {
            ConnError::Unanswered(_) => format!("{kind} {verb}? {error}"),
            error => format!("{kind} not {verb}: {error}"),
        });
        Message::Swapped { kind, verb, result }
    };
    Some(match effect {
        Effect::Quit | Effect::Resync | Effect::Copy(_) | Effect::Mouse(_) => return None,
        Effect::ListFolder(folder) => {
            let result = files::list(&folder).await;
            Message::Folder { folder, result }
        }
        Effect::FetchBlocks(Wanted::Map { by, cells }) => {
            Message::Map(client.map(by.name(), cells, None).await.map_err(words))
        }
        Effect::FetchBlocks(Wanted::Block { id }) => {
            Message::Under(Wanted::Block { id }, client.block(id).await.map(Under::Block).map_err(words))
        }
        Effect::FetchBlocks(Wanted::Group { from, count }) => {
            let group = client.map("state", count as usize, Some((from, count))).await;
            Message::Under(Wanted::Group { from, count }, group.map(Under::Group).map_err(words))
        }
        Effect::FetchCache => Message::Cache(client.cache().await.map_err(words)),
        Effect::FetchPolicies => Message::Policies(client.policies().await.map_err(words)),
        Effect::FetchHistory { kind } => {
            let result = client.history(&kind).await.map_err(words);
            Message::History { kind, result }
        }
        Effect::FetchRequest { id } => {
            Message::Request { id, result: client.request(id).await.map_err(words) }
        }
        Effect::Swap(order) => {
            let result = client.swap(&order).await;
            swapped(order.kind, "swapped", result)
        }
        Effect::Rollback { kind, of } => {
            let result = client.rollback(&kind, &of).await;
            swapped(kind, "rolled back", result)
        }
        Effect::Promote { kind, of } => {
            let result = client.promote(&kind, &of).await;
            swapped(kind, "promoted", result)
        }
        Effect::StopShadow { kind } => {
            done(format!("{kind}: shadow stopped"), client.stop_shadow(&kind).await)
        }
        Effect::Cancel { id } => done(format!("request {id} cancelled"), client.cancel(id).await),
        Effect::CancelAll { id, first_id } => {
            let cancelled = format!("request {id} cancelled with all its sequences");
            done(cancelled, client.cancel_all(first_id).await)
        }
        Effect::EmptyCache => done("cache emptied".to_owned(), client.empty_cache().await),
        Effect::ClearQueue => done("queue cleared".to_owned(), client.clear_queue().await),
        Effect::Drain => done("drain started".to_owned(), client.drain().await),
        Effect::Undrain => done("drain taken back".to_owned(), client.undrain().await),
    })
}
