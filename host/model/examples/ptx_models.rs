//! Whole models on PTX that nvcc made of the kernels, interpreted: golden logits of every family, and the checks of
//! `infer gpu-check` for models. `ptx_check` of the kernels' crate checks each kernel by itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use infer_cuda_emulator::{Emulator, Module};
use infer_kernels::cuda::Device;
use infer_model::cuda::checks::{
    Extent, adapted_graphs_are_eager, adapted_tokens_stand_alone, adapters, checkpoints, contiguous_is_paged,
    golden, graphs_are_eager, integers, tokens_stand_alone,
};

type Check = fn(&Arc<dyn Device>, &Path) -> Result<String, String>;

const CHECKS: [(&str, Check); 4] = [
    ("weights as integers", integers),
    ("graphs draw as launches do", graphs_are_eager),
    ("paged is contiguous", contiguous_is_paged),
    ("deterministic tokens stand alone", tokens_stand_alone),
];
/// Those of adapters, on one checkpoint.
const ADAPTED: [(&str, Check); 2] = [
    ("graphs with adapters draw as launches do", adapted_graphs_are_eager),
    ("deterministic tokens with adapters stand alone", adapted_tokens_stand_alone),
];
/// Golden checkpoints for the others, the smallest of each kind.
const FAMILIES: [&str; 5] = ["llama-bf16", "gemma3-bf16", "qwen3moe-bf16", "gptoss-bf16", "llama-f32"];

fn logits(device: &Arc<dyn Device>, checkpoint: &Path) -> Result<String, String> {
    golden(device, checkpoint, Extent::UpTo(12))
}

fn logits_of_adapters(device: &Arc<dyn Device>, directory: &Path) -> Result<String, String> {
    adapters(device, directory, Extent::UpTo(17))
}

fn check() -> Result<bool, String> {
    let mut words = std::env::args().skip(1);
    let file = words.next().ok_or("usage: ptx_models FILE.ptx [PART OF A CHECK'S NAME]")?;
    let only = words.next().unwrap_or_default();
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let module = Arc::new(Module::parse(&text).map_err(|error| format!("{file}: {error}"))?);
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let mut jobs: Vec<(&str, Check, PathBuf)> = Vec::new();
    jobs.extend(checkpoints(&directory)?.into_iter().map(|path| ("golden logits", logits as Check, path)));
    jobs.push(("golden logits of adapters", logits_of_adapters, directory.clone()));
    jobs.extend(ADAPTED.map(|(name, check)| (name, check, directory.join(FAMILIES[0]))));
    for family in FAMILIES {
        jobs.extend(CHECKS.map(|(name, check)| (name, check, directory.join(family))));
    }
    jobs.retain(|(name, ..)| name.contains(&only));
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((name, check, path)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let device: Arc<dyn Device> = Arc::new(Emulator::with_ptx(7, Arc::clone(&module)));
            let result = check(&device, path);
            let (family, took) =
                (path.file_name().unwrap_or_default().display(), begun.elapsed().as_secs_f64());
            match result {
                Ok(covered) => println!("{name}, {family} {took:.1} s  {covered}"),
                Err(wrong) => {
                    println!("{name}, {family} {took:.1} s  FAILED: {wrong}");
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (failed, took) = (failed.into_inner(), begun.elapsed().as_secs_f64());
    println!("sm_{}: {failed} of {} checks failed, {took:.0} s", module.target(), jobs.len());
    Ok(failed == 0)
}

fn main() -> ExitCode {
    match check() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
