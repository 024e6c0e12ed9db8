//! What is noted before the thread begins, and how requests and the thread itself end.

use infer_core::policy::PolicyKind;
use infer_server::engine::End;

use super::{request, start, to_the_end};

/// Whoever saves it asks at once, and what the thread notes from then on is newer.
#[test]
fn what_slots_go_back_to_is_noted_before_the_thread_begins() {
    let engine = start();
    for kind in PolicyKind::ALL {
        assert!(engine.handle.observer().lasting().standing(kind).policy.is_some(), "{kind}");
    }
    engine.stop();
}

#[tokio::test]
async fn overdue_requests_end_before_the_next_report() {
    let engine = start();
    engine.handle.hold_steps();
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(engine.handle.submit(request(&[1, 2])).await.unwrap());
    }
    let overdue = live.iter().map(|live| (live.id(), "too late".to_owned())).collect();
    engine.handle.expire(overdue).unwrap();
    let report = engine.handle.report().await.unwrap();
    assert!(report.snapshot.requests.is_empty(), "a later report reflects it");
    for live in live {
        let (_, end) = to_the_end(live).await;
        assert!(matches!(&end, Some(End::Failed { message, .. }) if message == "too late"), "{end:?}");
    }
    engine.stop();
}

#[tokio::test]
async fn streams_and_calls_end_with_the_engine_thread() {
    let engine = start();
    engine.handle.hold_steps();
    let live = engine.handle.submit(request(&[1, 2])).await.unwrap();
    let handle = engine.handle.clone();
    engine.stop();
    handle.stopped().await;
    let (tokens, end) = to_the_end(live).await;
    assert!(tokens.is_empty() && end.is_none());
    assert!(handle.submit(request(&[1])).await.is_err());
    assert!(handle.report().await.is_err());
}
