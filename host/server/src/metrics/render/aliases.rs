//! The engine's metrics under vLLM's names.

use infer_api::admin::State;
use infer_core::FinishReason;

use crate::metrics::families::{Families, Kind};

/// Settings of the KV cache.
pub(super) struct CacheConfig {
    pub block_size: u32,
    pub total_blocks: u32,
    pub prefix_caching: bool,
}

pub(super) fn aliases(f: &mut Families, s: &State, config: &CacheConfig) {
    let model = || vec![("model_name", s.host.model.clone())];
    let waiting = s.queue.waiting + s.queue.held + s.queue.preempted;
    let usage = f64::from(s.memory.used) / f64::from(s.memory.total.max(1));
    let c = &s.counters;
    let gauges = [
        ("vllm:num_requests_running", "Sequences that hold blocks", f64::from(s.queue.running)),
        ("vllm:num_requests_waiting", "Sequences that wait", f64::from(waiting)),
        ("vllm:kv_cache_usage_perc", "Share of the blocks that sequences hold, 0 to 1", usage),
    ];
    for (name, help, value) in gauges {
        f.family(name, help, Kind::Gauge, vec![(model(), value)]);
    }
    let counters = [
        ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache", c.prefix_queries),
        ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache", c.prefix_hits),
        ("vllm:prompt_tokens", "Prompt tokens of requests that started", c.prompt_tokens),
        ("vllm:generation_tokens", "Tokens generated", c.generated_tokens),
        ("vllm:spec_decode_num_draft_tokens", "Draft tokens", c.drafted_tokens),
        ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted", c.accepted_tokens),
        ("vllm:num_preemptions", "Preemptions", c.preemptions),
    ];
    for (name, help, value) in counters {
        f.family(name, help, Kind::Counter, vec![(model(), value as f64)]);
    }
    let finished = |reasons: &[FinishReason]| -> f64 {
        reasons.iter().filter_map(|r| c.finished.get(finish_name(*r))).sum::<u64>() as f64
    };
    let success = [
        ("stop", finished(&[FinishReason::Eos, FinishReason::Stop])),
        ("length", finished(&[FinishReason::Length])),
        ("abort", finished(&[FinishReason::Cancelled])),
    ];
    let rows = success.map(|(reason, n)| {
        let mut labels = model();
        labels.push(("finished_reason", reason.to_owned()));
        (labels, n)
    });
    f.family("vllm:request_success", "Requests that ended", Kind::Counter, rows.into());
    let labels = vec![
        ("block_size", config.block_size.to_string()),
        ("num_gpu_blocks", config.total_blocks.to_string()),
        ("enable_prefix_caching", config.prefix_caching.to_string()),
    ];
    f.family("vllm:cache_config_info", "Settings of the KV cache", Kind::Gauge, vec![(labels, 1.0)]);
}

fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos => "eos",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}
