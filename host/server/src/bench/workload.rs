//! Workloads as data: prompts, lengths, concurrency. A seed gives the same prompts on every machine, so two servers can
//! be given the same work.

use infer_sim::Random;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::about::About;

/// One request, which is a turn of a conversation; most conversations have a single turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Token ids; in a later turn, those that follow the history.
    pub prompt: Vec<u32>,
    /// Exact number of tokens to generate.
    pub max_tokens: u32,
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Workload {
    /// `W1` to `W4`.
    pub name: &'static str,
    /// Its requests; those of a conversation are adjacent.
    pub jobs: Vec<Job>,
    /// Requests per conversation, each sent when the one before has finished.
    pub turns: usize,
    /// When conversations start.
    pub arrival: Arrival,
    /// Sent first and not measured.
    pub warm_up: Job,
    /// Lengths that it was generated from.
    pub shape: Shape,
}

/// When conversations start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrival {
    /// Closed loop with this concurrency: the next starts when one finishes.
    Closed(usize),
    /// Open loop: a Poisson process with this rate per second, independent of earlier conversations.
    Poisson(f64),
    /// Open loop: gamma-distributed gaps with this mean rate per second. Their shape is the burstiness, so that their
    /// coefficient of variation is 1 / sqrt(burstiness).
    Gamma {
        /// Conversations per second.
        per_second: f64,
        /// Less than 1 is more bursty than a Poisson process, more is more regular.
        burstiness: f64,
    },
    /// As recorded, so many times as fast; what waited for another request in the recording waits for it again.
    Recorded(f64),
    /// As recorded, with the times scaled to a mean rate per second.
    Scaled {
        /// Requests per second, also those that wait for others.
        per_second: f64,
        /// How many times as fast as recorded that is.
        speed: f64,
    },
}

impl Arrival {
    /// An open loop of this rate per second and this burstiness, which is 1 for a Poisson process.
    #[must_use]
    pub fn open(per_second: f64, burstiness: f64) -> Self {
        match burstiness == 1.0 {
            true => Self::Poisson(per_second),
            false => Self::Gamma { per_second, burstiness },
        }
    }

    /// The rate per second that an open loop draws its times for.
    #[must_use]
    pub fn per_second(self) -> Option<f64> {
        match self {
            Self::Poisson(per_second) | Self::Gamma { per_second, .. } => Some(per_second),
            Self::Closed(_) | Self::Recorded(_) | Self::Scaled { .. } => None,
        }
    }
}

/// Lengths from which a workload is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Shortest and longest prompt.
    pub prompt_tokens: (u32, u32),
    /// Shortest and longest output.
    pub output_tokens: (u32, u32),
    /// Tokens that all prompts share at the start.
    pub shared_prefix: u32,
    /// Token ids are below this.
    pub vocab_size: u32,
}

impl Shape {
    /// Largest possible prompt plus output: the last of `turns` turns.
    #[must_use]
    pub fn longest(&self, turns: usize) -> u32 {
        (self.prompt_tokens.1 + self.output_tokens.1) * turns as u32
    }
}

impl Workload {
    /// W1: sequential requests, 256 tokens in, 256 out.
    #[must_use]
    pub fn single(seed: u64, requests: usize, shared_prefix: u32, vocab_size: u32) -> Self {
        let shape = Shape { prompt_tokens: (256, 256), output_tokens: (256, 256), shared_prefix, vocab_size };
        Self::make("W1", seed, requests, 1, shape)
    }

    /// W2: `concurrency` at a time, 32 to 1,024 tokens in, 64 to 256 out.
    #[must_use]
    pub fn mixed(
        seed: u64,
        requests: usize,
        concurrency: usize,
        shared_prefix: u32,
        vocab_size: u32,
    ) -> Self {
        let shape = Shape { prompt_tokens: (32, 1_024), output_tokens: (64, 256), shared_prefix, vocab_size };
        Self::make("W2", seed, requests, concurrency, shape)
    }

    /// W3: 32 requests, 16 at a time, 1,024 shared and 32 distinct tokens in, 32 out.
    #[must_use]
    pub fn shared(seed: u64, vocab_size: u32) -> Self {
        let shape = Shape {
            prompt_tokens: (1_056, 1_056),
            output_tokens: (32, 32),
            shared_prefix: 1_024,
            vocab_size,
        };
        Self::make("W3", seed, 32, 16, shape)
    }

    /// W4: 8 concurrent conversations of 5 turns; each turn sends the history and 32 to 96 new tokens, 32 to 96 out.
    #[must_use]
    pub fn conversations(seed: u64, vocab_size: u32) -> Self {
        let shape = Shape { prompt_tokens: (32, 96), output_tokens: (32, 96), shared_prefix: 0, vocab_size };
        Self { turns: 5, ..Self::make("W4", seed, 40, 8, shape) }
    }

    /// Requests of the same kind, that many conversations of them.
    #[must_use]
    pub fn of(&self, seed: u64, conversations: usize) -> Self {
        let made = Self::make(self.name, seed, conversations * self.turns, 1, self.shape);
        Self { turns: self.turns, arrival: self.arrival, warm_up: self.warm_up.clone(), ..made }
    }

    /// The same lengths with prompts that differ from those of all other rounds; round 0 is unchanged.
    #[must_use]
    pub fn retold(mut self, seed: u64, round: usize) -> Self {
        if round == 0 {
            return self;
        }
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream(self.name) | (round as u64) << 32);
        let Shape { shared_prefix, vocab_size, .. } = self.shape;
        let prefix = tokens(&mut random, shared_prefix, vocab_size);
        for job in &mut self.jobs {
            job.prompt = beginning_with(&prefix, job.prompt.len(), &mut random, vocab_size);
        }
        self
    }

    /// The same requests with other arrivals.
    #[must_use]
    pub fn arriving(self, arrival: Arrival) -> Self {
        Self { arrival, ..self }
    }

    /// Requests by conversation.
    pub fn conversations_of(&self) -> impl Iterator<Item = &[Job]> {
        self.jobs.chunks(self.turns)
    }

    /// Start of each conversation in milliseconds, for an open loop. The seed determines the gaps.
    #[must_use]
    pub fn arrivals_ms(&self, seed: u64) -> Option<Vec<f64>> {
        let mut gap_ms: Box<dyn FnMut() -> f64> = match self.arrival {
            Arrival::Poisson(per_second) => {
                let mut random = ChaCha8Rng::seed_from_u64(seed);
                random.set_stream(u64::MAX);
                Box::new(move || {
                    // Above 0, so that the logarithm is finite.
                    let uniform = ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                    -uniform.ln() / per_second * 1e3
                })
            }
            Arrival::Gamma { per_second, burstiness } => {
                let mut random = Random::new(seed, u64::MAX);
                Box::new(move || random.gamma(burstiness, 1e3 / per_second))
            }
            Arrival::Closed(_) | Arrival::Recorded(_) | Arrival::Scaled { .. } => return None,
        };
        let mut at = 0.0;
        let moments = (0..self.jobs.len().div_ceil(self.turns)).map(|_| {
            let here = at;
            at += gap_ms();
            here
        });
        Some(moments.collect())
    }

    /// Generates requests of a shape, `concurrency` at a time.
    ///
    /// # Panics
    /// If the vocabulary is empty.
    #[must_use]
    pub fn make(name: &'static str, seed: u64, requests: usize, concurrency: usize, shape: Shape) -> Self {
        assert!(shape.vocab_size > 0, "the vocabulary is empty");
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(stream(name));
        let prefix = tokens(&mut random, shape.shared_prefix, shape.vocab_size);
        let jobs = (0..requests)
            .map(|_| {
                let length = between(&mut random, shape.prompt_tokens);
                let max_tokens = between(&mut random, shape.output_tokens);
                let prompt = beginning_with(&prefix, length as usize, &mut random, shape.vocab_size);
                Job { prompt, max_tokens }
            })
            .collect();
        let warm_up = Job { prompt: tokens(&mut random, 32, shape.vocab_size), max_tokens: 8 };
        Self { name, jobs, turns: 1, arrival: Arrival::Closed(concurrency), warm_up, shape }
    }

    /// What a report says of it.
    #[must_use]
    pub fn about(&self) -> About {
        let Self { name, turns, arrival, shape, .. } = *self;
        About { name: name.to_owned(), requests: self.jobs.len(), turns, arrival, shape }
    }
}

/// Random stream of a workload, so that leaving one workload out doesn't change the others.
fn stream(name: &str) -> u64 {
    name.bytes().map(u64::from).sum()
}

/// As much of `prefix` as fits, then random tokens.
fn beginning_with(prefix: &[u32], length: usize, random: &mut ChaCha8Rng, vocab_size: u32) -> Vec<u32> {
    let mut prompt = prefix[..prefix.len().min(length)].to_vec();
    let rest = (length - prompt.len()) as u32;
    prompt.extend(tokens(random, rest, vocab_size));
    prompt
}

fn tokens(random: &mut ChaCha8Rng, count: u32, vocab_size: u32) -> Vec<u32> {
    (0..count).map(|_| below(random, vocab_size)).collect()
}

/// Both ends included.
fn between(random: &mut ChaCha8Rng, (low, high): (u32, u32)) -> u32 {
    low + below(random, high - low + 1)
}

/// Uniform below `bound`, up to a bias of `bound` in 2^64 (multiply and shift, Lemire 2019, section 3).
fn below(random: &mut ChaCha8Rng, bound: u32) -> u32 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_the_same_lengths_and_different_prompts() {
        let first = Workload::mixed(7, 40, 16, 100, 5_000);
        let rounds = [0, 1, 2].map(|round| first.clone().retold(7, round));
        assert_eq!(rounds[0].jobs, first.jobs);
        assert_eq!(rounds[1].jobs, first.retold(7, 1).jobs);
        let sizes = |workload: &Workload| -> Vec<(usize, u32)> {
            workload.jobs.iter().map(|job| (job.prompt.len(), job.max_tokens)).collect()
        };
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (one, other) = (&rounds[one], &rounds[other]);
            assert_eq!(sizes(one), sizes(other));
            let same = one.jobs.iter().zip(&other.jobs).filter(|(a, b)| a.prompt[..16] == b.prompt[..16]);
            assert_eq!(same.count(), 0, "rounds have no block in common");
            let prefix = &other.jobs[0].prompt[..32];
            assert!(other.jobs.iter().all(|job| job.prompt.starts_with(prefix)), "the prefix stays shared");
        }
    }

    #[test]
    fn lengths_are_within_their_ranges() {
        let single = Workload::single(7, 3, 0, 512);
        assert!(single.jobs.iter().all(|job| job.prompt.len() == 256 && job.max_tokens == 256));
        let mixed = Workload::mixed(7, 500, 16, 0, 512);
        let lengths: Vec<usize> = mixed.jobs.iter().map(|job| job.prompt.len()).collect();
        assert!(lengths.iter().all(|length| (32..=1_024).contains(length)));
        assert!(lengths.iter().any(|&length| length < 100) && lengths.iter().any(|&length| length > 950));
        assert!(mixed.jobs.iter().all(|job| (64..=256).contains(&job.max_tokens)));
        assert!(mixed.jobs.iter().all(|job| job.prompt.iter().all(|&token| token < 512)));
        assert_eq!(mixed.shape.longest(1), 1_280);
    }

    #[test]
    fn prompts_depend_only_on_the_seed() {
        let jobs = |seed| Workload::mixed(seed, 16, 16, 0, 512).jobs;
        assert_eq!(jobs(1), jobs(1));
        assert_ne!(jobs(1), jobs(2));
        assert_ne!(
            Workload::single(1, 1, 0, 512).jobs[0].prompt,
            Workload::single(2, 1, 0, 512).jobs[0].prompt
        );
    }

    #[test]
    fn w3_shares_a_prefix_and_w4_has_conversations() {
        let shared = Workload::shared(1, 512);
        assert_eq!((shared.jobs.len(), shared.arrival), (32, Arrival::Closed(16)));
        assert!(shared.jobs.iter().all(|job| job.prompt.len() == 1_056 && job.max_tokens == 32));
        assert!(shared.jobs.iter().all(|job| job.prompt[..1_024] == shared.jobs[0].prompt[..1_024]));
        let talk = Workload::conversations(1, 512);
        let turns: Vec<usize> = talk.conversations_of().map(<[Job]>::len).collect();
        assert_eq!(turns, [5; 8]);
    }

    #[test]
    fn poisson_arrivals_have_the_requested_rate() {
        let many = Workload::mixed(1, 4_000, 16, 0, 64).arriving(Arrival::Poisson(50.0));
        let at = many.arrivals_ms(9).unwrap();
        assert_eq!(at, many.arrivals_ms(9).unwrap());
        assert!(at.windows(2).all(|pair| pair[0] < pair[1]));
        let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 20.0).abs() < 1.5 && (variance.sqrt() - 20.0).abs() < 2.0, "{mean} {variance}");
        assert_eq!(Workload::single(1, 1, 0, 64).arrivals_ms(9), None);
    }

    #[test]
    fn gaps_vary_as_the_burstiness_says() {
        let shape = Shape { prompt_tokens: (1, 1), output_tokens: (1, 1), shared_prefix: 0, vocab_size: 2 };
        let made = Workload::make("W2", 1, 20_000, 1, shape);
        let moments = |burstiness| {
            let open = made.clone().arriving(Arrival::open(50.0, burstiness));
            open.arrivals_ms(9).expect("an open loop")
        };
        assert_eq!(Arrival::open(50.0, 1.0), Arrival::Poisson(50.0));
        for (burstiness, expected) in [(0.25, 2.0), (1.0, 1.0), (16.0, 0.25)] {
            let at = moments(burstiness);
            assert_eq!((at[0], &at), (0.0, &moments(burstiness)));
            assert!(at.is_sorted());
            let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let variation = variance.sqrt() / mean;
            assert!((mean / 20.0 - 1.0).abs() < 0.06, "{burstiness}: {mean}");
            assert!((variation / expected - 1.0).abs() < 0.08, "{burstiness}: {variation}");
        }
    }

    #[test]
    fn prompts_share_a_prefix_only_when_asked() {
        let first_block = |shared| {
            let jobs = Workload::mixed(3, 16, 16, shared, 4_096).jobs;
            let blocks: std::collections::BTreeSet<Vec<u32>> =
                jobs.iter().map(|job| job.prompt[..16].to_vec()).collect();
            blocks.len()
        };
        assert_eq!(first_block(0), 16);
        assert_eq!(first_block(16), 1);
        let long = Workload::mixed(3, 50, 16, 2_000, 4_096);
        assert!(long.jobs.iter().all(|job| job.prompt.len() <= 1_024), "a prefix doesn't lengthen prompts");
    }
}
