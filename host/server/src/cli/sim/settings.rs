//! The simulated hosts: settings from flags, else from the head of a recording, else defaults.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;
use infer_api::trace::{Head, Settings as Recorded};
use infer_core::TenantTerms;
use infer_core::config::EngineConfig;
use infer_core::ids::{Micros, TenantId};
use infer_sim::cost::{Fitted, ProfileError};
use infer_sim::{Hardware, Host, ModelShape, Predictions, Profile, Roofline, Settings, Slo};

use super::Failure;
use crate::config::parse;
use crate::offload;
use crate::tenants;
use crate::trace::terms;

/// Flags of the host. All combinations of those with several values are hosts to compare.
#[derive(Args)]
pub struct HostArgs {
    /// Device: cpu, l4, a100, h100 or h200, a file like those that `infer sim devices NAME` prints, or a profile
    /// written by `infer sim calibrate` [default: h100]
    #[arg(long, visible_alias = "hardware", value_name = "NAME|FILE")]
    device: Vec<String>,
    /// Model shape: demo, 1b, 8b or 70b, or a file like those that `infer sim devices NAME` prints [default: 8b; a
    /// profile has its own]
    #[arg(long, value_name = "NAME|FILE")]
    model: Vec<String>,
    /// Blocks in the KV pool [default: the recorded host's, or what fits beside the weights in device memory]
    #[arg(long)]
    blocks: Vec<u32>,
    /// Blocks in a second level of the prefix cache, which takes those that the pool has no room for [default: 0]
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=100_000_000))]
    offload_blocks: Vec<u32>,
    /// Tokens per block [default: the recorded host's, or 16]
    #[arg(long)]
    block_size: Vec<u32>,
    /// Maximum number of running sequences [default: the recorded host's, or 64]
    #[arg(long)]
    max_batch_size: Vec<u32>,
    /// Maximum tokens per step [default: the recorded host's, or 2048]
    #[arg(long)]
    max_batch_tokens: Vec<u32>,
    /// Maximum prompt tokens of a sequence per step [default: the recorded host's, or 512]
    #[arg(long)]
    prefill_chunk: Vec<u32>,
    /// Maximum number of sequences in prefill per step [default: the recorded host's, or --max-batch-size]
    #[arg(long)]
    max_prefill_requests: Vec<u32>,
    /// Maximum prompt plus output tokens of a request [default: the recorded host's, or 8192]
    #[arg(long)]
    max_seq_len: Option<u32>,
    /// Maximum number of waiting requests [default: the recorded host's, or 1000]
    #[arg(long)]
    max_waiting_requests: Vec<u32>,
    /// Share KV blocks between requests with the same prefix [default: as the recorded host, or on]
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on", value_parser = Switch::parse)]
    prefix_caching: Vec<Switch>,
    /// Whole prompts of which the prompt cache keeps the end state [default: the recorded host's, or 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100_000))]
    prompt_cache_entries: Vec<u32>,
    /// How long an entry of the prompt cache is kept after its last use [default: the recorded host's, or 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    prompt_cache_ttl: Vec<u64>,
    /// What requests say of the length of their outputs, which policies go by in place of what the host learns: with
    /// `exact` the true length, with a number the true length times a log-normal error of this sigma, as a predictor
    /// would; with `learned` nothing, unless recorded clients did [default: learned]
    #[arg(long, value_name = "learned|exact|SIGMA", value_parser = predictions)]
    predictions: Vec<Predictions>,
    /// Host time per step in microseconds; the device waits for it unless the host plans ahead [default: 0]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    host_us: Vec<u64>,
    /// Plan a step while another is on the device [default: as the recorded host, or off]
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on", value_parser = Switch::parse)]
    plan_ahead: Vec<Switch>,
    /// How long a sequence that could run may be ignored before its scheduler is removed [default: as the recorded
    /// host, or 5]
    #[arg(long, value_name = "SECONDS", value_parser = starvation_bound)]
    starvation_bound: Option<u64>,
    /// Tenants file, of which weights and rates count: its first tenant is the one with the lowest number in the
    /// traffic, its second the one with the next, and so on [default: the recorded host's tenants]
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Goodput target: time to the first token
    #[arg(long, value_name = "MS", default_value_t = Slo::default().ttft_ms)]
    slo_ttft_ms: f64,
    /// Goodput target: mean time per token after the first (TPOT)
    #[arg(long, value_name = "MS", default_value_t = Slo::default().itl_ms)]
    slo_itl_ms: f64,
}

/// Sets how much of the second level of the prefix cache a step may copy. Where the profile doesn't say what a copy
/// costs, the host gets no second level, and this returns false.
pub fn price_copies(engine: &mut EngineConfig, profile: &Profile) -> bool {
    if engine.offload_slots == 0 {
        return true;
    }
    let bytes = profile.block_bytes(engine.block_size);
    match bytes {
        Some(bytes) => engine.offload_step_blocks = offload::step_blocks(bytes as u64),
        None => engine.offload_slots = 0,
    }
    bytes.is_some()
}

/// Says that the recorded host had a second level, if so, and the simulated one has none.
pub fn note_second_level(head: &Head) {
    if head.engine.offload_blocks > 0 {
        eprintln!(
            "the recorded host had a second level of the prefix cache (--kv-offloading-size); the simulated one has \
             none, because a measured profile doesn't say what a copy costs"
        );
    }
}

/// A value of each flag that may have several.
#[derive(Clone, Default)]
struct Variant<'a> {
    device: Option<&'a str>,
    model: Option<&'a str>,
    blocks: Option<u32>,
    offload_blocks: Option<u32>,
    block_size: Option<u32>,
    max_batch_size: Option<u32>,
    max_batch_tokens: Option<u32>,
    prefill_chunk: Option<u32>,
    max_prefill_requests: Option<u32>,
    max_waiting_requests: Option<u32>,
    prefix_caching: Option<bool>,
    prompt_cache_entries: Option<u32>,
    prompt_cache_ttl: Option<u64>,
    predictions: Option<Predictions>,
    host_us: Option<u64>,
    plan_ahead: Option<bool>,
    /// The values that vary.
    name: String,
}

impl HostArgs {
    /// All combinations of the flags' values.
    fn variants(&self) -> Result<Vec<Variant<'_>>, Failure> {
        let mut all = vec![Variant::default()];
        vary(&mut all, "device", &self.device, |one, value| one.device = Some(value))?;
        vary(&mut all, "model", &self.model, |one, value| one.model = Some(value))?;
        vary(&mut all, "blocks", &self.blocks, |one, value| one.blocks = Some(*value))?;
        vary(&mut all, "offload-blocks", &self.offload_blocks, |one, value| {
            one.offload_blocks = Some(*value);
        })?;
        vary(&mut all, "block-size", &self.block_size, |one, value| one.block_size = Some(*value))?;
        vary(&mut all, "max-batch-size", &self.max_batch_size, |one, value| {
            one.max_batch_size = Some(*value);
        })?;
        vary(&mut all, "max-batch-tokens", &self.max_batch_tokens, |one, value| {
            one.max_batch_tokens = Some(*value);
        })?;
        vary(&mut all, "prefill-chunk", &self.prefill_chunk, |one, value| one.prefill_chunk = Some(*value))?;
        vary(&mut all, "max-waiting-requests", &self.max_waiting_requests, |one, value| {
            one.max_waiting_requests = Some(*value);
        })?;
        vary(&mut all, "max-prefill-requests", &self.max_prefill_requests, |one, value| {
            one.max_prefill_requests = Some(*value);
        })?;
        vary(&mut all, "prefix-caching", &self.prefix_caching, |one, value| {
            one.prefix_caching = Some(value.0);
        })?;
        vary(&mut all, "prompt-cache-entries", &self.prompt_cache_entries, |one, value| {
            one.prompt_cache_entries = Some(*value);
        })?;
        vary(&mut all, "prompt-cache-ttl", &self.prompt_cache_ttl, |one, value| {
            one.prompt_cache_ttl = Some(*value);
        })?;
        vary(&mut all, "predictions", &self.predictions, |one, value| one.predictions = Some(*value))?;
        vary(&mut all, "host-us", &self.host_us, |one, value| one.host_us = Some(*value))?;
        vary(&mut all, "plan-ahead", &self.plan_ahead, |one, value| one.plan_ahead = Some(value.0))?;
        Ok(all)
    }

    /// The hosts that the flags describe, see [`Self::settings`].
    pub fn hosts(
        &self,
        head: Option<&Head>,
        seed: u64,
        numbers: Option<&[u32]>,
    ) -> Result<Vec<Host>, Failure> {
        if head.is_some_and(|head| head.engine.speculate > 0) {
            eprintln!("the recorded host used draft tokens (--speculate); the simulated one doesn't");
        }
        let host = |variant: Variant<'_>| {
            let settings = self.settings(&variant, head, seed, numbers).map_err(|error| match error {
                Failure::Usage(why) if !variant.name.is_empty() => {
                    Failure::Usage(format!("{}: {why}", variant.name))
                }
                other => other,
            })?;
            Ok(Host { name: variant.name, settings })
        };
        let hosts: Vec<_> = self.variants()?.into_iter().map(host).collect::<Result<_, Failure>>()?;
        let lacks_one = hosts.iter().any(|host| host.settings.engine.offload_slots == 0);
        if let Some(head) = head.filter(|_| self.offload_blocks.is_empty() && lacks_one) {
            note_second_level(head);
        }
        Ok(hosts)
    }

    /// Whether a tenants file was given.
    pub fn names_tenants(&self) -> bool {
        self.api_keys.is_some()
    }

    /// All settings; `head` is that of the replayed recording, if any, and `numbers` are those of the tenants in the
    /// traffic, see `tenant_numbers`.
    fn settings(
        &self,
        variant: &Variant<'_>,
        head: Option<&Head>,
        seed: u64,
        numbers: Option<&[u32]>,
    ) -> Result<Settings, Failure> {
        let profile = profile(variant.device.unwrap_or("h100"), variant.model)?;
        let base = match head {
            Some(head) => head.engine,
            None => Recorded {
                block_size: 16,
                total_blocks: 0,
                max_seq_len: 8_192,
                max_batch_tokens: 2_048,
                max_batch_size: 64,
                prefill_chunk: 512,
                max_prefill_requests: 64,
                max_prefill_tokens: 2_048,
                max_waiting_requests: 1_000,
                prefix_caching: true,
                prompt_cache_entries: 100,
                prompt_cache_ttl_us: 300_000_000,
                offload_blocks: 0,
                speculate: 0,
                plan_ahead: false,
                starvation_bound_us: 5_000_000,
            },
        };
        let block_size = variant.block_size.unwrap_or(base.block_size);
        let known = (base.total_blocks > 0 && variant.block_size.is_none()).then_some(base.total_blocks);
        if variant.blocks.or(known).is_none() {
            check_weights(&profile, block_size)?;
        }
        let wanted = Recorded {
            block_size,
            total_blocks: variant.blocks.or(known).unwrap_or_else(|| profile.blocks(block_size)),
            max_seq_len: self.max_seq_len.unwrap_or(base.max_seq_len),
            max_batch_tokens: variant.max_batch_tokens.unwrap_or(base.max_batch_tokens),
            max_batch_size: variant.max_batch_size.unwrap_or(base.max_batch_size),
            prefill_chunk: variant.prefill_chunk.unwrap_or(base.prefill_chunk),
            max_prefill_requests: variant.max_prefill_requests.unwrap_or(match head {
                Some(_) => base.max_prefill_requests,
                None => variant.max_batch_size.unwrap_or(base.max_batch_size),
            }),
            max_prefill_tokens: match head {
                Some(_) => base.max_prefill_tokens,
                None => variant.max_batch_tokens.unwrap_or(base.max_batch_tokens),
            },
            max_waiting_requests: variant.max_waiting_requests.unwrap_or(base.max_waiting_requests),
            prefix_caching: variant.prefix_caching.unwrap_or(base.prefix_caching),
            prompt_cache_entries: variant.prompt_cache_entries.unwrap_or(base.prompt_cache_entries),
            prompt_cache_ttl_us: variant.prompt_cache_ttl.map_or(base.prompt_cache_ttl_us, |s| s * 1_000_000),
            offload_blocks: variant.offload_blocks.unwrap_or(base.offload_blocks),
            plan_ahead: variant.plan_ahead.unwrap_or(base.plan_ahead),
            starvation_bound_us: self.starvation_bound.unwrap_or(base.starvation_bound_us),
            ..base
        };
        let mut engine = validated(&wanted, seed)?;
        let asked = variant.offload_blocks.is_some_and(|blocks| blocks > 0);
        if !price_copies(&mut engine, &profile) && asked {
            let message = "--offload-blocks: a measured profile doesn't say what a copy costs; name a device";
            return Err(Failure::Usage(message.to_owned()));
        }
        for (flag, value) in [("--slo-ttft-ms", self.slo_ttft_ms), ("--slo-itl-ms", self.slo_itl_ms)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Failure::Usage(format!("{flag} must be more than 0, not {value}")));
            }
        }
        let slo = Slo { ttft_ms: self.slo_ttft_ms, itl_ms: self.slo_itl_ms };
        let tenants = self.tenants(head, numbers)?;
        let host = Micros(variant.host_us.unwrap_or(0));
        let predictions = variant.predictions.unwrap_or_default();
        Ok(Settings { engine, profile, host, load: 1.0, slo, seed, tenants, predictions })
    }

    fn tenants(
        &self,
        head: Option<&Head>,
        numbers: Option<&[u32]>,
    ) -> Result<Vec<(TenantId, TenantTerms)>, Failure> {
        let Some(path) = &self.api_keys else {
            return Ok(head.map_or_else(Vec::new, |head| terms(&head.tenants)));
        };
        let grants = tenants::read(path).map_err(|why| Failure::Usage(format!("--api-keys: {why}")))?;
        let number = |nth: u32| numbers.map_or(Some(nth), |numbers| numbers.get(nth as usize).copied());
        let numbered =
            (0..).zip(grants).map_while(|(nth, grant)| Some((TenantId(number(nth)?), grant.terms)));
        Ok(numbered.collect())
    }
}

/// What requests say of the length of their outputs.
fn predictions(text: &str) -> Result<Predictions, String> {
    let range = Predictions::SIGMA;
    match text {
        "learned" => Ok(Predictions::Learned),
        "exact" => Ok(Predictions::Exact),
        sigma => match sigma.parse::<f64>() {
            Ok(sigma) if range.contains(&sigma) => Ok(Predictions::Erring(sigma)),
            _ => {
                Err(format!("expected learned, exact, or a number from {} to {}", range.start(), range.end()))
            }
        },
    }
}

/// `on` or `off`.
#[derive(Clone, Copy, PartialEq)]
struct Switch(bool);

impl Switch {
    fn parse(text: &str) -> Result<Self, String> {
        parse::switch(text).map(Self)
    }
}

impl Display for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// Replaces each variant by one for each value of a flag.
fn vary<'a, T: Display + PartialEq>(
    all: &mut Vec<Variant<'a>>,
    flag: &str,
    values: &'a [T],
    set: fn(&mut Variant<'a>, &'a T),
) -> Result<(), Failure> {
    if let Some(value) = repeated(values) {
        return Err(Failure::Usage(format!("--{flag} {value} is given twice; give each value once")));
    }
    if values.is_empty() {
        return Ok(());
    }
    let names = names(flag, values);
    let with = |variant: &Variant<'a>, value: &'a T, name: &str| {
        let mut variant = variant.clone();
        if values.len() > 1 {
            let gap = if variant.name.is_empty() { "" } else { " " };
            variant.name += &format!("{gap}{name}");
        }
        set(&mut variant, value);
        variant
    };
    *all = all
        .iter()
        .flat_map(|variant| values.iter().zip(&names).map(move |(value, name)| with(variant, value, name)))
        .collect();
    Ok(())
}

/// What a host with each of these values is called. Devices and models have names, and so have those in files.
fn names<T: Display>(flag: &str, values: &[T]) -> Vec<String> {
    if !matches!(flag, "device" | "model") {
        return values.iter().map(|value| format!("{flag}={value}")).collect();
    }
    let given: Vec<String> = values.iter().map(ToString::to_string).collect();
    let own: Vec<String> =
        given.iter().map(|given| own_name(given).unwrap_or_else(|| given.clone())).collect();
    // Copies of one file are told apart by their paths.
    if repeated(&own).is_some() { given } else { own }
}

/// The name that a device's or a model's file has for it. What is wrong with a file is said where it is used.
fn own_name(given: &str) -> Option<String> {
    let text = file("", given).ok()??;
    let described: serde_json::Value = serde_json::from_str(&text).ok()?;
    described["name"].as_str().map(str::to_owned)
}

/// The first value that was there before.
pub fn repeated<T: PartialEq>(given: &[T]) -> Option<&T> {
    let mut rest = given.iter().enumerate();
    rest.find(|(at, value)| given[..*at].contains(value)).map(|(_, value)| value)
}

/// A device and a model by name or from files; a profile file has both.
pub fn profile(device: &str, model: Option<&str>) -> Result<Profile, Failure> {
    let hardware = match file("--device", device)? {
        None => Hardware::named(device).ok_or_else(|| {
            let known = Hardware::NAMES.join(", ");
            Failure::Usage(format!(
                "--device: unknown device `{device}`; use one of {known}, or a file (.json)"
            ))
        })?,
        Some(text) => {
            let wrong = |error: ProfileError| Failure::Usage(format!("--device {device}: {error}"));
            let is_hardware = describes_hardware(&text)
                .map_err(|error| Failure::Usage(format!("--device {device}: not a JSON object: {error}")))?;
            if !is_hardware {
                if model.is_some() {
                    let message = "--model: a profile file includes its model; omit one of the two";
                    return Err(Failure::Usage(message.to_owned()));
                }
                return Ok(Profile::Fitted(Fitted::from_json(&text).map_err(wrong)?));
            }
            Hardware::from_json(&text).map_err(wrong)?
        }
    };
    let shape = model.unwrap_or("8b");
    let model = match file("--model", shape)? {
        None => ModelShape::named(shape).ok_or_else(|| {
            let known = ModelShape::NAMES.join(", ");
            Failure::Usage(format!("--model: unknown shape `{shape}`; use one of {known}, or a file (.json)"))
        })?,
        Some(text) => ModelShape::from_json(&text)
            .map_err(|error| Failure::Usage(format!("--model {shape}: {error}")))?,
    };
    Ok(Profile::Roofline(Roofline { hardware, model }))
}

/// The content of a flag's file, or `None` if its value is a name.
fn file(flag: &str, given: &str) -> Result<Option<String>, Failure> {
    if Path::new(given).extension().is_none() {
        return Ok(None);
    }
    let unread = |error| Failure::Usage(format!("{flag} {given}: can't be read: {error}"));
    std::fs::read_to_string(given).map(Some).map_err(unread)
}

/// Whether a device's file has peak rates rather than measured costs.
fn describes_hardware(text: &str) -> Result<bool, serde_json::Error> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
    Ok(!fields.contains_key("format") && !fields.contains_key("cost"))
}

/// A bound given in seconds, in microseconds.
fn starvation_bound(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3_600.0).contains(&seconds) => Ok((seconds * 1e6) as u64),
        _ => Err(format!("must be from 0.001 to 3600 seconds, not {text}")),
    }
}

/// Refuses a model whose weights leave no room for a block.
fn check_weights(profile: &Profile, block_size: u32) -> Result<(), Failure> {
    let Profile::Roofline(Roofline { hardware, model }) = profile else { return Ok(()) };
    if profile.blocks(block_size) > 0 {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "the weights of {} take {:.1} GB and leave no room for a KV block in the {:.1} GB of {}, a tenth of which stays free; \
         choose a larger device or a smaller model, or set --blocks",
        model.name,
        model.weights * model.weight_bytes / 1e9,
        hardware.memory / 1e9,
        hardware.name
    )))
}

/// Validates recorded settings and turns them into an engine's.
pub fn validated(settings: &Recorded, seed: u64) -> Result<EngineConfig, Failure> {
    let positive = [
        ("--block-size", settings.block_size),
        ("--max-batch-size", settings.max_batch_size),
        ("--max-batch-tokens", settings.max_batch_tokens),
        ("--prefill-chunk", settings.prefill_chunk),
        ("--max-waiting-requests", settings.max_waiting_requests),
        ("--max-prefill-requests", settings.max_prefill_requests),
        ("the recording's max_prefill_tokens", settings.max_prefill_tokens),
    ];
    if let Some((flag, _)) = positive.iter().find(|(_, value)| *value == 0) {
        return Err(Failure::Usage(format!("{flag} must be at least 1")));
    }
    if settings.max_seq_len < 16 {
        return Err(Failure::Usage("--max-seq-len must be at least 16".to_owned()));
    }
    if settings.total_blocks < settings.max_seq_len.div_ceil(settings.block_size) {
        return Err(Failure::Usage(format!(
            "a pool of {} blocks can't hold a sequence of {} tokens; choose a larger device, a smaller model, \
             a smaller --max-seq-len, or more --blocks",
            settings.total_blocks, settings.max_seq_len
        )));
    }
    let config = crate::trace::engine_config(settings, [seed, 0]);
    Ok(EngineConfig { prompt_cache_ttl: config.prompt_cache_ttl.max(Micros(1)), ..config })
}
