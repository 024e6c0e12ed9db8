//! Dispatches the engine's events to streams, operators and recordings, without waiting for any of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use infer_core::policy::PolicyKind;
use infer_core::trial::ShadowState;
use infer_core::{Change, Event, FinishReason, Micros, SequenceId};

use super::Driver;
use crate::engine::command::KvBatch;
use crate::engine::lasting::Standing;
use crate::engine::observer::Noted;
use crate::engine::stream::{End, StreamEvent};
use crate::trace::Happening;

impl Driver {
    /// Reports changes of the content index to the listener.
    pub(super) fn tell_kv(&mut self) {
        let Some(listener) = &self.kv_listener else { return };
        let mut events = Vec::new();
        self.engine.drain_kv_events(&mut events);
        if !events.is_empty() {
            listener(KvBatch { number: self.kv_told, events, adapters: Arc::clone(&self.adapters) });
            self.kv_told += 1;
        }
    }

    /// Dispatches events until there are no more.
    pub(super) fn dispatch(&mut self) {
        self.tell_kv();
        loop {
            let mut events = std::mem::take(&mut self.events);
            self.engine.drain_events(&mut events);
            if events.is_empty() {
                self.events = events;
                // After the events: a policy's change comes before its decisions.
                self.tell_decisions();
                return;
            }
            let now = self.now();
            for event in events.drain(..) {
                self.hand_out(event, now);
            }
            self.events = events;
            let retired = self.engine.take_retired();
            if !retired.is_empty() {
                drop_elsewhere(retired);
            }
            while let Some(id) = self.lagging.pop() {
                self.engine.finish(id, FinishReason::Cancelled, now);
            }
        }
    }

    fn hand_out(&mut self, event: Event, now: Micros) {
        self.copies.note();
        let tap = &self.shared.tap;
        if tap.is_on()
            && let Some(happening) = Happening::of(&event, now)
        {
            tap.tell(|| happening);
        }
        match event {
            Event::Token { id, token, logprobs } => {
                self.tell(id, StreamEvent::Token { token, at: now, logprobs });
            }
            Event::Prompt { id, logprobs } => self.tell(id, StreamEvent::Prompt(logprobs)),
            Event::Embedding { id, vector } => {
                self.tell(id, StreamEvent::Embedding { vector, at: now });
            }
            Event::Finished { id, reason, usage } => self.end(id, End::Finished { reason, usage }),
            Event::Failed { id, cause, message, usage } => {
                self.end(id, End::Failed { cause, message, usage });
            }
            Event::Refused { id, refusal } => self.end(id, End::Refused(refusal)),
            Event::Started { id, at, prefix, cached_tokens, prefill_tokens } => {
                let fills_block = cached_tokens + prefill_tokens >= self.engine.memory().block_size;
                self.prefix_hits.note(prefix, cached_tokens, fills_block);
                if let Some(live) = self.live.get_mut(&id) {
                    live.ticket = None;
                    live.marks.cached_tokens.store(cached_tokens, Ordering::Relaxed);
                    live.marks.started.store(true, Ordering::Release);
                }
                self.tell(id, StreamEvent::Started { at });
            }
            Event::Preempted { id } => self.shared.observer.preempted(id),
            Event::PolicyFault(fault) => self.shared.observer.fault(&fault),
            Event::PolicyChanged { kind, from, left, policy, at, step, change, reason, .. } => {
                let observer = &self.shared.observer;
                observer.count_change(kind, change);
                // A policy that failed is quarantined with its fault.
                if change == Change::Verdict {
                    observer.quarantine().add(kind, &left, &reason, at);
                }
                // A policy may fail in its very first call.
                let by = self.by.as_ref().filter(|_| !matches!(change, Change::Fault | Change::Verdict));
                let mode = change.name();
                observer.note(kind, Noted { at, step, from, to: &policy, reason, mode, by });
                self.stand(kind);
            }
            Event::Shadow { kind, live, report, state_note } => {
                let step = self.engine.next_step();
                let by = self.by.as_ref().filter(|_| report.state != ShadowState::Failed);
                self.shared.observer.shadow(kind, live, &report, state_note.as_deref(), step, by);
                self.stand(kind);
            }
            Event::Canary(report) => {
                let step = self.engine.next_step();
                self.shared.observer.canary(&report, step, now, self.by.as_ref());
                self.stand(report.kind);
            }
        }
    }

    /// Notes what a slot that has changed goes back to.
    fn stand(&self, kind: PolicyKind) {
        self.shared.observer.lasting().stand(kind, Standing::of(&self.engine.slot(kind)));
    }

    fn tell(&mut self, id: SequenceId, event: StreamEvent) {
        let Some(live) = self.live.get(&id) else { return };
        // The last slot is reserved for the end.
        let fits = live.events.capacity() > 1;
        if !fits || live.events.try_send(event).is_err() {
            // Drop the stream at once: if its end came next, the reader would not notice what is missing.
            self.live.remove(&id);
            self.lagging.push(id);
        }
    }

    fn end(&mut self, id: SequenceId, end: End) {
        if let Some(live) = self.live.remove(&id) {
            let _ = live.events.try_send(StreamEvent::End(Box::new(end)));
        }
    }

    /// Ends sequences whose end was not reported because the mailbox was full, or because nobody knows their ids: those
    /// without a reader, and those whose output is complete.
    pub(super) fn scan(&mut self) {
        let (mut gone, mut complete) = (Vec::new(), Vec::new());
        for (&id, live) in &self.live {
            if live.events.is_closed() {
                gone.push(id);
            } else if live.marks.stopped.load(Ordering::Acquire) {
                complete.push(id);
            }
        }
        let now = self.now();
        for id in gone {
            self.live.remove(&id);
            self.engine.finish(id, FinishReason::Cancelled, now);
        }
        for id in complete {
            self.engine.finish(id, FinishReason::Stop, now);
        }
        self.dispatch();
    }

    fn tell_decisions(&mut self) {
        let Some(beginning) = self.keeps_decisions else { return };
        for decision in self.engine.take_decisions() {
            self.shared.tap.tell_decision(beginning, decision);
        }
    }

    /// Records which policies are live: the recording may have lost a change.
    pub(super) fn tell_policies(&mut self) {
        let now = self.now();
        for slot in self.engine.snapshot(now).policies {
            self.shared.tap.tell(|| Happening::Policy { kind: slot.kind, policy: slot.policy });
        }
    }
}

/// Dropping a policy unmaps its memory, which must not delay the engine.
pub(super) fn drop_elsewhere<T: Send + 'static>(what: T) {
    let _ = std::thread::Builder::new().name("retire".to_owned()).spawn(move || drop(what));
}
