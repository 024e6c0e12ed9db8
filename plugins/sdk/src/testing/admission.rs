//! Requirements of every admission policy, whatever its idea.

use super::{Rng, for_seeds};
use crate::{
    Admission, Load, Memory, Micros, Pressure, Refusal, Request, SequenceId, SessionId, TenantId, Verdict,
    blocks_for,
};

/// Longest message of a refusal that a host shows whole.
const MESSAGE_BYTES: usize = 256;

/// Panics unless an idle host admits whatever fits the pool, refusals have a presentable message, measures
/// are in range, equal calls have equal answers, hostile numbers get an answer, and state is imported or
/// refused. For a configuration that limits no request on an idle host, as the default's should.
pub fn check_admission<A: Admission>(make: impl Fn() -> A) {
    let mut idle = make();
    for_seeds(0..500, |rng| {
        let (request, load) = idle_host(rng);
        let verdict = idle.admit(&request, &load);
        assert_eq!(verdict, Verdict::Admit, "an idle host lets it in: {request:?} at {load:?}");
    });
    let mut twins = [make(), make()];
    for_seeds(0..3_000, |rng| {
        let is_hostile = rng.one_in(3);
        let (request, load) = if is_hostile { hostile(rng) } else { busy_host(rng) };
        let [one, other] = twins.each_mut().map(|policy| policy.admit(&request, &load));
        assert_eq!(one, other, "equal calls, different answers");
        if let Verdict::Refuse(refusal) = &one {
            check_refusal(refusal);
        }
        let [one, other] = twins.each_mut().map(|policy| policy.measure(&load));
        assert_eq!(one, other, "alike loads, different measures");
        let total = if is_hostile { u32::MAX } else { load.memory.total_blocks };
        check_pressure(&one, total);
    });
    let state = twins[0].export_state();
    make().import_state(&state).expect("a policy imports its own state");
    for_seeds(0..300, |rng| {
        let garbage: Vec<u8> = (0..rng.between(1, 200)).map(|_| rng.next_u64() as u8).collect();
        let mut cold = make();
        if cold.import_state(&garbage).is_ok() {
            let (request, load) = busy_host(rng);
            cold.admit(&request, &load);
        }
    });
}

fn check_refusal(refusal: &Refusal) {
    let bytes = refusal.message.len();
    assert!(
        (1..=MESSAGE_BYTES).contains(&bytes),
        "a refusal needs a message of at most 256 bytes: {refusal:?}"
    );
}

fn check_pressure(pressure: &Pressure, total: u32) {
    let in_pool = pressure.available_blocks <= total && pressure.reserved_blocks <= total;
    assert!(pressure.level_permille <= 1_000 && in_pool, "out of range of {total} blocks: {pressure:?}");
}

/// A request that fits the pool, on an otherwise empty host.
fn idle_host(rng: &mut Rng) -> (Request, Load) {
    let total_blocks = rng.between(8, 4_096);
    let load = Load { memory: pool(16, total_blocks, total_blocks, 0), ..limits(rng) };
    let half = rng.between(1, total_blocks * 8);
    let request = Request { prompt_tokens: half, max_new_tokens: half, ..request(rng, load.memory) };
    (Request { cached_tokens: 0, idle_blocks: 0, expected_tokens: half.div_ceil(2), ..request }, load)
}

/// A load with consistent numbers, and a request of any length.
fn busy_host(rng: &mut Rng) -> (Request, Load) {
    let total_blocks = rng.between(8, 4_096);
    let free_blocks = rng.between(0, total_blocks);
    let cached_blocks = rng.between(0, total_blocks - free_blocks);
    let block_size = *[1, 4, 16, 32].get(rng.between(0, 3) as usize).unwrap_or(&16);
    let (running, waiting) = (rng.between(0, 32), rng.between(0, 1_000));
    let prompts = u64::from(waiting) * u64::from(rng.between(1, 500));
    let limited = u32::from(rng.one_in(3));
    let (admitted, preempted) = (rng.between(0, waiting), rng.between(0, 3));
    let tenant_running = rng.between(0, running);
    let tenant_waiting = rng.between(0, waiting + preempted);
    let promised_blocks = rng.between(0, 2 * total_blocks);
    let load = Load {
        memory: pool(block_size, total_blocks, free_blocks, cached_blocks),
        running,
        admitted,
        preempted,
        waiting,
        waiting_tokens: prompts * 2,
        waiting_prompt_tokens: prompts,
        started_prompt_tokens: u64::from(rng.between(0, 4_000)),
        expected_output_tokens: u64::from(running + waiting) * u64::from(rng.between(1, 100)),
        prefill_tokens_per_second: rng.between(0, 20_000),
        output_tokens_per_second: rng.between(0, 2_000),
        promised_blocks,
        expected_blocks: rng.between(0, promised_blocks),
        tenant_running,
        tenant_waiting,
        tenant_in_flight: tenant_running + tenant_waiting.min(admitted + preempted),
        tenant_rate_per_minute: limited * rng.between(100, 100_000),
        tenant_burst: limited * rng.between(10, 10_000),
        tenant_prompt_tokens_served: u64::from(rng.between(0, 1_000_000)),
        tenant_output_tokens_served: u64::from(rng.between(0, 1_000_000)),
        ..limits(rng)
    };
    (request(rng, load.memory), load)
}

fn limits(rng: &mut Rng) -> Load {
    Load {
        now: Micros(u64::from(rng.between(1_000_000, 2_000_000))),
        max_running: 32,
        max_waiting: 1_000,
        tenant_weight_permille: 1_000,
        ..Load::default()
    }
}

fn pool(block_size: u32, total_blocks: u32, free_blocks: u32, cached_blocks: u32) -> Memory {
    Memory { block_size, total_blocks, free_blocks, cached_blocks }
}

fn request(rng: &mut Rng, memory: Memory) -> Request {
    let most = memory.total_blocks * memory.block_size;
    let (prompt_tokens, max_new_tokens) = (rng.between(1, most), rng.between(1, most));
    let cached_tokens = rng.between(0, prompt_tokens);
    let deadline = Micros(u64::from(rng.between(1_000_000, 5_000_000)));
    Request {
        id: SequenceId(u64::from(rng.between(1, 1_000_000))),
        tenant: TenantId(rng.between(0, 3)),
        session: SessionId(u64::from(rng.between(0, 9))),
        priority: rng.between(0, 2) as i32 - 1,
        arrived: Micros(u64::from(rng.between(0, 1_000_000))),
        deadline: if rng.one_in(3) { deadline } else { Micros::NEVER },
        prompt_tokens,
        cached_tokens,
        idle_blocks: rng.between(0, blocks_for(cached_tokens, memory.block_size).min(memory.cached_blocks)),
        max_new_tokens,
        expected_tokens: rng.between(1, max_new_tokens),
    }
}

/// Numbers that no host should show.
fn hostile(rng: &mut Rng) -> (Request, Load) {
    let mut number = || *[0, 1, 16, u32::MAX / 2, u32::MAX].get(rng.between(0, 4) as usize).unwrap_or(&0);
    let mut wide = || [u64::from(number()), u64::MAX][usize::from(number() == 0)];
    let request = Request {
        id: SequenceId(wide()),
        arrived: Micros(wide()),
        deadline: Micros(wide()),
        ..Request::default()
    };
    let load = Load {
        now: Micros(wide()),
        waiting_tokens: wide(),
        waiting_prompt_tokens: wide(),
        started_prompt_tokens: wide(),
        expected_output_tokens: wide(),
        tenant_prompt_tokens_served: wide(),
        tenant_output_tokens_served: wide(),
        ..Load::default()
    };
    let request = Request {
        tenant: TenantId(number()),
        priority: number() as i32 ^ i32::MIN,
        prompt_tokens: number(),
        cached_tokens: number(),
        idle_blocks: number(),
        max_new_tokens: number(),
        expected_tokens: number(),
        ..request
    };
    let load = Load {
        memory: pool(number(), number(), number(), number()),
        max_running: number(),
        running: number(),
        admitted: number(),
        preempted: number(),
        max_waiting: number(),
        waiting: number(),
        prefill_tokens_per_second: number(),
        output_tokens_per_second: number(),
        promised_blocks: number(),
        expected_blocks: number(),
        tenant_running: number(),
        tenant_waiting: number(),
        tenant_in_flight: number(),
        tenant_weight_permille: number(),
        tenant_rate_per_minute: number(),
        tenant_burst: number(),
        ..load
    };
    (request, load)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::{NoConfig, Policy, Reason};

    /// Lets everything in; in `mode` lies something that no policy may do.
    #[derive(Default)]
    struct Wrong {
        mode: &'static str,
        nth: u32,
    }

    impl Policy for Wrong {
        type Config = NoConfig;
        const NAME: &'static str = "wrong";
        const VERSION: &'static str = "0.1.0";
        const DESCRIPTION: &'static str = "Breaks one rule.";

        fn new(_config: NoConfig) -> Result<Self, String> {
            Ok(Self::default())
        }

        fn export_state(&mut self) -> Vec<u8> {
            if self.mode == "refuses its own state" { vec![1] } else { Vec::new() }
        }
    }

    impl Admission for Wrong {
        fn admit(&mut self, _request: &Request, load: &Load) -> Verdict {
            let refuse = |message: &str| {
                let message = message.to_owned();
                Verdict::Refuse(Refusal { reason: Reason::Other, message, retry_after_ms: 0 })
            };
            match (self.mode, load.running > 0) {
                ("closed", _) => Verdict::Wait,
                ("silent", true) => refuse(""),
                ("wordy", true) => refuse(&"no ".repeat(100)),
                ("moody", true) if self.nth.is_multiple_of(2) => Verdict::Wait,
                _ => Verdict::Admit,
            }
        }

        fn measure(&mut self, load: &Load) -> Pressure {
            let pressure = Pressure::of_pool(load);
            match self.mode {
                "beyond all" => Pressure { level_permille: 1_001, ..pressure },
                "rich" => {
                    Pressure { reserved_blocks: load.memory.total_blocks.saturating_add(1), ..pressure }
                }
                _ => pressure,
            }
        }
    }

    fn wrong(mode: &'static str) {
        let made = Cell::new(0);
        check_admission(|| {
            made.set(made.get() + 1);
            Wrong { mode, nth: made.get() }
        });
    }

    #[test]
    fn a_policy_that_keeps_the_rules_passes() {
        wrong("");
    }

    #[test]
    #[should_panic(expected = "an idle host lets it in")]
    fn refusing_on_an_idle_host_is_found() {
        wrong("closed");
    }

    #[test]
    #[should_panic(expected = "needs a message")]
    fn a_refusal_without_a_message_is_found() {
        wrong("silent");
    }

    #[test]
    #[should_panic(expected = "needs a message")]
    fn a_refusal_that_is_cut_is_found() {
        wrong("wordy");
    }

    #[test]
    #[should_panic(expected = "equal calls, different answers")]
    fn unequal_answers_to_equal_calls_are_found() {
        wrong("moody");
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_level_out_of_range_is_found() {
        wrong("beyond all");
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn reserving_more_than_the_pool_is_found() {
        wrong("rich");
    }

    #[test]
    #[should_panic(expected = "imports its own state")]
    fn refusing_its_own_state_is_found() {
        wrong("refuses its own state");
    }
}
