//! Requests by their names.

use infer_core::FinishReason;
use infer_server::engine::{End, RequestMeta, Wanted};

use super::{occupy, request, start, to_the_end};

/// Also while its client has not read the reply to its submission.
#[tokio::test]
async fn request_has_its_name_from_the_moment_it_is_taken() {
    let engine = start();
    let handle = engine.handle.clone();
    handle.hold_steps();
    let (let_go, looking) = occupy(&handle).await;
    let named = || Wanted::Name("three".to_owned());
    let meta = RequestMeta { request_id: "three".to_owned(), ..RequestMeta::default() };
    let choices = (0..3).map(|_| request(&[1, 2]).request).collect();
    let mut submitted = std::pin::pin!(handle.submit_all(choices, meta));
    let mut report = std::pin::pin!(handle.report());
    let mut found = std::pin::pin!(handle.detail(named()));
    let mut cancelled = std::pin::pin!(handle.cancel(named()));
    let mut again = std::pin::pin!(handle.cancel(named()));
    // Each sends its command, in this order.
    assert!(futures_util::poll!(submitted.as_mut()).is_pending());
    assert!(futures_util::poll!(report.as_mut()).is_pending());
    assert!(futures_util::poll!(found.as_mut()).is_pending());
    assert!(futures_util::poll!(cancelled.as_mut()).is_pending());
    assert!(futures_util::poll!(again.as_mut()).is_pending());
    drop(let_go);
    looking.await.unwrap();
    let report = report.await.unwrap();
    let mut ids: Vec<_> = report.snapshot.requests.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    let names: Vec<_> = report.metas.iter().map(|meta| meta.request_id.as_str()).collect();
    assert_eq!((ids.len(), names), (3, vec!["three"; 3]));
    let found = found.await.unwrap().expect("it is live");
    assert_eq!((found.row.id, found.meta.request_id.as_str()), (ids[0], "three"));
    assert_eq!(cancelled.await.unwrap(), ids, "all choices in one go");
    assert!(again.await.unwrap().is_empty(), "they have ended");
    for live in submitted.await.unwrap() {
        let (_, end) = to_the_end(live).await;
        assert!(matches!(end, Some(End::Finished { reason: FinishReason::Cancelled, .. })), "{end:?}");
    }
    assert!(handle.detail(Wanted::Id(ids[0])).await.unwrap().is_none());
    engine.stop();
}

/// Clients may give several requests the same name.
#[tokio::test]
async fn one_of_several_requests_with_the_same_name_is_cancelled_as_a_whole() {
    let engine = start();
    let handle = engine.handle.clone();
    handle.hold_steps();
    let submit = async |choices: usize| {
        let meta = RequestMeta { request_id: "same".to_owned(), ..RequestMeta::default() };
        let choices = (0..choices).map(|_| request(&[1, 2]).request).collect();
        handle.submit_all(choices, meta).await.unwrap()
    };
    let kept = (submit(2).await, submit(2).await);
    let report = handle.report().await.unwrap();
    let rows = report.snapshot.requests.iter().zip(&report.metas);
    let mut seen: Vec<_> =
        rows.map(|(row, meta)| (row.id, *meta.first.get().expect("it was taken"))).collect();
    seen.sort_unstable();
    let firsts: Vec<_> = seen.iter().map(|(_, first)| *first).collect();
    let (one, other) = (seen[0].0, seen[2].0);
    assert_eq!(firsts, [one, one, other, other]);
    assert_eq!(handle.cancel(Wanted::Id(one)).await.unwrap(), [one]);
    // The first has ended, and still stands for the other.
    assert_eq!(handle.cancel(Wanted::Whole(one)).await.unwrap(), [seen[1].0]);
    let mut left: Vec<_> =
        handle.report().await.unwrap().snapshot.requests.iter().map(|row| row.id).collect();
    left.sort_unstable();
    assert_eq!(left, [seen[2].0, seen[3].0]);
    drop(kept);
    engine.stop();
}
