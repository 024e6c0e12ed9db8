//! The GPU: a CUDA toolkit from PyPI where there is none, and the checks that want a device.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::absent::starts;
use crate::cargo::{build, cargo, root, run, run_within, target_dir};

/// What nvcc needs to compile kernels; 13.0 runs on every driver of CUDA 13.
const PACKAGES: [&str; 6] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvrtc==13.0.88",
];

/// For a download of 100 MB.
const INSTALLING: Duration = Duration::from_secs(300);

/// Finds a toolkit or installs one, and says how builds find it.
pub fn toolkit() -> Result<(), String> {
    let home = ensure()?;
    println!("{}", home.display());
    eprintln!(
        "Build with it:  CUDA_HOME={} cargo build --release --features cuda --bin infer",
        home.display()
    );
    Ok(())
}

/// Compiles the kernels for every architecture, where a toolkit is there or can be had; else what is left out.
pub fn compile() -> Result<Option<&'static str>, String> {
    // nvcc leaves the host's side of a source to it.
    if std::env::var_os("NVCC_CCBIN").is_none() && !starts("g++", "--version") {
        return Ok(Some("whether nvcc compiles the kernels: no g++"));
    }
    let home = match ensure() {
        Ok(home) => home,
        Err(why) => {
            eprintln!("{why}");
            return Ok(Some("whether nvcc compiles the kernels: no CUDA toolkit"));
        }
    };
    let tools = target_dir()?.join("tools");
    std::fs::create_dir_all(&tools).map_err(|e| format!("{}: {e}", tools.display()))?;
    let mut nvcc = Command::new(home.join("bin/nvcc"));
    nvcc.current_dir(root().join("kernels"))
        .args(["-optf", "cuda/nvcc.options", "cuda/all.cu", "-o"])
        .arg(tools.join("kernels.fatbin"));
    run(&mut nvcc).map(|()| None)
}

/// Builds `infer` with kernels and runs every check that wants a GPU.
pub fn gpu_check() -> Result<(), String> {
    let home = ensure()?;
    crate::cargo::ensure_wasm_targets()?;
    let with_kernels = ["build", "--release", "--features", "cuda", "--bin", "infer"];
    let infer = build(cargo(&with_kernels).env("CUDA_HOME", &home), "infer")?;
    let golden = root().join("tests").join("golden");
    let out = target_dir()?.join("gpu-check");
    run(Command::new("sh").arg(root().join("kernels/cuda/gpu-check.sh")).arg(infer).arg(golden).arg(out))
}

/// `CUDA_HOME`, `CUDA_PATH`, the usual place, or a folder of ours.
fn ensure() -> Result<PathBuf, String> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let usual = named.chain([PathBuf::from("/usr/local/cuda")]).find(|home| home.join("bin/nvcc").exists());
    if let Some(home) = usual {
        return Ok(home);
    }
    let environment = target_dir()?.join("tools").join("cuda");
    if let Some(home) = installed(&environment) {
        return Ok(home);
    }
    eprintln!("No CUDA toolkit found; installing nvcc from PyPI into {}.", environment.display());
    let failed = |error: String| {
        format!(
            "{error}\nThere is no CUDA toolkit, and none can be had from PyPI. Install one and name it in CUDA_HOME."
        )
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment)).map_err(failed)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"];
    let mut install = Command::new(environment.join("bin/python"));
    run_within(install.args(pip).args(PACKAGES), INSTALLING).map_err(failed)?;
    installed(&environment).ok_or_else(|| failed(format!("{} holds no nvcc", environment.display())))
}

/// The toolkit in a Python environment.
fn installed(environment: &std::path::Path) -> Option<PathBuf> {
    let libraries = std::fs::read_dir(environment.join("lib")).ok()?;
    let homes =
        libraries.filter_map(Result::ok).map(|python| python.path().join("site-packages/nvidia/cu13"));
    homes.into_iter().find(|home| home.join("bin/nvcc").exists())
}
