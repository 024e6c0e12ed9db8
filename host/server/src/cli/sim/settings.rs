//! Settings of the simulated host: from flags, else from the head of a recording, else defaults.

use std::path::Path;

use clap::Args;
use infer_api::trace::{Head, Settings as Recorded};
use infer_core::config::EngineConfig;
use infer_core::ids::Micros;
use infer_sim::cost::Fitted;
use infer_sim::{Hardware, ModelShape, Profile, Roofline, Settings, Slo};

use super::Failure;

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
    /// Goodput target: time to the first token
    #[arg(long, value_name = "MS", default_value_t = Slo::default().ttft_ms)]
    slo_ttft_ms: f64,
    /// Goodput target: mean time per token after the first
    #[arg(long, value_name = "MS", default_value_t = Slo::default().itl_ms)]
    slo_itl_ms: f64,
    /// Seed of the traffic
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl HostArgs {
    /// All settings; `head` is that of the replayed recording, if any.
    pub fn settings(&self, head: Option<&Head>) -> Result<Settings, Failure> {
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
            ..base
        };
        let engine = validated(&wanted, self.seed)?;
        for (flag, value) in [("--slo-ttft-ms", self.slo_ttft_ms), ("--slo-itl-ms", self.slo_itl_ms)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Failure::Usage(format!("{flag} must be more than 0, not {value}")));
            }
        }
        let slo = Slo { ttft_ms: self.slo_ttft_ms, itl_ms: self.slo_itl_ms };
        Ok(Settings { engine, profile, host: Micros::ZERO, load: 1.0, slo, seed: self.seed })
    }
}

/// Describes the simulated host.
pub fn host(settings: &Settings) -> String {
    let limits = settings.engine.limits;
    format!(
        "{}, at most {} running sequences, {} tokens per step, prefill chunks of {} tokens, {} blocks of {} tokens",
        settings.profile.about(),
        limits.max_running,
        limits.max_batch_tokens,
        limits.prefill_chunk,
        settings.engine.total_blocks,
        settings.engine.block_size
    )
}

/// Describes what was simulated, in two sentences.
pub fn about(settings: &Settings) -> String {
    format!(
        "The engine and its policies in virtual time: {}, seed {}. Goodput: first token within {} ms, then {} ms per \
         token.",
        host(settings),
        settings.seed,
        settings.slo.ttft_ms,
        settings.slo.itl_ms
    )
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
             a smaller --max-seq-len or --blocks",
            settings.total_blocks, settings.max_seq_len
        )));
    }
    let config = crate::trace::engine_config(settings, [seed, 0]);
    Ok(EngineConfig { prompt_cache_ttl: config.prompt_cache_ttl.max(Micros(1)), ..config })
}
