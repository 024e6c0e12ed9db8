//! Checks of kernels and of the whole decoder on a device: golden logits of every family and of adapters, golden
//! vectors, recorded decodes against launched ones, scattered blocks against contiguous ones, adapters that come and go and
//! beside what else there is, running out of memory.
//! `infer gpu-check` runs them all; the tests run them on the emulated device.

mod adapters;
mod embeddings;
mod golden;
mod integers;
mod report;
mod same;
mod walk;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use infer_kernels::cuda::Device;
use infer_kernels::cuda::checks::{Check, Effort, all};

pub use adapters::{adapters, adapters_come_and_go};
pub use embeddings::embeddings;
pub use golden::{Extent, checkpoints, golden};
pub use integers::{adapted_integers, integers, integers_are_recorded, integers_stand_alone};
pub use report::Report;
pub use same::{
    adapted_drafts_change_no_token, adapted_graphs_are_eager, adapted_tokens_stand_alone,
    contiguous_is_paged, copied_blocks_continue, drafts_change_no_token, graphs_are_eager, memory_runs_out,
    tokens_stand_alone,
};

/// Golden checkpoints that the checks of whole models run on, beside the golden logits of all: heads as wide as real models',
/// layers of experts, also with biases and sinks, and those of float32.
const FAMILIES: [&str; 6] =
    ["llama-wide-bf16", "qwen3-wide-bf16", "gemma3-wide-bf16", "qwen3moe-bf16", "gptoss-bf16", "llama-f32"];

/// Those whose weights become integers: rope in products, norms behind them, experts beside them.
const OF_INTEGERS: [&str; 3] = ["llama-wide-bf16", "gemma3-wide-bf16", "qwen3moe-bf16"];

/// The golden checkpoint that embeds.
const EMBEDDING: &str = "qwen3-embedding-bf16";

type ModelCheck = fn(&Arc<dyn Device>, &Path) -> Result<String, String>;

const MODEL_CHECKS: [(&str, ModelCheck); 10] = [
    ("graphs draw as launches do", graphs_are_eager),
    ("graphs with adapters draw as launches do", adapted_graphs_are_eager),
    ("paged is contiguous", contiguous_is_paged),
    ("copied blocks continue", copied_blocks_continue),
    ("deterministic tokens stand alone", tokens_stand_alone),
    ("deterministic tokens with adapters stand alone", adapted_tokens_stand_alone),
    ("draft tokens change no token", drafts_change_no_token),
    ("draft tokens with adapters change no token", adapted_drafts_change_no_token),
    ("adapters come and go between decodes", adapters_come_and_go),
    ("memory runs out", memory_runs_out),
];

/// The same with weights as integers.
const INTEGER_CHECKS: [(&str, ModelCheck); 4] = [
    ("weights as integers", integers),
    ("weights as integers with adapters", adapted_integers),
    ("graphs draw as launches do, weights as integers", integers_are_recorded),
    ("deterministic tokens stand alone, weights as integers", integers_stand_alone),
];

/// What to check.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Random shapes per kernel.
    pub seeds: u64,
    /// The directory of golden checkpoints, for checks of whole models.
    pub golden: Option<&'a Path>,
    /// Words of which a check's name must have one; without words, everything is checked.
    pub only: &'a [String],
}

/// Runs the checks of kernels, then those of whole models. A line per check goes to `say`.
///
/// # Errors
/// If a check failed.
pub fn run(device: &Arc<dyn Device>, scope: Scope<'_>, say: &mut dyn FnMut(String)) -> Result<(), String> {
    let mut report = Report::new(device, scope.only, say);
    for check in all() {
        report.check(check.name, || every_seed(device, check, scope.seeds));
    }
    let Some(directory) = scope.golden else { return report.finish() };
    match checkpoints(directory) {
        Ok(paths) => {
            for path in paths {
                let family = path.file_name().unwrap_or_default().display();
                report.check(&format!("golden logits, {family}"), || golden(device, &path, Extent::All));
            }
        }
        Err(wrong) => report.check("golden logits", || Err(wrong)),
    }
    let family = EMBEDDING;
    report
        .check(&format!("embeddings, {family}"), || embeddings(device, &directory.join(family), Extent::All));
    report.check("golden logits of adapters", || adapters(device, directory, Extent::All));
    for (checks, families) in [(&MODEL_CHECKS[..], &FAMILIES[..]), (&INTEGER_CHECKS, &OF_INTEGERS)] {
        for (name, check) in checks {
            for family in families {
                report.check(&format!("{name}, {family}"), || check(device, &directory.join(family)));
            }
        }
    }
    report.finish()
}

fn every_seed(device: &Arc<dyn Device>, check: &Check, seeds: u64) -> Result<String, String> {
    let run = |seed| check.run(device, Effort::Thorough, seed);
    on_threads(seeds, &run, &|| report::is_lost(device.as_ref()))
}

/// Calls `run` with every seed, on as many threads as the machine has: the references take much longer than the device. Names
/// each seed that fails rather than the first alone, since which shapes fail narrows a fault down. No more seeds are started
/// if after a failure the device is lost.
fn on_threads(
    seeds: u64,
    run: &(dyn Fn(u64) -> Result<String, String> + Sync),
    is_lost: &(dyn Fn() -> bool + Sync),
) -> Result<String, String> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return outcomes;
            }
            let outcome = run(seed);
            if outcome.is_err() && is_lost() {
                next.store(seeds, Ordering::Relaxed);
            }
            outcomes.push((seed, outcome));
        }
    };
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64).min(seeds);
    let mut outcomes: Vec<(u64, Result<String, String>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a check panicked")).collect()
    });
    outcomes.sort_unstable_by_key(|(seed, _)| *seed);
    let (mut covered, mut wrong) = (String::new(), Vec::new());
    for (_, outcome) in outcomes {
        match outcome {
            Ok(done) => covered = done,
            Err(failure) => wrong.push(failure),
        }
    }
    if wrong.is_empty() { Ok(covered) } else { Err(wrong.join("\n        ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_runs_once_and_failures_are_named_in_order() {
        let started = AtomicU64::new(0);
        let run = |seed: u64| {
            started.fetch_add(1, Ordering::Relaxed);
            if seed % 7 == 3 { Err(format!("seed {seed}")) } else { Ok("all of it".to_owned()) }
        };
        let wrong = on_threads(20, &run, &|| false).unwrap_err();
        assert_eq!(wrong.split_whitespace().collect::<Vec<_>>(), ["seed", "3", "seed", "10", "seed", "17"]);
        assert_eq!(started.load(Ordering::Relaxed), 20);
        assert_eq!(on_threads(3, &run, &|| false), Ok("all of it".to_owned()));
    }

    #[test]
    fn no_seed_is_started_once_the_device_is_lost() {
        let started = AtomicU64::new(0);
        let run = |_: u64| -> Result<String, String> {
            started.fetch_add(1, Ordering::Relaxed);
            Err("lost".to_owned())
        };
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        assert!(on_threads(1_000_000, &run, &|| true).is_err());
        assert!((1..=threads).contains(&started.load(Ordering::Relaxed)));
    }
}
