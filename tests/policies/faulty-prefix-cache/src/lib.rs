//! A prefix-cache policy that misbehaves on request: `{"fault": "wrong-blocks", "after": 100}` behaves for a hundred
//! calls, and names blocks in use after that.

use std::collections::BTreeSet;

use infer_policy_sdk::{BlockId, EventKind, Events, Hit, Micros, Policy, PrefixCache, export_policy};
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
    /// Names blocks that are in use, and one that doesn't exist.
    WrongBlocks,
    /// Reuses more than is cached.
    TooMuchReuse,
    /// Names at most one block, however many are needed.
    TooFew,
}

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The misbehaviour.
    pub fault: Fault,
    /// Number of calls answered correctly first.
    pub after: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { fault: Fault::None, after: 100 }
    }
}

/// The prefix-cache policy.
pub struct Faulty {
    config: Config,
    calls: u64,
    idle: BTreeSet<BlockId>,
    used: BTreeSet<BlockId>,
}

impl Policy for Faulty {
    type Config = Config;
    const NAME: &'static str = "faulty-prefix-cache";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "For tests: misbehaves on request.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "fault": {"default": "none", "description": "The misbehaviour"},
            "after": {"type": "integer", "default": 100, "description": "Number of calls answered correctly first"}
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        Ok(Self { config, calls: 0, idle: BTreeSet::new(), used: BTreeSet::new() })
    }
}

impl PrefixCache for Faulty {
    fn reuse(&mut self, hit: &Hit) -> u32 {
        let too_much = self.fault() == Fault::TooMuchReuse;
        if too_much { hit.cached_tokens.saturating_add(1) } else { hit.cached_tokens }
    }

    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        let fault = self.fault();
        for event in events.iter() {
            self.idle.remove(&event.block);
            self.used.remove(&event.block);
            match event.kind {
                EventKind::Idle => drop(self.idle.insert(event.block)),
                EventKind::Stored | EventKind::Reused => drop(self.used.insert(event.block)),
                EventKind::Dropped => {}
            }
        }
        if fault == Fault::WrongBlocks { self.wrong_blocks() } else { Vec::new() }
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        let fault = self.fault();
        if fault == Fault::WrongBlocks {
            return self.wrong_blocks();
        }
        let need = if fault == Fault::TooFew { need.min(1) } else { need };
        self.idle.iter().take(need as usize).copied().collect()
    }
}

impl Faulty {
    fn wrong_blocks(&self) -> Vec<BlockId> {
        self.used.iter().copied().chain([BlockId(u32::MAX)]).collect()
    }

    fn fault(&mut self) -> Fault {
        self.calls += 1;
        if self.calls <= self.config.after {
            return Fault::None;
        }
        match self.config.fault {
            Fault::Trap => panic!("told to trap at call {}", self.calls),
            Fault::Spin => {
                let mut turns = 0u64;
                while std::hint::black_box(turns) < u64::MAX {
                    turns += 1;
                }
            }
            Fault::None | Fault::WrongBlocks | Fault::TooMuchReuse | Fault::TooFew => {}
        }
        self.config.fault
    }
}

export_policy!(prefix_cache: Faulty);

#[cfg(test)]
mod tests {
    use infer_policy_sdk::parse_config;
    use infer_policy_sdk::testing::check_config;

    use super::*;

    #[test]
    fn configuration_matches_its_schema() {
        check_config::<Faulty>();
    }

    #[test]
    fn behaves_until_its_fault_starts() {
        let config = parse_config(r#"{"fault": "too-much-reuse", "after": 1}"#).unwrap();
        let mut policy = Faulty::new(config).unwrap();
        let hit = Hit { cached_tokens: 32, ..Hit::default() };
        assert_eq!([policy.reuse(&hit), policy.reuse(&hit)], [32, 33]);
        let config = parse_config(r#"{"fault": "wrong-blocks", "after": 1}"#).unwrap();
        let mut policy = Faulty::new(config).unwrap();
        assert_eq!(policy.evict(Micros(0), 1), []);
        assert_eq!(policy.evict(Micros(0), 1), [BlockId(u32::MAX)]);
    }
}
