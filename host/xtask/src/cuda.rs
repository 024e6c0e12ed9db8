//! CUDA: installs a toolkit from PyPI if there is none, compiles the kernels, interprets the PTX between, and runs the checks
//! that need a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::absent::starts;
use crate::cargo::{Built, build, cargo, root, run, run_within, target_dir};

/// Packages that nvcc needs to compile kernels; code built with 13.0 runs on every driver of CUDA 13.
const PACKAGES: [&str; 6] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-nvrtc==13.0.88",
];

/// Time limit of the installation, a download of 100 MB.
const INSTALLING: Duration = Duration::from_secs(300);

/// A file in the environment that is written when all packages are there.
const COMPLETE: &str = "packages-complete";

/// Finds or installs a toolkit, and prints its path.
pub fn toolkit() -> Result<(), String> {
    let home = ensure()?;
    println!("{}", home.display());
    eprintln!(
        "To build with it:  CUDA_HOME={} cargo build --release --features cuda --bin infer",
        home.display()
    );
    Ok(())
}

/// The PTX that every image is made from, by the name that nvcc gives it: without and with early launches.
const PTX: [&str; 2] = ["all.compute_80.ptx", "all.compute_90a.ptx"];

/// Compiles the kernels for every architecture, and runs their checks on the PTX, whose programs were built with the tests.
/// Without a toolkit, returns what is skipped and why.
pub fn compile(tests: &Built) -> Result<Option<&'static str>, String> {
    // nvcc compiles the host part of a source with it.
    if std::env::var_os("NVCC_CCBIN").is_none() && !starts("g++", "--version") {
        return Ok(Some("whether nvcc compiles the kernels, and checks of their PTX: no g++"));
    }
    let home = match ensure() {
        Ok(home) => home,
        Err(why) => {
            eprintln!("{why}");
            return Ok(Some("whether nvcc compiles the kernels, and checks of their PTX: no CUDA toolkit"));
        }
    };
    let tools = target_dir()?.join("tools");
    let between = tools.join("ptx");
    std::fs::create_dir_all(&between).map_err(|e| format!("{}: {e}", between.display()))?;
    let mut nvcc = Command::new(home.join("bin/nvcc"));
    nvcc.current_dir(root().join("kernels"))
        .args(["-optf", "cuda/nvcc.options", "cuda/all.cu", "--keep", "--keep-dir"])
        .arg(&between)
        .arg("-o")
        .arg(tools.join("kernels.fatbin"));
    run(&mut nvcc)?;
    run(Command::new(tests.executable("ptx_check")?)
        .args(PTX.map(|file| between.join(file)))
        .args(["--seeds", "2"]))?;
    // Only here do kernels follow kernels, so that those which start early could read too much.
    run(Command::new(tests.executable("ptx_models")?).arg(between.join(PTX[1])).arg("golden logits"))?;
    Ok(None)
}

/// Builds `infer` with kernels and runs every check that needs a GPU.
pub fn gpu_check() -> Result<(), String> {
    let infer = build_infer(&ensure()?)?;
    let golden = root().join("tests").join("golden");
    let out = target_dir()?.join("gpu-check");
    run(Command::new("sh").arg(root().join("kernels/cuda/gpu-check.sh")).arg(infer).arg(golden).arg(out))
}

/// Builds `infer` with kernels, and returns its path.
pub fn build_infer(home: &Path) -> Result<PathBuf, String> {
    crate::cargo::ensure_wasm_targets()?;
    let with_kernels = ["build", "--release", "--features", "cuda", "--bin", "infer"];
    build(cargo(&with_kernels).env("CUDA_HOME", home), "infer")
}

/// Compiles the kernels in `sources` for one architecture, the one that figures are measured on.
pub fn image(home: &Path, sources: &Path, flags: &[&str], to: &Path) -> Result<(), String> {
    let mut nvcc = Command::new(home.join("bin/nvcc"));
    nvcc.args(["-std=c++17", "-O3", "-fatbin", "-gencode=arch=compute_90a,code=sm_90a"]).args(flags);
    run(nvcc.arg(sources.join("all.cu")).arg("-o").arg(to))
}

/// The toolkit in `CUDA_HOME`, `CUDA_PATH`, the default location, or else in the target directory, where it is
/// installed if needed.
pub fn ensure() -> Result<PathBuf, String> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    // The build script refuses relative paths.
    let named = named.map(PathBuf::from).filter(|home| home.is_absolute());
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
            "{error}\nThere is no CUDA toolkit, and installing one from PyPI failed. Install one and set CUDA_HOME."
        )
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment)).map_err(failed)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"];
    let mut install = Command::new(environment.join("bin/python"));
    run_within(install.args(pip).args(PACKAGES), INSTALLING).map_err(failed)?;
    let complete = environment.join(COMPLETE);
    std::fs::write(&complete, "").map_err(|e| failed(format!("{}: {e}", complete.display())))?;
    installed(&environment).ok_or_else(|| failed(format!("{} has no nvcc", environment.display())))
}

/// The toolkit in a Python environment. An installation that was killed may have nvcc and lack other packages; pip then
/// installs what is missing.
fn installed(environment: &Path) -> Option<PathBuf> {
    if !environment.join(COMPLETE).exists() {
        return None;
    }
    let libraries = std::fs::read_dir(environment.join("lib")).ok()?;
    let homes =
        libraries.filter_map(Result::ok).map(|python| python.path().join("site-packages/nvidia/cu13"));
    homes.into_iter().find(|home| home.join("bin/nvcc").exists())
}

#[cfg(test)]
mod tests {
    use super::{COMPLETE, installed};

    #[test]
    fn toolkit_counts_once_all_its_packages_are_installed() {
        let environment = std::env::temp_dir().join(format!("xtask-cuda-{}", std::process::id()));
        let home = environment.join("lib/python3.12/site-packages/nvidia/cu13");
        std::fs::create_dir_all(home.join("bin")).unwrap();
        std::fs::write(environment.join(COMPLETE), "").unwrap();
        let without_nvcc = installed(&environment);
        std::fs::write(home.join("bin/nvcc"), "").unwrap();
        let whole = installed(&environment);
        std::fs::remove_file(environment.join(COMPLETE)).unwrap();
        let killed = installed(&environment);
        std::fs::remove_dir_all(&environment).unwrap();
        assert_eq!((without_nvcc, whole, killed), (None, Some(home), None));
    }
}
