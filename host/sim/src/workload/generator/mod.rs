//! Generates the requests of a workload in virtual time.

mod span;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use infer_core::ids::{AdapterId, Micros, SessionId, TenantId};
use infer_core::request::{Request, SamplingParams};

use super::arrivals::Clock;
use super::source::{Ask, Begin, Source, outgrown};
use super::{Capacity, Limit, Traffic, Workload};
use crate::device::END_TOKEN;
use crate::metrics::count;
use crate::run::Settings;
use span::{Rank, Span, longest_us};

/// A request that arrives.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Time of arrival.
    pub at: Micros,
    /// Key under which the traffic must be notified of its end; `None` if it need not be.
    pub conversation: Option<u64>,
    /// It comes before or after those that a run reports on.
    pub background: bool,
    /// It continues nothing.
    pub begins: bool,
    /// It waited for another one's end, and no other traffic goes on meanwhile: a client sends the next one when this
    /// one ends, so that the traffic lasts at least until then.
    pub follows: bool,
    /// A number of its own among all of the traffic, whatever the host does.
    pub identity: u64,
    /// The request.
    pub request: Request,
    /// Tokens of its prompt. A trace's may be longer than any that is accepted; then `request` has only so much of it
    /// that it is refused as well.
    pub prompt_tokens: u32,
    /// Actual length of its output.
    pub output_tokens: u32,
    /// Tokens of its prompt behind the conversation so far; of a request that continues nothing, all.
    pub new_tokens: u32,
    /// Index of its stream in the workload; `None` in a trace.
    pub stream: Option<u32>,
}

/// The traffic of one run.
#[derive(Debug)]
pub struct Generator {
    streams: Vec<Source>,
    /// Upcoming arrivals: the next one of each stream, and scheduled turns.
    due: BTreeMap<(u64, u64), Due>,
    conversations: BTreeMap<u64, Conversation>,
    begun: Vec<u64>,
    span: Span,
    /// Requests of the report that have yet to arrive.
    left: u64,
    serial: u64,
    max_seq_len: u32,
}

#[derive(Debug)]
enum Due {
    Begin { stream: usize, begin: Begin, background: bool },
    Turn { conversation: u64 },
}

#[derive(Debug)]
struct Conversation {
    stream: usize,
    background: bool,
    /// Remaining turns, the next one first.
    asks: VecDeque<Ask>,
    /// Id and length of its system prompt.
    system: Option<(u64, u32)>,
    /// History, turn by turn.
    turns: Vec<Vec<u32>>,
}

impl Generator {
    /// The traffic of `workload` at the settings' load, which is a fraction of `capacity`.
    ///
    /// # Panics
    /// If a request of the workload may exceed the maximum sequence length, see `Workload::longest`.
    pub fn new(workload: &Workload, capacity: &Capacity, settings: &Settings) -> Self {
        let max_seq_len = settings.engine.max_seq_len;
        assert!(workload.longest() <= max_seq_len, "the longest request must fit");
        let rates: Vec<f64> =
            capacity.streams.iter().map(|pace| (settings.load * pace.per_s).max(1e-6)).collect();
        let run_s = count(workload.requests) / rates.iter().sum::<f64>();
        let sources = workload.streams.iter().zip(rates).zip(0..);
        let streams: Vec<Source> = sources
            .map(|((stream, rate), at)| {
                let clock = Clock::new(stream.arrivals, rate / stream.text.turns(), run_s);
                Source::new(stream, clock, settings.seed, at)
            })
            .collect();
        let mut generator = Self {
            begun: vec![0; streams.len()],
            span: Span::new(streams.clone(), workload.requests, longest_us(workload, capacity, run_s)),
            streams,
            due: BTreeMap::new(),
            conversations: BTreeMap::new(),
            left: workload.requests,
            serial: 0,
            max_seq_len,
        };
        (0..generator.streams.len()).for_each(|stream| generator.begin_later(stream));
        generator
    }

    fn add(&mut self, at: u64, due: Due) {
        self.serial += 1;
        self.due.insert((at, self.serial), due);
    }

    fn begin_later(&mut self, stream: usize) {
        let mut begin = self.streams[stream].begin();
        let rank = Rank { at_us: begin.at_us, stream, begin: self.begun[stream] };
        self.begun[stream] += 1;
        let Span { from_us, last, last_asks, until_us } = self.span;
        if rank == last {
            begin.asks.truncate(last_asks);
        }
        if rank <= last || rank.at_us < until_us {
            let background = rank.at_us < from_us || rank > last;
            self.add(begin.at_us, Due::Begin { stream, begin, background });
        }
    }

    fn begin(&mut self, stream: usize, begin: Begin, background: bool, at: Micros) -> Arrival {
        let Begin { conversation, prefix, mut asks, .. } = begin;
        if let Some(id) = conversation {
            let state = Conversation { stream, background, asks, system: prefix, turns: Vec::new() };
            self.conversations.insert(id, state);
            return Arrival { begins: true, ..self.turn(id, at) };
        }
        let ask = asks.pop_front().expect("it has one");
        let mut prompt = head(prefix);
        text(&mut prompt, ask.text, ask.prompt_tokens);
        Arrival { background, ..self.request(stream, at, prompt, &ask, None) }
    }

    fn turn(&mut self, conversation: u64, at: Micros) -> Arrival {
        let state = self.conversations.get_mut(&conversation).expect("its turn is due");
        let ask = state.asks.pop_front().expect("there is another turn");
        let mut question = Vec::new();
        text(&mut question, ask.text, ask.prompt_tokens);
        let continues = !state.turns.is_empty();
        state.turns.push(question);
        let window = self.streams[state.stream].stream.text.window(self.max_seq_len, ask.output_tokens);
        let gone = outgrown(state.turns.iter().map(Vec::len), window);
        state.turns.drain(..gone);
        let mut prompt = head(state.system);
        state.turns.iter().for_each(|turn| prompt.extend(turn));
        let (stream, background) = (state.stream, state.background);
        let whole = self.request(stream, at, prompt, &ask, Some(conversation));
        let new_tokens = if continues { ask.prompt_tokens } else { whole.new_tokens };
        Arrival { background, begins: false, new_tokens, ..whole }
    }

    fn request(
        &self,
        stream: usize,
        at: Micros,
        prompt: Vec<u32>,
        ask: &Ask,
        conversation: Option<u64>,
    ) -> Arrival {
        let output_tokens = ask.output_tokens;
        let kind = &self.streams[stream].stream;
        let limit = match kind.limit {
            Limit::Tight => output_tokens.next_power_of_two(),
            Limit::Fixed(limit) => limit.max(1),
        };
        let prompt_tokens = u32::try_from(prompt.len()).expect("prompts are bounded");
        // Clients request no more tokens than fit after the prompt.
        let room = self.max_seq_len - prompt_tokens;
        let deadline = kind.ttft_ms.map_or(Micros::NEVER, |ms| at.plus(Micros(ms * 1_000)));
        let request = Request {
            tenant: TenantId(kind.tenant),
            session: SessionId(conversation.unwrap_or(0)),
            cache_salt: 0,
            adapter: AdapterId::NONE,
            priority: kind.priority,
            deadline,
            prompt: Arc::from(prompt),
            max_new_tokens: limit.min(room),
            expected_output: None,
            min_new_tokens: 0,
            stop_tokens: Arc::from([END_TOKEN]),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        };
        Arrival {
            at,
            conversation,
            background: false,
            begins: true,
            follows: false,
            identity: ask.text,
            request,
            prompt_tokens,
            output_tokens,
            new_tokens: prompt_tokens,
            stream: u32::try_from(stream).ok(),
        }
    }
}

impl Traffic for Generator {
    fn next_at(&self) -> Option<Micros> {
        self.due.keys().next().map(|&(at, _)| Micros(at))
    }

    fn pop(&mut self, now: Micros) -> Option<Arrival> {
        let at = self.next_at().filter(|&at| at <= now)?;
        let (_, due) = self.due.pop_first().expect("something is due");
        let arrival = match due {
            Due::Begin { stream, begin, background } => {
                self.begin_later(stream);
                self.begin(stream, begin, background, at)
            }
            Due::Turn { conversation } => self.turn(conversation, at),
        };
        self.left -= u64::from(!arrival.background);
        Some(arrival)
    }

    fn is_over(&self) -> bool {
        self.left == 0
    }

    fn ended(&mut self, conversation: u64, reply: Option<&[u32]>, now: Micros) {
        let Some(state) = self.conversations.get_mut(&conversation) else { return };
        match reply {
            Some(reply) => {
                let last = state.turns.last_mut().expect("it was just asked");
                last.extend(reply.iter().filter(|&&token| token != END_TOKEN));
            }
            // The client gives the question up, and asks its next one.
            None => _ = state.turns.pop(),
        }
        match state.asks.front() {
            Some(next) => {
                let at = now.plus(Micros(next.think_us)).0;
                self.add(at, Due::Turn { conversation });
            }
            None => _ = self.conversations.remove(&conversation),
        }
    }
}

/// The text that a prompt shares with others, if any.
fn head(prefix: Option<(u64, u32)>) -> Vec<u32> {
    let mut prompt = Vec::new();
    if let Some((identity, tokens)) = prefix {
        text(&mut prompt, identity, tokens);
    }
    prompt
}

/// Appends the first `tokens` tokens of the text with id `identity`.
pub(crate) fn text(to: &mut Vec<u32>, identity: u64, tokens: u32) {
    to.extend((0..u64::from(tokens)).map(|at| {
        let mixed = (identity ^ at.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        1 + ((mixed ^ (mixed >> 29)) >> 33) as u32
    }));
}
