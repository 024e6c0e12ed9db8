//! Metrics of the engine: sequences, blocks, steps and the prefix cache.

use infer_api::admin::{CacheLengths, Offload, State};

use crate::metrics::families::{Families, Kind, Labels};

pub(super) fn own(f: &mut Families, s: &State) {
    f.gauge("infer_requests_running", "Sequences that hold blocks", s.queue.running.into());
    f.gauge(
        "infer_requests_running_limit",
        "Sequences that may run at once",
        s.pressure.max_sequences.into(),
    );
    f.gauge("infer_requests_waiting", "Sequences that wait", s.queue.waiting.into());
    f.gauge("infer_requests_held", "Requests held by admission", s.queue.held.into());
    f.gauge("infer_requests_preempted", "Sequences that wait after a preemption", s.queue.preempted.into());
    f.gauge("infer_kv_block_size_tokens", "Tokens per block", s.memory.block_size.into());
    f.gauge("infer_kv_block_bytes", "Bytes per block", s.memory.block_bytes as f64);
    f.gauge("infer_kv_blocks", "Blocks in the pool", s.memory.total.into());
    f.gauge("infer_kv_blocks_free", "Free blocks", s.memory.free.into());
    f.gauge("infer_kv_blocks_cached", "Idle blocks kept for reuse", s.memory.cached.into());
    f.gauge("infer_kv_blocks_used", "Blocks that sequences hold", s.memory.used.into());
    if let Some(offload) = &s.offload {
        second_level(f, offload, s.memory.block_size);
    }
    f.gauge("infer_pressure", "Admission's memory pressure, 0 to 1", s.pressure.level);
    f.gauge(
        "infer_backpressure",
        "1 while the admission policy reports that more requests would only wait; clients are not told",
        u8::from(s.pressure.backpressure).into(),
    );
    f.gauge("infer_kv_blocks_reserved", "Blocks that admission reserves", s.pressure.reserved_blocks.into());
    f.gauge(
        "infer_kv_blocks_available",
        "Blocks that new requests may use",
        s.pressure.available_blocks.into(),
    );
    f.gauge(
        "infer_max_admissible_tokens",
        "Longest sequence, prompt plus output, that would be admitted now",
        s.pressure.max_sequence_tokens.into(),
    );
    f.gauge("infer_step_p50_seconds", "Median device time of recent steps", s.latencies.step_p50_ms / 1e3);
    f.gauge(
        "infer_step_p99_seconds",
        "99th percentile of the device time of recent steps",
        s.latencies.step_p99_ms / 1e3,
    );
    let c = &s.counters;
    f.counter("infer_steps", "Engine steps begun", c.steps);
    f.counter("infer_requests_submitted", "Requests submitted", c.submitted);
    f.counter("infer_requests_failed", "Requests that ended with an error", c.failed);
    f.counter("infer_preemptions", "Preemptions", c.preemptions);
    f.counter("infer_prompt_tokens", "Prompt tokens of requests that started", c.prompt_tokens);
    f.counter("infer_generated_tokens", "Tokens generated", c.generated_tokens);
    f.counter("infer_computed_tokens", "Tokens that the device computed", c.computed_tokens);
    f.counter("infer_drafted_tokens", "Draft tokens (--speculate)", c.drafted_tokens);
    f.counter("infer_accepted_tokens", "Draft tokens that were accepted", c.accepted_tokens);
    f.counter("infer_prefix_cache_queries", "Prompt tokens looked up in the prefix cache", c.prefix_queries);
    f.counter("infer_prefix_cache_hits", "Prompt tokens found in the prefix cache", c.prefix_hits);
    f.counter("infer_evicted_blocks", "Cached blocks evicted", c.evicted_blocks);
    f.counter("infer_cut_rows", "Planned rows truncated for lack of memory", c.cut_rows);
    f.counter("infer_device_faults", "Steps that failed on the device", c.device_faults);
    let by = |label: &'static str, map: &std::collections::BTreeMap<String, u64>| {
        map.iter().map(|(k, &n)| (vec![(label, k.clone())], n as f64)).collect()
    };
    f.family("infer_requests_refused", "Requests refused", Kind::Counter, by("reason", &c.refused));
    f.family(
        "infer_requests_finished",
        "Requests that ended without an error",
        Kind::Counter,
        by("reason", &c.finished),
    );
    f.family(
        "infer_prefix_cache_events",
        "Prefix cache lookups by outcome",
        Kind::Counter,
        by("event", &s.cache_events),
    );
    prefixes(f, s);
}

fn second_level(f: &mut Families, offload: &Offload, block_size: u32) {
    let found = offload.blocks_in * u64::from(block_size);
    f.gauge(
        "infer_kv_offload_blocks",
        "Blocks of the second level of the prefix cache",
        offload.total.into(),
    );
    f.gauge("infer_kv_offload_blocks_used", "Blocks of the second level that are used", offload.used.into());
    f.counter("infer_kv_offload_blocks_out", "Blocks copied to the second level", offload.blocks_out);
    f.counter("infer_kv_offload_blocks_in", "Blocks copied back to the pool", offload.blocks_in);
    f.counter("infer_kv_offload_tokens_found", "Tokens of the blocks that were copied back", found);
    f.gauge(
        "infer_kv_offload_failed",
        "1 after the second level failed: it is not used any more",
        u8::from(offload.failed).into(),
    );
}

/// Prefix cache totals by outcome; hit rates and mean lengths follow from them.
fn prefixes(f: &mut Families, s: &State) {
    let each = |value: &dyn Fn(&CacheLengths) -> u64| -> Vec<(Labels, f64)> {
        s.cache_lengths.iter().map(|(event, l)| (vec![("event", event.clone())], value(l) as f64)).collect()
    };
    for (name, help, samples) in [
        (
            "infer_prefix_cache_eligible_requests",
            "Requests whose prompt fills at least one block",
            each(&|l| l.eligible_requests),
        ),
        (
            "infer_prefix_cache_cached_tokens",
            "Prompt tokens found in the prefix cache",
            each(&|l| l.cached_tokens),
        ),
        ("infer_prefix_cache_prefilled_tokens", "Prompt tokens computed", each(&|l| l.prefilled_tokens)),
        (
            "infer_prefix_cache_hit_requests",
            "Hits: requests with cached tokens, of those whose prompt fills at least one block",
            each(&|l| l.hit_requests),
        ),
        ("infer_prefix_cache_hit_tokens", "Cached prompt tokens of hits", each(&|l| l.hit_tokens)),
    ] {
        f.family(name, help, Kind::Counter, samples);
    }
}
