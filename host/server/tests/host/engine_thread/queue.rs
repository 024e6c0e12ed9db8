//! Submissions: refused, dropped, and counted before the engine has taken them.

use std::time::{Duration, Instant};

use infer_core::request::RefusalReason;
use infer_core::{Engine, FinishReason};
use infer_server::engine::{End, RequestMeta, StreamEvent, SubmitError};

use super::{crawl, first, occupy, request, start, start_with, start_with_door, to_the_end, works};
use crate::common::LONG;

#[tokio::test]
async fn full_queue_suggests_when_a_slot_may_come_free_and_an_empty_one_a_second() {
    let (engine, _) = start_with(0);
    let mut live = Vec::new();
    let told = loop {
        match engine.handle.submit(crawl()).await {
            Ok(request) => live.push(request),
            Err(SubmitError::Refused(refusal)) if refusal.retry_after_ms > 1_000 => break refusal,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert!(told.message.contains("queue is full") && told.retry_after_ms <= 60_000, "{told:?}");
    drop(live);
    let mut told = told;
    let begun = Instant::now();
    // The thread notices that nothing waits when it has no more commands to apply.
    while begun.elapsed() < LONG {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let five = (0..5).map(|_| request(&[1]).request).collect();
        let refused = engine.handle.submit_all(five, RequestMeta::default()).await.err();
        let Some(SubmitError::Refused(refusal)) = refused else { panic!("four may wait") };
        told = refusal;
        if told.retry_after_ms == 1_000 {
            break;
        }
    }
    assert!(told.message.contains("no room for 5 more"), "{told:?}");
    assert_eq!(told.retry_after_ms, 1_000);
    engine.stop();
}

#[tokio::test]
async fn steps_go_on_during_a_flood_of_refused_requests_with_many_sequences() {
    const REQUESTS: usize = 40;
    const CHOICES: usize = 128;
    let (engine, _) = start_with_door(0, (REQUESTS * CHOICES) as u32 + 1, None);
    // It does not end before the flood comes.
    engine.handle.allow_steps(2);
    let mut running = engine.handle.submit(crawl()).await.unwrap();
    assert!(matches!(first(&mut running).await, Some(StreamEvent::Token { .. })));
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let handle = engine.handle.clone();
    let look = move |engine: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
        engine.next_step()
    };
    let before = tokio::spawn(async move { handle.inspect(look).await });
    inside.await.unwrap();
    // While the engine is blocked, queue all of them, and a last look behind them.
    let flood = || {
        let choices = (0..CHOICES).map(|_| request(&[1]).request).collect();
        Box::pin(engine.handle.submit_all(choices, RequestMeta::default()))
    };
    let mut flood: Vec<_> = (0..REQUESTS).map(|_| flood()).collect();
    for refused in &mut flood {
        assert!(futures_util::poll!(refused.as_mut()).is_pending());
    }
    let mut after = Box::pin(engine.handle.inspect(|engine, _| engine.next_step()));
    assert!(futures_util::poll!(after.as_mut()).is_pending());
    engine.handle.release_steps();
    drop(let_go);
    let (before, after) = (before.await.unwrap().unwrap(), after.await.unwrap());
    assert!(after > before, "no step was made while 5,120 sequences were refused");
    for refused in flood {
        assert!(matches!(refused.await, Err(SubmitError::Refused(_))));
    }
    drop(running);
    engine.stop();
}

#[tokio::test]
async fn submission_dropped_before_its_reply_leaves_nothing_behind() {
    let engine = start();
    engine.handle.hold_steps();
    for _ in 0..3 {
        // Polled once: the command is sent, and its reply is dropped.
        let handle = engine.handle.clone();
        tokio::select! {
            biased;
            _ = handle.submit(request(&[1, 2])) => {}
            () = std::future::ready(()) => {}
        }
    }
    // Commands are applied in order, so the reports follow the three submissions and their ends.
    let mut queue = engine.handle.report().await.unwrap().snapshot.queue;
    while queue.waiting + queue.held > 0 {
        queue = engine.handle.report().await.unwrap().snapshot.queue;
    }
    assert_eq!(engine.handle.live(), 0);
    engine.handle.release_steps();
    works(&engine).await;
    engine.stop();
}

#[tokio::test]
async fn request_counts_as_live_before_the_engine_has_taken_it() {
    let engine = start();
    // The engine is blocked, so it can't have taken anything.
    let (let_go, looking) = occupy(&engine.handle).await;
    let handle = engine.handle.clone();
    let mut submitted = std::pin::pin!(handle.submit(request(&[1, 2])));
    assert!(futures_util::poll!(submitted.as_mut()).is_pending());
    assert_eq!(engine.handle.live(), 1);
    drop(let_go);
    looking.await.unwrap();
    to_the_end(submitted.await.unwrap()).await;
    assert_eq!(engine.handle.live(), 0);
    engine.handle.drain();
    assert!(matches!(engine.handle.submit(request(&[1])).await, Err(SubmitError::Refused(_))));
    assert_eq!(engine.handle.live(), 0, "a refused request is not live");
    engine.stop();
}

#[tokio::test]
async fn drain_that_is_taken_back_refuses_nothing_more() {
    let engine = start();
    engine.handle.drain();
    assert!(matches!(engine.handle.submit(request(&[1])).await, Err(SubmitError::Refused(_))));
    engine.handle.undrain();
    works(&engine).await;
    engine.stop();
}

#[tokio::test]
async fn full_mailbox_loses_neither_a_stop_nor_a_drain_and_is_not_taken_for_the_engines_end() {
    let engine = start();
    let handle = engine.handle.clone();
    handle.allow_steps(2);
    let mut running = handle.submit(crawl()).await.unwrap();
    assert!(matches!(first(&mut running).await, Some(StreamEvent::Token { .. })));
    let (let_go, looking) = occupy(&handle).await;
    while handle.expire(Vec::new()).is_ok() {}
    assert!(matches!(handle.submit(request(&[1])).await, Err(SubmitError::Busy)));
    assert_eq!((handle.live(), handle.refused_while_busy()), (1, 1));
    running.stop();
    handle.drain();
    drop(let_go);
    looking.await.unwrap();
    let (_, end) = to_the_end(running).await;
    assert!(matches!(end, Some(End::Finished { reason: FinishReason::Stop, .. })), "{end:?}");
    let Err(SubmitError::Refused(refusal)) = handle.submit(request(&[1])).await else {
        panic!("it drains");
    };
    assert_eq!(refusal.reason, RefusalReason::Draining);
    engine.stop();
}
