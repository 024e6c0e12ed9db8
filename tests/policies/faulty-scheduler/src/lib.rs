//! A scheduler that misbehaves on request: `{"fault": "trap", "after": 100}` schedules first come, first served for a
//! hundred calls, and traps after that.
//!
//! It behaves at first because a host tests every policy with some twenty calls before it goes live, and because a
//! fault is most likely to cost a token while requests run.

use infer_policy_sdk::{Plan, Planner, Policy, Scheduler, SequenceId, Step, export_policy};
use serde::{Deserialize, Serialize};

/// The misbehaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Nothing.
    None,
    /// Panics.
    Trap,
    /// Never returns.
    Spin,
    /// Returns, but only after a quarter of a second.
    Slow,
    /// Allocates until it can't.
    Memory,
    /// Runs a sequence that doesn't exist.
    UnknownId,
    /// Runs a sequence twice.
    Duplicate,
    /// Plans more tokens than a step may compute.
    OverBudget,
    /// Returns one token count too many.
    UnequalColumns,
    /// Never runs the first running and the first waiting sequence, but runs others.
    Starve,
    /// Runs one sequence at a time, to its end.
    Single,
    /// Plans nothing.
    Stall,
    /// Reverses every second plan, so that a view alone doesn't determine the answer.
    Moody,
}

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The misbehaviour.
    pub fault: Fault,
    /// Number of calls answered correctly first.
    pub after: u64,
    /// Continue the predecessor's call count; otherwise its state is rejected.
    pub keep_calls: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { fault: Fault::None, after: 100, keep_calls: false }
    }
}

/// The scheduler.
pub struct Faulty {
    config: Config,
    calls: u64,
}

impl Policy for Faulty {
    type Config = Config;
    const NAME: &'static str = "faulty-scheduler";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "For tests: misbehaves on request.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "fault": {"default": "none", "description": "The misbehaviour"},
            "after": {"type": "integer", "default": 100, "description": "Number of calls answered correctly first"},
            "keep_calls": {"type": "boolean", "default": false, "description": "Whether to accept a predecessor's state"}
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self { config, calls: 0 })
    }

    fn export_state(&mut self) -> Vec<u8> {
        self.calls.to_le_bytes().to_vec()
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), String> {
        if !self.config.keep_calls {
            return Err("`keep_calls` is off".to_owned());
        }
        let bytes = state.try_into().map_err(|_| format!("the state has {} bytes, not 8", state.len()))?;
        self.calls = u64::from_le_bytes(bytes);
        Ok(())
    }
}

impl Scheduler for Faulty {
    fn schedule(&mut self, step: &Step) -> Plan {
        self.calls += 1;
        let mut plan = first_come_first_served(step);
        if self.calls <= self.config.after {
            return plan;
        }
        match self.config.fault {
            Fault::None => {}
            Fault::Trap => panic!("told to trap at call {}", self.calls),
            Fault::Spin => spin(u64::MAX),
            Fault::Slow => spin(300_000_000),
            Fault::Memory => exhaust(),
            Fault::UnknownId => {
                plan.run.push(SequenceId(u64::MAX));
                plan.tokens.push(1);
            }
            Fault::Duplicate => {
                if let (Some(id), Some(tokens)) = (plan.run.first(), plan.tokens.first()) {
                    (plan.run, plan.tokens) = (vec![*id, *id], vec![*tokens, *tokens]);
                }
            }
            Fault::OverBudget => {
                let most = step.limits.max_batch_tokens;
                plan.tokens.iter_mut().for_each(|tokens| *tokens = most.saturating_add(1));
            }
            Fault::UnequalColumns => plan.tokens.push(1),
            Fault::Starve => plan = starve(step),
            Fault::Single => plan = single(step),
            Fault::Stall => plan = Plan::default(),
            Fault::Moody => {
                if self.calls.is_multiple_of(2) {
                    plan.run.reverse();
                    plan.tokens.reverse();
                }
            }
        }
        plan
    }
}

fn first_come_first_served(step: &Step) -> Plan {
    let mut planner = Planner::new(step);
    if planner.go_on() == 0 {
        for sequence in step.waiting.iter() {
            if planner.start(sequence, u32::MAX).is_err() {
                break;
            }
        }
    }
    planner.finish()
}

fn starve(step: &Step) -> Plan {
    let mut planner = Planner::new(step);
    for sequence in step.running.iter().skip(1) {
        planner.run(sequence, u32::MAX);
    }
    for sequence in step.waiting.iter().skip(1) {
        let _ = planner.start(sequence, u32::MAX);
    }
    planner.finish()
}

fn single(step: &Step) -> Plan {
    let mut planner = Planner::new(step);
    if let Some(sequence) = step.running.iter().next() {
        planner.run(sequence, u32::MAX);
    } else if let Some(sequence) = step.waiting.iter().next() {
        let _ = planner.start(sequence, u32::MAX);
    }
    planner.finish()
}

fn spin(most: u64) {
    let mut turns = 0u64;
    while std::hint::black_box(turns) < most {
        turns += 1;
    }
}

fn exhaust() {
    let mut hoard = Vec::new();
    loop {
        // Not written to, so that it reaches the memory limit before the deadline.
        hoard.push(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
    }
}

export_policy!(scheduler: Faulty);

#[cfg(test)]
mod tests {
    use infer_policy_sdk::parse_config;
    use infer_policy_sdk::testing::{check_config, check_plan, for_seeds, random_step};

    use super::*;

    fn policy(config: &str) -> Faulty {
        Faulty::new(parse_config(config).unwrap()).unwrap()
    }

    #[test]
    fn configuration_matches_its_schema() {
        check_config::<Faulty>();
    }

    #[test]
    fn behaves_until_its_fault_starts_and_then_breaks_the_rules() {
        for fault in ["unknown-id", "duplicate", "over-budget", "unequal-columns"] {
            for_seeds(0..50, |rng| {
                let step = random_step(rng);
                let mut policy = policy(&format!(r#"{{"fault": "{fault}", "after": 1}}"#));
                let good = policy.schedule(&step);
                check_plan(&step, &good).unwrap();
                let bad = policy.schedule(&step);
                assert!(check_plan(&step, &bad).is_err() || good.run.is_empty(), "{fault}: {bad:?}");
            });
        }
    }

    #[test]
    fn state_is_imported_only_with_keep_calls() {
        let mut before = policy(r#"{"after": 5}"#);
        for_seeds(0..3, |rng| drop(before.schedule(&random_step(rng))));
        let state = before.export_state();
        assert!(policy("{}").import_state(&state).is_err());
        let mut after = policy(r#"{"keep_calls": true}"#);
        assert!(after.import_state(&state[1..]).is_err());
        after.import_state(&state).unwrap();
        assert_eq!(after.calls, 3);
    }
}
