//! An admission policy that misbehaves on request: `{"fault": "wait-forever", "after": 100}` admits
//! everybody for a hundred calls and nobody from then on.

use infer_policy_sdk::{
    Admission, Load, Policy, Pressure, Reason, Refusal, Request, Verdict, export_policy, tokens_in,
};
use serde::{Deserialize, Serialize};

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Nothing.
    None,
    /// Panics.
    Trap,
    /// Never returns.
    Spin,
    /// Turns everybody away.
    RefuseAll,
    /// Turns everybody away and doesn't say why.
    RefuseSilently,
    /// Makes everybody wait, also on an idle host.
    WaitForever,
    /// Reports more blocks than there are.
    Boast,
}

/// What `configure` takes.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What it does wrong.
    pub fault: Fault,
    /// Calls that it answers well before.
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
            "fault": {"default": "none", "description": "What it does wrong"},
            "after": {"type": "integer", "default": 100, "description": "Calls that it answers well before"}
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
                message: "told to refuse everybody".to_owned(),
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
    fn its_configuration_is_what_its_schema_says() {
        check_config::<Faulty>();
    }

    #[test]
    fn it_admits_until_told_otherwise() {
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
