//! Settings of the simulated host: from flags, else from the head of a recording, else defaults.

use std::path::{Path, PathBuf};

use clap::Args;
use infer_api::trace::{Head, Settings as Recorded};
use infer_core::TenantTerms;
use infer_core::config::EngineConfig;
use infer_core::ids::{Micros, TenantId};
use infer_sim::cost::Fitted;
use infer_sim::{Hardware, ModelShape, Profile, Roofline, Settings, Slo};

use super::Failure;
use crate::tenants;
use crate::trace::terms;

/// Flags of the host.
#[derive(Args)]
pub struct HostArgs {
    /// Device: cpu, l4, a100, h100 or h200, or a profile file written by `infer sim calibrate`
    #[arg(long, visible_alias = "hardware", value_name = "NAME|FILE", default_value = "h100")]
    device: String,
    /// Model shape: demo, 1b, 8b or 70b [default: 8b; a profile file has its own]
    #[arg(long)]
    model: Option<String>,
    /// Blocks in the KV pool [default: the recorded host's, or what fits beside the weights in device memory]
    #[arg(long)]
    blocks: Option<u32>,
    /// Tokens per block [default: the recorded host's, or 16]
    #[arg(long)]
    block_size: Option<u32>,
    /// Maximum number of running sequences [default: the recorded host's, or 64]
    #[arg(long)]
    max_batch_size: Option<u32>,
    /// Maximum tokens per step [default: the recorded host's, or 2048]
    #[arg(long)]
    max_batch_tokens: Option<u32>,
    /// Maximum prompt tokens of a sequence per step [default: the recorded host's, or 512]
    #[arg(long)]
    prefill_chunk: Option<u32>,
    /// Maximum prompt plus output tokens of a request [default: the recorded host's, or 8192]
    #[arg(long)]
    max_seq_len: Option<u32>,
    /// Maximum number of waiting requests [default: the recorded host's, or 1000]
    #[arg(long)]
    max_waiting_requests: Option<u32>,
    /// Host time per step in microseconds; the device waits for it unless the host plans ahead
    #[arg(long, value_name = "US", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000_000))]
    host_us: u64,
    /// Plan a step while another is on the device [default: as the recorded host, or false]
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    plan_ahead: Option<bool>,
    /// How long a sequence that could run may be ignored before its scheduler is removed
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    starvation_bound: f64,
    /// Tenants file, of which weights and rates count: its first tenant is the one with the lowest number in the
    /// traffic, its second the one with the next, and so on [default: the recorded host's tenants]
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Goodput target: time to the first token
    #[arg(long, value_name = "MS", default_value_t = Slo::default().ttft_ms)]
    slo_ttft_ms: f64,
    /// Goodput target: mean time per token after the first
    #[arg(long, value_name = "MS", default_value_t = Slo::default().itl_ms)]
    slo_itl_ms: f64,
}

impl HostArgs {
    /// Whether a tenants file was given.
    pub fn names_tenants(&self) -> bool {
        self.api_keys.is_some()
    }

    /// All settings; `head` is that of the replayed recording, if any, and `numbers` are those of the tenants in the
    /// traffic, see `tenant_numbers`.
    pub fn settings(
        &self,
        head: Option<&Head>,
        seed: u64,
        numbers: Option<&[u32]>,
    ) -> Result<Settings, Failure> {
        let profile = profile(&self.device, self.model.as_deref())?;
        if head.is_some_and(|head| head.engine.speculate > 0) {
            eprintln!("the recorded host used draft tokens (--speculate); the simulated one doesn't");
        }
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
                speculate: 0,
                plan_ahead: false,
            },
        };
        let block_size = self.block_size.unwrap_or(base.block_size);
        let known = (base.total_blocks > 0 && self.block_size.is_none()).then_some(base.total_blocks);
        let wanted = Recorded {
            block_size,
            total_blocks: self.blocks.or(known).unwrap_or_else(|| profile.blocks(block_size)),
            max_seq_len: self.max_seq_len.unwrap_or(base.max_seq_len),
            max_batch_tokens: self.max_batch_tokens.unwrap_or(base.max_batch_tokens),
            max_batch_size: self.max_batch_size.unwrap_or(base.max_batch_size),
            prefill_chunk: self.prefill_chunk.unwrap_or(base.prefill_chunk),
            max_prefill_requests: match head {
                Some(_) => base.max_prefill_requests,
                None => self.max_batch_size.unwrap_or(base.max_batch_size),
            },
            max_prefill_tokens: match head {
                Some(_) => base.max_prefill_tokens,
                None => self.max_batch_tokens.unwrap_or(base.max_batch_tokens),
            },
            max_waiting_requests: self.max_waiting_requests.unwrap_or(base.max_waiting_requests),
            plan_ahead: self.plan_ahead.unwrap_or(base.plan_ahead),
            ..base
        };
        let seconds = self.starvation_bound;
        if !(0.001..=3_600.0).contains(&seconds) {
            let why = format!("--starvation-bound must be from 0.001 to 3600 seconds, not {seconds}");
            return Err(Failure::Usage(why));
        }
        let engine =
            EngineConfig { starvation_bound: Micros((seconds * 1e6) as u64), ..validated(&wanted, seed)? };
        for (flag, value) in [("--slo-ttft-ms", self.slo_ttft_ms), ("--slo-itl-ms", self.slo_itl_ms)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Failure::Usage(format!("{flag} must be more than 0, not {value}")));
            }
        }
        let slo = Slo { ttft_ms: self.slo_ttft_ms, itl_ms: self.slo_itl_ms };
        let tenants = self.tenants(head, numbers)?;
        Ok(Settings { engine, profile, host: Micros(self.host_us), load: 1.0, slo, seed, tenants })
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

/// A device by name, or from a profile file.
pub fn profile(device: &str, model: Option<&str>) -> Result<Profile, Failure> {
    if Path::new(device).extension().is_some() {
        if model.is_some() {
            let message = "--model: a profile file includes its model; omit one of the two";
            return Err(Failure::Usage(message.to_owned()));
        }
        let wrong = |error: String| Failure::Usage(format!("--device {device}: {error}"));
        let text =
            std::fs::read_to_string(device).map_err(|error| wrong(format!("can't be read: {error}")))?;
        return Ok(Profile::Fitted(Fitted::from_json(&text).map_err(|error| wrong(error.to_string()))?));
    }
    let hardware = Hardware::named(device).ok_or_else(|| {
        let known = Hardware::NAMES.join(", ");
        Failure::Usage(format!(
            "--device: unknown device `{device}`; use one of {known}, or a profile file (.json)"
        ))
    })?;
    let shape = model.unwrap_or("8b");
    let model = ModelShape::named(shape).ok_or_else(|| {
        let known = ModelShape::NAMES.join(", ");
        Failure::Usage(format!("--model: unknown shape `{shape}`; use one of {known}"))
    })?;
    Ok(Profile::Roofline(Roofline { hardware, model }))
}

/// Validates recorded settings and turns them into an engine's.
pub fn validated(settings: &Recorded, seed: u64) -> Result<EngineConfig, Failure> {
    let positive = [
        ("--block-size", settings.block_size),
        ("--max-batch-size", settings.max_batch_size),
        ("--max-batch-tokens", settings.max_batch_tokens),
        ("--prefill-chunk", settings.prefill_chunk),
        ("--max-waiting-requests", settings.max_waiting_requests),
        ("the recording's max_prefill_requests", settings.max_prefill_requests),
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
