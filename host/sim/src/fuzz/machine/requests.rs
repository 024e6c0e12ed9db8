//! Requests arrive and end, and the engine reports on them.

use infer_core::policy::{FaultKind, PolicyKind};
use infer_core::request::RefusalReason;
use infer_core::{Change, Event, FailureCause, FinishReason, Request, SequenceId};

use super::Machine;
use crate::fuzz::case::Ask;
use crate::fuzz::ledger::has_row;

impl Machine<'_> {
    pub(super) fn submit(&mut self, ask: &Ask) {
        let requests = self.clients.requests(ask, self.now);
        let due = self.refusal_due(&requests);
        let now = self.tell();
        let books = self.books();
        let answer = self.engine.submit_all(requests.clone(), now);
        let shown = self.take_shown();
        match requests.len() {
            1 => shown.iter().for_each(|load| books.check(load)),
            _ => shown.iter().for_each(|load| books.check_group(load, &requests)),
        }
        self.clients.reached.groups += u64::from(requests.len() > 1);
        match answer {
            Ok(ids) => {
                assert_eq!(due, None, "a request was admitted that can't be");
                assert_eq!(ids.len(), requests.len(), "sequences of a request");
                for (id, request) in ids.into_iter().zip(requests) {
                    self.clients.taken(id, ask, request);
                }
            }
            Err(refusal) => {
                assert!(due.is_none_or(|due| due == refusal.reason), "{refusal:?}, not {due:?}");
                requests.iter().for_each(|_| self.clients.refused(&refusal));
            }
        }
        self.drain();
    }

    /// Why the engine must refuse, whatever admission says.
    fn refusal_due(&self, requests: &[Request]) -> Option<RefusalReason> {
        if self.draining {
            return Some(RefusalReason::Draining);
        }
        let too_many = self.clients.queued() + requests.len() as u32 > self.setup.max_waiting;
        let limit = requests.iter().find_map(|request| self.limit_broken(request));
        limit.or(too_many.then_some(RefusalReason::QueueFull))
    }

    fn limit_broken(&self, request: &Request) -> Option<RefusalReason> {
        let (prompt, output) = (request.prompt.len(), request.max_new_tokens as usize);
        let blocks = (prompt + output).saturating_sub(1).div_ceil(self.setup.block_size as usize);
        if prompt == 0 || output == 0 {
            Some(RefusalReason::Other)
        } else if prompt + output > self.setup.max_seq_len as usize {
            Some(RefusalReason::TooLong)
        } else if blocks > self.setup.total_blocks as usize {
            Some(RefusalReason::Memory)
        } else {
            None
        }
    }

    pub(super) fn finish(&mut self, pick: u32, reason: FinishReason) {
        let Some(id) = self.clients.pick(pick) else { return };
        self.end_request(id, reason);
        self.drain();
        assert!(self.clients.get(id).is_none(), "{id:?} was to end and hasn't");
    }

    pub(super) fn expire(&mut self, pick: u32) {
        let Some(id) = self.clients.pick(pick) else { return };
        self.clients.get_mut(id).expect("it is alive").doomed = Some(FailureCause::Overdue);
        let now = self.tell();
        assert!(self.engine.expire(id, "too late".to_owned(), now), "{id:?} is alive");
        assert!(!self.engine.expire(id, "again".to_owned(), now), "{id:?} has ended");
        self.clients.reached.ended_in_flight += u64::from(!self.out.is_empty());
        self.drain();
        assert!(self.clients.get(id).is_none(), "{id:?} was to fail and hasn't");
    }

    fn end_request(&mut self, id: SequenceId, reason: FinishReason) {
        self.clients.get_mut(id).expect("it is alive").asked = Some(reason);
        let now = self.tell();
        assert!(self.engine.finish(id, reason, now), "{id:?} is alive");
        assert!(!self.engine.finish(id, reason, now), "{id:?} has ended");
        self.clients.reached.ended_in_flight += u64::from(!self.out.is_empty());
    }

    /// Distributes the engine's events, as the host's thread does.
    pub(super) fn drain(&mut self) {
        loop {
            let mut events = std::mem::take(&mut self.events);
            self.engine.drain_events(&mut events);
            let none = events.is_empty();
            for event in events.drain(..) {
                self.hear(&event);
            }
            self.events = events;
            drop(self.engine.take_retired());
            let lagging = std::mem::take(&mut self.clients.lagging);
            if none && lagging.is_empty() {
                return;
            }
            for id in lagging {
                if self.clients.get(id).is_some() {
                    self.end_request(id, FinishReason::Cancelled);
                }
            }
        }
    }

    fn hear(&mut self, event: &Event) {
        self.clients.hear(event);
        self.patience.hear(event);
        let out = &self.out;
        let reached = &mut self.clients.reached;
        match event {
            Event::Preempted { id } => {
                assert!(!out.iter().any(|batch| has_row(batch, *id)), "{id:?} is preempted while it is out");
            }
            Event::PolicyFault(fault) => {
                reached.policy_faults += 1;
                reached.starvation_faults += u64::from(fault.fault.kind == FaultKind::Starvation);
                self.clients.note(fault.step ^ (fault.fault.kind as u64) << 60);
            }
            Event::PolicyChanged { kind, to, change, step, .. } => {
                reached.changes[*change as usize] += 1;
                if *kind == PolicyKind::Scheduler {
                    self.aided = *to == "builtin-fcfs" && matches!(change, Change::Fault | Change::Verdict);
                }
                self.clients.note(*step ^ (*change as u64) << 58);
            }
            Event::Shadow { .. } => reached.shadows += 1,
            _ => {}
        }
    }
}
