//! What `infer gpu-check --seeds 1` runs on a GPU, on the emulator, so that a check that can't pass is found before
//! there is a GPU. Given a file of PTX, it interprets that. No test, because it takes minutes; tests run parts of it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use infer_cuda_emulator::{Emulator, Module};
use infer_kernels::cuda::Device;
use infer_model::cuda::checks;

fn device() -> Result<Emulator, String> {
    let Some(file) = std::env::args().nth(1) else {
        return Emulator::new(7).ok_or_else(|| "no C++ compiler to build the kernels with".to_owned());
    };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let module = Module::parse(&text).map_err(|error| format!("{file}: {error}"))?;
    Ok(Emulator::with_ptx(7, Arc::new(module)))
}

fn main() -> ExitCode {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden");
    let run = device().and_then(|device| {
        let device: Arc<dyn Device> = Arc::new(device);
        checks::run(&device, 1, Some(&golden), &mut |line| println!("{line}"))
    });
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}
