//! The engine thread with a scripted executor: device faults, panics, adapters, and the handle's promises.

mod adapters;
mod device;
mod ends;
mod names;
mod queue;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use infer_core::engine::Policies;
use infer_core::{
    AdapterId, AdapterWeights, Batch, BlockId, DeviceFault, DeviceFaultKind, Engine, EngineConfig, Executor,
    FinishReason, Micros, Request, SamplingParams, SessionId, StepOutput, TenantId,
};
use infer_server::engine::{
    AtEnd, ChannelBounds, Clock, End, EngineHandle, EngineThread, LiveRequest, NewRequest, RequestMeta,
    StreamEvent, spawn,
};
use tokio::task::JoinHandle;

/// Samples token 7 for every row, or CRAWLS after CRAWLS; misbehaves if a prompt asks for it. May work asynchronously,
/// as a device does.
struct Scripted {
    /// Most batches in flight; with 0 it computes synchronously.
    most: usize,
    started: VecDeque<u64>,
    /// Most batches that were in flight.
    deepest: Arc<AtomicUsize>,
    adapters: BTreeSet<AdapterId>,
}

const FAULTS: u32 = 100;
const PANICS: u32 = 101;
const LOSES: u32 = 102;
const CRAWLS: u32 = 103;

impl Executor for Scripted {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        assert_eq!(self.most, 0, "a submitted batch is collected, not executed");
        self.compute(batch, output)
    }

    fn submit(&mut self, batch: &Batch) -> Result<bool, DeviceFault> {
        if self.most == 0 {
            return Ok(false);
        }
        self.started.push_back(batch.step);
        assert!(self.started.len() <= self.most, "{} batches at a time", self.started.len());
        self.deepest.fetch_max(self.started.len(), Ordering::Relaxed);
        Ok(true)
    }

    fn plans_ahead(&self) -> bool {
        self.most > 1
    }

    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        assert_eq!(self.started.pop_front(), Some(batch.step), "collected in the order of submission");
        self.compute(batch, output)
    }

    fn read_block(&mut self, _: BlockId, _: &mut [u8]) -> Result<(), DeviceFault> {
        assert!(self.started.is_empty(), "blocks are copied between two batches");
        Ok(())
    }

    fn load_adapter(&mut self, adapter: AdapterId, _: AdapterWeights) -> Result<(), DeviceFault> {
        assert!(
            self.started.is_empty() && self.adapters.insert(adapter),
            "{adapter:?} comes between two batches"
        );
        Ok(())
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Option<AdapterWeights> {
        assert!(self.started.is_empty(), "{adapter:?} leaves between two batches");
        self.adapters.remove(&adapter).then(|| -> AdapterWeights { Box::new(()) })
    }
}

impl Scripted {
    fn compute(&self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        if let Some(row) = batch.rows.iter().position(|row| batch.row_tokens(row).contains(&FAULTS)) {
            return Err(DeviceFault {
                kind: DeviceFaultKind::OutOfMemory,
                message: "scripted fault".to_owned(),
                rows: Some(vec![row]),
            });
        }
        if batch.tokens.contains(&LOSES) {
            let message = "the device fell off the bus".to_owned();
            return Err(DeviceFault { kind: DeviceFaultKind::Lost, message, rows: None });
        }
        assert!(!batch.tokens.contains(&PANICS), "scripted panic");
        if batch.tokens.contains(&CRAWLS) {
            std::thread::sleep(Duration::from_millis(20));
        }
        output.sampled.clear();
        let sample = |row| if batch.row_tokens(row).contains(&CRAWLS) { CRAWLS } else { 7 };
        output.sampled.extend(batch.rows.iter().map(|row| row.sample.then(|| sample(row))));
        Ok(())
    }
}

fn start() -> EngineThread {
    start_with(0).0
}

/// Returns an engine whose device takes up to `most` batches at a time, and the most that were in flight.
fn start_with(most: usize) -> (EngineThread, Arc<AtomicUsize>) {
    start_with_door(most, 4, None)
}

/// As `start_with`, but the handle admits `door` sequences although only four may wait in the engine.
fn start_with_door(most: usize, door: u32, at_end: Option<AtEnd>) -> (EngineThread, Arc<AtomicUsize>) {
    let config =
        EngineConfig { total_blocks: 64, max_waiting: 4, plan_ahead: most > 1, ..EngineConfig::default() };
    let deepest = Arc::default();
    // More than any request has: none is cancelled because nobody reads it.
    let bounds = ChannelBounds { max_waiting: door, max_running: 32, stream_events: 1_024 };
    let device =
        Scripted { most, started: VecDeque::new(), deepest: Arc::clone(&deepest), adapters: BTreeSet::new() };
    let engine = Engine::new(config, Policies::builtin());
    (spawn(engine, Box::new(device), Clock::start(), bounds, at_end).unwrap(), deepest)
}

fn request(prompt: &[u32]) -> NewRequest {
    let request = Request {
        tenant: TenantId(0),
        session: SessionId(0),
        cache_salt: 0,
        adapter: AdapterId::NONE,
        priority: 0,
        deadline: Micros::NEVER,
        prompt: prompt.into(),
        max_new_tokens: 5,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: [].into(),
        sampling: SamplingParams::default(),
    };
    NewRequest { request, meta: RequestMeta::default() }
}

/// Waits until a request has started, and returns its next event.
async fn first(live: &mut LiveRequest) -> Option<StreamEvent> {
    let started = live.next().await;
    assert!(matches!(started, Some(StreamEvent::Started { at }) if at >= live.submitted()), "{started:?}");
    live.next().await
}

async fn to_the_end(mut live: LiveRequest) -> (Vec<u32>, Option<End>) {
    let mut tokens = Vec::new();
    loop {
        match live.next().await {
            Some(StreamEvent::Started { .. }) => assert!(tokens.is_empty(), "it had started before"),
            Some(StreamEvent::Token { token, .. }) => tokens.push(token),
            Some(StreamEvent::Prompt(_) | StreamEvent::Embedding { .. }) => {
                panic!("only tokens were requested")
            }
            Some(StreamEvent::End(end)) => return (tokens, Some(*end)),
            None => return (tokens, None),
        }
    }
}

async fn works(engine: &EngineThread) {
    let live = engine.handle.submit(request(&[1, 2, 3])).await.unwrap();
    let (tokens, end) = to_the_end(live).await;
    assert_eq!(tokens, [7; 5]);
    assert!(matches!(end, Some(End::Finished { reason: FinishReason::Length, .. })), "{end:?}");
}

/// Fills the pool; each of its 1,000 tokens takes 20 ms.
fn crawl() -> NewRequest {
    let NewRequest { mut request, meta } = request(&[CRAWLS]);
    request.max_new_tokens = 1_000;
    NewRequest { request, meta }
}

/// Keeps the engine thread from everything else until the sender is dropped.
async fn occupy(handle: &EngineHandle) -> (std::sync::mpsc::Sender<()>, JoinHandle<()>) {
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let handle = handle.clone();
    let look = move |_: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
    };
    let looking = tokio::spawn(async move { handle.inspect(look).await.unwrap() });
    inside.await.unwrap();
    (let_go, looking)
}
