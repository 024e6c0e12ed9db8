//! What `infer gpu-check --seeds 1` runs on a GPU, on the emulator, so that a check that can't pass is found before
//! there is a GPU. No test, because it takes minutes; tests run parts of it. Words as arguments leave only checks whose names
//! have one of them.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::Device;
use infer_model::cuda::checks::{self, Scope};

fn main() -> ExitCode {
    let Some(device) = Emulator::new(7) else {
        eprintln!("no C++ compiler to build the kernels with");
        return ExitCode::FAILURE;
    };
    let device: Arc<dyn Device> = Arc::new(device);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let scope = Scope { seeds: 1, golden: Some(&golden), only: &words };
    match checks::run(&device, scope, &mut |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
