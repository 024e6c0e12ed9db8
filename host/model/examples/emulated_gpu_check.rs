//! What `infer gpu-check --seeds 1` runs on a GPU, on the emulator, so that a check that can't pass is found before
//! there is a GPU. No test, because it takes minutes; tests run parts of it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use infer_cuda_emulator::Emulator;
use infer_kernels::cuda::Device;
use infer_model::cuda::checks;

fn main() -> ExitCode {
    let Some(device) = Emulator::new(7) else {
        eprintln!("no C++ compiler to build the kernels with");
        return ExitCode::FAILURE;
    };
    let device: Arc<dyn Device> = Arc::new(device);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    match checks::run(&device, 1, Some(&golden), &mut |line| println!("{line}")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
