//! Generates the requests of a workload in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use infer_core::ids::{AdapterId, Micros, SessionId, TenantId};
use infer_core::request::{Request, SamplingParams};

use super::arrivals::Clock;
use super::source::{Ask, Begin, Source, outgrown, us};
use super::{Capacity, Limit, Traffic, Workload};
use crate::device::END_TOKEN;
use crate::metrics::count;
use crate::run::Settings;

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

/// Order of arrivals, which doesn't depend on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    at_us: u64,
    stream: usize,
    begin: u64,
}

/// What begins in this part of the traffic is reported on, to its end. A host that has just begun has fewer conversations
/// than the load means, so others begin before, and go on beginning until those of the report have ended.
#[derive(Clone, Copy, Debug)]
struct Span {
    from_us: u64,
    last: Rank,
    /// Requests of the last.
    last_asks: usize,
    until_us: u64,
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
        Arrival { background, ..self.request(stream, at, prompt, ask.output_tokens, None) }
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
        let whole = self.request(stream, at, prompt, ask.output_tokens, Some(conversation));
        let new_tokens = if continues { ask.prompt_tokens } else { whole.new_tokens };
        Arrival { background, begins: false, new_tokens, ..whole }
    }

    fn request(
        &self,
        stream: usize,
        at: Micros,
        prompt: Vec<u32>,
        output_tokens: u32,
        conversation: Option<u64>,
    ) -> Arrival {
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

impl Span {
    /// `requests` requests of what begins from `longest_us` on.
    fn new(mut sources: Vec<Source>, requests: u64, longest_us: u64) -> Self {
        let (mut ahead, streams) = (BTreeMap::new(), sources.len());
        let mut next = |ahead: &mut BTreeMap<Rank, usize>, stream: usize, number: u64| {
            let begin = sources[stream].begin();
            ahead.insert(Rank { at_us: begin.at_us, stream, begin: number }, begin.asks.len());
        };
        (0..streams).for_each(|stream| next(&mut ahead, stream, 0));
        let mut left = requests.max(1);
        loop {
            let (last, asks) = ahead.pop_first().expect("streams don't end");
            let counted = if last.at_us < longest_us { 0 } else { asks as u64 };
            if counted >= left {
                let last_asks = usize::try_from(left).expect("at most its requests");
                return Self { from_us: longest_us, last, last_asks, until_us: last.at_us + longest_us };
            }
            left -= counted;
            next(&mut ahead, last.stream, last.begin + 1);
        }
    }
}

/// How long the longest conversations last on a busy device, but at most a multiple of the run.
fn longest_us(workload: &Workload, capacity: &Capacity, run_s: f64) -> u64 {
    const MOST_RUNS: f64 = 4.0;
    let lasts_s = workload.streams.iter().zip(&capacity.streams).map(|(stream, pace)| {
        let answer_s = stream.output.mean() * pace.step_us / 1e6;
        stream.text.lasts_s(answer_s)
    });
    us(lasts_s.fold(0.0, f64::max).min(MOST_RUNS * run_s) * 1e6)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use infer_core::config::EngineConfig;

    use super::*;
    use crate::{Profile, Slo};

    const CONVERSING: [&str; 4] = ["chat", "window", "flood", "assistants"];

    #[derive(Default, PartialEq)]
    struct Asked {
        background: Vec<(u64, usize, u32, u32)>,
        reported: Vec<(u64, usize, u32, u32)>,
    }

    impl Asked {
        fn all(self) -> Vec<(u64, usize, u32, u32)> {
            [self.background, self.reported].concat()
        }
    }

    fn generator(workload: &str, requests: u64, max_seq_len: u32) -> Generator {
        let settings = Settings {
            engine: EngineConfig { max_seq_len, ..EngineConfig::default() },
            profile: Profile::named("h100", "8b").expect("a known profile"),
            host: Micros::ZERO,
            load: 0.8,
            slo: Slo::default(),
            seed: 1,
            tenants: Vec::new(),
        };
        let workload = Workload::named(workload, requests).expect("a known workload");
        Generator::new(&workload, &Capacity::of(&workload, &settings), &settings)
    }

    /// The requests to a host that takes `answer_us(n)` for the n-th one: conversation, turn, prompt and output length.
    fn asked(mut traffic: Generator, answer_us: fn(u64) -> u64) -> Asked {
        let (mut asked, mut turns) = (Asked::default(), BTreeMap::<u64, usize>::new());
        let mut answers = BTreeMap::new();
        for number in 0.. {
            while let Some(&(end, first)) = answers.keys().next()
                && traffic.next_at().is_none_or(|at| end <= at)
            {
                let (id, reply): (u64, Vec<u32>) = answers.remove(&(end, first)).expect("it is there");
                traffic.ended(id, Some(&reply), end);
            }
            let Some(at) = traffic.next_at() else { break };
            let arrival = traffic.pop(at).expect("it is due");
            let Request { prompt, max_new_tokens, .. } = arrival.request;
            let id = arrival.conversation.unwrap_or(u64::from(prompt[prompt.len() - 1]));
            let turn = turns.entry(id).and_modify(|turn| *turn += 1).or_default();
            assert!(arrival.output_tokens <= max_new_tokens);
            let part = if arrival.background { &mut asked.background } else { &mut asked.reported };
            part.push((id, *turn, prompt.len() as u32, arrival.output_tokens));
            if arrival.conversation.is_some() {
                let reply = vec![7; arrival.output_tokens as usize - 1];
                answers.insert((at.plus(Micros(answer_us(number))), number), (id, reply));
            }
        }
        asked.background.sort_unstable();
        asked.reported.sort_unstable();
        asked
    }

    #[test]
    fn requests_do_not_depend_on_the_speed_of_the_host() {
        for name in Workload::NAMES {
            let quick = asked(generator(name, 700, 8_192), |_| 1);
            let slow = asked(generator(name, 700, 8_192), |number| 500_000 + number * 7_919 % 20_000_000);
            assert_eq!(quick.reported.len(), 700, "{name}");
            assert_eq!(quick.background.is_empty(), !CONVERSING.contains(&name), "{name}");
            assert!(quick == slow, "{name}");
        }
    }

    #[test]
    fn short_context_only_drops_old_turns_of_conversations() {
        for name in Workload::NAMES {
            let longest = Workload::named(name, 1).expect("a known workload").longest();
            let [wide, tight] =
                [8_192, longest].map(|tokens| asked(generator(name, 700, tokens), |_| 1)).map(Asked::all);
            assert!(CONVERSING.contains(&name) || wide == tight, "{name}");
            // Shorter conversations are cheaper, so the same load has more of them, and some are only in one of the
            // runs.
            let wide: BTreeMap<_, _> =
                wide.into_iter().map(|(id, turn, prompt, output)| ((id, turn), (prompt, output))).collect();
            let mut seen = 0;
            for (id, turn, prompt, output) in tight {
                let Some((whole, same)) = wide.get(&(id, turn)) else { continue };
                assert!(prompt + output <= longest && output == *same, "{name}");
                assert!(prompt == *whole || turn > 0 && prompt < *whole, "{name}: {prompt} of {whole}");
                seen += 1;
            }
            assert!(seen > 500, "{name}: {seen}");
        }
    }

    #[test]
    fn every_prompt_is_distinct_even_after_dropping_turns() {
        let mut traffic = generator("chat", 300, 1_000);
        let (mut prompts, mut reported) = (BTreeSet::new(), 0);
        while let Some(at) = traffic.next_at() {
            let arrival = traffic.pop(at).expect("it is due");
            assert!(prompts.insert(arrival.request.prompt.to_vec()), "the prompt repeats");
            reported += u64::from(!arrival.background);
            let reply = vec![7; arrival.output_tokens as usize - 1];
            traffic.ended(arrival.conversation.expect("it converses"), Some(&reply), at);
        }
        assert_eq!(reported, 300);
    }

    #[test]
    fn conversations_share_their_system_prompt_and_nothing_else() {
        const HEAD: usize = 1_000;
        // So short that long conversations lose their oldest turns.
        let mut traffic = generator("assistants", 600, 2_000);
        let (mut told, mut whole, mut dropped) = (BTreeMap::<u64, Vec<u32>>::new(), 0, 0);
        let (mut by_head, mut bodies) = (BTreeMap::<Vec<u32>, u32>::new(), BTreeSet::new());
        while let Some(at) = traffic.next_at() {
            let arrival = traffic.pop(at).expect("it is due");
            let (id, prompt) = (arrival.conversation.expect("it converses"), arrival.request.prompt);
            let (head, turns) = prompt.split_at(HEAD);
            let known = told.entry(id).or_default();
            if known.is_empty() {
                *by_head.entry(head.to_vec()).or_default() += 1;
                assert!(bodies.insert(turns[0]), "the first turn begins like another's");
                assert_eq!(arrival.new_tokens as usize, prompt.len());
            }
            known.extend(&prompt[prompt.len() - arrival.new_tokens as usize..]);
            // All that was said, or the latest of it.
            assert!(known.starts_with(head) && known[HEAD..].ends_with(turns));
            let drops = known.len() > prompt.len();
            (dropped, whole) = (dropped + u32::from(drops), whole + u32::from(!drops));
            let reply = vec![7; arrival.output_tokens as usize - 1];
            traffic.ended(id, Some(&reply), at);
            known.extend(reply);
        }
        assert!(dropped > 100 && whole > 100, "{dropped} {whole}");
        let first_tokens: BTreeSet<u32> = by_head.keys().map(|head| head[0]).collect();
        assert_eq!(first_tokens.len(), by_head.len(), "system prompts differ from the first token on");
        let most = by_head.values().max().expect("some began");
        assert!(by_head.len() > 20 && *most > 10, "{:?}", by_head.values());
    }

    #[test]
    fn refused_turns_leave_out_nothing_but_their_own_text() {
        let (mut reported, mut last) = (0, BTreeMap::<u64, Vec<u32>>::new());
        let mut traffic = generator("chat", 300, 8_192);
        for number in 0.. {
            let Some(at) = traffic.next_at() else { break };
            let arrival = traffic.pop(at).expect("it is due");
            reported += u64::from(!arrival.background);
            let (id, prompt) = (arrival.conversation.expect("it converses"), arrival.request.prompt);
            let before = last.entry(id).or_default();
            assert!(prompt.starts_with(before) && arrival.new_tokens > 0);
            assert_eq!(prompt.len(), before.len() + arrival.new_tokens as usize);
            if number % 3 == 0 {
                traffic.ended(id, None, at);
                continue;
            }
            let reply = vec![7; arrival.output_tokens as usize - 1];
            traffic.ended(id, Some(&reply), at);
            *before = [&prompt[..], &reply].concat();
        }
        assert_eq!(reported, 300);
    }
}
