//! The pool: what does not fit, the second level, and how reports count what was cached.

use infer_sim::metrics::Sample;
use infer_sim::{Outcome, Profile};

use super::{run, served};
use crate::{named, settings};

#[test]
fn small_pool_evicts_and_hits_less() {
    let workload = named("few-shot", 600);
    let hits = |total_blocks| {
        let mut settings = settings(0.5, 1);
        settings.engine.total_blocks = total_blocks;
        served(&settings, &workload)
    };
    let (small, large) = (hits(1_500), hits(60_000));
    assert!(small.evicted_blocks > 0 && large.evicted_blocks == 0);
    assert!(small.cache.hit_rate < large.cache.hit_rate);
}

#[test]
fn a_second_level_brings_back_what_a_small_pool_evicts() {
    let workload = named("chat", 600);
    let run = |offload_slots, host_bandwidth| {
        let mut settings = settings(0.3, 1);
        (settings.engine.total_blocks, settings.engine.offload_slots) = (1_500, offload_slots);
        let Profile::Roofline(roofline) = &mut settings.profile else { panic!("it has a name") };
        roofline.hardware.host_bandwidth = host_bandwidth;
        served(&settings, &workload)
    };
    let (without, fast, slow) = (run(0, 1e9), run(60_000, 100e9), run(60_000, 1e9));
    assert!(without.evicted_blocks > 0 && without.onloaded_blocks == 0);
    assert!(fast.onloaded_blocks > 100, "{}", fast.onloaded_blocks);
    assert!(
        fast.cache.prefilled_ratio < without.cache.prefilled_ratio,
        "{:?} {:?}",
        fast.cache,
        without.cache
    );
    let [without, fast, slow] = [without, fast, slow].map(|outcome| outcome.ttft_ms.mean);
    assert!(fast < without && fast < slow, "{without} without, {fast} and {slow} with");
}

#[test]
fn hit_rate_and_length_of_hits_multiply_to_the_tokens_saved() {
    // In `window`, prompts also diverge from their conversation after what they share with others.
    for name in ["chat", "window", "few-shot"] {
        let Outcome { cache, finished, requests, .. } = run(name, 0.5);
        assert_eq!(finished, requests, "{name}: each started");
        let prefilled = cache.mean_prefilled.unwrap() * requests as f64;
        let saved = prefilled / cache.prefilled_ratio.unwrap() - prefilled;
        let counted = cache.hit_rate * cache.mean_cached.unwrap() * requests as f64;
        assert!((counted / saved - 1.0).abs() < 1e-9, "{name}: {counted} of {saved}");
    }
}

#[test]
fn occupancy_agrees_with_the_samples() {
    let Outcome { pool, samples, .. } = run("chat", 0.5);
    let mean = |read: fn(&Sample) -> u32| {
        samples.iter().map(|sample| f64::from(read(sample)) / 8_000.0).sum::<f64>() / samples.len() as f64
    };
    let (used, cached) = (mean(|sample| sample.used), mean(|sample| sample.cached));
    assert!((used - pool.used_mean).abs() < 0.02 && (cached - pool.cached_mean).abs() < 0.02, "{pool:?}");
    assert!(pool.used_mean > 0.0 && pool.used_peak > pool.used_mean, "{pool:?}");
    assert!(pool.cached_mean > 0.0 && pool.cached_peak > pool.cached_mean, "{pool:?}");
}
