//! A case as data: the host, its policies, and what happens to it. Written as JSON, an operation a line.

use std::fmt::Write as _;

use infer_core::policy::{Chain, PolicyKind};
use infer_core::{EngineConfig, Limits, Micros};
use serde::{Deserialize, Serialize};

/// The form of the file.
const VERSION: u32 = 1;
/// Largest pool, times and operations of a case: a file from elsewhere must not exhaust the machine.
const MOST_BLOCKS: u32 = 4_096;
const MOST_SLOTS: u64 = 1 << 20;
const MOST_US: u64 = 1 << 40;
const MOST_OPS: usize = 1_000_000;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The host.
    pub setup: Setup,
    /// What happens to it.
    pub ops: Vec<Op>,
}

/// The host and its first policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "named as in `EngineConfig`; times in microseconds")]
pub struct Setup {
    pub seed: u64,
    pub max_batch_tokens: u32,
    pub max_running: u32,
    pub prefill_chunk: u32,
    pub max_prefill_sequences: u32,
    pub max_prefill_tokens: u32,
    pub block_size: u32,
    pub total_blocks: u32,
    pub max_waiting: u32,
    pub max_seq_len: u32,
    pub prefix_caching: bool,
    pub prompt_cache_entries: u32,
    pub prompt_cache_ttl_us: u64,
    pub max_strikes: u32,
    pub strike_window_us: u64,
    pub starvation_bound_us: u64,
    /// Unread tokens after which a client is cut off.
    pub stream_events: u32,
    /// Most draft tokens of a request in a step; 0 for none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub speculate: u32,
    /// Whether a batch is made while another is in flight.
    #[serde(default, skip_serializing_if = "is_default")]
    pub plan_ahead: bool,
    /// Whether the policies that are live at the end must finish the case without help from the built-ins.
    pub unaided: bool,
    /// The first policies.
    pub policies: [Script; 3],
    /// Policies from outside that operations may name, as `kind spec`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outsiders: Vec<String>,
}

/// An operation. `pick` chooses among what exists when it happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the variants say it")]
pub enum Op {
    /// A request arrives.
    Submit(Ask),
    /// A client cancels its request or disconnects, which is the same to the host.
    Cancel { pick: u32 },
    /// A stop string was seen.
    Stop { pick: u32 },
    /// The host's time for a request is over.
    Expire { pick: u32 },
    /// A batch is made, behind another one if the host plans ahead, and stays in flight.
    Begin,
    /// The oldest batch in flight, or the next one, is computed in this time. If there is none, the driver
    /// sleeps until the engine's next wake.
    Step { us: u32 },
    /// An idle driver is woken early, after this time.
    Wait { us: u32 },
    /// The clock jumps.
    Jump { us: u64 },
    /// The driver's clock goes back.
    Back { us: u64 },
    /// What becomes of the batch that is computed next.
    Fault { trouble: Trouble },
    /// A policy is swapped in.
    Swap { script: Script, mode: Mode },
    /// A shadow or canary is kept.
    Promote { slot: Slot },
    /// A shadow is stopped.
    StopShadow { slot: Slot },
    /// The previous policy comes back.
    Rollback { slot: Slot },
    /// Everything that waits fails.
    ClearQueue,
    /// No new requests are admitted from now on.
    Drain,
    /// What tenants are granted changes.
    Terms { seed: u64 },
    /// An operator looks.
    Report,
}

/// A request. Zeros and `false` are left out of files.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ask {
    /// Its tenant.
    #[serde(skip_serializing_if = "is_default")]
    pub tenant: u8,
    /// The conversation, or 0.
    #[serde(skip_serializing_if = "is_default")]
    pub session: u8,
    /// Separates caches of one tenant.
    #[serde(skip_serializing_if = "is_default")]
    pub salt: u8,
    /// Larger is more urgent.
    #[serde(skip_serializing_if = "is_default")]
    pub priority: i8,
    /// From now; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub deadline_us: u32,
    /// Continues the session's last turn.
    #[serde(skip_serializing_if = "is_default")]
    pub follow: bool,
    /// Repeats the prompt of the n-th last request, mostly as the same tenant; 0 for none.
    #[serde(skip_serializing_if = "is_default")]
    pub again: u8,
    /// Leading tokens that it shares with its family.
    #[serde(skip_serializing_if = "is_default")]
    pub shared: u16,
    /// Which prefix that is.
    #[serde(skip_serializing_if = "is_default")]
    pub family: u8,
    /// Tokens of its own.
    #[serde(skip_serializing_if = "is_default")]
    pub own: u16,
    /// Selects these, and seeds the sampling.
    #[serde(skip_serializing_if = "is_default")]
    pub seed: u32,
    /// Most tokens to generate.
    #[serde(skip_serializing_if = "is_default")]
    pub max_new: u16,
    /// Fewest.
    #[serde(skip_serializing_if = "is_default")]
    pub min_new: u8,
    /// Whether it has end tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub stops: bool,
    /// Whether it is sampled with a temperature and a repetition penalty.
    #[serde(skip_serializing_if = "is_default")]
    pub drawn: bool,
    /// Whether it asks for log-probabilities, also of its prompt.
    #[serde(skip_serializing_if = "is_default")]
    pub likely: bool,
    /// It may be longer than allowed, or empty. Others are cut to what is allowed.
    #[serde(skip_serializing_if = "is_default")]
    pub odd: bool,
    /// The client reads a token every this many steps; 0 reads all at once, 255 nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub lag: u8,
    /// Further sequences of the same client request.
    #[serde(skip_serializing_if = "is_default")]
    pub more: u8,
    /// Whether these have prompts of their own.
    #[serde(skip_serializing_if = "is_default")]
    pub batch: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a device does wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
#[allow(missing_docs, reason = "the variants say it")]
pub enum Trouble {
    /// It has no memory, or fails, for all rows.
    All { memory: bool },
    /// For these rows, which needn't be there.
    Rows { rows: Vec<usize> },
    /// Its output lacks this many rows.
    Short { missing: usize },
    /// It samples no token for this row.
    Silent { row: usize },
    /// It samples nothing after draft tokens.
    Unsure,
}

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "named as `PolicyKind`")]
pub enum Slot {
    Scheduler,
    Admission,
    PrefixCache,
}

impl Slot {
    /// All slots.
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Admission, Self::PrefixCache];

    /// The engine's name for it.
    pub fn kind(self) -> PolicyKind {
        PolicyKind::ALL[self as usize]
    }
}

/// How a policy is swapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Live at once.
    Now,
    /// Live, after receiving what is cached.
    Primed,
    /// Beside the live one.
    Shadow,
    /// Live, and watched for half a second.
    Canary,
}

/// A policy that the machine makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Its slot.
    pub slot: Slot,
    /// Its behaviour.
    pub style: Style,
    /// Its random choices.
    pub seed: u64,
    /// How many of a hundred answers break the rules.
    pub evil: u8,
    /// The longest time that a call reports; 0 if it measures none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slow_us: u32,
    /// In the admission slot: those that are asked after it, one by one. They are as evil and as slow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Style>,
}

impl Script {
    /// Whether it describes several admission policies.
    pub fn is_list(&self) -> bool {
        self.slot == Slot::Admission && !self.also.is_empty()
    }
}

/// A policy's behaviour while it keeps the rules. In a slot without a policy of a style it is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// The built-in's answers.
    Plain,
    /// Anything that is allowed.
    Random,
    /// Never preempts, and plans nothing if memory is short. As an admission policy: holds everything.
    Timid,
    /// The latest first, and preempts the oldest. As an admission policy: admits and defers by turns.
    Backwards,
    /// Leaves the first ones out. As an admission policy: refuses one tenant.
    Starve,
    /// Plans nothing, and promises a lot. As an admission policy: refuses everything.
    Stall,
    /// Preempts whatever runs. As a prefix cache: drops whatever is idle.
    Thrash,
    /// A token at a time.
    Crumbs,
    /// A policy from outside: the n-th of `Setup::outsiders`.
    Outsider(u16),
}

/// A file that holds no case.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// It is not JSON of this form.
    #[error("it holds no case: {0}")]
    Form(#[from] serde_json::Error),
    /// It has another version.
    #[error("it is of version {0}, not {VERSION}")]
    Version(u32),
    /// A number is out of range.
    #[error("its setup can't be run: {0}")]
    Setup(&'static str),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    /// What went wrong, for people.
    #[serde(default)]
    violation: String,
    setup: Setup,
    ops: Vec<Op>,
}

impl Case {
    /// The file's text; `violation` is for people.
    pub fn to_text(&self, violation: &str) -> String {
        let mut text = format!(
            "{{\"version\": {VERSION},\n \"violation\": {},\n \"setup\": {},\n \"ops\": [",
            json(violation),
            json(&self.setup)
        );
        for (at, op) in self.ops.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\n  {}", json(op));
        }
        text + "\n]}\n"
    }

    /// Reads what `to_text` wrote.
    pub fn from_text(text: &str) -> Result<Self, CaseError> {
        let File { version, setup, ops, .. } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(CaseError::Version(version));
        }
        if ops.len() > MOST_OPS {
            return Err(CaseError::Setup("it has more than a million operations"));
        }
        setup.check()?;
        let swapped = ops.iter().filter_map(|op| match op {
            Op::Swap { script, .. } => Some(script),
            _ => None,
        });
        let mut lists = setup.policies.iter().chain(swapped).filter(|script| script.is_list());
        if lists.any(|list| Chain::check_length(1 + list.also.len()).is_err()) {
            return Err(CaseError::Setup("a list of admission policies is too long"));
        }
        Ok(Self { setup, ops })
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).expect("plain data is JSON")
}

impl Setup {
    fn check(&self) -> Result<(), CaseError> {
        let positive = [
            self.max_batch_tokens,
            self.max_running,
            self.prefill_chunk,
            self.max_prefill_sequences,
            self.max_prefill_tokens,
            self.block_size,
            self.total_blocks,
            self.max_seq_len,
            self.stream_events,
        ];
        if positive.contains(&0) {
            return Err(CaseError::Setup("a limit is 0"));
        }
        let sizes = [self.max_seq_len, self.max_running, self.block_size, self.max_waiting, self.speculate];
        let times = [self.prompt_cache_ttl_us, self.strike_window_us, self.starvation_bound_us];
        if self.total_blocks > MOST_BLOCKS
            || u64::from(self.total_blocks) * u64::from(self.block_size) > MOST_SLOTS
            || times.iter().any(|&us| us > MOST_US)
            || self.prompt_cache_entries > MOST_BLOCKS
            || sizes.iter().any(|&size| size > 1 << 16)
        {
            return Err(CaseError::Setup("a size is too large"));
        }
        Ok(())
    }

    /// Tokens that the device samples from: few with speculation, so that many draft tokens are right.
    pub fn vocab(&self) -> u32 {
        if self.speculate > 0 { 4 } else { 11 }
    }

    /// What the engine is made with.
    pub fn engine(&self) -> EngineConfig {
        EngineConfig {
            limits: Limits {
                max_batch_tokens: self.max_batch_tokens,
                max_running: self.max_running,
                prefill_chunk: self.prefill_chunk,
                max_prefill_sequences: self.max_prefill_sequences,
                max_prefill_tokens: self.max_prefill_tokens,
            },
            block_size: self.block_size,
            total_blocks: self.total_blocks,
            max_waiting: self.max_waiting,
            max_seq_len: self.max_seq_len,
            prefix_caching: self.prefix_caching,
            offload_slots: 0,
            offload_step_blocks: EngineConfig::default().offload_step_blocks,
            prompt_cache_entries: self.prompt_cache_entries,
            prompt_cache_ttl: Micros(self.prompt_cache_ttl_us),
            hash_key: [self.seed, !self.seed],
            max_strikes: self.max_strikes,
            strike_window: Micros(self.strike_window_us),
            policy_step_budget: EngineConfig::default().policy_step_budget,
            starvation_bound: Micros(self.starvation_bound_us),
            speculate: self.speculate,
            max_samples: 2 * self.max_running,
            plan_ahead: self.plan_ahead,
        }
    }
}
