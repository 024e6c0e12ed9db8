//! One step after another: made, given to the executor, taken back. Where engine and executor can, the next one is
//! given to the device before this one is taken back, so that it never waits for the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use infer_api::trace::Step;
use infer_core::{Batch, DeviceFault, DeviceFaultKind, Event, Micros};

use super::{Driver, panic_text};
use crate::trace::Happening;

/// Device times kept for percentiles.
const KEPT: usize = 512;

/// A step that the executor has.
pub(super) struct Out {
    batch: Batch,
    /// For a recording.
    record: Option<Box<Step>>,
    /// Whether a device computes it, or what went wrong already.
    submitted: Result<bool, DeviceFault>,
    begun: Instant,
}

/// How long steps took.
#[derive(Default)]
pub(super) struct StepTimes {
    us: Vec<u32>,
    steps: usize,
    /// When the last one was there.
    last: Option<Instant>,
}

impl StepTimes {
    /// Those of the last steps, in no order.
    pub(super) fn recent(&self) -> &[u32] {
        &self.us
    }

    /// A step is there that was begun then. A device computes one after another.
    fn note(&mut self, begun: Instant) -> Duration {
        let now = Instant::now();
        let took = now - self.last.map_or(begun, |last| last.max(begun));
        self.last = Some(now);
        let us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        match self.us.get_mut(self.steps % KEPT) {
            Some(place) => *place = us,
            None => self.us.push(us),
        }
        self.steps += 1;
        took
    }
}

impl Driver {
    /// One step, if anything can run.
    pub(super) fn step(&mut self) -> bool {
        let wanted = self.shared.tap.wants_decisions();
        if wanted != self.keeps_decisions {
            self.take_all_back();
            self.dispatch();
            self.engine.record_decisions(wanted.is_some());
            self.keeps_decisions = wanted;
            if self.shared.tap.has_lost() {
                self.tell_policies();
            }
        }
        if self.out.is_empty() && !self.begin() {
            self.dispatch();
            return false;
        }
        let on_device = self.out.iter().all(|out| matches!(out.submitted, Ok(true)));
        if on_device && self.engine.plans_ahead() && self.executor.plans_ahead() {
            self.begin();
        }
        // While a device works on this step, the tokens of the last one go out.
        self.dispatch();
        self.take_back()
    }

    /// Makes a step and gives it to the executor, if anything can run.
    fn begin(&mut self) -> bool {
        let at = self.now();
        let Some(batch) = self.engine.begin_step(at) else { return false };
        let record = self.shared.tap.is_on().then(|| self.record(&batch, at));
        self.waited = false;
        let begun = Instant::now();
        if self.out.is_empty() {
            self.computing_since(at);
        }
        let submitted = caught(|| self.executor.submit(&batch));
        self.out.push_back(Out { batch, record, submitted, begun });
        true
    }

    /// Waits for the step that the executor has had for longest. False where it has none.
    pub(super) fn take_back(&mut self) -> bool {
        let Some(Out { batch, record, submitted, begun }) = self.out.pop_front() else { return false };
        let on_device = matches!(submitted, Ok(true));
        let (executor, output) = (&mut self.executor, &mut self.output);
        let result = submitted.and_then(|on_device| {
            caught(|| match on_device {
                true => executor.collect(&batch, output),
                false => executor.execute(&batch, output),
            })
        });
        let took = self.times.note(begun);
        let now = self.now();
        self.computing_since(if self.out.is_empty() { Micros::NEVER } else { now });
        if record.is_some() {
            // What was told before this step's end is no part of it.
            self.engine.drain_events(&mut self.events);
        }
        let told = self.events.len();
        match result {
            Ok(()) => self.engine.finish_step(batch, Ok(&self.output), now),
            Err(fault) => {
                tracing::error!(step = batch.step, rows = ?fault.rows, "device fault: {}", fault.message);
                self.device_lost |= fault.kind == DeviceFaultKind::Lost;
                self.engine.finish_step(batch, Err(fault), now);
            }
        }
        if let Some(mut step) = record {
            (step.end, step.device) = (now.0, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            self.engine.drain_events(&mut self.events);
            count_drawn(&mut step, &self.events[told..]);
            // Before the news of what came of it.
            self.shared.tap.tell(|| Happening::Step(step));
        }
        if !on_device || !self.out.is_empty() {
            // Nothing waits for it: the device is idle anyhow, or has the next step.
            self.dispatch();
        }
        true
    }

    fn computing_since(&self, at: Micros) {
        self.shared.computing_since.store(at.0, Ordering::Relaxed);
    }

    /// For what may only be done between two steps.
    pub(super) fn take_all_back(&mut self) {
        while self.take_back() {}
    }

    /// What a recording says of a step, before it is computed.
    fn record(&mut self, batch: &Batch, at: Micros) -> Box<Step> {
        let rows = || batch.rows.iter();
        Box::new(Step {
            step: batch.step,
            at: at.0,
            end: 0,
            device: 0,
            waited: self.waited,
            ids: rows().map(|row| row.sequence.0).collect(),
            tokens: rows().map(|row| row.token_len).collect(),
            context: rows().map(|row| row.context_len).collect(),
            drew: vec![0; batch.rows.len()],
            repeated: self.sharing.repeated(batch),
        })
    }
}

/// Notes how many tokens came of each row, more than one where guesses were right. They are told in the rows' order.
fn count_drawn(step: &mut Step, told: &[Event]) {
    let mut row = 0;
    for event in told {
        let Event::Token { id, .. } = event else { continue };
        let Some(ahead) = step.ids[row..].iter().position(|other| *other == id.0) else { continue };
        row += ahead;
        step.drew[row] = step.drew[row].saturating_add(1);
    }
}

/// A panic of the executor is a fault of the device.
fn caught<T>(work: impl FnOnce() -> Result<T, DeviceFault>) -> Result<T, DeviceFault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(DeviceFault {
            kind: DeviceFaultKind::Failed,
            message: format!("the model failed an internal check: {}", panic_text(&*panic)),
            rows: None,
        })
    })
}
