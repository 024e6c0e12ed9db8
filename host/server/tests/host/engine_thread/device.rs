//! Devices that fail or are lost, and batches in flight.

use std::sync::atomic::Ordering;

use infer_core::{BlockId, Engine, Executor};
use infer_server::engine::{End, StreamEvent};

use super::{FAULTS, LOSES, PANICS, crawl, first, request, start_with, start_with_door, to_the_end, works};

#[tokio::test]
async fn lost_device_ends_the_engine_and_every_stream() {
    for most in [0, 1, 2] {
        let (engine, _) = start_with(most);
        works(&engine).await;
        assert!(!engine.handle.has_failed());
        engine.handle.hold_steps();
        let hit = engine.handle.submit(request(&[LOSES])).await.unwrap();
        let mut other = engine.handle.submit(request(&[4, 5])).await.unwrap();
        engine.handle.release_steps();
        let (_, end) = to_the_end(hit).await;
        assert!(format!("{end:?}").contains("fell off the bus"), "{end:?}");
        loop {
            match other.next().await {
                Some(StreamEvent::End(_)) => break,
                Some(_) => {}
                // The reader did not lag.
                None => break assert!(!other.engine_is_alive()),
            }
        }
        engine.handle.stopped().await;
        assert!(engine.handle.has_failed(), "it was not stopped");
        assert!(engine.handle.submit(request(&[1])).await.is_err());
        engine.stop();
    }
}

#[tokio::test]
async fn device_fault_fails_only_the_requests_that_it_names() {
    for most in [0, 1, 2] {
        let (engine, _) = start_with(most);
        works(&engine).await;
        engine.handle.hold_steps();
        let bad = engine.handle.submit(request(&[FAULTS])).await.unwrap();
        let good = engine.handle.submit(request(&[4, 5])).await.unwrap();
        engine.handle.release_steps();
        let (_, end) = to_the_end(bad).await;
        assert!(
            matches!(&end, Some(End::Failed { message, .. }) if message.contains("scripted fault")),
            "{end:?}"
        );
        let (tokens, end) = to_the_end(good).await;
        assert_eq!(tokens.len(), 5, "{end:?}");
        works(&engine).await;
        engine.stop();
    }
}

#[tokio::test]
async fn panic_of_the_executor_fails_its_step_but_not_the_engine() {
    for most in [0, 1, 2] {
        let (engine, _) = start_with(most);
        let live = engine.handle.submit(request(&[PANICS])).await.unwrap();
        let (_, end) = to_the_end(live).await;
        assert!(
            matches!(&end, Some(End::Failed { message, .. }) if message.contains("scripted panic")),
            "{end:?}"
        );
        works(&engine).await;
        let report = engine.handle.report().await.unwrap();
        assert_eq!((report.snapshot.memory.used, report.snapshot.counters.device_faults), (0, 1));
        engine.stop();
    }
}

#[tokio::test]
async fn device_with_two_slots_gets_the_next_batch_before_the_first_is_collected() {
    for most in [1, 2] {
        let (engine, deepest) = start_with(most);
        works(&engine).await;
        // Priming collects all steps in flight first.
        let primed = engine.handle.prime().await;
        assert!(primed.is_ok());
        works(&engine).await;
        assert_eq!(deepest.load(Ordering::Relaxed), most);
        let report = engine.handle.report().await.unwrap();
        assert_eq!(report.snapshot.counters.generated_tokens, 10);
        engine.stop();
    }
}

#[tokio::test]
async fn tokens_of_the_last_step_are_sent_although_no_further_step_starts() {
    for most in [1, 2] {
        let (engine, _) = start_with(most);
        engine.handle.hold_steps();
        let mut live = engine.handle.submit(request(&[1, 2])).await.unwrap();
        engine.handle.release_steps();
        let first = first(&mut live).await;
        assert!(matches!(first, Some(StreamEvent::Token { token: 7, .. })), "{first:?}");
        let (tokens, end) = to_the_end(live).await;
        assert_eq!(tokens.len(), 4, "{end:?}");
        engine.stop();
    }
}

#[tokio::test]
async fn blocks_are_read_at_the_end_when_no_step_is_in_flight() {
    let (sender, ended) = std::sync::mpsc::channel();
    let at_end = move |engine: &Engine, device: &mut dyn Executor| {
        engine.check_invariants();
        sender.send(device.read_block(BlockId(0), &mut [])).unwrap();
    };
    let (engine, deepest) = start_with_door(2, 4, Some(Box::new(at_end)));
    let mut running = engine.handle.submit(crawl()).await.unwrap();
    assert!(matches!(first(&mut running).await, Some(StreamEvent::Token { .. })));
    engine.stop();
    assert_eq!(deepest.load(Ordering::Relaxed), 2, "the next step was planned already");
    assert_eq!(ended.recv(), Ok(Ok(())), "the thread did not fail");
}
