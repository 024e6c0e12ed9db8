//! What each client asked for, must get, and has got: tokens in order and equal to those that its request
//! gets alone, one start, one end, and an end with a reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_core::event::Event;
use infer_core::request::Usage;
use infer_core::snapshot::Counters;
use infer_core::testing::{self, solo};
use infer_core::{
    Batch, FailureCause, FinishReason, Micros, Refusal, Request, SamplingExtras, SamplingParams, SequenceId,
    SessionId, TenantId, TokenLogprobs,
};

use super::case::{Ask, Setup};
use super::report::Reached;

/// Ended requests that later ones may continue.
const REMEMBERED: usize = 8;

/// Requests of one scope may share blocks.
pub(super) type Scope = (TenantId, u64);

/// One sequence.
pub(super) struct Client {
    pub request: Request,
    /// Prompt and everything that it gets alone.
    pub truth: Vec<u32>,
    /// Tokens it got.
    pub got: usize,
    pub started: bool,
    /// The driver was asked to end it like this.
    pub asked: Option<FinishReason>,
    /// It has to fail, for this reason.
    pub doomed: Option<FailureCause>,
    /// The most blocks that it had in a batch.
    peak_blocks: u32,
    /// Prompt tokens whose log-probabilities it received.
    told: usize,
    /// Tokens that it hasn't read, and how it reads.
    unread: usize,
    lag: u8,
}

impl Client {
    pub fn scope(&self) -> Scope {
        (self.request.tenant, self.request.cache_salt)
    }

    pub fn prompt_len(&self) -> usize {
        self.request.prompt.len()
    }

    /// Prompt and output so far.
    pub fn len(&self) -> usize {
        self.prompt_len() + self.got
    }
}

/// All of them.
pub(super) struct Clients {
    live: BTreeMap<SequenceId, Client>,
    /// Prompts of the last requests, and each session's last text.
    recent: Vec<(Arc<[u32]>, Scope)>,
    turns: BTreeMap<(u8, u8), Vec<u32>>,
    /// Sequences whose clients can't receive another token.
    pub lagging: Vec<SequenceId>,
    pub reached: Reached,
    max_seq_len: usize,
    stream_events: usize,
    vocab: u32,
    last_id: SequenceId,
    /// What happened, in a number.
    pub fingerprint: u64,
}

impl Clients {
    pub fn new(setup: &Setup) -> Self {
        Self {
            live: BTreeMap::new(),
            recent: Vec::new(),
            turns: BTreeMap::new(),
            lagging: Vec::new(),
            reached: Reached::default(),
            max_seq_len: setup.max_seq_len as usize,
            stream_events: setup.stream_events as usize,
            vocab: setup.vocab(),
            last_id: SequenceId(0),
            fingerprint: 0xCBF2_9CE4_8422_2325,
        }
    }

    pub fn live(&self) -> &BTreeMap<SequenceId, Client> {
        &self.live
    }

    pub fn get(&self, id: SequenceId) -> Option<&Client> {
        self.live.get(&id)
    }

    pub fn get_mut(&mut self, id: SequenceId) -> Option<&mut Client> {
        self.live.get_mut(&id)
    }

    /// Any of those alive.
    pub fn pick(&self, pick: u32) -> Option<SequenceId> {
        let at = (pick as usize).checked_rem(self.live.len())?;
        self.live.keys().nth(at).copied()
    }

    /// Requests that wait for their first start.
    pub fn queued(&self) -> u32 {
        self.live.values().filter(|client| !client.started).count() as u32
    }

    /// The request that an operation describes.
    pub fn request(&self, ask: &Ask, now: Micros) -> Request {
        let mut prompt = Vec::new();
        let mut scope = (TenantId(ask.tenant.into()), u64::from(ask.salt));
        let again = (ask.again as usize).checked_sub(1).and_then(|nth| self.recent.iter().rev().nth(nth));
        if let Some((again, whose)) = again {
            prompt.extend_from_slice(again);
            if !ask.seed.is_multiple_of(4) {
                scope = *whose;
            }
        } else {
            if ask.follow
                && let Some(turn) = self.turns.get(&(ask.tenant, ask.session))
            {
                prompt.extend_from_slice(turn);
            } else {
                let family = u32::from(ask.family) * 5;
                prompt.extend((0..u32::from(ask.shared)).map(|at| (family + at * 3) % self.vocab));
            }
            let seed = ask.seed | 1;
            prompt.extend(
                (1..=u32::from(ask.own))
                    .map(|at| seed.wrapping_mul(at * 0x9E37 + 1) >> 20)
                    .map(|t| t % self.vocab),
            );
        }
        let allowed = self.max_seq_len.saturating_sub(ask.max_new.into()).max(1);
        prompt.truncate(if ask.odd { self.max_seq_len + 2 } else { allowed });
        let mut request = testing::request(prompt, u32::from(ask.max_new));
        (request.tenant, request.cache_salt) = scope;
        request.session = SessionId(ask.session.into());
        request.priority = ask.priority.into();
        if ask.deadline_us > 0 {
            request.deadline = now.plus(Micros(ask.deadline_us.into()));
        }
        if ask.stops {
            request.stop_tokens = Arc::from([3, 7]);
            request.min_new_tokens = ask.min_new.into();
        }
        if ask.drawn {
            request.sampling = SamplingParams {
                repetition_penalty: 1.5,
                seed: ask.seed.into(),
                ..SamplingParams::default()
            };
        }
        if ask.likely {
            let asks =
                SamplingExtras { logprobs: Some(0), prompt_logprobs: Some(0), ..SamplingExtras::default() };
            request.sampling.extras = Some(Arc::new(asks));
        }
        request
    }

    /// All sequences of a client's request. They share the prompt or, in a batch, each leaves out another
    /// number of its last tokens.
    pub fn requests(&self, ask: &Ask, now: Micros) -> Vec<Request> {
        let first = self.request(ask, now);
        let further = (1..=ask.more).map(|nth| {
            let mut request = first.clone();
            request.sampling.seed = request.sampling.seed.wrapping_add(nth.into());
            if ask.batch && !first.prompt.is_empty() {
                let end = first.prompt.len().saturating_sub(nth.into()).max(1);
                request.prompt = Arc::from(&first.prompt[..end]);
            }
            request
        });
        std::iter::once(first.clone()).chain(further).collect()
    }

    /// The engine took a request.
    pub fn taken(&mut self, id: SequenceId, ask: &Ask, request: Request) {
        assert!(id > self.last_id, "{id:?} was given after {:?}", self.last_id);
        self.last_id = id;
        let mut truth = request.prompt.to_vec();
        truth.extend(solo(&request, self.vocab));
        if self.recent.len() == REMEMBERED {
            self.recent.remove(0);
        }
        self.recent.push((Arc::clone(&request.prompt), (request.tenant, request.cache_salt)));
        let client = Client {
            request,
            truth,
            got: 0,
            started: false,
            asked: None,
            doomed: None,
            peak_blocks: 0,
            told: 0,
            unread: 0,
            lag: ask.lag,
        };
        self.live.insert(id, client);
        self.reached.requests += 1;
    }

    /// Checks that a refusal is presentable.
    #[track_caller]
    pub fn refused(&mut self, refusal: &Refusal) {
        assert!(!refusal.message.is_empty() && refusal.message.len() <= 256, "{refusal:?}");
        self.reached.refused[Counters::refusal_index(refusal.reason)] += 1;
        self.note(refusal.reason as u64);
    }

    /// A batch is in flight.
    pub fn begins(&mut self, batch: &Batch) {
        for row in &batch.rows {
            let client = self.alive(row.sequence, "has a row");
            client.peak_blocks = client.peak_blocks.max(row.table_len);
        }
    }

    /// Clients read what they have been sent.
    pub fn read(&mut self, step: u64) {
        for client in self.live.values_mut() {
            match client.lag {
                0 => client.unread = 0,
                255 => {}
                lag if step.is_multiple_of(lag.into()) => client.unread = client.unread.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Checks an event of a request. Other events don't concern clients.
    pub fn hear(&mut self, event: &Event) {
        match event {
            Event::Started { id, cached_tokens, prefill_tokens, .. } => {
                let client = self.alive(*id, "starts");
                assert!(!std::mem::replace(&mut client.started, true), "{id:?} starts twice");
                let all = (cached_tokens + prefill_tokens) as usize;
                assert_eq!(all, client.prompt_len(), "cached and other tokens of {id:?}");
                self.reached.started += 1;
                self.reached.cached_tokens += u64::from(*cached_tokens);
                self.note(id.0 ^ 1 << 62);
            }
            Event::Token { id, token, logprobs } => self.token(*id, *token, logprobs.as_deref()),
            Event::Prompt { id, logprobs } => {
                let client = self.alive(*id, "is told of its prompt");
                for likely in logprobs {
                    client.told += 1;
                    let token = client.request.prompt.get(client.told);
                    // The scripted device reports a token's negative id as its log-probability.
                    assert_eq!(token, Some(&(-likely.logprob as u32)), "token {} of {id:?}", client.told);
                }
            }
            Event::Preempted { id } => {
                assert!(self.alive(*id, "is preempted").started, "{id:?} is preempted and never started");
                self.reached.preempted += 1;
            }
            Event::Finished { id, reason, usage } => self.finished(*id, *reason, usage),
            Event::Failed { id, cause, message, usage } => {
                self.alive(*id, "fails");
                let client = self.end(*id, usage);
                assert_eq!(client.doomed, Some(*cause), "why {id:?} fails: {message}");
                assert!(!message.is_empty());
                self.reached.failed += 1;
            }
            Event::Refused { id, refusal } => {
                let client = self.alive(*id, "is refused");
                assert!(!client.started, "{id:?} is refused after its start");
                self.live.remove(id);
                self.refused(refusal);
            }
            _ => {}
        }
    }

    fn token(&mut self, id: SequenceId, token: u32, logprobs: Option<&TokenLogprobs>) {
        let room = self.stream_events;
        let client = self.alive(id, "gets a token");
        assert!(client.started, "{id:?} gets a token before its start");
        let due = client.truth.get(client.len());
        assert_eq!(Some(&token), due, "token {} of {id:?}", client.got);
        if client.request.sampling.prompt_logprobs().is_some() {
            let likely = logprobs.map(|of| -of.logprob as u32);
            assert_eq!(likely, Some(token), "how likely token {} of {id:?} is", client.got);
            assert_eq!(client.told + 1, client.prompt_len(), "what {id:?} is told of its prompt");
        }
        client.got += 1;
        client.unread += 1;
        if client.unread > room && client.asked.is_none() {
            client.asked = Some(FinishReason::Cancelled);
            self.lagging.push(id);
            self.reached.lagging += 1;
        }
        self.reached.tokens += 1;
        self.note(id.0 << 8 ^ u64::from(token));
    }

    fn finished(&mut self, id: SequenceId, reason: FinishReason, usage: &Usage) {
        self.alive(id, "finishes");
        let client = self.end(id, usage);
        let last = client.truth[..client.len()].last();
        match reason {
            FinishReason::Length => {
                assert_eq!(client.got as u32, client.request.max_new_tokens, "length of {id:?}");
            }
            FinishReason::Eos => {
                let stops = last.is_some_and(|token| client.request.stop_tokens.contains(token));
                assert!(stops && client.got > 0, "{id:?} ends without an end token");
            }
            FinishReason::Stop | FinishReason::Cancelled => {
                assert_eq!(client.asked, Some(reason), "{id:?} ends for another reason than was asked for");
            }
        }
        if matches!(reason, FinishReason::Length | FinishReason::Eos) {
            assert_eq!(client.len(), client.truth.len(), "{id:?} ends before it is done");
        }
        let whose = (client.request.tenant.0 as u8, client.request.session.0 as u8);
        if whose.1 > 0 {
            self.turns.insert(whose, client.truth[..client.len()].to_vec());
        }
        self.reached.finished[Counters::finish_index(reason)] += 1;
        self.note(id.0 ^ (reason as u64) << 56);
    }

    fn end(&mut self, id: SequenceId, usage: &Usage) -> Client {
        let client = self.live.remove(&id).expect("it is alive");
        assert_eq!(usage.generated_tokens as usize, client.got, "usage of {id:?}");
        assert_eq!(usage.prompt_tokens as usize, client.prompt_len(), "usage of {id:?}");
        assert_eq!(usage.peak_blocks, client.peak_blocks, "usage of {id:?}");
        assert_eq!(usage.started != Micros::NEVER, client.started, "usage of {id:?}");
        assert_eq!(usage.first_token != Micros::NEVER, client.got > 0, "usage of {id:?}");
        let times = [Some(usage.arrived), known(usage.started), known(usage.first_token), Some(usage.ended)];
        assert!(times.iter().flatten().is_sorted(), "times of {id:?}: {usage:?}");
        client
    }

    /// Each call is a place of its own: a case that is minimized must not turn into another violation.
    #[track_caller]
    fn alive(&mut self, id: SequenceId, what: &str) -> &mut Client {
        match self.live.get_mut(&id) {
            Some(client) => client,
            None => panic!("{id:?} {what}, but it has ended or never was"),
        }
    }

    /// Folds a word into the fingerprint (FNV-1a).
    pub fn note(&mut self, word: u64) {
        self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01B3);
    }
}

fn known(time: Micros) -> Option<Micros> {
    (time != Micros::NEVER).then_some(time)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fuzz::generate;
    use crate::fuzz::watch::watch;

    #[test]
    fn different_events_of_an_unknown_request_break_in_different_places() {
        let setup = generate(1, 1, &[]).setup;
        let (id, usage) = (SequenceId(1), Usage::default());
        let events = [
            Event::Token { id, token: 1, logprobs: None },
            Event::Prompt { id, logprobs: Vec::new() },
            Event::Preempted { id },
            Event::Finished { id, reason: FinishReason::Length, usage },
            Event::Failed { id, cause: FailureCause::Device, message: "it failed".to_owned(), usage },
        ];
        let place = |event: &Event| {
            let mut clients = Clients::new(&setup);
            let (message, place) = watch(|| clients.hear(event)).expect_err("there is no such request");
            assert!(message.contains("has ended or never was"), "{message}");
            place
        };
        let places: BTreeSet<String> = events.iter().map(place).collect();
        assert_eq!(places.len(), events.len(), "{places:?}");
    }
}
