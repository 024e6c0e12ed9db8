//! From a seed to a case. Each case has a profile of its own (how tight memory is, what happens how often,
//! how evil its policies are), because a mixture of everything in each would reach less.

use infer_core::testing::SplitMix;

use super::case::{Ask, Case, Mode, Op, Script, Setup, Slot, Style, Trouble};

/// Operations of a case by default: enough for a queue to build up and drain.
pub const OPS: usize = 400;
/// Kinds of operations.
const KINDS: usize = 17;
/// How often each happens in a case of no particular profile. In the order of `Taste::op`.
const USUAL: [u64; KINDS] = [26, 4, 2, 4, 74, 4, 1, 1, 3, 4, 1, 1, 2, 1, 2, 1, 2];

/// How many of a hundred policies are slow, and how slow: four such calls exceed a step's budget.
const SLOW: u64 = 25;
const SLOWEST_CALL_US: u32 = 32_000;

/// How many of a hundred admission policies are lists of several.
const LISTS: u64 = 20;

/// How many of a hundred client requests have several sequences.
const SEVERAL: u64 = 12;

struct Taste {
    weights: [u64; KINDS],
    evil: u64,
    outsiders: u64,
    longest_step_us: u64,
    tenants: u64,
    families: u64,
    slow: u64,
    again: u64,
}

/// The case of a seed: `ops` operations, and policies from outside among its own.
pub fn generate(seed: u64, ops: usize, outsiders: &[String]) -> Case {
    let mut rng = SplitMix(seed ^ 0x5DEE_CE66_D1CE_5EED);
    let taste = Taste::new(&mut rng, outsiders.len() as u64);
    let setup = setup(&mut rng, &taste, seed, outsiders);
    let mut ops: Vec<Op> = (0..ops).map(|_| taste.op(&mut rng, &setup)).collect();
    if rng.chance(15) {
        // Little happens after a drain, so it comes late.
        let at = ops.len() - ops.len() / 8;
        ops.insert(at, Op::Drain);
    }
    Case { setup, ops }
}

fn setup(rng: &mut SplitMix, taste: &Taste, seed: u64, outsiders: &[String]) -> Setup {
    let block_size = rng.between(1, 6) as u32;
    let total_blocks = if rng.chance(25) { rng.between(24, 64) } else { rng.between(4, 24) } as u32;
    // Now and then larger than the pool, so that memory refuses.
    let longest = u64::from(block_size * total_blocks) + 6;
    Setup {
        seed,
        max_batch_tokens: rng.between(1, 40) as u32,
        max_running: rng.between(1, 8) as u32,
        prefill_chunk: rng.between(1, 16) as u32,
        max_prefill_sequences: rng.between(1, 4) as u32,
        max_prefill_tokens: rng.between(1, 40) as u32,
        block_size,
        total_blocks,
        max_waiting: rng.between(1, 20) as u32,
        max_seq_len: rng.between(8, longest.min(80)) as u32,
        prefix_caching: rng.chance(88),
        prompt_cache_entries: if rng.chance(80) { rng.between(1, 4) as u32 } else { 0 },
        prompt_cache_ttl_us: rng.between(1_000, 200_000),
        max_strikes: rng.between(1, 4) as u32,
        strike_window_us: rng.between(1_000, 200_000),
        starvation_bound_us: rng.between(2_000, 100_000) * if rng.chance(30) { 20 } else { 1 },
        stream_events: rng.between(1, 12) as u32,
        speculate: if rng.chance(40) { rng.between(1, 6) as u32 } else { 0 },
        // Dice of its own, so that seeds otherwise keep their meaning.
        plan_ahead: SplitMix(!seed).chance(50),
        unaided: rng.chance(50),
        policies: Slot::ALL.map(|slot| taste.script(rng, slot)),
        outsiders: outsiders.to_vec(),
    }
}

impl Taste {
    fn new(rng: &mut SplitMix, outsiders: u64) -> Self {
        let mut weights = USUAL;
        for weight in &mut weights {
            *weight *= [0, 1, 1, 1, 4][rng.below(5) as usize];
        }
        // Requests arrive, and batches run.
        weights[0] = weights[0].max(8);
        weights[4] = weights[4].max(20);
        Self {
            weights,
            evil: if rng.chance(60) { rng.between(1, 20) } else { 0 },
            outsiders,
            longest_step_us: [300, 2_000, 30_000, 300_000][rng.below(4) as usize],
            tenants: rng.between(1, 4),
            families: rng.between(1, 4),
            slow: [0, 0, 10, 40][rng.below(4) as usize],
            again: [5, 20, 60][rng.below(3) as usize],
        }
    }

    fn op(&self, rng: &mut SplitMix, setup: &Setup) -> Op {
        let mut at = rng.below(self.weights.iter().sum());
        let mut kind = 0;
        while at >= self.weights[kind] {
            at -= self.weights[kind];
            kind += 1;
        }
        let pick = rng.below(1 << 16) as u32;
        let slot = Slot::ALL[rng.below(3) as usize];
        match kind {
            0 => Op::Submit(self.ask(rng, setup)),
            1 => Op::Cancel { pick },
            2 => Op::Stop { pick },
            3 => Op::Begin,
            4 => Op::Step { us: rng.between(1, self.longest_step_us) as u32 },
            5 => Op::Wait { us: rng.between(1, 20_000) as u32 },
            6 => Op::Jump { us: rng.between(1, 1_000_000) },
            7 => Op::Back { us: rng.between(1, 50_000) },
            8 => Op::Fault { trouble: trouble(rng) },
            9 => {
                let modes = [Mode::Now, Mode::Now, Mode::Primed, Mode::Shadow, Mode::Canary];
                Op::Swap { script: self.script(rng, slot), mode: modes[rng.below(5) as usize] }
            }
            10 => Op::Promote { slot },
            11 => Op::StopShadow { slot },
            12 => Op::Rollback { slot },
            13 => Op::ClearQueue,
            14 => Op::Report,
            15 => Op::Terms { seed: rng.next_u64() },
            _ => Op::Expire { pick },
        }
    }

    fn style(&self, rng: &mut SplitMix) -> Style {
        let own = [
            Style::Plain,
            Style::Plain,
            Style::Plain,
            Style::Random,
            Style::Random,
            Style::Random,
            Style::Timid,
            Style::Backwards,
            Style::Starve,
            Style::Stall,
            Style::Thrash,
            Style::Crumbs,
        ];
        if self.outsiders > 0 && rng.chance(50) {
            Style::Outsider(rng.below(self.outsiders) as u16)
        } else {
            own[rng.below(own.len() as u64) as usize]
        }
    }

    fn script(&self, rng: &mut SplitMix, slot: Slot) -> Script {
        let style = self.style(rng);
        let evil = if rng.chance(50) { rng.below(self.evil + 1) as u8 } else { 0 };
        let seed = rng.next_u64();
        // Dice of its own, as with planning ahead.
        let mut dice = SplitMix(!seed);
        let slow_us = if dice.chance(SLOW) { SLOWEST_CALL_US } else { 0 };
        let mut also = Vec::new();
        if slot == Slot::Admission && dice.chance(LISTS) {
            for _ in 0..dice.between(1, 3) {
                let next = self.style(&mut dice);
                if next != style && !also.contains(&next) {
                    also.push(next);
                }
            }
        }
        Script { slot, style, seed, evil, slow_us, also }
    }

    fn ask(&self, rng: &mut SplitMix, setup: &Setup) -> Ask {
        let longest = u64::from(setup.max_seq_len);
        let odd = rng.chance(3);
        let session = if rng.chance(30) { rng.between(1, 3) as u8 } else { 0 };
        let long = rng.chance(4);
        let ask = Ask {
            tenant: rng.below(self.tenants) as u8,
            session,
            salt: (rng.below(8) / 7) as u8,
            priority: if rng.chance(30) { rng.below(3) as i8 - 1 } else { 0 },
            deadline_us: if rng.chance(20) { rng.between(1, 100_000) as u32 } else { 0 },
            follow: session > 0 && rng.chance(80),
            again: if rng.chance(self.again) { rng.between(1, 4) as u8 } else { 0 },
            shared: if rng.chance(60) { rng.between(1, 30) as u16 } else { 0 },
            family: rng.below(self.families) as u8,
            own: rng.between(u64::from(!odd), if long { longest + 2 } else { 8 }) as u16,
            seed: rng.below(1 << 32) as u32,
            max_new: if odd { rng.below(longest + 2) } else { rng.between(1, 14.min(longest / 2)) } as u16,
            odd,
            min_new: if rng.chance(20) { rng.below(5) as u8 } else { 0 },
            stops: rng.chance(30),
            drawn: rng.chance(20),
            likely: rng.chance(5),
            lag: if rng.chance(self.slow) { [2, 5, 255][rng.below(3) as usize] } else { 0 },
            ..Ask::default()
        };
        // Dice of their own, as for planning ahead.
        let mut dice = SplitMix(!u64::from(ask.seed));
        let more = if dice.chance(SEVERAL) { dice.between(1, 4) as u8 } else { 0 };
        Ask { more, batch: more > 0 && dice.chance(40), ..ask }
    }
}

fn trouble(rng: &mut SplitMix) -> Trouble {
    match rng.below(7) {
        6 => Trouble::Unsure,
        0 => Trouble::All { memory: rng.chance(50) },
        1 => Trouble::Short { missing: rng.between(1, 3) as usize },
        2 => Trouble::Silent { row: rng.below(3) as usize },
        _ => Trouble::Rows { rows: (0..rng.below(3)).map(|_| rng.below(4) as usize).collect() },
    }
}
