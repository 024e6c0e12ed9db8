//! Replays a trace: requests arrive at their recorded times, except that a follow-up waits for its predecessor's end.
//!
//! Prompt text is generated from block ids, so prompts share the same prefixes as in the recording. A prefix shared
//! with another request's output is copied from the output generated in the replay. Those outputs are kept up to a
//! bound, oldest dropped first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use infer_core::ids::{AdapterId, Micros, SessionId, TenantId};
use infer_core::request::{Request, SamplingExtras, SamplingParams};

use super::{After, Reader, Recorded, Text, TraceError};
use crate::device::END_TOKEN;
use crate::workload::{Arrival, Traffic, text};

/// Requests to read ahead, because a follow-up may be due earlier than in the recording.
const AHEAD: usize = 1_024;
/// Maximum number of requests that wait for others. Reading goes on past them while requests behind them may be due.
const WAITING: usize = 1 << 16;
/// Tokens of earlier requests kept for requests that share them.
const KEPT_TOKENS: usize = 16 << 20;

/// The traffic of a trace.
pub struct Replay<'a> {
    reader: Option<Reader<'a>>,
    error: Option<TraceError>,
    /// Factor by which it is replayed faster than recorded.
    speed: f64,
    left: u64,
    due: BTreeMap<(u64, u64), Recorded>,
    /// Read but not yet arrived requests that others may wait for.
    ahead: BTreeSet<u64>,
    /// Waiting requests, by the request that they wait for.
    waiting: BTreeMap<u64, Vec<Recorded>>,
    waits: usize,
    /// Recorded time of the last request read, scaled.
    read_to: u64,
    /// Time up to which everything due has been returned.
    asked_at: Micros,
    kept: Kept,
    max_seq_len: u32,
    /// Token ids of generated text are below this.
    vocab_size: u32,
    /// Mixed into the identities of all texts.
    seed: u64,
    serial: u64,
    /// Names of tenants.
    names: BTreeMap<u32, Arc<str>>,
}

impl<'a> Replay<'a> {
    /// Replays the first `requests` requests of a trace, `speed` times as fast.
    #[must_use]
    pub fn new(reader: Reader<'a>, speed: f64, requests: u64, max_seq_len: u32) -> Self {
        let mut replay = Self {
            reader: Some(reader),
            error: None,
            speed,
            left: requests,
            due: BTreeMap::new(),
            ahead: BTreeSet::new(),
            waiting: BTreeMap::new(),
            waits: 0,
            read_to: 0,
            asked_at: Micros::ZERO,
            kept: Kept::default(),
            max_seq_len,
            vocab_size: u32::MAX,
            seed: 0,
            serial: 0,
            names: BTreeMap::new(),
        };
        replay.read_ahead();
        replay
    }

    /// For a model that knows only this many tokens, at least 1.
    #[must_use]
    pub fn within(self, vocab_size: u32) -> Self {
        Self { vocab_size: vocab_size.max(1), ..self }
    }

    /// With texts that differ from those of other seeds, for a host that may have cached those.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { seed: seed.wrapping_mul(0xD1B5_4A32_D192_ED03), ..self }
    }

    /// What the trace calls a tenant, if it has more than a number.
    #[must_use]
    pub fn name_of(&self, tenant: u32) -> Option<String> {
        self.names.get(&tenant).map(ToString::to_string)
    }

    /// The error that ended the replay early, if any.
    pub fn error(&mut self) -> Option<TraceError> {
        self.error.take()
    }

    /// Reads until the next arrival is certain, and some requests beyond.
    fn read_ahead(&mut self) {
        while self.left > 0
            && (self.due.len() + self.waits < AHEAD || self.is_behind() && self.waits < WAITING)
            && let Some(reader) = &mut self.reader
        {
            match reader.next() {
                Some(Ok(recorded)) => {
                    self.left -= 1;
                    self.read_to = self.scaled(recorded.at_us);
                    self.place(recorded);
                }
                ended => {
                    self.error = ended.and_then(Result::err);
                    self.reader = None;
                }
            }
        }
    }

    /// Whether an unread record might be due before the earliest request already queued.
    fn is_behind(&self) -> bool {
        self.due.keys().next().is_none_or(|&(first, _)| self.read_to < first)
    }

    /// Queues a request, or lets it wait for a predecessor that hasn't ended.
    fn place(&mut self, recorded: Recorded) {
        let at = self.scaled(recorded.at_us);
        if let Some(name) = &recorded.tenant_name {
            self.names.entry(recorded.tenant).or_insert_with(|| Arc::clone(name));
        }
        if recorded.followed {
            self.ahead.insert(recorded.id);
        }
        match recorded.after {
            Some(After { id, think_us }) => match self.kept.state(id) {
                Some(State::Ended(ended)) => self.add(ended.saturating_add(self.scaled(think_us)), recorded),
                Some(State::Live) => self.wait(id, recorded),
                None if self.ahead.contains(&id) => self.wait(id, recorded),
                None => self.come(at, recorded),
            },
            None => self.come(at, recorded),
        }
    }

    /// Queues a request at its recorded time, which must not have passed.
    fn come(&mut self, at: u64, recorded: Recorded) {
        if at < self.asked_at.0 {
            (self.error, self.reader) = (Some(TraceError::Behind { waiting: self.waits }), None);
        }
        self.add(at, recorded);
    }

    fn wait(&mut self, id: u64, recorded: Recorded) {
        self.waits += 1;
        self.waiting.entry(id).or_default().push(recorded);
    }

    fn add(&mut self, at: u64, recorded: Recorded) {
        self.serial += 1;
        self.due.insert((at, self.serial), recorded);
    }

    fn scaled(&self, us: u64) -> u64 {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "times far below 2^53"
        )]
        let scaled = (us as f64 / self.speed) as u64;
        scaled
    }

    fn request(&mut self, recorded: &Recorded, at: Micros) -> Arrival {
        // A request that is too long goes to the engine, which refuses it as the recorded host would have.
        let wanted = recorded.output_tokens.min(self.max_seq_len.max(1));
        let limit = recorded.max_tokens.max(wanted);
        let prompt: Arc<[u32]> = self.prompt(recorded).into();
        if recorded.followed {
            self.ahead.remove(&recorded.id);
            self.kept.begin(recorded.id, Arc::clone(&prompt));
        }
        let deadline = recorded.ttft_us.map_or(Micros::NEVER, |us| at.plus(Micros(us)));
        let vector = || Arc::new(SamplingExtras { embed: true, ..SamplingExtras::default() });
        let sampling = SamplingParams {
            temperature: 0.0,
            extras: recorded.embeds.then(vector),
            ..SamplingParams::default()
        };
        let request = Request {
            tenant: TenantId(recorded.tenant),
            session: SessionId(recorded.session),
            cache_salt: 0,
            adapter: AdapterId::NONE,
            priority: recorded.priority,
            deadline,
            prompt,
            max_new_tokens: limit,
            expected_output: recorded.expected_output,
            min_new_tokens: 0,
            stop_tokens: Arc::from([END_TOKEN]),
            sampling,
        };
        let key = recorded.followed.then_some(recorded.id);
        let continued = recorded.text.shares.map_or(0, |shares| shares.tokens).max(recorded.continued);
        Arrival {
            at,
            conversation: key,
            background: false,
            begins: recorded.after.is_none(),
            follows: recorded.after.is_some(),
            identity: recorded.id,
            request,
            prompt_tokens: recorded.prompt_tokens,
            output_tokens: wanted,
            new_tokens: recorded.prompt_tokens.saturating_sub(continued),
            stream: None,
        }
    }

    fn prompt(&self, recorded: &Recorded) -> Vec<u32> {
        let Text { block_tokens, blocks, whole, shares } = &recorded.text;
        // One token too many is refused like any longer prompt.
        let length = recorded.prompt_tokens.min(self.max_seq_len.saturating_add(1)) as usize;
        let mut prompt = Vec::with_capacity(length);
        if let Some(shares) = shares {
            self.kept.copy(shares.id, (shares.tokens as usize).min(length), &mut prompt);
        }
        let block_tokens = (*block_tokens).max(1);
        for (name, from) in blocks.iter().zip((0..length).step_by(block_tokens as usize)) {
            let end = length.min(from + block_tokens as usize);
            if prompt.len() < end {
                // As much as is needed: a block of a recording may be of any size.
                let mut block = Vec::with_capacity(end - from);
                self.text(&mut block, *name, (end - from) as u32);
                prompt.extend(&block[prompt.len() - from..]);
            }
        }
        let rest = (length - prompt.len()) as u32;
        let own = if *whole == 0 { recorded.id.wrapping_mul(0x9E37_79B9_7F4A_7C15) } else { *whole };
        self.text(&mut prompt, own ^ 0x7461_696C, rest);
        prompt
    }

    fn text(&self, to: &mut Vec<u32>, identity: u64, tokens: u32) {
        let from = to.len();
        text(to, identity ^ self.seed, tokens);
        to[from..].iter_mut().for_each(|token| *token %= self.vocab_size);
    }
}

impl Traffic for Replay<'_> {
    fn next_at(&self) -> Option<Micros> {
        self.due.keys().next().map(|&(at, _)| Micros(at))
    }

    fn pop(&mut self, now: Micros) -> Option<Arrival> {
        let Some(at) = self.next_at().filter(|&at| at <= now) else {
            self.asked_at = now;
            return None;
        };
        let (_, recorded) = self.due.pop_first().expect("something is due");
        let arrival = self.request(&recorded, at);
        self.read_ahead();
        Some(arrival)
    }

    fn ended(&mut self, id: u64, reply: Option<&[u32]>, now: Micros) {
        self.kept.end(id, reply.unwrap_or_default(), now);
        for recorded in self.waiting.remove(&id).unwrap_or_default() {
            self.waits -= 1;
            let think_us = recorded.after.map_or(0, |after| after.think_us);
            self.add(now.0.saturating_add(self.scaled(think_us)), recorded);
        }
        self.read_ahead();
    }
}

/// Earlier requests that others may refer to.
#[derive(Default)]
struct Kept {
    sequences: BTreeMap<u64, Sequence>,
    ended: VecDeque<u64>,
    tokens: usize,
}

struct Sequence {
    prompt: Arc<[u32]>,
    reply: Box<[u32]>,
    ended: Option<u64>,
}

enum State {
    Live,
    Ended(u64),
}

impl Kept {
    fn begin(&mut self, id: u64, prompt: Arc<[u32]>) {
        self.tokens += prompt.len();
        self.sequences.insert(id, Sequence { prompt, reply: Box::default(), ended: None });
    }

    fn end(&mut self, id: u64, reply: &[u32], now: Micros) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.reply = reply.into();
        sequence.ended = Some(now.0);
        self.tokens += reply.len();
        self.ended.push_back(id);
        while self.tokens > KEPT_TOKENS
            && let Some(oldest) = self.ended.pop_front()
            && let Some(sequence) = self.sequences.remove(&oldest)
        {
            self.tokens -= sequence.prompt.len() + sequence.reply.len();
        }
    }

    fn state(&self, id: u64) -> Option<State> {
        let sequence = self.sequences.get(&id)?;
        Some(sequence.ended.map_or(State::Live, State::Ended))
    }

    /// Appends the first `tokens` tokens of a sequence, or as many as it has.
    fn copy(&self, id: u64, tokens: usize, to: &mut Vec<u32>) {
        if let Some(sequence) = self.sequences.get(&id) {
            to.extend(sequence.prompt.iter().chain(&sequence.reply).take(tokens));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Shares, in_order};

    /// One request, `waiting` that wait for its end, and an independent one.
    fn replay(waiting: u64) -> Replay<'static> {
        let first =
            Recorded { id: 1, prompt_tokens: 5, output_tokens: 5, followed: true, ..Recorded::default() };
        let turn = Recorded { after: Some(After { id: 1, think_us: 7 }), followed: false, ..first.clone() };
        let turns = (0..waiting).map(move |n| Recorded { id: n + 2, at_us: n / 10 + 1, ..turn.clone() });
        let alone = Recorded { id: waiting + 2, at_us: 1_000_000, followed: false, ..first.clone() };
        let all = std::iter::once(first).chain(turns).chain([alone]);
        Replay::new(in_order(all.map(Ok)), 1.0, u64::MAX, 64)
    }

    #[test]
    fn waiting_requests_dont_delay_independent_ones() {
        for waiting in [3, 20_000] {
            let mut replay = replay(waiting);
            assert!(replay.pop(Micros(1)).is_some_and(|first| first.conversation == Some(1)));
            assert!(replay.pop(Micros(1)).is_none(), "the others are waiting");
            assert_eq!(replay.next_at(), Some(Micros(1_000_000)), "of {waiting}");
            replay.ended(1, Some(&[3, 4]), Micros(2_000_000));
            let rest: Vec<Arrival> = std::iter::from_fn(|| replay.pop(Micros(3_000_000))).collect();
            assert_eq!(rest.len() as u64, waiting + 1);
            assert_eq!((rest[0].at, rest[1].at), (Micros(1_000_000), Micros(2_000_007)));
            assert!(replay.error().is_none());
        }
    }

    #[test]
    fn seed_and_vocabulary_decide_the_text_and_not_what_is_shared() {
        let one = |id, block| {
            let text = Text { block_tokens: 8, blocks: vec![block, id], ..Text::default() };
            Recorded { id, prompt_tokens: 20, output_tokens: 1, text, ..Recorded::default() }
        };
        let prompts = |seed| -> Vec<Arc<[u32]>> {
            let all = [one(1, 7), one(2, 7), one(3, 9)].map(Ok);
            let mut replay =
                Replay::new(in_order(all.into_iter()), 1.0, u64::MAX, 64).within(500).seeded(seed);
            std::iter::from_fn(|| replay.pop(Micros(1))).map(|arrival| arrival.request.prompt).collect()
        };
        let (first, again, other) = (prompts(1), prompts(1), prompts(2));
        assert_eq!(first, again);
        for of in [&first, &other] {
            assert!(of.iter().all(|prompt| prompt.len() == 20 && prompt.iter().all(|&token| token < 500)));
            assert_eq!(of[0][..8], of[1][..8]);
            assert_ne!(of[0][8..16], of[1][8..16]);
            assert_ne!(of[0][..8], of[2][..8]);
        }
        assert!(first.iter().zip(&other).all(|(a, b)| a[..8] != b[..8] && a[16..] != b[16..]));
    }

    #[test]
    fn what_continues_an_earlier_request_is_not_new() {
        let first =
            Recorded { id: 1, prompt_tokens: 5, output_tokens: 5, followed: true, ..Recorded::default() };
        let text = Text { shares: Some(Shares { id: 1, tokens: 9 }), ..Text::default() };
        let after = Some(After { id: 1, think_us: 7 });
        let turn = Recorded { id: 2, at_us: 1, prompt_tokens: 12, text, after, ..first.clone() };
        let mut replay = Replay::new(in_order([first, turn].map(Ok).into_iter()), 1.0, u64::MAX, 64);
        assert_eq!(replay.pop(Micros(1)).expect("the first").new_tokens, 5);
        replay.ended(1, Some(&[3, 4, 5, 6]), Micros(10));
        let turn = replay.pop(Micros(17)).expect("the turn");
        assert_eq!((turn.new_tokens, &turn.request.prompt[5..9]), (3, &[3, 4, 5, 6][..]));
    }

    #[test]
    fn prompt_that_is_too_long_keeps_its_length_and_is_made_no_longer_than_is_refused() {
        let long = Recorded { id: 1, prompt_tokens: 9_000, output_tokens: 1, ..Recorded::default() };
        let mut replay = Replay::new(in_order([Ok(long)].into_iter()), 1.0, u64::MAX, 64);
        let arrival = replay.pop(Micros(1)).expect("the request");
        assert_eq!((arrival.prompt_tokens, arrival.new_tokens), (9_000, 9_000));
        assert_eq!(arrival.request.prompt.len(), 65);
    }

    #[test]
    fn trace_that_falls_too_far_behind_is_an_error() {
        let mut replay = replay(WAITING as u64 + 1);
        assert!(replay.pop(Micros(1)).is_some() && replay.pop(Micros(1)).is_none());
        assert_eq!((replay.next_at(), replay.waits), (None, WAITING));
        assert!(replay.pop(Micros(2_000_000)).is_none());
        replay.ended(1, Some(&[3, 4]), Micros(2_000_000));
        while replay.pop(Micros(3_000_000)).is_some() {}
        let error = replay.error().expect("one is late").to_string();
        assert!(error.contains("replay the trace more slowly"), "{error}");
    }
}
