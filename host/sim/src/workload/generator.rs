//! Turns streams into requests, one after another in virtual time.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_core::ids::{Micros, SessionId, TenantId};
use infer_core::request::{Request, SamplingParams};

use super::arrivals::Clock;
use super::{Limit, Stream, Text, Traffic, Workload};
use crate::cost::Profile;
use crate::device::END_TOKEN;
use crate::random::Random;

/// A request that arrives.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When.
    pub at: Micros,
    /// Names it to its traffic, which wants to hear how it ends.
    pub conversation: Option<u64>,
    /// What is asked.
    pub request: Request,
    /// Tokens that it will really generate.
    pub output_tokens: u32,
}

/// The traffic of one run.
#[derive(Debug)]
pub struct Generator {
    streams: Vec<Source>,
    /// What arrives next: of each open stream one, and the turns that are due.
    due: BTreeMap<(u64, u64), Due>,
    conversations: BTreeMap<u64, Conversation>,
    left: u64,
    serial: u64,
    max_seq_len: u32,
}

#[derive(Debug)]
struct Source {
    stream: Stream,
    clock: Clock,
    random: Random,
    /// Names its texts.
    identity: u64,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Begin { stream: usize },
    Turn { conversation: u64 },
}

#[derive(Debug)]
struct Conversation {
    stream: usize,
    turns_left: u32,
    /// What was said so far, turn by turn.
    turns: Vec<Vec<u32>>,
}

impl Generator {
    /// The traffic of `workload` at `load` times what `profile` can finish with `running` sequences at once.
    pub fn new(
        workload: &Workload,
        profile: &Profile,
        load: f64,
        running: u32,
        max_seq_len: u32,
        seed: u64,
    ) -> Self {
        let mut generator = Self {
            streams: Vec::new(),
            due: BTreeMap::new(),
            conversations: BTreeMap::new(),
            left: workload.requests,
            serial: 0,
            max_seq_len,
        };
        for (at, stream) in workload.streams.iter().enumerate() {
            let mut random = Random::new(seed, at as u64);
            let capacity = profile.capacity(stream.fresh_tokens(), stream.output.mean(), running);
            let clock = Clock::new(stream.arrivals, stream.rate(capacity, load).max(1e-6));
            let identity = random.bits();
            generator.streams.push(Source { stream: stream.clone(), clock, random, identity });
            generator.begin_later(at);
        }
        generator
    }

    fn add(&mut self, at: u64, due: Due) {
        self.serial += 1;
        self.due.insert((at, self.serial), due);
    }

    fn begin_later(&mut self, stream: usize) {
        let source = &mut self.streams[stream];
        let at = source.clock.next(&mut source.random);
        self.add(at, Due::Begin { stream });
    }

    fn open_conversation(&mut self, stream: usize) -> Option<u64> {
        let source = &mut self.streams[stream];
        let Text::Conversation { turns, .. } = source.stream.text else { return None };
        let turns_left = super::Lengths::Uniform(1, (2 * turns).saturating_sub(1)).draw(&mut source.random);
        let id = source.random.bits() | 1;
        self.conversations.insert(id, Conversation { stream, turns_left, turns: Vec::new() });
        Some(id)
    }

    fn single(&mut self, stream: usize, at: Micros) -> Arrival {
        let source = &mut self.streams[stream];
        let fresh = source.stream.prompt.draw(&mut source.random);
        let mut prompt = Vec::new();
        if let Text::Shared { prefixes, tokens } = source.stream.text {
            let which = source.random.below(u64::from(prefixes.max(1)));
            text(&mut prompt, source.identity ^ which, tokens);
        }
        let own = source.random.bits();
        text(&mut prompt, own, fresh);
        self.request(stream, at, prompt, None)
    }

    fn turn(&mut self, conversation: u64, at: Micros) -> Arrival {
        let state = self.conversations.get_mut(&conversation).expect("its turn is due");
        state.turns_left -= 1;
        let stream = state.stream;
        let source = &mut self.streams[stream];
        let mut question = Vec::new();
        let (own, fresh) = (source.random.bits(), source.stream.prompt.draw(&mut source.random));
        text(&mut question, own, fresh);
        state.turns.push(question);
        let Text::Conversation { window, .. } = source.stream.text else { unreachable!("it converses") };
        while state.turns.len() > 1 && state.turns.iter().map(Vec::len).sum::<usize>() > window as usize {
            state.turns.remove(0);
        }
        let prompt = state.turns.concat();
        self.request(stream, at, prompt, Some(conversation))
    }

    fn request(
        &mut self,
        stream: usize,
        at: Micros,
        mut prompt: Vec<u32>,
        conversation: Option<u64>,
    ) -> Arrival {
        let Source { stream: kind, random, .. } = &mut self.streams[stream];
        let wanted = kind.output.draw(random);
        let limit = match kind.limit {
            Limit::Tight => wanted.next_power_of_two(),
            Limit::Fixed(limit) => limit.max(1),
        };
        let limit = limit.min(self.max_seq_len - 1);
        prompt.truncate((self.max_seq_len - limit) as usize);
        let deadline = kind.ttft_ms.map_or(Micros::NEVER, |ms| at.plus(Micros(ms * 1_000)));
        let request = Request {
            tenant: TenantId(kind.tenant),
            session: SessionId(conversation.unwrap_or(0)),
            cache_salt: 0,
            priority: kind.priority,
            deadline,
            prompt: Arc::from(prompt),
            max_new_tokens: limit,
            min_new_tokens: 0,
            stop_tokens: Arc::from([END_TOKEN]),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        };
        Arrival { at, conversation, request, output_tokens: wanted.min(limit) }
    }
}

impl Traffic for Generator {
    fn next_at(&self) -> Option<Micros> {
        if self.left == 0 { None } else { self.due.keys().next().map(|&(at, _)| Micros(at)) }
    }

    fn pop(&mut self, now: Micros) -> Option<Arrival> {
        let at = self.next_at().filter(|&at| at <= now)?;
        let (_, due) = self.due.pop_first().expect("something is due");
        self.left -= 1;
        let conversation = match due {
            Due::Begin { stream } => {
                self.begin_later(stream);
                match self.open_conversation(stream) {
                    Some(conversation) => conversation,
                    None => return Some(self.single(stream, at)),
                }
            }
            Due::Turn { conversation } => conversation,
        };
        Some(self.turn(conversation, at))
    }

    fn ended(&mut self, conversation: u64, reply: Option<&[u32]>, now: Micros) {
        let Some(state) = self.conversations.get_mut(&conversation) else { return };
        if let (Some(reply), Some(last)) = (reply, state.turns.last_mut()) {
            last.extend(reply.iter().filter(|&&token| token != END_TOKEN));
        }
        if state.turns_left == 0 || reply.is_none() {
            self.conversations.remove(&conversation);
            return;
        }
        let source = &mut self.streams[state.stream];
        let Text::Conversation { think_s, .. } = source.stream.text else { return };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
        let think = (source.random.exponential(think_s.max(1e-6)) * 1e6) as u64;
        self.add(now.plus(Micros(think)).0, Due::Turn { conversation });
    }
}

/// Appends the first `tokens` tokens of the text with this name.
pub(crate) fn text(to: &mut Vec<u32>, identity: u64, tokens: u32) {
    to.extend((0..u64::from(tokens)).map(|at| {
        let mixed = (identity ^ at.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        1 + ((mixed ^ (mixed >> 29)) >> 33) as u32
    }));
}
