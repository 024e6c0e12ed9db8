//! Every CUDA kernel on the emulated device against the reference, with several orders of threads.

use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::checks::{self, Effort};
use infer_kernels::cuda::{CudaErrorKind, Device, Driver, bench, kernels_embedded};

/// Seeds of shapes and of the order of threads.
const SEEDS: u64 = 2;

fn run(name: &str) {
    let check = checks::all().iter().find(|check| check.name == name).expect("a check of this name");
    for seed in 0..SEEDS {
        let Some(emulator) = Emulator::new(seed * 1_000_003) else {
            eprintln!("skipped: no C++ compiler");
            return;
        };
        let device: Arc<dyn Device> = Arc::new(emulator);
        if let Err(wrong) = check.run(&device, Effort::Quick, seed) {
            panic!("{name}: {wrong}");
        }
    }
}

macro_rules! checks {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(#[test] fn $test() { run($name); })*

        #[test]
        fn every_check_runs_here() {
            let here = [$($name),*];
            assert!(checks::all().iter().all(|check| here.contains(&check.name)));
        }
    };
}

checks! {
    embedding_gather: "embedding gather",
    tokens_of_the_last_draws: "tokens of the last draws",
    gated_activations: "gated activations",
    residual_and_norm: "residual and norm",
    block_copies: "block copies",
    kv_writes: "rope, head norms and KV writes",
    products: "products",
    products_row_by_row: "products row by row",
    decode_attention: "decode attention",
    decode_attention_in_fixed_parts: "decode attention in fixed parts",
    prefill_attention: "prefill attention",
    sampling: "sampling",
    sampling_of_broken_logits: "sampling of broken logits",
}

#[test]
fn opening_reports_missing_kernels_before_a_missing_gpu() {
    match Driver::open(0) {
        Ok(driver) => assert!(kernels_embedded() && !driver.properties().name.is_empty()),
        Err(error) if kernels_embedded() => assert_ne!(error.kind, CudaErrorKind::NoKernels, "{error}"),
        Err(error) => {
            assert_eq!(error.kind, CudaErrorKind::NoKernels, "{error}");
            assert!(error.message.contains("cargo xtask cuda-toolkit"), "{error}");
        }
    }
}

/// The benchmark's launches are valid too.
#[test]
fn the_benchmark_runs() {
    let Some(emulator) = Emulator::new(1) else { return };
    let device: Arc<dyn Device> = Arc::new(emulator);
    let mut lines = Vec::new();
    bench::run(&device, &bench::Extent::SMALLEST, &mut |line| lines.push(line)).expect("it runs");
    assert!(lines.len() > 20);
    let last = lines.last().expect("some");
    assert!(last.starts_with("copies at the end ") && last.contains("GB/s, at the start "), "{last}");
}
