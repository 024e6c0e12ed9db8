//! How much memory sequences will hold, from what is expected of their outputs.
//!
//! Sequences don't reach their ends together: when one grows to its last block, others have ended and left theirs. The
//! sum of all expected ends would count memory for a moment that never comes. So the most is sought over the moments at
//! which a sequence ends, an idea of Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees".

/// What a sequence will do, if it generates a token per step until its expected end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Course {
    /// Tokens that it has, prompt included.
    pub tokens: u32,
    /// Tokens that it will generate, at least 1.
    pub left: u32,
    /// Blocks that it has already, or shares when it starts.
    pub held: u32,
    /// Blocks that it takes at its start besides those it allocates.
    pub taken: u32,
    /// Of the held ones, those that are free when it ends.
    pub frees: u32,
}

/// A course in units of one block's tokens.
struct Span {
    /// The unit in which it ends.
    end: u32,
    /// Blocks that it allocates or takes in the first unit. Each further one needs a block.
    growth: i64,
    /// 1 if the last unit ends before it needs its block, else 0.
    spare: i64,
    frees: i64,
}

/// The most blocks that are in use at once, beyond those that are now. Never less than all sequences take for their next
/// tokens, nor more than all of them to their ends. Within a block's tokens, each counts the blocks that it has at the
/// end of that time.
pub(super) fn peak(courses: impl Iterator<Item = Course>, block_size: u32) -> u32 {
    let mut spans: Vec<Span> = courses.map(|course| course.span(block_size)).collect();
    spans.sort_unstable_by_key(|span| span.end);
    let mut growth: i64 = spans.iter().map(|span| span.growth).sum();
    let mut alive = spans.len() as i64;
    let mut most = 0;
    for together in spans.chunk_by(|a, b| a.end == b.end) {
        let spare: i64 = together.iter().map(|span| span.spare).sum();
        most = most.max(growth + alive * i64::from(together[0].end) - spare);
        alive -= together.len() as i64;
        growth -= together.iter().map(|span| span.growth + span.frees).sum::<i64>();
    }
    u32::try_from(most).unwrap_or(u32::MAX)
}

impl Course {
    /// Blocks that it allocates or takes until its end.
    pub fn whole(&self, block_size: u32) -> u32 {
        self.blocks(self.left, block_size).saturating_sub(self.held).saturating_add(self.taken)
    }

    /// Blocks that it holds when it generates its `nth` token, whose keys are never needed.
    fn blocks(&self, nth: u32, block_size: u32) -> u32 {
        (self.tokens.saturating_add(nth) - 1).div_ceil(block_size)
    }

    /// Further on, if it holds more than it needs for its next token: room for draft tokens.
    fn caught_up(self, block_size: u32) -> Self {
        let needed = self.held.saturating_sub(1).saturating_mul(block_size).saturating_add(1);
        let ahead = needed.saturating_sub(self.tokens);
        Self { tokens: self.tokens + ahead, left: self.left.saturating_sub(ahead).max(1), ..self }
    }

    fn span(self, block_size: u32) -> Span {
        let course = self.caught_up(block_size);
        let end = (course.left - 1) / block_size;
        let first = i64::from(course.blocks(block_size, block_size));
        let last = i64::from(course.blocks(course.left, block_size));
        let growth = first - i64::from(course.held) + i64::from(course.taken);
        Span { end, growth, spare: first + i64::from(end) - last, frees: course.frees.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SplitMix;

    /// Step by step.
    fn exact(courses: &[Course], block_size: u32) -> u32 {
        let longest = courses.iter().map(|course| course.left).max().unwrap_or(0);
        let at = |nth: u32| -> i64 {
            let one = |course: &Course| match nth <= course.left {
                true => {
                    let blocks = course.blocks(nth, block_size).max(course.held) - course.held;
                    i64::from(blocks + course.taken)
                }
                false => -i64::from(course.frees),
            };
            courses.iter().map(one).sum()
        };
        (1..=longest).map(at).max().unwrap_or(0).max(0) as u32
    }

    /// A sequence that holds at most `draft` blocks for draft tokens.
    fn course(rng: &mut SplitMix, block_size: u32, draft: u32) -> Course {
        let tokens = rng.between(1, 60) as u32;
        let held = rng.below(u64::from(tokens.div_ceil(block_size) + draft) + 1) as u32;
        let (taken, frees) = (rng.below(3) as u32, rng.below(u64::from(held) + 1) as u32);
        Course { tokens, left: rng.between(1, 90) as u32, held, taken, frees }
    }

    #[test]
    fn peak_is_that_of_every_step_within_a_block_each() {
        for seed in 0..4_000 {
            let mut rng = SplitMix(seed);
            let (block_size, draft) = (rng.between(1, 20) as u32, rng.below(2) as u32 * 3);
            let courses: Vec<_> = (0..rng.below(12)).map(|_| course(&mut rng, block_size, draft)).collect();
            let (found, exact) = (peak(courses.iter().copied(), block_size), exact(&courses, block_size));
            if draft == 0 {
                let slack = courses.len() as u32;
                assert!(
                    (exact..=exact + slack).contains(&found),
                    "seed {seed}: {found}, step by step {exact}"
                );
            }
            let next = courses.iter().map(|c| Course { left: 1, ..*c }.whole(block_size)).sum();
            let whole = courses.iter().map(|c| c.whole(block_size)).sum();
            assert!((next..=whole).contains(&found), "seed {seed}: {found} of {next} to {whole}");
        }
    }

    #[test]
    fn sequences_that_end_make_room_for_those_that_go_on() {
        let half = |left| Course { tokens: 65, left, held: 5, taken: 0, frees: 5 };
        // 64 tokens more take 3 blocks more, 128 tokens 7.
        assert_eq!(peak([half(64), half(64)].into_iter(), 16), 6);
        assert_eq!(peak([half(64), half(128)].into_iter(), 16), 6, "later it is 7 less 5");
        assert_eq!(peak([half(1), half(128)].into_iter(), 16), 2);
        let shared = Course { frees: 0, ..half(1) };
        assert_eq!(peak([shared, half(128)].into_iter(), 16), 7, "what others share isn't free");
        assert_eq!(peak([].into_iter(), 16), 0);
    }
}
