//! Workloads as data: which prompts, how long, how many at once. The same seed makes the same prompts
//! on every machine, so two servers can be given the same work.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Token ids, used as given.
    pub prompt: Vec<u32>,
    /// Tokens to generate, exactly.
    pub max_tokens: u32,
}

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Workload {
    /// `W1`, `W2`.
    pub name: &'static str,
    /// Its requests.
    pub jobs: Vec<Job>,
    /// How many are sent at a time.
    pub concurrency: usize,
    /// Sent first and not counted.
    pub warm_up: Job,
    /// What it was made from.
    pub shape: Shape,
}

/// How a workload is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shape {
    /// Shortest and longest prompt.
    pub prompt_tokens: (u32, u32),
    /// Fewest and most tokens generated.
    pub output_tokens: (u32, u32),
    /// Tokens that all prompts begin with.
    pub shared_prefix: u32,
    /// Token ids are drawn below this.
    pub vocab_size: u32,
}

impl Shape {
    /// Prompt plus output of the longest request.
    #[must_use]
    pub fn longest(&self) -> u32 {
        self.prompt_tokens.1 + self.output_tokens.1
    }
}

impl Workload {
    /// W1: requests one after the other, 256 tokens in, 256 out.
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

    /// Requests of a given shape.
    ///
    /// # Panics
    /// Where the shape has no tokens to draw from.
    #[must_use]
    pub fn make(name: &'static str, seed: u64, requests: usize, concurrency: usize, shape: Shape) -> Self {
        assert!(shape.vocab_size > 0, "a vocabulary has tokens");
        // Each workload has a stream of its own: leaving one out doesn't change the other.
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(name.bytes().map(u64::from).sum());
        let prefix = tokens(&mut random, shape.shared_prefix, shape.vocab_size);
        let jobs = (0..requests)
            .map(|_| {
                let length = between(&mut random, shape.prompt_tokens);
                let max_tokens = between(&mut random, shape.output_tokens);
                let mut prompt = prefix.clone();
                prompt.truncate(length as usize);
                let rest = length - prompt.len() as u32;
                prompt.extend(tokens(&mut random, rest, shape.vocab_size));
                Job { prompt, max_tokens }
            })
            .collect();
        let warm_up = Job { prompt: tokens(&mut random, 32, shape.vocab_size), max_tokens: 8 };
        Self { name, jobs, concurrency, warm_up, shape }
    }

    /// For people.
    #[must_use]
    pub fn describe(&self) -> String {
        let range = |(low, high): (u32, u32)| {
            if low == high { low.to_string() } else { format!("{low} to {high}") }
        };
        let at_once = match self.concurrency {
            1 => "one after the other".to_owned(),
            many => format!("{many} at a time"),
        };
        let shared = match self.shape.shared_prefix {
            0 => String::new(),
            tokens => format!(", the first {tokens} shared"),
        };
        format!(
            "{} requests {at_once}, {} tokens in{shared}, {} out",
            self.jobs.len(),
            range(self.shape.prompt_tokens),
            range(self.shape.output_tokens)
        )
    }
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
    fn lengths_are_exact_and_inside_their_ranges() {
        let single = Workload::single(7, 3, 0, 512);
        assert!(single.jobs.iter().all(|job| job.prompt.len() == 256 && job.max_tokens == 256));
        let mixed = Workload::mixed(7, 500, 16, 0, 512);
        let lengths: Vec<usize> = mixed.jobs.iter().map(|job| job.prompt.len()).collect();
        assert!(lengths.iter().all(|length| (32..=1_024).contains(length)));
        assert!(lengths.iter().any(|&length| length < 100) && lengths.iter().any(|&length| length > 950));
        assert!(mixed.jobs.iter().all(|job| (64..=256).contains(&job.max_tokens)));
        assert!(mixed.jobs.iter().all(|job| job.prompt.iter().all(|&token| token < 512)));
        assert_eq!(mixed.shape.longest(), 1_280);
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let jobs = |seed| Workload::mixed(seed, 16, 16, 0, 512).jobs;
        assert_eq!(jobs(1), jobs(1));
        assert_ne!(jobs(1), jobs(2));
        assert_ne!(
            Workload::single(1, 1, 0, 512).jobs[0].prompt,
            Workload::single(2, 1, 0, 512).jobs[0].prompt
        );
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
        assert!(long.jobs.iter().all(|job| job.prompt.len() <= 1_024), "lengths stay what they were");
    }
}
