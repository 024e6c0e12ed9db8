//! How requests come in: limits, the bounded queue, the admission policy, those it tells to wait.
//!
//! What was asked for at once comes in as a whole or not at all. Asked about one by one, a policy that charges would
//! have charged for those before the one that it refuses, and again at every try. So it is first asked about all tokens
//! at once, on a host that is idle and has room for them, and then about each sequence under the name that has paid.

use std::sync::Arc;

use super::{Context, Engine, HELD_INTERVAL, context};
use crate::event::Event;
use crate::ids::{Micros, SequenceId};
use crate::policy::{
    AdmissionPolicy, AdmissionRequest, Answer, FaultKind, FaultView, Load, Memory, PolicyFault, PolicyKind,
    Verdict,
};
use crate::request::{Refusal, RefusalReason, Request, SequenceState, Usage};
use crate::sequence::{HitState, SeqIx, Sequence};
use crate::snapshot::Counters;
use crate::watchdog::{LONGEST_PROMISE, Mark};

/// Held requests asked about in one step.
const HELD_PER_STEP: usize = 64;
/// Longest message that a policy's refusal may show a client.
const MESSAGE_BYTES: usize = 256;
/// Shortest and longest `Retry-After` that the engine itself names.
const RETRY_MS: (u64, u64) = (1_000, 60_000);

impl Engine {
    /// Takes a request or says why not.
    pub fn submit(&mut self, request: Request, now: Micros) -> Result<SequenceId, Refusal> {
        self.submit_all(vec![request], now).map(|ids| ids[0])
    }

    /// Takes requests of one tenant that were asked for at once, or none of them.
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
            let message = "the server is shutting down and takes no new requests".into();
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
        let (prompt, output) = (request.prompt.len() as u64, u64::from(request.max_new_tokens));
        if prompt == 0 || output == 0 {
            let message = "a request needs at least one prompt token and one token to generate".into();
            return Err(Refusal { reason: RefusalReason::Other, message, retry_after_ms: 0 });
        }
        let limit = u64::from(self.config.max_seq_len);
        if prompt + output > limit {
            let message = format!(
                "{prompt} prompt tokens and {output} tokens to generate exceed the limit of {limit} in all"
            );
            return Err(Refusal { reason: RefusalReason::TooLong, message, retry_after_ms: 0 });
        }
        let (need, total) = (self.kv.blocks_for((prompt + output - 1) as u32), self.config.total_blocks);
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
        (self.held.len() + self.waiting.ix.len() - self.preempted) as u32
    }

    /// Milliseconds until a place of the queue may come free, at the pace of the last seconds: what waits, shared by all
    /// places. From a second to a minute.
    pub fn retry_after_ms(&self, now: Micros) -> u32 {
        let (prefill, output) = self.rates.per_second(now);
        let pace = u64::from(prefill) + u64::from(output);
        let per_request = self.waiting_tokens / u64::from(self.queued().max(1));
        let one_place_ms = (per_request * 1_000).checked_div(pace).unwrap_or(0);
        one_place_ms.clamp(RETRY_MS.0, RETRY_MS.1) as u32
    }

    fn admit_all(&mut self, requests: Vec<Request>, now: Micros) -> Result<Vec<SequenceId>, Refusal> {
        let all: Vec<SeqIx> = requests.into_iter().map(|request| self.enter(request, now)).collect();
        let mut refused = self.ask_together(&all, now).err();
        let mut joined = 0;
        while refused.is_none() && joined < all.len() {
            refused = self.admit_new(all[joined], now).err();
            joined += usize::from(refused.is_none());
        }
        let Some(refusal) = refused else {
            self.note_load(now);
            return Ok(all.into_iter().map(|ix| self.slab[ix].id).collect());
        };
        // From the end, so that no row has to move up.
        for (at, ix) in all.into_iter().enumerate().rev() {
            self.perf.refused();
            if at < joined {
                self.forget_queued(ix);
            } else {
                self.kv.unwatch(&mut self.slab, ix);
                self.slab.remove(ix);
            }
        }
        Err(refusal)
    }

    fn admit_new(&mut self, ix: SeqIx, now: Micros) -> Result<(), Refusal> {
        match self.ask_admission(ix, now) {
            Verdict::Refuse(refusal) => return Err(refusal),
            // Whoever is held and at least as urgent is asked first.
            Verdict::Admit if !self.held.is_before(&self.slab[ix]) => self.join_queue(ix, now),
            Verdict::Admit | Verdict::Wait => {
                self.held.insert(&self.slab[ix], ix);
                // Its tenant may have less in sight than the one that was asked about last.
                self.load_changed = true;
            }
        }
        let sequence = &self.slab[ix];
        self.waiting_tokens += sequence.tokens_ahead();
        self.waiting_prompt_tokens += u64::from(sequence.prompt_len);
        self.expected_output_tokens += sequence.expected_ahead();
        self.view.tenants.waiting[sequence.tenant_row as usize] += 1;
        Ok(())
    }

    fn enter(&mut self, mut request: Request, now: Micros) -> SeqIx {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        let prompt = std::mem::replace(&mut request.prompt, Arc::from([]));
        let prompt_len = prompt.len() as u32;
        self.perf.arrived(now, prompt_len, request.max_new_tokens);
        let usage = Usage {
            prompt_tokens: prompt_len,
            arrived: now,
            started: Micros::NEVER,
            first_token: Micros::NEVER,
            ended: Micros::NEVER,
            ..Usage::default()
        };
        let tenant_row = self.tenants.row(&mut self.view.tenants, request.tenant);
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
            hashes: Vec::new(),
            prompt_key: 0,
            row: 0,
            tenant_row,
            expected: self.tenants.expected_output(tenant_row).clamp(1, request.max_new_tokens),
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
            asked_as: id,
            usage,
            request,
        };
        self.kv.hash(&mut sequence);
        let ix = self.slab.insert(sequence);
        self.kv.watch(&mut self.slab, ix);
        ix
    }

    /// What the policy is shown of a request, and of the host.
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

    /// Asks about the tokens of several sequences at once, as those of one request that would fit.
    fn ask_together(&mut self, all: &[SeqIx], now: Micros) -> Result<(), Refusal> {
        let [first, others @ ..] = all else { return Ok(()) };
        if others.is_empty() {
            return Ok(());
        }
        let (mut request, load) = self.show_admission(*first, now);
        for &ix in others {
            let (other, _) = self.show_admission(ix, now);
            request.prompt_tokens = request.prompt_tokens.saturating_add(other.prompt_tokens);
            request.cached_tokens = request.cached_tokens.saturating_add(other.cached_tokens);
            request.max_new_tokens = request.max_new_tokens.saturating_add(other.max_new_tokens);
            request.expected_tokens = request.expected_tokens.saturating_add(other.expected_tokens);
        }
        request.idle_blocks = 0;
        let tokens = request.prompt_tokens.saturating_add(request.max_new_tokens);
        let total_blocks = self.config.total_blocks.max(self.kv.blocks_for(tokens));
        let memory = Memory { total_blocks, free_blocks: total_blocks, cached_blocks: 0, ..load.memory };
        let idle = Load { memory, running: 0, admitted: 0, preempted: 0, promised_blocks: 0, ..load };
        match self.ask(&request, &idle, now) {
            Verdict::Refuse(refusal) => return Err(refusal),
            Verdict::Admit => all.iter().for_each(|&ix| self.slab[ix].asked_as = request.id),
            // Nobody says for what it is to wait: each is asked about for itself.
            Verdict::Wait => {}
        }
        Ok(())
    }

    fn ask_admission(&mut self, ix: SeqIx, now: Micros) -> Verdict {
        // What it would have found may have been dropped since.
        self.kv.settle(&mut self.slab);
        let (request, load) = self.show_admission(ix, now);
        self.ask(&request, &load, now)
    }

    fn ask(&mut self, request: &AdmissionRequest, load: &Load, now: Micros) -> Verdict {
        self.note_state(PolicyKind::Admission, now);
        let mut cx = context!(self, now);
        let decisions = &mut self.decisions;
        let view = || FaultView::Admit(*request, *load);
        let question = |p: &mut (dyn AdmissionPolicy + 'static)| {
            let verdict = p.admit(request, load)?;
            decisions.note(PolicyKind::Admission, p.info(), view, || Answer::Verdict(verdict.clone()));
            Ok(verdict)
        };
        let verdict = self.admission.ask(&mut cx, question, view);
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

    /// Puts an admitted sequence in the scheduler's sight.
    fn join_queue(&mut self, ix: SeqIx, now: Micros) {
        self.kv.watch(&mut self.slab, ix);
        self.slab[ix].state = SequenceState::Waiting;
        self.ask_reuse(ix, now);
        self.insert_waiting(ix);
    }

    /// Takes the admission policy out where it lets nobody in for far too long though the host is idle.
    pub(super) fn judge_admission(&mut self, now: Micros) {
        if self.admission.take_removal() {
            // The next one is asked, and begins with a clean slate.
            self.held_alone_since = None;
            self.load_changed = true;
        }
        let idle = self.running.ix.is_empty() && self.waiting.ix.is_empty();
        let Some(head) = idle.then(|| self.held.head(&self.view.tenants)).flatten() else {
            self.held_alone_since = None;
            return;
        };
        let since = *self.held_alone_since.get_or_insert(now);
        if now.since(since) < Micros(self.config.starvation_bound.0.saturating_mul(LONGEST_PROMISE)) {
            return;
        }
        let message = format!(
            "request {} was held on an idle host for {} ms",
            self.slab[head].id.0,
            now.since(since).0 / 1_000
        );
        let (request, load) = self.show_admission(head, now);
        let mut cx = context!(self, now);
        let fault = PolicyFault::new(FaultKind::Starvation, message);
        self.admission.condemn(&mut cx, fault, FaultView::Admit(request, load));
        self.held_alone_since = None;
        self.load_changed = true;
        self.reask_held(now);
    }

    /// Asks again about the head of the held ones, as long as it is let in, where something changed.
    pub(super) fn reask_held(&mut self, now: Micros) {
        let due = self.load_changed || now >= self.held_asked_at.plus(HELD_INTERVAL);
        if self.held.is_empty() || !due {
            return;
        }
        self.load_changed = false;
        self.held_asked_at = now;
        for _ in 0..HELD_PER_STEP {
            let Some(ix) = self.held.head(&self.view.tenants) else { return };
            match self.ask_admission(ix, now) {
                Verdict::Wait => return,
                Verdict::Admit => {
                    self.held.remove(&self.slab[ix]);
                    self.join_queue(ix, now);
                }
                Verdict::Refuse(refusal) => {
                    self.perf.refused();
                    self.counters.refused[Counters::refusal_index(refusal.reason)] += 1;
                    self.events.push(Event::Refused { id: self.slab[ix].id, refusal });
                    self.forget_queued(ix);
                }
            }
        }
        self.load_changed = true;
    }
}
