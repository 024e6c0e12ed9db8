//! Views: hand-made ones, random ones that a host could show, and hostile ones that no host should.

use super::{Rng, Spec};
use crate::{Limits, Memory, Micros, Row, Sequences, Step, Tenant, TenantId, Tenants, blocks_for};

/// The limits that a host has by default.
pub fn limits() -> Limits {
    Limits {
        max_batch_tokens: 2_048,
        max_running: 32,
        prefill_chunk: 512,
        max_prefill_sequences: 8,
        max_prefill_tokens: 1 << 20,
    }
}

/// A view of these rows in a pool with blocks of 16 tokens: those that the running ones hold, and so many free ones.
pub fn step_of(running: &[Row], waiting: &[Row], free_blocks: u32) -> Step {
    let held: u32 = running.iter().map(|row| row.blocks).sum();
    Step {
        limits: limits(),
        memory: Memory { block_size: 16, total_blocks: held + free_blocks, free_blocks, cached_blocks: 0 },
        running: running.iter().copied().collect(),
        waiting: waiting.iter().copied().collect(),
        ..Step::default()
    }
}

/// A request of a random shape that fits a pool of `pool_tokens`; some share a prefix, some end early.
pub fn random_spec(rng: &mut Rng, pool_tokens: u32) -> Spec {
    let longest = (pool_tokens * 3 / 4).max(4);
    let prompt_tokens = rng.between(1, longest / 2);
    let max_new_tokens = rng.between(1, longest / 2);
    let output_tokens = if rng.one_in(2) { max_new_tokens } else { rng.between(1, max_new_tokens) };
    let shared = rng.one_in(2).then(|| (u64::from(rng.between(1, 3)), rng.between(1, prompt_tokens)));
    let arrived = Micros::from_millis(u64::from(rng.between(0, 400)));
    let allowed = Micros::from_millis(u64::from(rng.between(0, 200)));
    Spec {
        arrived,
        prompt_tokens,
        output_tokens,
        max_new_tokens,
        expected_tokens: None,
        shared,
        tenant: rng.between(0, 3),
        priority: priority(rng),
        deadline: rng.one_in(2).then(|| arrived.plus(allowed)),
        session: u64::from(rng.between(0, 3)),
    }
}

fn priority(rng: &mut Rng) -> i32 {
    *[0, 0, 0, -1, 1, 10].get(rng.between(0, 5) as usize).unwrap_or(&0)
}

fn deadline(rng: &mut Rng) -> u64 {
    if rng.one_in(2) { u64::MAX } else { u64::from(rng.between(1_000_000, 2_500_000)) }
}

/// A view that a host could show: columns, blocks and pool agree with each other.
pub fn random_step(rng: &mut Rng) -> Step {
    let block_size = *[1, 4, 16].get(rng.between(0, 2) as usize).unwrap_or(&16);
    let limits = Limits {
        max_batch_tokens: rng.between(1, 64),
        max_running: rng.between(1, 12),
        prefill_chunk: rng.between(1, 32),
        max_prefill_sequences: rng.between(1, 6),
        max_prefill_tokens: rng.between(1, 64),
    };
    let running: Sequences = (0..rng.between(0, limits.max_running))
        .map(|n| running_row(rng, u64::from(n) + 1, block_size))
        .collect();
    let cached_blocks = rng.between(0, 20);
    let waiting: Sequences = (0..rng.between(0, 20))
        .map(|n| waiting_row(rng, u64::from(n) + 1_000, block_size, cached_blocks))
        .collect();
    let free_blocks = if rng.one_in(3) { 0 } else { rng.between(0, 40) };
    let used: u32 = running.blocks.iter().sum();
    let now = Micros(u64::from(rng.between(1_000_000, 2_000_000)));
    Step {
        now,
        number: rng.next_u64() >> 32,
        last_step: Micros(u64::from(rng.between(0, 50_000))),
        last_prefill_tokens: if rng.one_in(2) { 0 } else { rng.between(1, 64) },
        last_decodes: rng.between(0, 12),
        starvation_bound: Micros(u64::from(rng.between(1_000, 5_000_000))),
        idle_since: if running.is_empty() {
            Micros(now.0 - u64::from(rng.between(0, 100_000)))
        } else {
            Micros::NEVER
        },
        limits,
        memory: Memory {
            block_size,
            total_blocks: used + free_blocks + cached_blocks,
            free_blocks,
            cached_blocks,
        },
        tenants: tenants(rng, &running, &waiting),
        running,
        waiting,
    }
}

fn tenants(rng: &mut Rng, running: &Sequences, waiting: &Sequences) -> Tenants {
    let count = |of: &Sequences, id| of.tenant.iter().filter(|tenant| **tenant == id).count() as u32;
    let tenant = |id| Tenant {
        id: TenantId(id),
        weight_permille: rng.between(1, 4) * 500,
        running: count(running, id),
        waiting: count(waiting, id),
        prompt_tokens_served: u64::from(rng.between(0, 100_000)),
        output_tokens_served: u64::from(rng.between(0, 100_000)),
    };
    (0..4).map(tenant).collect()
}

fn running_row(rng: &mut Rng, id: u64, block_size: u32) -> Row {
    let prompt_tokens = rng.between(1, 100);
    let decoding = rng.one_in(2);
    // A host that plans ahead shows sequences that sample their last token in the step in flight.
    let is_last = decoding && rng.one_in(6);
    let generated_tokens = if decoding || rng.one_in(4) { rng.between(1, 50) } else { 0 };
    let known = prompt_tokens + generated_tokens;
    let computed_tokens = match (decoding, is_last) {
        (true, true) => known,
        (true, false) => known - 1,
        (false, _) => rng.between(0, known - 1),
    };
    let blocks = blocks_for(computed_tokens, block_size);
    let more_tokens = rng.between(1, 50);
    Row {
        id,
        tenant: rng.between(0, 3),
        session: u64::from(rng.between(0, 3)),
        priority: priority(rng),
        arrived: u64::from(rng.between(800_000, 1_000_000)),
        deadline: deadline(rng),
        prompt_tokens,
        computed_tokens,
        generated_tokens,
        max_new_tokens: generated_tokens + more_tokens,
        expected_tokens: generated_tokens + rng.between(1, more_tokens),
        blocks,
        freeable_blocks: rng.between(0, blocks),
        preemptions: rng.between(0, 1),
        ..Row::default()
    }
}

fn waiting_row(rng: &mut Rng, id: u64, block_size: u32, cached_blocks: u32) -> Row {
    let prompt_tokens = rng.between(1, 100);
    let whole = (prompt_tokens - 1) / block_size;
    let hit = rng.between(0, whole);
    let computed_tokens = if rng.one_in(6) { prompt_tokens } else { hit * block_size };
    let preempted = rng.one_in(5) && computed_tokens < prompt_tokens;
    let generated_tokens = if preempted { rng.between(1, 20) } else { 0 };
    let more_tokens = rng.between(1, 40);
    Row {
        id,
        tenant: rng.between(0, 3),
        session: u64::from(rng.between(0, 3)),
        priority: priority(rng),
        arrived: u64::from(rng.between(900_000, 1_000_000)),
        deadline: deadline(rng),
        prompt_tokens,
        computed_tokens,
        pending_tokens: if rng.one_in(4) { whole * block_size } else { 0 },
        idle_blocks: rng.between(0, cached_blocks.min(computed_tokens / block_size)),
        generated_tokens,
        max_new_tokens: generated_tokens + more_tokens,
        expected_tokens: generated_tokens + rng.between(1, more_tokens),
        preemptions: u32::from(preempted),
        ..Row::default()
    }
}

/// A view of extreme and contradictory numbers in columns of equal length. A policy may answer nonsense to
/// nonsense, but it must answer.
pub fn hostile_step(rng: &mut Rng) -> Step {
    let mut row = |id| {
        let mut number =
            || *[0, 1, 15, 16, 17, u32::MAX / 2, u32::MAX].get(rng.between(0, 6) as usize).unwrap_or(&0);
        Row {
            id,
            tenant: number(),
            session: u64::from(number()) << 32,
            priority: number() as i32 ^ i32::MIN,
            arrived: u64::from(number()) << 32,
            deadline: if number() == 0 { u64::MAX } else { u64::from(number()) << 32 },
            prompt_tokens: number(),
            computed_tokens: number(),
            pending_tokens: number(),
            idle_blocks: number(),
            generated_tokens: number(),
            max_new_tokens: number(),
            expected_tokens: number(),
            blocks: number(),
            freeable_blocks: number(),
            preemptions: number(),
        }
    };
    let running: Sequences = (0..8).map(&mut row).collect();
    let waiting: Sequences = (100..108).map(&mut row).collect();
    let mut number = || *[0, 1, 16, u32::MAX].get(rng.between(0, 3) as usize).unwrap_or(&0);
    let tenants = [0, 1, 1, 16, u32::MAX].map(|id| Tenant {
        id: TenantId(id),
        weight_permille: number(),
        running: number(),
        waiting: number(),
        prompt_tokens_served: u64::from(number()) << 32,
        output_tokens_served: u64::from(number()) << 32,
    });
    Step {
        now: if number() == 0 { Micros::ZERO } else { Micros::NEVER },
        number: u64::from(number()),
        last_step: Micros(u64::from(number()) << 32),
        last_prefill_tokens: number(),
        last_decodes: number(),
        idle_since: Micros(u64::from(number())),
        starvation_bound: Micros(u64::from(number()) << 32),
        limits: Limits {
            max_batch_tokens: number(),
            max_running: number(),
            prefill_chunk: number(),
            max_prefill_sequences: number(),
            max_prefill_tokens: number(),
        },
        memory: Memory {
            block_size: number(),
            total_blocks: number(),
            free_blocks: number(),
            cached_blocks: number(),
        },
        running: if rng.one_in(3) { Sequences::default() } else { running },
        waiting,
        tenants: tenants.into_iter().collect(),
    }
}
