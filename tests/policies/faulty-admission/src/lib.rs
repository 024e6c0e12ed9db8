//! An admission policy that misbehaves on request: `{"fault": "wait-forever", "after": 100}` admits every request for a
//! hundred calls and none after that.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, Verdict, export_policy, tokens_in,
};
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
    /// Refuses every request.
    RefuseAll,
    /// Refuses every request without a message.
    RefuseSilently,
    /// Makes every request wait, even on an idle host.
    WaitForever,
    /// Reports more available blocks than the pool has.
    Boast,
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

/// The admission policy.
pub struct Faulty {
    config: Config,
    calls: u64,
}

impl Policy for Faulty {
    type Config = Config;
    const NAME: &'static str = "faulty-admission";
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
        Ok(Self { config, calls: 0 })
    }
}

impl Admission for Faulty {
    fn admit(&mut self, _request: &Request, _load: &Load) -> Verdict {
        match self.fault() {
            Fault::RefuseAll => Verdict::Refuse(Refusal {
                reason: Reason::Other,
                message: "told to refuse all requests".to_owned(),
                retry_after_ms: 1_000,
            }),
            Fault::RefuseSilently => {
                Verdict::Refuse(Refusal { reason: Reason::Other, message: String::new(), retry_after_ms: 0 })
            }
            Fault::WaitForever => Verdict::Wait,
            _ => Verdict::Admit,
        }
    }

    fn measure(&mut self, load: &Load) -> Pressure {
        let boasts = self.fault() == Fault::Boast;
        let available_blocks =
            if boasts { u32::MAX } else { load.memory.allocatable_blocks().min(load.memory.total_blocks) };
        let max_sequence_tokens = tokens_in(available_blocks, load.memory.block_size);
        Pressure { available_blocks, max_sequence_tokens, ..Pressure::default() }
    }
}

impl Faulty {
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
            Fault::None | Fault::RefuseAll | Fault::RefuseSilently | Fault::WaitForever | Fault::Boast => {}
        }
        self.config.fault
    }
}

export_policy!(admission: Faulty);

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
    fn admits_until_its_fault_starts() {
        for (fault, refuses) in [("refuse-all", true), ("wait-forever", false)] {
            let config = parse_config(&format!(r#"{{"fault": "{fault}", "after": 1}}"#)).unwrap();
            let mut policy = Faulty::new(config).unwrap();
            let mut ask = || policy.admit(&Request::default(), &Load::default());
            assert_eq!(ask(), Verdict::Admit);
            assert_eq!(matches!(ask(), Verdict::Refuse(_)), refuses);
            assert_ne!(ask(), Verdict::Admit);
        }
    }
}
