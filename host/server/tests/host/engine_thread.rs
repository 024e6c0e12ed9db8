//! The engine thread with a scripted executor: device faults, panics, and the handle's promises.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use infer_core::engine::Policies;
use infer_core::policy::PolicyKind;
use infer_core::request::RefusalReason;
use infer_core::{
    AdapterId, Batch, BlockId, DeviceFault, DeviceFaultKind, Engine, EngineConfig, Executor, FinishReason,
    Micros, Request, SamplingParams, SessionId, StepOutput, TenantId,
};
use infer_server::engine::{
    AtEnd, ChannelBounds, Clock, End, EngineHandle, EngineThread, LiveRequest, NewRequest, RequestMeta,
    StreamEvent, SubmitError, Wanted, spawn,
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
    let bounds = ChannelBounds { max_waiting: door, max_running: 32, stream_events: 64 };
    let device = Scripted { most, started: VecDeque::new(), deepest: Arc::clone(&deepest) };
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

/// Whoever saves it asks at once, and what the thread notes from then on is newer.
#[test]
fn what_slots_go_back_to_is_noted_before_the_thread_begins() {
    let engine = start();
    for kind in PolicyKind::ALL {
        assert!(engine.handle.observer().lasting().standing(kind).policy.is_some(), "{kind}");
    }
    engine.stop();
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

#[tokio::test]
async fn full_queue_suggests_when_a_slot_may_come_free_and_an_empty_one_a_second() {
    let (engine, _) = start_with(0);
    let mut live = Vec::new();
    let told = loop {
        match engine.handle.submit(crawl()).await {
            // Read, or it would be cancelled after 64 tokens, and the next ones would be expected to be as short.
            Ok(request) => live.push(tokio::spawn(to_the_end(request))),
            Err(SubmitError::Refused(refusal)) if refusal.retry_after_ms > 1_000 => break refusal,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    assert!(told.message.contains("queue is full") && told.retry_after_ms <= 60_000, "{told:?}");
    for request in live {
        request.abort();
        assert!(request.await.is_err_and(|ended| ended.is_cancelled()));
    }
    let mut told = told;
    // The thread notices that nothing waits when it has no more commands to apply.
    for _ in 0..1_000 {
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

#[tokio::test]
async fn full_mailbox_loses_neither_a_stop_nor_a_drain_and_is_not_taken_for_the_engines_end() {
    let engine = start();
    let handle = engine.handle.clone();
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
