//! Makes steps, submits them to the executor and collects them. If engine and executor can, the device gets the next
//! step before this one is collected, so that it never waits for the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use infer_api::trace::Step;
use infer_core::{Batch, DeviceFault, DeviceFaultKind, Durations, Event, Micros};

use super::{Driver, panic_text};
use crate::trace::Happening;

/// Step times kept for percentiles.
const KEPT: usize = 512;

/// A step in flight.
pub(super) struct Out {
    batch: Batch,
    /// What a recording says of it.
    record: Option<Box<Step>>,
    /// Whether a device computes it (else it is executed when it is collected), or what went wrong.
    submitted: Result<bool, DeviceFault>,
    begun: Instant,
}

/// Durations of steps: the recent ones, and counts of all.
#[derive(Default)]
pub(super) struct StepTimes {
    us: Vec<u32>,
    steps: usize,
    all: Durations,
    /// When the last one was done.
    last: Option<Instant>,
}

impl StepTimes {
    /// Returns the durations of the last steps in microseconds, unordered.
    pub(super) fn recent(&self) -> &[u32] {
        &self.us
    }

    /// Returns the distribution of all durations.
    pub(super) fn all(&self) -> Durations {
        self.all
    }

    /// Notes that a step is done. A device computes steps one after another, so its time counts from the end of the
    /// one before.
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
        self.all.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        took
    }
}

impl Driver {
    /// Makes a step. Returns false if nothing can run.
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
        let may_go_ahead = self.engine.plans_ahead() && !self.shared.gate.is_held();
        if on_device && may_go_ahead && self.executor.plans_ahead() {
            self.begin();
        }
        // While a device works on this step, send the tokens of the last one.
        self.dispatch();
        self.take_back()
    }

    /// Plans a step and submits it to the executor. Returns false if nothing can run.
    fn begin(&mut self) -> bool {
        let at = self.now();
        let Some(batch) = self.engine.begin_step(at) else { return false };
        self.shared.gate.pass();
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

    /// Waits for the oldest step in flight and finishes it. Returns false if there is none.
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
            // Earlier events are no part of this step's record.
            self.engine.drain_events(&mut self.events);
        }
        let before = self.events.len();
        match result {
            Ok(()) => self.engine.finish_step(batch, Ok(&self.output), now),
            Err(fault) => {
                match fault.kind {
                    DeviceFaultKind::Offload => tracing::error!(
                        step = batch.step,
                        "the second level of the prefix cache failed and is not used any more: {}",
                        fault.message
                    ),
                    _ => {
                        tracing::error!(step = batch.step, rows = ?fault.rows, "device fault: {}", fault.message);
                    }
                }
                self.device_lost |= fault.kind == DeviceFaultKind::Lost;
                self.engine.finish_step(batch, Err(fault), now);
            }
        }
        if let Some(mut step) = record {
            (step.end, step.device) = (now.0, u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            self.engine.drain_events(&mut self.events);
            count_drawn(&mut step, &self.events[before..]);
            // Before the events that it caused.
            self.shared.tap.tell(|| Happening::Step(step));
        }
        if !on_device || !self.out.is_empty() {
            // The device does not wait for this: it has the next step, or is idle anyway.
            self.dispatch();
        }
        true
    }

    fn computing_since(&self, at: Micros) {
        self.shared.computing_since.store(at.0, Ordering::Relaxed);
    }

    /// Collects all steps in flight, for what may only be done between two steps.
    pub(super) fn take_all_back(&mut self) {
        while self.take_back() {}
    }

    /// Returns a recording's entry of a step that is not computed yet.
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
            copied: batch.offload.len() as u64,
        })
    }
}

/// Counts the tokens of each row, more than one if draft tokens were accepted. Events come in the order of the rows.
fn count_drawn(step: &mut Step, events: &[Event]) {
    let mut row = 0;
    for event in events {
        let Event::Token { id, .. } = event else { continue };
        let Some(ahead) = step.ids[row..].iter().position(|other| *other == id.0) else { continue };
        row += ahead;
        step.drew[row] = step.drew[row].saturating_add(1);
    }
}

/// Turns a panic of the executor into a device fault.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, DeviceFault>) -> Result<T, DeviceFault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(DeviceFault {
            kind: DeviceFaultKind::Failed,
            message: format!("the model failed an internal check: {}", panic_text(&*panic)),
            rows: None,
        })
    })
}
