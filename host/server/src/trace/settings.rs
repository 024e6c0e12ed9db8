//! Converts the engine's settings and the tenants' terms to a recording's and back. The hash key stays secret.

use infer_api::trace::{Settings, Tenant};
use infer_core::{EngineConfig, Limits, Micros, TenantId, TenantTerms};

/// Returns the settings for a recording.
pub fn settings(config: &EngineConfig) -> Settings {
    let limits = config.limits;
    Settings {
        block_size: config.block_size,
        total_blocks: config.total_blocks,
        max_seq_len: config.max_seq_len,
        max_batch_tokens: limits.max_batch_tokens,
        max_batch_size: limits.max_running,
        prefill_chunk: limits.prefill_chunk,
        max_prefill_requests: limits.max_prefill_sequences,
        max_prefill_tokens: limits.max_prefill_tokens,
        max_waiting_requests: config.max_waiting,
        prefix_caching: config.prefix_caching,
        prompt_cache_entries: config.prompt_cache_entries,
        prompt_cache_ttl_us: config.prompt_cache_ttl.0,
        offload_blocks: config.offload_slots,
        speculate: config.speculate,
        plan_ahead: config.plan_ahead,
        starvation_bound_us: config.starvation_bound.0,
    }
}

/// Returns the recorded host's configuration, without speculation, which simulated devices don't support.
pub fn engine_config(settings: &Settings, hash_key: [u64; 2]) -> EngineConfig {
    EngineConfig {
        limits: Limits {
            max_batch_tokens: settings.max_batch_tokens,
            max_running: settings.max_batch_size,
            prefill_chunk: settings.prefill_chunk,
            max_prefill_sequences: settings.max_prefill_requests,
            max_prefill_tokens: settings.max_prefill_tokens,
        },
        block_size: settings.block_size,
        total_blocks: settings.total_blocks,
        max_waiting: settings.max_waiting_requests,
        max_seq_len: settings.max_seq_len,
        prefix_caching: settings.prefix_caching,
        prompt_cache_entries: settings.prompt_cache_entries,
        prompt_cache_ttl: Micros(settings.prompt_cache_ttl_us),
        offload_slots: settings.offload_blocks,
        plan_ahead: settings.plan_ahead,
        starvation_bound: Micros(settings.starvation_bound_us),
        hash_key,
        ..EngineConfig::default()
    }
}

/// Returns the terms of a tenant for a recording, which names it by `number`.
pub(super) fn tenant(number: u32, terms: TenantTerms) -> Tenant {
    let TenantTerms { weight_permille, rate_per_minute, burst } = terms;
    Tenant { tenant: number, weight_permille, rate_per_minute, burst }
}

/// Returns the terms of a recording's tenants by their numbers in it.
pub fn terms(tenants: &[Tenant]) -> Vec<(TenantId, TenantTerms)> {
    let terms = |&Tenant { tenant, weight_permille, rate_per_minute, burst }: &Tenant| {
        (TenantId(tenant), TenantTerms { weight_permille, rate_per_minute, burst })
    };
    tenants.iter().map(terms).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_a_round_trip_except_speculation() {
        let config = EngineConfig {
            block_size: 32,
            prompt_cache_ttl: Micros(7),
            starvation_bound: Micros(8),
            offload_slots: 9,
            speculate: 4,
            plan_ahead: true,
            ..EngineConfig::default()
        };
        let recorded = settings(&config);
        assert_eq!((recorded.speculate, recorded.offload_blocks), (4, 9));
        let again = engine_config(&recorded, [1, 2]);
        assert_eq!((again.speculate, again.plan_ahead), (0, true));
        assert_eq!(settings(&again), Settings { speculate: 0, ..recorded });
    }
}
