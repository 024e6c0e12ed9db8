//! Adapters that come and go while batches are in flight, and the engine's end while one is leaving.

use std::sync::atomic::Ordering;
use std::task::Poll;

use infer_core::AdapterId;
use infer_model::{AdapterSize, Model, Source};
use infer_server::adapters::{AdapterBounds, AdapterError, Adapters, Names, ServedAdapter};
use infer_server::engine::NewAdapter;

use super::{crawl, first, start, start_with};
use crate::lora::golden;

#[tokio::test]
async fn adapters_come_and_go_between_batches_though_the_device_has_the_next_one() {
    let (engine, deepest) = start_with(2);
    let mut live = engine.handle.submit(crawl()).await.unwrap();
    first(&mut live).await.unwrap();
    for _ in 0..3 {
        let adapter = NewAdapter { id: AdapterId(1), name: "mine".to_owned(), weights: Box::new(()) };
        engine.handle.load_adapter(adapter).await.unwrap().expect("nothing is in flight, and it had left");
        live.next().await.unwrap();
        engine.handle.unload_adapter(AdapterId(1)).await.unwrap();
        live.next().await.unwrap();
    }
    assert_eq!(deepest.load(Ordering::Relaxed), 2, "it planned ahead");
    drop(live);
    engine.stop();
}

#[tokio::test]
async fn an_adapter_that_leaves_waits_for_its_requests_no_longer_than_the_engine_runs() {
    let engine = start();
    let model = Model::load(&Source::Directory(golden("qwen3-bf16").into()), None).unwrap();
    let [name, root, place] = ["mine"; 3].map(str::to_owned);
    let served = ServedAdapter::new(AdapterId(1), Names { name, root, place }, AdapterSize::default());
    let bounds = AdapterBounds { count: 1, bytes: 0 };
    let adapters =
        Adapters::new(engine.handle.clone(), model.adapter_loader(), Vec::new(), bounds, vec![served]);
    // As a request does whose client reads nothing.
    let held = adapters.current()[0].hold().unwrap();
    let retired = adapters.retire("mine").unwrap();
    let mut leaving = std::pin::pin!(adapters.remove(&retired));
    assert!(futures_util::poll!(leaving.as_mut()).is_pending());
    engine.stop();
    let ended = futures_util::poll!(leaving.as_mut());
    assert!(matches!(ended, Poll::Ready(Err(AdapterError::Stopped(_)))), "{ended:?}");
    assert_eq!(held.live(), 1);
}
