//! How requests come in: limits, the bounded queue, the admission policy, and the requests that it defers.
//!
//! A request of several sequences is admitted all or nothing. Asked about them one by one, a policy that charges would
//! charge for those before the one that it refuses, and again at each retry. So its first call is about the whole
//! request, before anything but its first sequence is stored: all tokens, a pool with room for them, and otherwise the
//! host as the last of them finds it. Then it is asked about each sequence under the id that was already charged, with
//! all of them in the queue, so a policy that judges by the load sees no more of it than in the first call.

use std::sync::Arc;

use super::Engine;
use crate::event::Event;
use crate::expectation::Expectation;
use crate::ids::{Micros, SequenceId};
use crate::policy::{
    AdmissionPolicy, AdmissionRequest, Answer, FaultKind, FaultView, Load, Memory, PolicyFault, PolicyKind,
    Verdict,
};
use crate::request::{Refusal, RefusalReason, Request, SequenceState, Usage};
use crate::sequence::{HitState, SeqIx, Sequence};
use crate::snapshot::Counters;
use crate::watchdog::{LONGEST_PROMISE, Mark};

/// Held requests asked about in one step, and those of which anything else is expected.
const HELD_PER_STEP: usize = 64;
/// Longest message that a policy's refusal may show a client.
const MESSAGE_BYTES: usize = 256;
/// Shortest and longest `Retry-After` that the engine itself names.
const RETRY_MS: (u64, u64) = (1_000, 60_000);
/// Free blocks added to the pool that the call about a whole request shows, as a multiple of the pool and of all that is
/// asked of it: enough for a policy that reserves nine tenths.
const AMPLE: u32 = 10;

impl Engine {
    /// Admits or holds a request, or says why not.
    pub fn submit(&mut self, request: Request, now: Micros) -> Result<SequenceId, Refusal> {
        self.submit_all(vec![request], now).map(|ids| ids[0])
    }

    /// Admits or holds all sequences of a client's request, or none. They have the same tenant.
    pub fn submit_all(&mut self, requests: Vec<Request>, now: Micros) -> Result<Vec<SequenceId>, Refusal> {
        let now = self.tick(now);
        let count = requests.len() as u64;
        self.counters.submitted += count;
        let admitted = self.check_all(&requests, now).and_then(|()| self.admit_all(requests, now));
        if let Err(refusal) = &admitted {
            self.counters.refused[Counters::refusal_index(refusal.reason)] += count;
        }
        admitted
    }

    fn check_all(&self, requests: &[Request], now: Micros) -> Result<(), Refusal> {
        if self.draining {
            let message = "the server is shutting down and admits no new requests".into();
            return Err(Refusal { reason: RefusalReason::Draining, message, retry_after_ms: 5_000 });
        }
        requests.iter().try_for_each(|request| self.check_limits(request))?;
        let waiting = self.queued();
        let room = self.config.max_waiting.saturating_sub(waiting);
        if requests.len() > room as usize {
            let message = format!(
                "the queue is full: {waiting} requests wait, at most {} may",
                self.config.max_waiting
            );
            let retry_after_ms = self.retry_after_ms(now);
            return Err(Refusal { reason: RefusalReason::QueueFull, message, retry_after_ms });
        }
        Ok(())
    }

    fn check_limits(&self, request: &Request) -> Result<(), Refusal> {
        let prompt = request.prompt.len() as u64;
        if prompt == 0 || request.max_new_tokens == 0 {
            let message = "a request needs at least one prompt token and one token to generate".into();
            return Err(Refusal { reason: RefusalReason::Other, message, retry_after_ms: 0 });
        }
        let (limit, output) = (u64::from(self.config.max_seq_len), u64::from(request.longest_output()));
        if prompt + output > limit {
            let message = format!(
                "{prompt} prompt tokens and {output} tokens to generate exceed the limit of {limit} in all"
            );
            return Err(Refusal { reason: RefusalReason::TooLong, message, retry_after_ms: 0 });
        }
        // The last token is never computed.
        let computed = prompt + output.saturating_sub(1);
        let (need, total) = (self.kv.blocks_for(computed as u32), self.config.total_blocks);
        if need > total {
            let missing = need - total;
            let message =
                format!("the request needs {need} KV blocks, {missing} more than the pool of {total} has");
            return Err(Refusal { reason: RefusalReason::Memory, message, retry_after_ms: 0 });
        }
        Ok(())
    }

    /// Requests that wait for their first start.
    pub(super) fn queued(&self) -> u32 {
        (self.held.len() + self.rows.unstarted()) as u32
    }

    /// Milliseconds until a slot of the queue may come free: the mean of what waits, at the throughput of the last
    /// seconds. From a second to a minute.
    pub fn retry_after_ms(&self, now: Micros) -> u32 {
        let (prefill, output) = self.demand.rates.per_second(now, self.config.limits.full_prefill());
        let pace = u64::from(prefill) + u64::from(output);
        let per_request = self.demand.waiting_tokens / u64::from(self.queued().max(1));
        let one_place_ms = (per_request * 1_000).checked_div(pace).unwrap_or(0);
        one_place_ms.clamp(RETRY_MS.0, RETRY_MS.1) as u32
    }

    fn admit_all(&mut self, requests: Vec<Request>, now: Micros) -> Result<Vec<SequenceId>, Refusal> {
        let count = requests.len();
        for request in &requests {
            self.perf.arrived(now, request.prompt.len() as u32, request.max_new_tokens);
        }
        let mut all = Vec::with_capacity(count);
        let admitted = self.enter_and_ask(requests, &mut all, now);
        if let Err(refusal) = admitted {
            (0..count).for_each(|_| self.perf.refused());
            // From the end, so that no row has to move up.
            all.into_iter().rev().for_each(|ix| self.take_back(ix));
            return Err(refusal);
        }
        self.note_load(now);
        Ok(all.into_iter().map(|ix| self.slab[ix].id).collect())
    }

    /// Stores the sequences in `all` as far as it gets: the first, and the others unless they are refused as a whole.
    fn enter_and_ask(
        &mut self,
        requests: Vec<Request>,
        all: &mut Vec<SeqIx>,
        now: Micros,
    ) -> Result<(), Refusal> {
        let mut requests = requests.into_iter();
        let Some(request) = requests.next() else { return Ok(()) };
        let prompt = Arc::clone(&request.prompt);
        let scope = |request: &Request| (request.tenant, request.cache_salt, request.adapter);
        let scope_of_first = scope(&request);
        let first = self.enter(request, None, now);
        all.push(first);
        let charged = self.ask_about_all(first, requests.as_slice(), now)?;
        for request in requests {
            let alike = Arc::ptr_eq(&prompt, &request.prompt) && scope(&request) == scope_of_first;
            all.push(self.enter(request, alike.then_some(first), now));
        }
        self.admit_each(all, charged, now)
    }

    /// Asks about each sequence for itself. `charged`: the policy has admitted them as a whole.
    fn admit_each(&mut self, all: &[SeqIx], charged: bool, now: Micros) -> Result<(), Refusal> {
        // Held requests that are at least as urgent are asked about first.
        let mut open = !all.iter().any(|&ix| self.held.is_before(&self.slab[ix]));
        if charged {
            for &ix in all {
                self.slab[ix].asked_as = self.slab[all[0]].id;
                self.hold(ix);
            }
        }
        for &ix in all {
            let verdict = self.ask_admission(ix, now);
            if let Verdict::Refuse(refusal) = verdict {
                return Err(refusal);
            }
            if !charged {
                self.hold(ix);
            }
            // One that is held behind another neither holds others nor lets them pass.
            match verdict {
                Verdict::Wait if open => self.held.stop_at(&self.slab[ix]),
                Verdict::WaitTenant if open => self.held.pass_over(&self.slab[ix]),
                _ => {}
            }
            open &= verdict == Verdict::Admit;
            if open {
                self.held.remove(&self.slab[ix]);
                self.join_queue(ix, now);
            } else {
                // Its tenant may have less in sight than the one that was asked about last.
                self.held.load_changed = true;
            }
        }
        Ok(())
    }

    /// Puts a new sequence in the queue, out of the scheduler's sight.
    fn hold(&mut self, ix: SeqIx) {
        let sequence = &self.slab[ix];
        self.held.insert(sequence, ix);
        self.demand.enqueue(sequence);
        self.view.tenants.waiting[sequence.tenant_row as usize] += 1;
    }

    /// Removes a new sequence, wherever it got to.
    fn take_back(&mut self, ix: SeqIx) {
        if self.slab[ix].is_waiting() || self.held.contains(&self.slab[ix]) {
            self.forget_queued(ix);
        } else {
            self.kv.unwatch(&mut self.slab, ix);
            self.slab.remove(ix);
        }
    }

    /// Stores a request as a sequence that is in no queue yet. `like` has the same prompt, tenant, salt and adapter.
    fn enter(&mut self, mut request: Request, like: Option<SeqIx>, now: Micros) -> SeqIx {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let prompt = std::mem::replace(&mut request.prompt, Arc::from([]));
        let prompt_len = prompt.len() as u32;
        let usage = Usage {
            prompt_tokens: prompt_len,
            arrived: now,
            started: Micros::NEVER,
            first_token: Micros::NEVER,
            ended: Micros::NEVER,
            ..Usage::default()
        };
        let tenant_row = self.tenants.row(&mut self.view.tenants, request.tenant);
        let expectation = self.expectation(tenant_row, &request);
        let mut sequence = Sequence {
            id,
            state: SequenceState::Held,
            tokens: prompt.to_vec(),
            prompt_len,
            generated: 0,
            computed: 0,
            furthest: 0,
            table: Vec::new(),
            committed: 0,
            own: u32::MAX,
            hashes: like.map_or_else(Vec::new, |ix| self.slab[ix].hashes.clone()),
            prompt_key: like.map_or(0, |ix| self.slab[ix].prompt_key),
            row: 0,
            tenant_row,
            expected: expectation.at(0),
            expectation,
            max_blocks: self.kv.blocks_for(prompt_len + request.max_new_tokens - 1),
            hit: HitState::default(),
            pending_end: 0,
            pending_prompt: false,
            logits_to: None,
            logits_from: None,
            guesses: self.config.speculate,
            drawn_at: 0,
            reused: 0,
            out: 0,
            out_row: 0,
            computing: 0,
            drawing: 0,
            planned: Mark::default(),
            overtaken: None,
            passed: None,
            arriving: None,
            asked_as: id,
            usage,
            request,
        };
        self.kv.hash(&mut sequence);
        let ix = self.slab.insert(sequence);
        self.kv.watch(&mut self.slab, ix);
        ix
    }

    /// What is known by now of a request's output.
    fn expectation(&self, tenant_row: u32, request: &Request) -> Expectation {
        Expectation {
            told: request.expected_output,
            learned: self.tenants.expected_output(tenant_row),
            limit: request.max_new_tokens,
        }
    }

    /// Expects of a held request what is known by now: a first burst arrives before any output has ended. The one that is
    /// asked about is renewed in any case, the others because the load counts what is expected of all.
    fn expect_anew(&mut self, ix: SeqIx) {
        let expectation = self.expectation(self.slab[ix].tenant_row, &self.slab[ix].request);
        self.demand.expect(&mut self.slab[ix], expectation);
    }

    /// What the policy is shown of a request and of the host.
    fn show_admission(&self, ix: SeqIx, now: Micros) -> (AdmissionRequest, Load) {
        let sequence = &self.slab[ix];
        let cached_tokens = self.kv.cached_tokens(sequence);
        let request = AdmissionRequest {
            id: sequence.asked_as,
            tenant: sequence.request.tenant,
            session: sequence.request.session,
            priority: sequence.request.priority,
            arrived: sequence.usage.arrived,
            deadline: sequence.request.deadline,
            prompt_tokens: sequence.prompt_len,
            cached_tokens,
            idle_blocks: self.kv.idle_blocks_behind(sequence, cached_tokens),
            max_new_tokens: sequence.request.max_new_tokens,
            expected_tokens: sequence.expected,
        };
        (request, self.load(sequence.tenant_row, now))
    }

    /// Asks about a request of several sequences as a whole; only the first is stored. True if the policy admits it,
    /// and so has charged for it.
    fn ask_about_all(&mut self, first: SeqIx, others: &[Request], now: Micros) -> Result<bool, Refusal> {
        if others.is_empty() {
            return Ok(false);
        }
        let (mut request, mut load) = self.show_admission(first, now);
        for other in others {
            let expected = self.expectation(self.slab[first].tenant_row, other).at(0);
            request.prompt_tokens = request.prompt_tokens.saturating_add(other.prompt.len() as u32);
            request.max_new_tokens = request.max_new_tokens.saturating_add(other.max_new_tokens);
            request.expected_tokens = request.expected_tokens.saturating_add(expected);
            load.expected_output_tokens += u64::from(expected);
        }
        load.waiting += others.len() as u32;
        let tokens = request.prompt_tokens.saturating_add(request.max_new_tokens);
        load.memory = self.ample_memory(tokens, &load);
        let mut verdict = self.ask(&request, &load, now);
        if matches!(verdict, Verdict::Wait | Verdict::WaitTenant) {
            // Members of a list behind the one that waits have yet to charge, and those before it have charged.
            let (request, load) = on_an_idle_host(request, load, others.len() as u32);
            verdict = self.ask(&request, &load, now);
        }
        match verdict {
            Verdict::Refuse(refusal) => Err(refusal),
            Verdict::Admit => Ok(true),
            // Each is asked about and charged for itself.
            Verdict::Wait | Verdict::WaitTenant => Ok(false),
        }
    }

    /// The pool as it is, and so many free blocks more that `tokens` fit beside all that is promised.
    fn ample_memory(&self, tokens: u32, load: &Load) -> Memory {
        let memory = load.memory;
        let asked = self.kv.blocks_for(tokens).saturating_add(load.promised_blocks);
        let more = asked.saturating_add(memory.total_blocks).saturating_mul(AMPLE);
        let more = more.min(u32::MAX - memory.total_blocks);
        let (total_blocks, free_blocks) = (memory.total_blocks + more, memory.free_blocks + more);
        Memory { total_blocks, free_blocks, ..memory }
    }

    fn ask_admission(&mut self, ix: SeqIx, now: Micros) -> Verdict {
        // Blocks of its hit may have been dropped since.
        self.kv.settle(&mut self.slab);
        let (request, load) = self.show_admission(ix, now);
        self.ask(&request, &load, now)
    }

    fn ask(&mut self, request: &AdmissionRequest, load: &Load, now: Micros) -> Verdict {
        self.note_state(PolicyKind::Admission, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let decisions = &mut self.decisions;
        let view = || FaultView::Admit(*request, *load);
        let question = |p: &mut (dyn AdmissionPolicy + 'static)| {
            let verdict = p.admit(request, load)?;
            decisions.note(PolicyKind::Admission, p.info(), view, || Answer::Verdict(verdict.clone()));
            Ok(verdict)
        };
        let verdict = self.policies.admission.ask(&mut cx, question, view);
        self.shadow_admit(request, load, &verdict, now);
        match verdict {
            Verdict::Refuse(mut refusal) => {
                let end = refusal.message.floor_char_boundary(MESSAGE_BYTES);
                refusal.message.truncate(end);
                Verdict::Refuse(refusal)
            }
            verdict => verdict,
        }
    }

    /// Shows an admitted sequence to the scheduler.
    fn join_queue(&mut self, ix: SeqIx, now: Micros) {
        self.kv.watch(&mut self.slab, ix);
        self.slab[ix].state = SequenceState::Waiting;
        self.ask_reuse(ix, now);
        self.insert_waiting(ix);
    }

    /// Removes the admission policy if it has held requests on an idle host for far too long. While anything runs it may
    /// hold a tenant for ever: a quota may be used up for hours, and what runs may be what the request waits for.
    pub(super) fn judge_admission(&mut self, now: Micros) {
        if self.policies.admission.take_removal() {
            self.held.start_over();
        }
        let idle = self.rows.is_empty();
        let head = || self.held.head(&self.view.tenants).or_else(|| self.held.values().next());
        let Some(head) = idle.then(head).flatten() else {
            self.held.alone_since = None;
            return;
        };
        let since = *self.held.alone_since.get_or_insert(now);
        if now.since(since) < self.longest_hold() {
            return;
        }
        let message = format!(
            "request {} was held on an idle host for {} ms",
            self.slab[head].id.0,
            now.since(since).0 / 1_000
        );
        let (request, load) = self.show_admission(head, now);
        let mut cx = self.outbox.context(self.view.number, now);
        let fault = PolicyFault::new(FaultKind::Starvation, message);
        self.policies.admission.condemn(&mut cx, fault, FaultView::Admit(request, load));
        self.held.start_over();
        self.reask_held(now);
    }

    /// How long admission may hold requests on an idle host. A scheduler may sleep for longer than the bound if its plan
    /// promises when it wakes. A verdict can promise nothing, and a quota of a minute is a reason to hold for as long, so
    /// it counts as the longest promise; but not on trial, where nothing runs meanwhile that could be compared.
    fn longest_hold(&self) -> Micros {
        let bound = self.config.starvation_bound;
        if self.policies.admission.on_trial() {
            bound
        } else {
            Micros(bound.0.saturating_mul(LONGEST_PROMISE))
        }
    }

    /// Asks again about the first held request, and about the next for as long as they don't hold those behind them, if
    /// anything changed.
    pub(super) fn reask_held(&mut self, now: Micros) {
        for _ in 0..HELD_PER_STEP {
            let Some(ix) = self.held.next_outdated() else { break };
            self.expect_anew(ix);
        }
        if !self.held.is_due(now) {
            return;
        }
        self.held.asked(now);
        for _ in 0..HELD_PER_STEP {
            let Some(ix) = self.held.head(&self.view.tenants) else { return };
            self.expect_anew(ix);
            match self.ask_admission(ix, now) {
                Verdict::Wait => return,
                Verdict::WaitTenant => self.held.pass_over(&self.slab[ix]),
                Verdict::Admit => {
                    self.held.remove(&self.slab[ix]);
                    self.join_queue(ix, now);
                }
                Verdict::Refuse(refusal) => {
                    self.perf.refused();
                    self.counters.refused[Counters::refusal_index(refusal.reason)] += 1;
                    self.outbox.events.push(Event::Refused { id: self.slab[ix].id, refusal });
                    self.forget_queued(ix);
                }
            }
        }
        self.held.interrupt();
    }
}

/// A call about a request as it would be if nothing else were on the host; `others` of its sequences wait.
fn on_an_idle_host(request: AdmissionRequest, load: Load, others: u32) -> (AdmissionRequest, Load) {
    let memory = Memory { free_blocks: load.memory.total_blocks, cached_blocks: 0, ..load.memory };
    let load = Load {
        memory,
        running: 0,
        admitted: 0,
        preempted: 0,
        waiting: others,
        waiting_tokens: 0,
        waiting_prompt_tokens: 0,
        started_prompt_tokens: 0,
        expected_output_tokens: u64::from(request.expected_tokens),
        promised_blocks: 0,
        expected_blocks: 0,
        tenant_running: 0,
        tenant_waiting: 0,
        tenant_in_flight: 0,
        ..load
    };
    (AdmissionRequest { cached_tokens: 0, idle_blocks: 0, ..request }, load)
}
