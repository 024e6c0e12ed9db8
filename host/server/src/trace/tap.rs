//! The channel from the engine thread to a recording. It never makes the engine wait: what finds no room is counted and
//! reported as lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use infer_api::trace::Stopped;
use infer_core::engine::Decision;
use tokio::sync::mpsc;

use super::happening::Happening;

/// Happenings that may wait for the reader.
const QUEUE: usize = 1 << 16;
/// Bytes that they may occupy.
const QUEUE_BYTES: usize = 64 << 20;

/// The engine's end of a recording. There is one recording at a time.
#[derive(Default)]
pub struct Tap {
    on: AtomicBool,
    decisions: AtomicBool,
    /// Counts the points from which decisions can be replayed: starts of recordings, and resumptions after losses.
    beginnings: AtomicU64,
    sink: Mutex<Option<Sink>>,
}

struct Sink {
    queue: mpsc::Sender<Happening>,
    bytes: Arc<AtomicUsize>,
    happenings: u64,
    lost: u64,
    /// The part of `lost` that was not reported to the reader.
    untold: Arc<AtomicU64>,
    /// Whether anything was lost since the last beginning.
    adrift: bool,
}

/// The reader's end of a recording. Dropping it ends the recording.
pub struct Recording {
    queue: mpsc::Receiver<Happening>,
    bytes: Arc<AtomicUsize>,
    untold: Arc<AtomicU64>,
}

impl Tap {
    /// Whether a recording is running. Cheap: called several times a step.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Returns the current beginning if the recording includes decisions. At each beginning the engine records the
    /// states of all policies, because a replay can't continue from before it.
    pub fn wants_decisions(&self) -> Option<u64> {
        let wanted = self.is_on() && self.decisions.load(Ordering::Relaxed);
        wanted.then(|| self.beginnings.load(Ordering::Relaxed))
    }

    /// Whether the recording has lost anything so far.
    pub fn has_lost(&self) -> bool {
        self.lock().as_ref().is_some_and(|sink| sink.lost > 0)
    }

    /// Records what happened. Never waits.
    pub fn tell(&self, happening: impl FnOnce() -> Happening) {
        self.tell_if(|_| true, happening);
    }

    /// Records a decision that the engine kept since `beginning`. Drops it if it could not be replayed: if another
    /// beginning has replaced that one, so that it belongs to an earlier recording, or if anything was lost since.
    pub fn tell_decision(&self, beginning: u64, decision: Decision) {
        let is_replayable =
            |sink: &Sink| !sink.adrift && self.beginnings.load(Ordering::Relaxed) == beginning;
        self.tell_if(is_replayable, || Happening::Decision(Box::new(decision)));
    }

    fn tell_if(&self, wanted: impl FnOnce(&Sink) -> bool, happening: impl FnOnce() -> Happening) {
        if !self.is_on() {
            return;
        }
        let mut slot = self.lock();
        let Some(sink) = slot.as_mut() else { return };
        if sink.queue.is_closed() {
            *slot = None;
            self.on.store(false, Ordering::Relaxed);
            return;
        }
        if wanted(sink) {
            sink.tell(happening());
        }
        if sink.begins_anew() {
            self.beginnings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts a recording. `None` if one is running.
    pub fn start(&self, decisions: bool) -> Option<Recording> {
        let mut slot = self.lock();
        if slot.as_ref().is_some_and(|sink| !sink.queue.is_closed()) {
            return None;
        }
        let (queue, receiver) = mpsc::channel(QUEUE);
        let (bytes, untold) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let recording = Recording { queue: receiver, bytes: Arc::clone(&bytes), untold: Arc::clone(&untold) };
        *slot = Some(Sink { queue, bytes, happenings: 0, lost: 0, untold, adrift: false });
        self.decisions.store(decisions, Ordering::Relaxed);
        self.beginnings.fetch_add(1, Ordering::Relaxed);
        self.on.store(true, Ordering::Relaxed);
        Some(recording)
    }

    /// Ends the recording, if one is running. Its reader can still read what is queued.
    pub fn stop(&self) -> Option<Stopped> {
        let mut slot = self.lock();
        let sink = slot.take()?;
        // While the lock is held: otherwise this could switch off a recording that starts right after.
        self.on.store(false, Ordering::Relaxed);
        drop(slot);
        let live = !sink.queue.is_closed();
        live.then_some(Stopped { happenings: sink.happenings, lost: sink.lost })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Sink>> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink {
    fn tell(&mut self, happening: Happening) {
        self.happenings += 1;
        let untold = self.untold.load(Ordering::Relaxed);
        let told = untold == 0 || self.send(Happening::Lost(untold));
        if told {
            self.untold.store(0, Ordering::Relaxed);
        }
        if !told || !self.send(happening) {
            self.lost += 1;
            self.adrift = true;
            self.untold.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the reader has caught up after a loss, so that decisions can resume. True once per loss. Waits for ample
    /// room: a beginning costs the engine an export of every policy's state, which the next loss would waste.
    fn begins_anew(&mut self) -> bool {
        let room = self.queue.capacity() > QUEUE / 2 && self.bytes.load(Ordering::Relaxed) < QUEUE_BYTES / 2;
        let anew = self.adrift && room && self.untold.load(Ordering::Relaxed) == 0;
        self.adrift &= !anew;
        anew
    }

    fn send(&mut self, happening: Happening) -> bool {
        let weight = happening.weight();
        if self.bytes.load(Ordering::Relaxed) + weight > QUEUE_BYTES {
            return false;
        }
        let Ok(place) = self.queue.try_reserve() else { return false };
        self.bytes.fetch_add(weight, Ordering::Relaxed);
        place.send(happening);
        true
    }
}

impl Recording {
    /// Returns what happened next; `None` once the recording was stopped and everything was read. A loss at the very
    /// end, which no later happening reports, comes last.
    pub async fn next(&mut self) -> Option<Happening> {
        match self.queue.recv().await {
            Some(happening) => self.note(Some(happening)),
            None => self.lost_last(),
        }
    }

    /// Returns the next happening if there is one already.
    pub fn try_next(&mut self) -> Option<Happening> {
        let happening = self.queue.try_recv().ok();
        self.note(happening)
    }

    fn lost_last(&self) -> Option<Happening> {
        let lost = self.untold.swap(0, Ordering::Relaxed);
        (lost > 0).then_some(Happening::Lost(lost))
    }

    fn note(&self, happening: Option<Happening>) -> Option<Happening> {
        if let Some(happening) = &happening {
            self.bytes.fetch_sub(happening.weight(), Ordering::Relaxed);
        }
        happening
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use futures_util::FutureExt;
    use infer_core::executor::TokenLogprobs;
    use infer_core::policy::{Answer, FaultView, PolicyKind};
    use infer_core::{Event, FailureCause, Micros, SequenceId, Usage};

    use super::*;

    fn preempted() -> Happening {
        Happening::Preempted { id: SequenceId(1) }
    }

    #[test]
    fn slow_reader_loses_happenings_and_learns_how_many() {
        let tap = Tap::default();
        let mut recording = tap.start(false).unwrap();
        assert!(tap.start(false).is_none(), "one at a time");
        for _ in 0..QUEUE + 5 {
            tap.tell(preempted);
        }
        for _ in 0..QUEUE {
            assert!(matches!(recording.try_next(), Some(Happening::Preempted { .. })));
        }
        assert!(recording.try_next().is_none());
        tap.tell(preempted);
        assert!(matches!(recording.try_next(), Some(Happening::Lost(5))));
        assert!(matches!(recording.try_next(), Some(Happening::Preempted { .. })));
        let stopped = tap.stop().unwrap();
        assert_eq!((stopped.happenings, stopped.lost), (QUEUE as u64 + 6, 5));
        assert!(tap.stop().is_none() && !tap.is_on());
        assert!(recording.next().now_or_never().unwrap().is_none(), "the loss was reported");
    }

    #[test]
    fn loss_at_the_end_is_reported_after_everything_else() {
        let tap = Tap::default();
        let mut recording = tap.start(false).unwrap();
        for _ in 0..QUEUE + 3 {
            tap.tell(preempted);
        }
        assert_eq!(tap.stop().unwrap().lost, 3);
        let mut next = || recording.next().now_or_never().unwrap();
        for _ in 0..QUEUE {
            assert!(matches!(next(), Some(Happening::Preempted { .. })));
        }
        assert!(matches!(next(), Some(Happening::Lost(3))));
        assert!(next().is_none());
    }

    #[test]
    fn decision_is_dropped_after_a_loss_and_in_a_later_recording() {
        let tap = Tap::default();
        let decision = || Decision {
            kind: PolicyKind::Scheduler,
            policy: Arc::default(),
            question: FaultView::Evict { now: Micros(1), need: 1 },
            answer: Answer::Blocks(Vec::new()),
            state: None,
            knew: None,
        };
        let first = tap.start(true).unwrap();
        let old = tap.wants_decisions().unwrap();
        drop(first);
        let mut recording = tap.start(true).unwrap();
        let beginning = tap.wants_decisions().unwrap();
        tap.tell_decision(old, decision());
        assert!(recording.try_next().is_none(), "it was made for the earlier recording");
        tap.tell_decision(beginning, decision());
        assert!(matches!(recording.try_next(), Some(Happening::Decision(_))) && !tap.has_lost());

        for _ in 0..QUEUE + 1 {
            tap.tell(preempted);
        }
        assert!(tap.has_lost());
        for _ in 0..QUEUE / 4 {
            recording.try_next();
        }
        tap.tell_decision(beginning, decision());
        tap.tell(preempted);
        tap.tell_decision(beginning, decision());
        while let Some(happening) = recording.try_next() {
            assert!(!matches!(happening, Happening::Decision(_)), "what came before it is missing");
        }
        tap.tell(preempted);
        let caught_up = tap.wants_decisions().unwrap();
        assert!(caught_up > beginning);
        recording.try_next();
        tap.tell_decision(beginning, decision());
        assert!(recording.try_next().is_none());
        tap.tell_decision(caught_up, decision());
        assert!(matches!(recording.try_next(), Some(Happening::Decision(_))));
    }

    #[test]
    fn a_beginning_comes_with_each_recording_and_when_the_reader_has_caught_up_after_a_loss() {
        let tap = Tap::default();
        let mut recording = tap.start(true).unwrap();
        let first = tap.wants_decisions().unwrap();
        for _ in 0..QUEUE + 3 {
            tap.tell(preempted);
        }
        recording.try_next();
        recording.try_next();
        tap.tell(preempted);
        assert_eq!(tap.wants_decisions(), Some(first), "the next loss is near");
        while recording.try_next().is_some() {}
        (0..2).for_each(|_| tap.tell(preempted));
        let second = tap.wants_decisions().unwrap();
        assert_eq!(second, first + 1, "once");
        tap.stop();
        assert_eq!(tap.wants_decisions(), None);
        let _next = tap.start(true).unwrap();
        assert!(tap.wants_decisions().unwrap() > second);
    }

    #[test]
    fn queued_happenings_hold_no_logprobs_and_no_messages() {
        let likely = TokenLogprobs { logprob: -1.0, top: vec![(1, -1.0); 20] };
        let (tap, now) = (Tap::default(), Micros(1));
        let mut recording = tap.start(false).unwrap();
        let id = SequenceId(1);
        let token = Event::Token { id, token: 7, logprobs: Some(Box::new(likely.clone())) };
        let failed = Event::Failed {
            id,
            cause: FailureCause::Device,
            message: "m".repeat(9_000),
            usage: Usage::default(),
        };
        let told = [token, failed].map(|event| Happening::of(&event, now).unwrap());
        told.into_iter().for_each(|happening| tap.tell(|| happening));
        assert_eq!(recording.bytes.load(Ordering::Relaxed), 2 * size_of::<Happening>());
        assert!(matches!(recording.try_next(), Some(Happening::Token { token: 7, .. })));
        assert!(matches!(recording.try_next(), Some(Happening::Ended { reason: None, .. })));
        assert_eq!(recording.bytes.load(Ordering::Relaxed), 0);
        let prompt = Event::Prompt { id, logprobs: vec![likely; 512] };
        assert!(Happening::of(&prompt, now).is_none(), "no line is made of it");
        assert!(QUEUE * size_of::<Happening>() < QUEUE_BYTES, "a token each fits");
    }

    #[test]
    fn dropping_the_reader_ends_the_recording() {
        let tap = Tap::default();
        drop(tap.start(true));
        assert!(tap.wants_decisions().is_some());
        tap.tell(preempted);
        assert!(!tap.is_on() && tap.stop().is_none());
        assert!(tap.start(false).is_some());
    }
}
