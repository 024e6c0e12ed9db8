//! Applies commands, between two steps.

use std::time::{Duration, Instant};

use infer_core::{Engine, FinishReason, Micros};

use super::events::drop_elsewhere;
use super::{Driver, Live};
use crate::engine::command::{Command, EngineReport, OtherOnTrial, Seat, Submission, SwapMode, Swapped};
use crate::trace::Happening;

impl Driver {
    pub(super) fn apply(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Submit(submission) => self.submit(*submission, now),
            Command::Finish(id, reason) => {
                self.engine.finish(id, reason, now);
            }
            Command::Cancel(id, reply) => {
                let _ = reply.send(self.engine.finish(id, FinishReason::Cancelled, now));
            }
            Command::Expire(overdue) => {
                for (id, message) in overdue {
                    self.engine.expire(id, message, now);
                }
            }
            Command::Report(reply) if reply.is_closed() => {}
            Command::Report(reply) => {
                let report = EngineReport {
                    snapshot: self.engine.snapshot(now),
                    step_us: self.times.recent().to_vec(),
                    at: now,
                };
                let _ = reply.send(Box::new(report));
            }
            Command::Inspect(look) => look(&self.engine, now),
            Command::ClearQueue(message, reply) => {
                let _ = reply.send(self.engine.clear_queue(&message, now));
            }
            Command::Tenants(terms) => self.engine.set_tenants(&terms),
            Command::WatchKv(listener) => {
                self.engine.watch_kv();
                self.kv_listener = Some(listener);
            }
            Command::KvSnapshot(reply) => {
                self.tell_kv();
                let _ = reply.send(self.engine.kv_snapshot());
            }
            Command::Drain => self.engine.drain(),
            Command::EndPriming => self.engine.end_priming(),
            Command::Prime(reply) => {
                self.take_all_back();
                let _ = reply.send(self.engine.begin_priming());
            }
            Command::Swap(policy, mode, reply) => {
                let swapped = self.timed(|engine| match mode {
                    SwapMode::Now => Ok(engine.swap(policy, now)),
                    SwapMode::Shadow => Ok(engine.shadow(policy, now)),
                    SwapMode::Canary(window) => engine.canary(policy, window, now),
                });
                let (report, pause) = swapped;
                let answer = report.map(|report| Swapped { report, pause });
                retire(reply.send(answer.map_err(|(policy, kind)| OtherOnTrial { kind, policy })));
            }
            Command::Promote(kind, reply) => {
                let (report, pause) = self.timed(|engine| engine.promote(kind, now));
                retire(reply.send(report.map(|report| Swapped { report, pause })));
            }
            Command::Rollback(kind, reply) => {
                let (report, pause) = self.timed(|engine| engine.rollback(kind, now));
                retire(reply.send(report.map(|report| Swapped { report, pause })));
            }
            Command::RollbackTo(policy, reply) => {
                let (report, pause) = self.timed(|engine| engine.rollback_to(policy, now));
                retire(reply.send(Swapped { report, pause }));
            }
            Command::StopShadow(kind, reply) => {
                let (stopped, _) = self.timed(|engine| engine.stop_shadow(kind, now));
                retire(reply.send(stopped));
            }
            Command::Wake | Command::Stop => {}
        }
        self.dispatch();
    }

    /// Changes a slot between two steps and measures the pause. Dispatches before the reply, so that the caller finds
    /// the change in the history.
    fn timed<T>(&mut self, change: impl FnOnce(&mut Engine) -> T) -> (T, Duration) {
        self.take_all_back();
        let begun = Instant::now();
        let outcome = change(&mut self.engine);
        let pause = begun.elapsed();
        self.dispatch();
        (outcome, pause)
    }

    fn submit(&mut self, submission: Submission, now: Micros) {
        let Submission { requests, seats, sent, reply } = submission;
        let copies = if self.shared.tap.is_on() { requests.clone() } else { Vec::new() };
        match self.engine.submit_all(requests, now) {
            Err(refusal) => {
                for request in &copies {
                    self.shared.tap.tell(|| Happening::refused(now, request, &refusal));
                }
                let _ = reply.send(Err(refusal));
            }
            Ok(ids) => {
                for (&id, request) in ids.iter().zip(copies) {
                    let request = Box::new(request);
                    self.shared.tap.tell(|| Happening::Taken { id, sent, at: now, request });
                }
                for (&id, Seat { ticket, events }) in ids.iter().zip(seats) {
                    self.live.insert(id, Live { events, ticket: Some(ticket) });
                }
                if let Err(Ok(ids)) = reply.send(Ok(ids)) {
                    for id in ids {
                        self.live.remove(&id);
                        self.engine.finish(id, FinishReason::Cancelled, now);
                    }
                }
            }
        }
    }
}

/// Drops a reply that was not received, and the policy that it may hold, on another thread.
fn retire<T: Send + 'static>(unsent: Result<(), T>) {
    if let Err(unsent) = unsent {
        drop_elsewhere(unsent);
    }
}
