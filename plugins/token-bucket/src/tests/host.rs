//! A host in miniature: whole workloads of one tenant in virtual time, and what it gets to use.

use infer_policy_sdk::testing::{Rng, for_seeds};

use super::*;

/// Milliseconds that a step takes; in each, everything that runs generates a token.
const STEP_MS: u64 = 20;
const CONTEXT: u32 = 4_096;

struct Host {
    policy: TokenBucket,
    rate: u32,
    burst: u32,
    millis: u64,
    /// Requests that run, by their place in `lives`.
    running: Vec<usize>,
    lives: Vec<Life>,
    uses: Vec<Use>,
    output: u64,
    mean_output: Option<u32>,
    asked: u64,
}

/// An admitted request. Its first and last event are places in `uses`.
struct Life {
    first: usize,
    last: Option<usize>,
    left: u32,
    length: u32,
}

#[derive(Clone, Copy)]
struct Use {
    millis: u64,
    tokens: u32,
    request: usize,
    is_prompt: bool,
}

/// What a client asks for, and how long its output will be.
#[derive(Clone, Copy, Debug)]
struct Ask {
    prompt: u32,
    max_output: u32,
    length: u32,
}

impl Host {
    fn new(rate: u32, burst: u32) -> Self {
        let policy = policy(&format!(r#"{{"tokens_per_minute": {rate}, "burst": {burst}}}"#));
        Self {
            policy,
            rate,
            burst,
            millis: 0,
            running: Vec::new(),
            lives: Vec::new(),
            uses: Vec::new(),
            output: 0,
            mean_output: None,
            asked: 0,
        }
    }

    fn need(&self, ask: Ask) -> u32 {
        ask.prompt + self.expected(ask).min(self.burst - ask.prompt)
    }

    fn expected(&self, ask: Ask) -> u32 {
        self.mean_output.unwrap_or(u32::MAX).clamp(1, ask.max_output)
    }

    /// Milliseconds to wait; `None` if the request is admitted.
    fn ask(&mut self, ask: Ask) -> Option<u32> {
        self.asked += 1;
        let request = Request {
            prompt_tokens: ask.prompt,
            max_new_tokens: ask.max_output,
            expected_tokens: self.expected(ask),
            ..request(self.asked, 0, 0)
        };
        let load = at(self.millis, self.running.len() as u32, self.output);
        let wait = retry(arrives(&mut self.policy, request, &load));
        if wait.is_none() {
            let request = self.lives.len();
            self.lives.push(Life {
                first: self.uses.len(),
                last: None,
                left: ask.length,
                length: ask.length,
            });
            self.uses.push(Use { millis: self.millis, tokens: ask.prompt, request, is_prompt: true });
            self.running.push(request);
        }
        wait
    }

    fn step(&mut self) {
        self.millis += STEP_MS;
        for request in std::mem::take(&mut self.running) {
            let life = &mut self.lives[request];
            life.left -= 1;
            self.output += 1;
            self.uses.push(Use { millis: self.millis, tokens: 1, request, is_prompt: false });
            if life.left > 0 {
                self.running.push(request);
            } else {
                life.last = Some(self.uses.len() - 1);
                let length = life.length;
                self.mean_output =
                    Some(self.mean_output.map_or(length, |mean| (15 * mean + length).div_ceil(16)));
            }
        }
    }

    fn steps(&mut self, millis: u64) {
        let end = self.millis + millis;
        while self.millis < end {
            self.step();
        }
    }

    fn used(&self) -> u64 {
        self.uses.iter().map(|used| u64::from(used.tokens)).sum()
    }

    /// Token-milliseconds that the limit grants over a time.
    fn granted(&self, millis: u64) -> u64 {
        u64::from(self.burst) * 60_000 + millis * u64::from(self.rate)
    }

    /// Whether a request ran right after the event at `place`.
    fn ran_after(&self, request: usize, place: usize) -> bool {
        let life = &self.lives[request];
        life.first <= place && life.last.is_none_or(|last| last > place)
    }

    /// Panics if more was used in a window than the burst, the rate, and the output of what was in flight
    /// before it and after the last admission in it.
    fn check_window(&self, after: u64, until: u64) {
        let begin = self.uses.partition_point(|used| used.millis <= after);
        let end = self.uses.partition_point(|used| used.millis <= until);
        let window = &self.uses[begin..end];
        let last_admission = window.iter().rposition(|used| used.is_prompt).map(|place| begin + place);
        let is_in_flight = |request: usize| {
            let before = begin.checked_sub(1).is_some_and(|place| self.ran_after(request, place));
            before || last_admission.is_none_or(|place| self.ran_after(request, place))
        };
        let counts = |used: &&Use| used.is_prompt || !is_in_flight(used.request);
        let tokens: u64 = window.iter().filter(counts).map(|used| u64::from(used.tokens)).sum();
        let most = self.granted(until - after);
        assert!(tokens * 60_000 <= most, "{tokens} tokens from {after} to {until} ms; {most}");
    }
}

fn any_ask(rng: &mut Rng, burst: u32) -> Ask {
    let prompt = rng.between(1, (burst / 2).max(1));
    let max_output = if rng.one_in(2) { rng.between(1, 200) } else { CONTEXT };
    let longest = if rng.one_in(2) { 30 } else { 300 };
    Ask { prompt, max_output, length: rng.between(1, longest.min(max_output)) }
}

#[test]
fn use_over_any_time_is_bounded() {
    for_seeds(0..60, |rng| {
        let burst = rng.between(2, 2_000);
        let mut host = Host::new(rng.between(1, 20_000), burst);
        let patience_ms = rng.between(1, 2_000);
        while host.millis < 180_000 {
            host.ask(any_ask(rng, burst));
            host.steps(u64::from(rng.between(0, patience_ms)));
        }
        for _ in 0..40 {
            let after = u64::from(rng.between(0, 120_000));
            host.check_window(after, after + 60_000);
            host.check_window(after, after + u64::from(rng.between(1, 60_000)));
        }
        host.check_window(0, host.millis);
    });
}

/// Equal requests whose length is known: their reservations are exact, and nothing passes into debt.
#[test]
fn exact_reservations_keep_the_level_above_zero() {
    for_seeds(0..60, |rng| {
        let (prompt, length) = (rng.between(1, 50), rng.between(1, 100));
        let ask = Ask { prompt, max_output: length, length };
        let mut host = Host::new(rng.between(1, 20_000), rng.between(prompt + length, 2_000));
        while host.millis < 60_000 {
            host.ask(ask);
            let bucket = &host.policy.buckets[&TenantId(0)];
            let left: u32 = host.running.iter().map(|&request| host.lives[request].left).sum();
            assert_eq!(bucket.reserved, u64::from(left), "what the running ones have yet to generate");
            assert!(bucket.available() >= 0, "{bucket:?}");
            host.steps(u64::from(rng.between(0, 500)));
        }
    });
}

/// One request at a time, at a rate below the speed of generation, each retried when its refusal says.
#[test]
fn a_client_that_retries_when_told_gets_its_whole_rate() {
    for_seeds(0..60, |rng| {
        let burst = rng.between(20, 2_000);
        let mut host = Host::new(rng.between(60, 2_000), burst);
        while host.millis < 180_000 {
            let ask = any_ask(rng, burst);
            if let Some(wait) = host.ask(ask) {
                let (used, need) = (host.used(), u64::from(host.need(ask)));
                assert!((used + need) * 60_000 > host.granted(host.millis), "refused although {need} fit");
                host.millis += u64::from(wait) - 1;
                assert_eq!(host.ask(ask), Some(1), "the time named is the first at which it passes");
                host.millis += 1;
                assert_eq!(host.ask(ask), None);
            }
            while !host.running.is_empty() {
                host.step();
            }
        }
    });
}

#[test]
fn short_chats_without_max_tokens_pass_at_the_rate_of_what_they_use() {
    for (rate, in_the_first_minute) in [(2_000, 33), (6_000, 101)] {
        let mut host = Host::new(rate, 0);
        host.burst = rate;
        let chat = Ask { prompt: 15, max_output: CONTEXT - 15, length: 44 };
        let mut chats = 0;
        while host.ask(chat).is_none() {
            chats += 1;
            while !host.running.is_empty() {
                host.step();
            }
            // As if no time had passed.
            host.millis = 0;
        }
        assert_eq!(chats, in_the_first_minute, "of 59 tokens each, at {rate} a minute");
    }
}
