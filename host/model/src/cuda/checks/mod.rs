//! Checks of kernels and of the whole decoder on a device: golden logits of every family, recorded decodes against launched
//! ones, scattered blocks against contiguous ones, running out of memory. `infer gpu-check` runs them all; the tests run
//! them on the emulated device.

mod golden;
mod report;
mod same;
mod walk;

use std::path::Path;
use std::sync::Arc;

use infer_kernels::cuda::Device;
use infer_kernels::cuda::checks::{Check, Effort, all};

pub use golden::{Extent, checkpoints, golden};
pub use report::Report;
pub use same::{contiguous_is_paged, graphs_are_eager, memory_runs_out, tokens_stand_alone};

/// Golden checkpoints that the checks of whole models run on, beside the golden logits of all.
const FAMILIES: [&str; 4] = ["llama-bf16", "qwen3-bf16", "gemma3-bf16", "llama-f32"];

type ModelCheck = fn(&Arc<dyn Device>, &Path) -> Result<String, String>;

const MODEL_CHECKS: [(&str, ModelCheck); 4] = [
    ("graphs draw as launches do", graphs_are_eager),
    ("paged is contiguous", contiguous_is_paged),
    ("deterministic tokens stand alone", tokens_stand_alone),
    ("memory runs out", memory_runs_out),
];

/// Runs every kernel check with `seeds` seeds, then, given the directory of golden checkpoints, whole models. A line per
/// check goes to `say`.
///
/// # Errors
/// If a check failed.
pub fn run(
    device: &Arc<dyn Device>,
    seeds: u64,
    golden_checkpoints: Option<&Path>,
    say: &mut dyn FnMut(String),
) -> Result<(), String> {
    let mut report = Report::new(device, say);
    for check in all() {
        report.check(check.name, || every_seed(device, check, seeds));
    }
    let Some(directory) = golden_checkpoints else { return report.finish() };
    match checkpoints(directory) {
        Ok(paths) => {
            for path in paths {
                let family = path.file_name().unwrap_or_default().display();
                report.check(&format!("golden logits, {family}"), || golden(device, &path, Extent::All));
            }
        }
        Err(wrong) => report.check("golden logits", || Err(wrong)),
    }
    for (name, check) in MODEL_CHECKS {
        for family in FAMILIES {
            report.check(&format!("{name}, {family}"), || check(device, &directory.join(family)));
        }
    }
    report.finish()
}

/// Names each seed that fails rather than the first alone: which shapes fail narrows a fault down.
fn every_seed(device: &Arc<dyn Device>, check: &Check, seeds: u64) -> Result<String, String> {
    let (mut covered, mut wrong) = (String::new(), Vec::new());
    for seed in 0..seeds {
        match check.run(device, Effort::Thorough, seed) {
            Ok(done) => covered = done,
            Err(failure) => {
                wrong.push(failure);
                if report::is_lost(device.as_ref()) {
                    break;
                }
            }
        }
    }
    if wrong.is_empty() { Ok(covered) } else { Err(wrong.join("\n        ")) }
}
